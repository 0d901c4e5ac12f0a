/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/optimizers_alike.h"
#include "common/base/buf.h"
#include "runtime/engine/params/consistency.h"

#include <stddef.h>
#include <stdlib.h>

enum type { NUMBER, INT, LONG };

#define FIELD(type, member)                                                                        \
    {                                                                                              \
#member, type, offsetof(struct plume_optimizer, member)                                    \
    }

static const struct field {
    const char *name;
    enum type type;
    size_t offset;
} fields[] = {
    FIELD(INT, kind),
    FIELD(NUMBER, lr),
    FIELD(NUMBER, momentum),
    FIELD(NUMBER, weight_decay),
    FIELD(INT, nesterov),
    FIELD(NUMBER, beta1),
    FIELD(NUMBER, beta2),
    FIELD(NUMBER, eps),
    FIELD(NUMBER, alpha),
    FIELD(INT, centered),
    FIELD(NUMBER, lr_decay),
    FIELD(INT, schedule.kind),
    FIELD(INT, schedule.per_step),
    FIELD(LONG, schedule.warmup),
    FIELD(NUMBER, schedule.warmup_from),
    FIELD(NUMBER, schedule.gamma),
    FIELD(LONG, schedule.step_size),
    FIELD(LONG, schedule.t_max),
    FIELD(NUMBER, schedule.eta_min),
    FIELD(INT, schedule.maximize),
    FIELD(NUMBER, schedule.factor),
    FIELD(INT, schedule.patience),
    FIELD(NUMBER, schedule.threshold),
    FIELD(INT, schedule.threshold_absolute),
    FIELD(INT, schedule.cooldown),
    FIELD(NUMBER, schedule.min_lr),
    FIELD(NUMBER, schedule_more.power),
    FIELD(LONG, schedule_more.t_mult),
    FIELD(NUMBER, schedule_more.pct_start),
    FIELD(NUMBER, schedule_more.div_factor),
    FIELD(NUMBER, schedule_more.final_div_factor),
    FIELD(INT, schedule_more.linear),
    FIELD(INT, schedule_more.three_phase),
    FIELD(INT, schedule_more.cycle_momentum),
    FIELD(NUMBER, schedule_more.base_momentum),
    FIELD(NUMBER, schedule_more.max_momentum),
};

/* As short as it can be without loss. */
static void number_text(double x, char ret[32])
{
    snprintf(ret, 32, "%.15g", x);
    if (strtod(ret, NULL) != x)
        snprintf(ret, 32, "%.17g", x);
}

static int
add_field(struct pl_buf *buf, size_t index, const struct plume_optimizer *o, const struct field *f)
{
    const char *at = (const char *)o + f->offset;
    char text[32];

    switch (f->type) {
    case NUMBER:
        number_text(*(const double *)(const void *)at, text);
        break;
    case INT:
        snprintf(text, sizeof(text), "%d", *(const int *)(const void *)at);
        break;
    case LONG:
        snprintf(text, sizeof(text), "%lld", *(const long long *)(const void *)at);
        break;
    }
    return pl_buf_addf(buf, "%s %s in optimizer %zu\n", f->name, text, index);
}

static int add_group(struct pl_buf *buf, const struct pl_group_options *group)
{
    char lr[32], decay[32];

    number_text(group->numbers.lr, lr);
    number_text(group->numbers.weight_decay, decay);
    return pl_buf_addf(buf, "group '%s' with lr %s and weight_decay %s in optimizer %zu\n",
                       group->pattern, lr, decay, group->optimizer);
}

/* The parameters that it names, and the rest of its schedule. */
static int add_names(struct pl_buf *buf,
                     size_t index,
                     const struct plume_optimizer *o,
                     const struct pl_params *params)
{
    int r =
        pl_buf_addf(buf, "prefixes '%s' in optimizer %zu\n", o->prefixes ? o->prefixes : "", index);

    for (size_t k = 0; k < o->n_params && r == 0; k++)
        for (size_t i = 0; i < params->n && r == 0; i++)
            if (params->list[i]->tensor == o->params[k])
                r = pl_buf_addf(buf, "parameter '%s' in optimizer %zu\n", params->list[i]->name,
                                index);
    for (size_t i = 0; i < PLUME_MILESTONES_MAX && o->schedule.milestone[i] && r == 0; i++)
        r = pl_buf_addf(buf, "milestone %lld in optimizer %zu\n", o->schedule.milestone[i], index);
    return r < 0 ? r
                 : pl_buf_addf(buf, "schedule.monitor '%s' in optimizer %zu\n",
                               o->schedule.monitor ? o->schedule.monitor : "", index);
}

int pl_optimizers_alike(const struct pl_params *params,
                        const struct plume_optimizer *options,
                        size_t n,
                        const struct pl_group_options *groups,
                        size_t n_groups,
                        struct pl_comm *comm,
                        struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf mine = {0};
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        for (size_t k = 0; k < PL_COUNT(fields) && r == 0; k++)
            r = add_field(&mine, i, &options[i], &fields[k]);
        if (r == 0)
            r = add_names(&mine, i, &options[i], params);
    }
    for (size_t i = 0; i < n_groups && r == 0; i++)
        r = add_group(&mine, &groups[i]);
    if (r < 0)
        return pl_error_nomem(err);
    return pl_agree_on_lines(pl_buf_str(&mine), "has", "configure_optimizers must give", comm, err);
}

int pl_clip_alike(const struct pl_clip_rule *clip, struct pl_comm *comm, struct pl_error *err)
{
    char limit[32], text[96];

    number_text(clip->limit, limit);
    snprintf(text, sizeof(text), "--clip %s --clip-by %s\n", limit,
             clip->by == PL_CLIP_NORM ? "norm" : "value");
    return pl_agree_on_lines(text, "has", "options must be", comm, err);
}
