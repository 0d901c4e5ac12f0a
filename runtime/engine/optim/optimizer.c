/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/optimizer.h"

#include <math.h>
#include <string.h>

static const char *const kinds[] = {
    [PLUME_SGD] = "sgd", [PLUME_ADAM] = "adam", [PLUME_ADAMW] = "adamw"};

int pl_optimizer_kind_parse(const char *name, enum plume_optimizer_kind *ret, struct pl_error *err)
{
    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        if (strcmp(name, kinds[i]) == 0) {
            *ret = (enum plume_optimizer_kind)i;
            return 0;
        }
    }
    return pl_error_set(err, -EINVAL, "no optimizer '%s': there are sgd, adam and adamw", name);
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
        .eps = 1e-8,
    };
}

size_t pl_optimizer_slots(const struct pl_optimizer *optimizer)
{
    if (optimizer->options.kind != PLUME_SGD)
        return 2;
    return optimizer->options.momentum != 0;
}

const char *pl_optimizer_slot_name(const struct pl_optimizer *optimizer, size_t slot)
{
    if (optimizer->options.kind == PLUME_SGD)
        return "momentum_buffer";
    return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

static int check(const struct plume_optimizer *o, struct pl_error *err)
{
    const char *wrong = NULL;

    if (o->kind < PLUME_SGD || o->kind > PLUME_ADAMW)
        return pl_error_set(err, -EINVAL, "there is no optimizer %d", (int)o->kind);
    if (!(o->weight_decay >= 0))
        wrong = "weight_decay must not be negative";
    else if (!(o->momentum >= 0))
        wrong = "momentum must not be negative";
    else if (o->nesterov && (o->kind != PLUME_SGD || o->momentum == 0))
        wrong = "nesterov needs sgd with momentum";
    else if (o->kind != PLUME_SGD && !(o->beta1 >= 0 && o->beta1 < 1))
        wrong = "beta1 must be in [0, 1)";
    else if (o->kind != PLUME_SGD && !(o->beta2 >= 0 && o->beta2 < 1))
        wrong = "beta2 must be in [0, 1)";
    else if (o->kind != PLUME_SGD && !(o->eps >= 0))
        wrong = "eps must not be negative";
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

    for (size_t i = 0; i < o->n_params; i++)
        if (o->params[i] == p->tensor)
            return true;
    while ((prefix = next_prefix(&text, &len)))
        if (strncmp(p->name, prefix, len) == 0)
            return true;
    return false;
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
    for (size_t k = 0; k < o->n_params; k++) {
        found = false;
        for (size_t i = 0; i < params->n && !found; i++)
            found = params->list[i]->tensor == o->params[k];
        if (!found)
            return pl_error_set(err, -ENOENT, "tensor %zu of the optimizer's list is no parameter",
                                k);
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
                     struct pl_error *err)
{
    const struct pl_param *p = params->order[index];
    size_t align = PL_PARAM_ALIGN / pl_real_size(params->real);
    size_t count = (p->tensor->count + align - 1) / align * align; /* zeros up to the next */
    struct pl_optimizer_range *last = o->n_ranges ? &o->ranges[o->n_ranges - 1] : NULL, *ranges;

    if (last && last->offset + last->count == p->offset) {
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
            .state = o->count,
            .first = index,
            .n = 1,
        };
    }
    o->count += count;
    return 0;
}

static int make_state(struct pl_optimizer *o, const struct pl_params *params, struct pl_error *err)
{
    size_t bytes = PL_MAX(o->count * pl_real_size(params->real), (size_t)64);
    int r = 0;

    for (size_t i = 0; i < pl_optimizer_slots(o) && r == 0; i++)
        r = pl_device_alloc_zero(params->dev, bytes, "optimizers' state", &o->slot[i], err);
    return r;
}

static int make_stats(struct pl_optimizers *all, struct pl_error *err)
{
    for (size_t i = 0; i < all->n; i++)
        all->n_ranges += all->list[i].n_ranges;
    return pl_device_alloc(all->params->dev, (all->n_ranges + 1) * sizeof(*all->stats),
                           "optimizers' state", (void **)&all->stats, err);
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
        r = pl_schedule_init(&o->schedule, &options->schedule, options->lr, err);
    if (r < 0)
        return r;
    if (strlen(o->schedule.options.monitor) >= sizeof(o->monitor))
        return pl_error_set(err, -EINVAL, "'%s' is too long to be a logged value's name",
                            o->schedule.options.monitor);
    memcpy(o->monitor, o->schedule.options.monitor, strlen(o->schedule.options.monitor) + 1);
    o->schedule.options.monitor = NULL; /* the struct may be moved: use o->monitor */
    return 0;
}

int pl_optimizers_init(struct pl_optimizers *optimizers,
                       const struct pl_params *params,
                       const struct plume_optimizer *options,
                       size_t n,
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
    for (size_t i = 0; i < params->n && r >= 0; i++) {
        r = find_owner(options, n, params->order[i], err);
        if (r >= 0 && (size_t)r < n)
            r = add_param(&all.list[r], params, i, err);
    }
    for (size_t i = 0; i < n && r >= 0; i++)
        r = make_state(&all.list[i], params, err);
    if (r >= 0)
        r = make_stats(&all, err);
    if (r < 0) {
        pl_optimizers_finish(&all);
        return r;
    }
    *optimizers = all;
    return 0;
}

void pl_optimizers_finish(struct pl_optimizers *optimizers)
{
    for (size_t i = 0; i < optimizers->n; i++) {
        free(optimizers->list[i].ranges);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS; k++)
            pl_device_free(optimizers->params->dev, optimizers->list[i].slot[k]);
    }
    if (optimizers->params)
        pl_device_free(optimizers->params->dev, optimizers->stats);
    *optimizers = (struct pl_optimizers){0};
}

static void *at(const struct pl_params *params, void *arena, size_t element)
{
    return arena ? (char *)arena + element * pl_real_size(params->real) : NULL;
}

/* Multiplies the gradients by scale and maps their statistics by range. */
static int measure(const struct pl_optimizers *all,
                   size_t first,
                   size_t n,
                   const struct pl_kernels *kernels,
                   double scale,
                   struct pl_device_map *ret,
                   struct pl_error *err)
{
    struct pl_range_stats *stats = all->stats;

    for (size_t i = first; i < first + n; i++)
        for (size_t k = 0; k < all->list[i].n_ranges; k++, stats++) {
            const struct pl_optimizer_range *range = &all->list[i].ranges[k];

            kernels->grad_stats(&(struct pl_grad_stats_args){
                .n = range->count,
                .scale = scale,
                .grad = at(all->params, all->params->grads, range->offset),
                .ret_squares = &stats->squares,
                .ret_finite = &stats->finite,
            });
        }
    return pl_device_map(all->params->dev, all->stats,
                         (size_t)(stats - all->stats) * sizeof(*stats), PL_DEVICE_READ, ret, err);
}

/* Updates a part of a range whose parameters have the same step number. */
static void update_part(const struct pl_optimizers *all,
                        const struct pl_optimizer *o,
                        const struct pl_optimizer_range *range,
                        uint64_t step,
                        const struct pl_kernels *kernels,
                        double factor,
                        double clip)
{
    const struct pl_params *params = all->params;
    const struct plume_optimizer *options = &o->options;
    struct pl_update update = {
        .n = range->count,
        .factor = factor,
        .clip = clip,
        .grad = at(params, params->grads, range->offset),
        .param = at(params, params->values, range->offset),
    };

    if (options->kind == PLUME_SGD)
        kernels->sgd(&(struct pl_sgd_args){
            .update = update,
            .lr = o->schedule.lr,
            .momentum = options->momentum,
            .weight_decay = options->weight_decay,
            .nesterov = options->nesterov,
            .velocity = at(params, o->slot[0], range->state),
        });
    else
        kernels->adam(&(struct pl_adam_args){
            .update = update,
            .lr = o->schedule.lr,
            .beta1 = options->beta1,
            .beta2 = options->beta2,
            .eps = options->eps,
            .weight_decay = options->weight_decay,
            .decoupled = options->kind == PLUME_ADAMW,
            .step = step,
            .m = at(params, o->slot[0], range->state),
            .v = at(params, o->slot[1], range->state),
        });
}

/* Updates neighbours at once if all are used and have missed as many steps: usually the range. */
static void update_range(const struct pl_optimizers *all,
                         const struct pl_optimizer *o,
                         const struct pl_optimizer_range *range,
                         const struct pl_kernels *kernels,
                         double factor,
                         double clip)
{
    struct pl_param *const *list = all->params->order;
    size_t end = range->first + range->n, next;

    for (size_t i = range->first; i < end; i = next) {
        struct pl_optimizer_range part = {.offset = list[i]->offset};

        next = i + 1;
        if (list[i]->unused) {
            list[i]->missed++;
            continue;
        }
        while (next < end && !list[next]->unused && list[next]->missed == list[i]->missed)
            next++;
        part.count = (next < end ? list[next]->offset : range->offset + range->count) - part.offset;
        part.state = range->state + part.offset - range->offset;
        update_part(all, o, &part, o->steps - list[i]->missed, kernels, factor, clip);
    }
}

int pl_optimizers_step(struct pl_optimizers *optimizers,
                       const struct pl_kernels *kernels,
                       const struct pl_clip_rule *clip,
                       struct pl_scaler *scaler,
                       struct pl_optimizers_result *ret,
                       struct pl_error *err)
{
    return pl_optimizers_step_some(optimizers, 0, optimizers->n, kernels, clip, scaler, ret, err);
}

/* The squares of an optimizer's gradients. False: one is not finite. */
static bool
add_squares(const struct pl_optimizer *o, const struct pl_range_stats *stats, double *sum)
{
    bool finite = true;

    for (size_t k = 0; k < o->n_ranges; k++) {
        *sum += stats[k].squares;
        finite = finite && stats[k].finite;
    }
    return finite;
}

/* The norm over the optimizers of a step, *ret_all, and over those that are not skipped for a
 * scale; which of them have finite gradients. */
static double norm_of(const struct pl_optimizers *optimizers,
                      size_t first,
                      size_t n,
                      const struct pl_range_stats *stats,
                      bool skips,
                      bool *ret_finite,
                      double *ret_all)
{
    double total = 0, all = 0;

    for (size_t i = 0; i < n; stats += optimizers->list[first + i++].n_ranges) {
        double squares = 0;

        ret_finite[i] = add_squares(&optimizers->list[first + i], stats, &squares);
        all += squares;
        if (ret_finite[i] || !skips)
            total += squares;
    }
    *ret_all = sqrt(all);
    return sqrt(total);
}

int pl_optimizers_step_some(struct pl_optimizers *optimizers,
                            size_t first,
                            size_t n,
                            const struct pl_kernels *kernels,
                            const struct pl_clip_rule *clip,
                            struct pl_scaler *scaler,
                            struct pl_optimizers_result *ret,
                            struct pl_error *err)
{
    bool scaled = scaler && scaler->enabled;
    struct pl_optimizers_result result = {.measured = scaled || pl_clip_wants_norm(clip)};
    struct pl_device_map map = {0};
    bool finite[PL_OPTIMIZERS_MAX];
    double factor = 1;
    int r;

    pl_device_enter(optimizers->params->dev);
    r = result.measured ? measure(optimizers, first, n, kernels,
                                  scaled ? 1.0 / (double)scaler->scale : 1, &map, err)
                        : 0;
    if (r < 0)
        return r;
    if (map.data) {
        factor = pl_clip_factor(
            clip, norm_of(optimizers, first, n, map.data, scaled, finite, &result.norm));
    }
    for (size_t i = 0; i < n; i++) {
        struct pl_optimizer *o = &optimizers->list[first + i];

        if (scaled && map.data && !finite[i]) {
            result.skipped = true;
            continue;
        }
        o->steps++;
        for (size_t k = 0; k < o->n_ranges; k++)
            update_range(optimizers, o, &o->ranges[k], kernels, factor, pl_clip_value(clip));
    }
    pl_device_unmap(&map);
    if (scaler)
        pl_scaler_update(scaler, result.skipped);
    if (ret)
        *ret = result;
    return 0;
}

int pl_optimizers_schedule(struct pl_optimizers *optimizers,
                           bool per_step,
                           double (*value)(void *ctx, const char *name),
                           void *ctx,
                           struct pl_error *err)
{
    for (size_t i = 0; i < optimizers->n; i++) {
        struct pl_optimizer *o = &optimizers->list[i];
        double monitored = NAN;

        if ((o->schedule.options.per_step != 0) != per_step)
            continue;
        if (o->schedule.options.kind == PLUME_PLATEAU) {
            monitored = value ? value(ctx, o->monitor) : NAN;
            if (isnan(monitored))
                return pl_error_set(err, -ENOENT,
                                    "the learning-rate schedule watches '%s', which was not logged "
                                    "or is not a number",
                                    o->monitor);
        }
        pl_schedule_step(&o->schedule, monitored);
    }
    return 0;
}

void pl_optimizers_scale(struct pl_optimizers *optimizers, double factor)
{
    for (size_t i = 0; i < optimizers->n; i++)
        pl_schedule_scale(&optimizers->list[i].schedule, factor);
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
                         const struct pl_param *param)
{
    for (size_t i = 0; i < optimizer->n_ranges; i++) {
        const struct pl_optimizer_range *range = &optimizer->ranges[i];

        if (param->offset >= range->offset && param->offset < range->offset + range->count)
            return at(optimizers->params, optimizer->slot[slot],
                      range->state + param->offset - range->offset);
    }
    return NULL;
}
