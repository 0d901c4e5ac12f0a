/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/optim/grad_norm.h"
#include "runtime/engine/optim/node_update.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

static const char *const kinds[] = {[PLUME_SGD] = "sgd",
                                    [PLUME_ADAM] = "adam",
                                    [PLUME_ADAMW] = "adamw",
                                    [PLUME_RMSPROP] = "rmsprop",
                                    [PLUME_ADAGRAD] = "adagrad"};

int pl_optimizer_kind_parse(const char *name, enum plume_optimizer_kind *ret, struct pl_error *err)
{
    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        if (strcmp(name, kinds[i]) == 0) {
            *ret = (enum plume_optimizer_kind)i;
            return 0;
        }
    }
    return pl_error_set(err, -EINVAL,
                        "no optimizer '%s': there are sgd, adam, adamw, rmsprop and adagrad", name);
}

const char *pl_optimizer_kind_name(enum plume_optimizer_kind kind)
{
    return kinds[kind];
}

void pl_optimizer_defaults(const struct pl_hparams *hparams,
                           enum plume_optimizer_kind kind,
                           struct plume_optimizer *ret)
{
    *ret = (struct plume_optimizer){
        .struct_size = sizeof(*ret),
        .lr = pl_hparams_value(hparams, "lr"),
        .momentum = pl_hparams_value(hparams, "momentum"),
        .weight_decay = pl_hparams_value(hparams, "weight_decay"),
        .kind = kind,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = kind == PLUME_ADAGRAD ? 1e-10 : 1e-8,
        .alpha = 0.99,
    };
}

static bool is_adam(const struct plume_optimizer *o)
{
    return o->kind == PLUME_ADAM || o->kind == PLUME_ADAMW;
}

/* The schedule may set a momentum where the optimizer has none. */
static bool has_momentum(const struct plume_optimizer *o)
{
    return o->momentum != 0 ||
           (o->schedule.kind == PLUME_ONE_CYCLE && o->schedule_more.cycle_momentum);
}

/* The names of an optimizer's slots. */
static size_t slots_of(const struct plume_optimizer *o, const char *ret[PL_OPTIMIZER_SLOTS])
{
    size_t n = 0;

    switch (o->kind) {
    case PLUME_ADAM:
    case PLUME_ADAMW:
        ret[n++] = "exp_avg";
        ret[n++] = "exp_avg_sq";
        break;
    case PLUME_RMSPROP:
        ret[n++] = "square_avg";
        if (o->centered)
            ret[n++] = "grad_avg";
        if (has_momentum(o))
            ret[n++] = "momentum_buffer";
        break;
    case PLUME_ADAGRAD:
        ret[n++] = "sum";
        break;
    case PLUME_SGD:
        if (has_momentum(o))
            ret[n++] = "momentum_buffer";
        break;
    }
    return n;
}

size_t pl_optimizer_slots(const struct pl_optimizer *optimizer)
{
    const char *names[PL_OPTIMIZER_SLOTS];

    return slots_of(&optimizer->options, names);
}

const char *pl_optimizer_slot_name(const struct pl_optimizer *optimizer, size_t slot)
{
    const char *names[PL_OPTIMIZER_SLOTS];

    return slot < slots_of(&optimizer->options, names) ? names[slot] : NULL;
}

static int check(const struct plume_optimizer *o, struct pl_error *err)
{
    const char *wrong = NULL;

    if (o->kind < PLUME_SGD || o->kind > PLUME_ADAGRAD)
        return pl_error_set(err, -EINVAL, "the optimizer's kind %d is unknown: see plume/module.h",
                            (int)o->kind);
    if (!(o->weight_decay >= 0))
        wrong = "weight_decay must not be negative";
    else if (!(o->momentum >= 0))
        wrong = "momentum must not be negative";
    else if (o->nesterov && (o->kind != PLUME_SGD || !has_momentum(o)))
        wrong = "nesterov needs sgd with momentum";
    else if (is_adam(o) && !(o->beta1 >= 0 && o->beta1 < 1))
        wrong = "beta1 must be in [0, 1)";
    else if (is_adam(o) && !(o->beta2 >= 0 && o->beta2 < 1))
        wrong = "beta2 must be in [0, 1)";
    else if (o->kind != PLUME_SGD && !(o->eps >= 0))
        wrong = "eps must not be negative";
    else if (o->kind == PLUME_RMSPROP && !(o->alpha >= 0))
        wrong = "alpha must not be negative";
    else if (o->kind == PLUME_ADAGRAD && !(o->lr_decay >= 0))
        wrong = "lr_decay must not be negative";
    else if (o->kind == PLUME_ADAGRAD && o->schedule.kind == PLUME_ONE_CYCLE &&
             o->schedule_more.cycle_momentum)
        wrong = "schedule cycles a momentum, which adagrad does not have";
    return wrong ? pl_error_set(err, -EINVAL, "the optimizer's %s", wrong) : 0;
}

/* Next prefix at *text, of length *ret_len; NULL at the end. */
static const char *next_prefix(const char **text, size_t *ret_len)
{
    const char *p = *text ? *text + strspn(*text, " ,") : "";

    *ret_len = strcspn(p, " ,");
    *text = p + *ret_len;
    return *ret_len ? p : NULL;
}

static bool names_any(const struct plume_optimizer *o)
{
    return o->prefixes || o->n_params;
}

static bool names(const struct plume_optimizer *o, const struct pl_param *p)
{
    const char *text = o->prefixes, *prefix;
    size_t len;

    for (size_t i = 0; i < o->n_params && o->params; i++)
        if (o->params[i] == p->tensor)
            return true;
    while ((prefix = next_prefix(&text, &len)))
        if (strncmp(p->name, prefix, len) == 0)
            return true;
    return false;
}

/* True if one of the patterns (as prefixes: separated by blanks and commas) matches the name. */
static bool matches(const char *patterns, const char *name)
{
    const char *text = patterns, *one;
    char copy[PL_PARAM_NAME_MAX + 1];
    size_t len;

    while ((one = next_prefix(&text, &len))) {
        if (len >= sizeof(copy))
            continue;
        memcpy(copy, one, len);
        copy[len] = '\0';
        if (fnmatch(copy, name, 0) == 0)
            return true;
    }
    return false;
}

/* The group of an optimizer that has p, from 1; 0 if none has, -EEXIST if two have. */
static int find_group(const struct pl_group_options *groups,
                      size_t n,
                      size_t optimizer,
                      const struct pl_param *p,
                      struct pl_error *err)
{
    int found = 0, index = 0;

    for (size_t i = 0; i < n; i++) {
        if (groups[i].optimizer != optimizer)
            continue;
        index++;
        if (!matches(groups[i].pattern, p->name))
            continue;
        if (found)
            return pl_error_set(err, -EEXIST, "parameter '%s' is in two groups of its optimizer",
                                p->name);
        found = index;
    }
    return found;
}

/* A prefix or tensor without a parameter is a mistake in the module. */
static int
check_names(const struct pl_params *params, const struct plume_optimizer *o, struct pl_error *err)
{
    const char *text = o->prefixes, *prefix;
    bool found;
    size_t len;

    while ((prefix = next_prefix(&text, &len))) {
        found = false;
        for (size_t i = 0; i < params->n && !found; i++)
            found = strncmp(params->list[i]->name, prefix, len) == 0;
        if (!found)
            return pl_error_set(err, -ENOENT, "no parameter's name begins with '%.*s'", (int)len,
                                prefix);
    }
    if (o->n_params && !o->params)
        return pl_error_set(err, -EINVAL, "the optimizer's list of %zu parameters is NULL",
                            o->n_params);
    for (size_t k = 0; k < o->n_params; k++) {
        found = false;
        for (size_t i = 0; i < params->n && !found; i++)
            found = params->list[i]->tensor == o->params[k];
        if (!found)
            return pl_error_set(err, -ENOENT,
                                "tensor %zu of the optimizer's list is not a parameter", k);
    }
    return 0;
}

/* Index of the optimizer that has p; n if none has, -EEXIST if two have. */
static int find_owner(const struct plume_optimizer *options,
                      size_t n,
                      const struct pl_param *p,
                      struct pl_error *err)
{
    size_t owner = n, rest = n;

    for (size_t i = 0; i < n; i++) {
        if (!names_any(&options[i])) {
            rest = i;
        } else if (names(&options[i], p)) {
            if (owner < n)
                return pl_error_set(err, -EEXIST, "parameter '%s' has two optimizers", p->name);
            owner = i;
        }
    }
    return (int)(owner < n ? owner : rest);
}

/* Adds a parameter to the ranges; parameters come in the order of the layout. */
static int add_param(struct pl_optimizer *o,
                     const struct pl_params *params,
                     size_t index,
                     size_t group,
                     struct pl_error *err)
{
    const struct pl_param *p = params->order[index];
    size_t align = PL_PARAM_ALIGN / pl_real_size(params->real);
    size_t count = (p->tensor->count + align - 1) / align * align; /* zeros up to the next */
    struct pl_optimizer_range *last = o->n_ranges ? &o->ranges[o->n_ranges - 1] : NULL, *ranges;

    if (last && last->group == group && last->offset + last->count == p->offset) {
        last->count += count;
        last->n++;
    } else {
        ranges = reallocarray(o->ranges, o->n_ranges + 1, sizeof(*ranges));
        if (!ranges)
            return pl_error_set(err, -ENOMEM, "out of memory");
        o->ranges = ranges;
        ranges[o->n_ranges++] = (struct pl_optimizer_range){
            .offset = p->offset,
            .count = count,
            .first = index,
            .n = 1,
            .group = group,
        };
    }
    return 0;
}

int pl_optimizer_make_state(struct pl_optimizer *o,
                            const struct pl_params *params,
                            struct pl_error *err)
{
    size_t bytes;
    int r = 0;

    o->count = 0;
    for (size_t i = 0; i < o->n_ranges; i++) {
        struct pl_optimizer_range *range = &o->ranges[i];
        size_t from = PL_MAX(range->offset, params->own_from),
               to = PL_MIN(range->offset + range->count, params->own_to);

        range->own = from;
        range->own_count = to > from ? to - from : 0;
        range->state = o->count;
        o->count += range->own_count;
    }
    if (params->evaluates)
        return 0;
    if (params->by_node)
        return pl_node_update_alloc(o, pl_optimizer_slots(o), params, err);
    bytes = PL_MAX(o->count * pl_real_size(params->real), (size_t)64);
    for (size_t i = 0; i < pl_optimizer_slots(o) && r == 0; i++)
        r = pl_device_alloc_zero(params->dev, bytes, "optimizers' state", &o->slot[i], err);
    return r;
}

static int
init_one(struct pl_optimizers *all, const struct plume_optimizer *options, struct pl_error *err)
{
    struct pl_optimizer *o = &all->list[all->n++];
    int r = check(options, err);

    *o = (struct pl_optimizer){.options = *options};
    if (r == 0)
        r = check_names(all->params, options, err);
    if (r == 0)
        r = pl_schedule_init(&o->schedule, &options->schedule, &options->schedule_more, options->lr,
                             err);
    if (r < 0)
        return r;
    if (strlen(o->schedule.options.monitor) >= sizeof(o->monitor))
        return pl_error_set(err, -EINVAL, "'%s' is too long to be a logged value's name",
                            o->schedule.options.monitor);
    memcpy(o->monitor, o->schedule.options.monitor, strlen(o->schedule.options.monitor) + 1);
    o->schedule.options.monitor = NULL; /* the struct may be moved: use o->monitor */
    return 0;
}

/* Adds a group to its optimizer. */
static int
init_group(struct pl_optimizers *all, const struct pl_group_options *group, struct pl_error *err)
{
    struct pl_optimizer *o = &all->list[group->optimizer];
    struct pl_group *g = &o->groups[o->n_groups];
    int r;

    if (o->n_groups == PL_GROUPS_MAX)
        return pl_error_set(err, -EINVAL, "an optimizer has at most %d groups", PL_GROUPS_MAX);
    if (!(group->numbers.weight_decay >= 0))
        return pl_error_set(err, -EINVAL, "group '%s': weight_decay must not be negative",
                            group->pattern);
    r = pl_schedule_init(&g->schedule, &o->options.schedule, &o->options.schedule_more,
                         group->numbers.lr, err);
    if (r < 0)
        return pl_error_wrap(err, r, "group '%s'", group->pattern);
    g->schedule.options.monitor = NULL; /* the optimizer's */
    g->pattern = group->pattern;
    g->weight_decay = group->numbers.weight_decay;
    o->n_groups++;
    return 0;
}

/* A group that stays without parameters is a mistake in the module. */
static int check_groups(const struct pl_optimizers *all,
                        const struct pl_group_options *groups,
                        size_t n,
                        struct pl_error *err)
{
    size_t index[PL_OPTIMIZERS_MAX] = {0};

    for (size_t i = 0; i < n; i++) {
        const struct pl_optimizer *o = &all->list[groups[i].optimizer];
        size_t group = ++index[groups[i].optimizer];
        bool found = false;

        for (size_t k = 0; k < o->n_ranges; k++)
            found = found || o->ranges[k].group == group;
        if (!found)
            return pl_error_set(err, -ENOENT,
                                "group '%s' matches no parameter of its optimizer: a pattern is "
                                "for the whole name, as in '*.bias'",
                                groups[i].pattern);
    }
    return 0;
}

static int share_out(struct pl_optimizers *all,
                     const struct plume_optimizer *options,
                     const struct pl_group_options *groups,
                     size_t n_groups,
                     struct pl_error *err)
{
    const struct pl_params *params = all->params;

    for (size_t i = 0; i < params->n; i++) {
        int r = find_owner(options, all->n, params->order[i], err), group;

        if (r < 0)
            return r;
        if ((size_t)r == all->n)
            continue;
        group = find_group(groups, n_groups, (size_t)r, params->order[i], err);
        if (group < 0)
            return group;
        r = add_param(&all->list[r], params, i, (size_t)group, err);
        if (r < 0)
            return r;
    }
    return check_groups(all, groups, n_groups, err);
}

int pl_optimizers_init_groups(struct pl_optimizers *optimizers,
                              const struct pl_params *params,
                              const struct plume_optimizer *options,
                              size_t n,
                              const struct pl_group_options *groups,
                              size_t n_groups,
                              struct pl_error *err)
{
    struct pl_optimizers all = {.params = params};
    size_t rest = 0;
    int r = 0;

    if (n < 1 || n > PL_OPTIMIZERS_MAX)
        return pl_error_set(err, -EINVAL, "a module has 1 to %d optimizers, not %zu",
                            PL_OPTIMIZERS_MAX, n);
    for (size_t i = 0; i < n; i++)
        rest += !names_any(&options[i]);
    if (rest > 1)
        return pl_error_set(err, -EINVAL,
                            "two optimizers name no parameters: only one can have the rest");
    for (size_t i = 0; i < n && r == 0; i++) {
        r = init_one(&all, &options[i], err);
        if (r < 0 && n > 1)
            r = pl_error_wrap(err, r, "optimizer %zu", i);
    }
    for (size_t i = 0; i < n_groups && r == 0; i++)
        r = init_group(&all, &groups[i], err);
    if (r == 0)
        r = share_out(&all, options, groups, n_groups, err);
    if (r == 0 && params->by_node) {
        all.mirrors = calloc(pl_comm_node(params->by_node)->size, sizeof(*all.mirrors));
        r = all.mirrors ? 0 : pl_error_nomem(err);
    }
    for (size_t i = 0; i < n && r == 0; i++)
        r = pl_optimizer_make_state(&all.list[i], params, err);
    if (r == 0)
        r = pl_grad_norm_init(&all, err);
    if (r < 0) {
        pl_optimizers_finish(&all);
        return r;
    }
    *optimizers = all;
    return 0;
}

int pl_optimizers_init(struct pl_optimizers *optimizers,
                       const struct pl_params *params,
                       const struct plume_optimizer *options,
                       size_t n,
                       struct pl_error *err)
{
    return pl_optimizers_init_groups(optimizers, params, options, n, NULL, 0, err);
}

int pl_optimizers_share(struct pl_optimizers *optimizers,
                        struct pl_comm *comm,
                        bool by_blocks,
                        struct pl_error *err)
{
    optimizers->comm = comm;
    optimizers->by_blocks = by_blocks;
    pl_grad_norm_finish(optimizers);
    return pl_grad_norm_init(optimizers, err);
}

void pl_optimizers_finish(struct pl_optimizers *optimizers)
{
    for (size_t i = 0; i < optimizers->n; i++) {
        struct pl_optimizer *o = &optimizers->list[i];

        pl_node_update_finish(o);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS && !optimizers->params->by_node; k++)
            pl_device_free(optimizers->params->dev, o->slot[k]);
        free(o->ranges);
    }
    pl_grad_norm_finish(optimizers);
    free(optimizers->mirrors);
    *optimizers = (struct pl_optimizers){0};
}

int pl_optimizers_schedule(struct pl_optimizers *optimizers,
                           bool per_step,
                           bool (*value)(void *ctx, const char *name, double *ret),
                           void *ctx,
                           struct pl_error *err)
{
    for (size_t i = 0; i < optimizers->n; i++) {
        struct pl_optimizer *o = &optimizers->list[i];
        double monitored = NAN;

        if ((o->schedule.options.per_step != 0) != per_step)
            continue;
        if (o->schedule.options.kind == PLUME_PLATEAU) {
            bool checks = !value || value(ctx, o->monitor, &monitored);

            if (checks && isnan(monitored))
                return pl_error_set(err, -ENOENT,
                                    "the learning-rate schedule watches '%s', which was not logged "
                                    "or is not a number",
                                    o->monitor);
            if (!checks)
                monitored = NAN;
        }
        pl_schedule_step(&o->schedule, monitored);
        for (size_t k = 0; k < o->n_groups; k++)
            pl_schedule_step(&o->groups[k].schedule, monitored);
    }
    return 0;
}

void pl_optimizers_scale(struct pl_optimizers *optimizers, double factor)
{
    for (size_t i = 0; i < optimizers->n; i++) {
        struct pl_optimizer *o = &optimizers->list[i];

        pl_schedule_scale(&o->schedule, factor);
        for (size_t k = 0; k < o->n_groups; k++)
            pl_schedule_scale(&o->groups[k].schedule, factor);
    }
}

bool pl_optimizer_has(const struct pl_optimizer *optimizer, const struct pl_param *param)
{
    for (size_t i = 0; i < optimizer->n_ranges; i++)
        if (param->offset >= optimizer->ranges[i].offset &&
            param->offset < optimizer->ranges[i].offset + optimizer->ranges[i].count)
            return true;
    return false;
}

void *pl_optimizer_state(const struct pl_optimizers *optimizers,
                         const struct pl_optimizer *optimizer,
                         size_t slot,
                         const struct pl_param *param,
                         size_t *ret_from,
                         size_t *ret_count)
{
    for (size_t i = 0; i < optimizer->n_ranges; i++) {
        const struct pl_optimizer_range *range = &optimizer->ranges[i];
        size_t from = PL_MAX(param->offset, range->own);
        size_t to = PL_MIN(param->offset + param->tensor->count, range->own + range->own_count);

        if (param->offset < range->offset || param->offset >= range->offset + range->count ||
            from >= to)
            continue;
        *ret_from = from - param->offset;
        *ret_count = to - from;
        return pl_optimizer_slot_at(optimizers->params, optimizer, slot,
                                    range->state + from - range->own);
    }
    *ret_from = *ret_count = 0;
    return NULL;
}
