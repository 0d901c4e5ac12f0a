/* SPDX-License-Identifier: MIT */
/* A step of the optimizers: clipping, the loss scale, and the kernels that update. */
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/optim/grad_norm.h"
#include "runtime/engine/optim/node_update.h"
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/params/halves.h"

void pl_optimizer_update(const struct pl_optimizers *all,
                         const struct pl_optimizer_segment *segment,
                         size_t begin,
                         const struct pl_kernels *kernels,
                         const struct pl_update *how)
{
    const struct pl_params *params = all->params;
    const struct pl_optimizer *o = segment->optimizer;
    const struct pl_optimizer_range *range = segment->range;
    const struct plume_optimizer *options = &o->options;
    const struct pl_group *group = range->group ? &o->groups[range->group - 1] : NULL;
    const struct pl_schedule *schedule = group ? &group->schedule : &o->schedule;
    double decay = group ? group->weight_decay : options->weight_decay;
    double momentum = pl_schedule_momentum(schedule, options->momentum);
    size_t state = range->state + begin - range->own;
    void *slot[PL_OPTIMIZER_SLOTS];
    struct pl_update update = *how;

    update.param = pl_params_value(params, begin);
    update.half = pl_halves_type(params);
    update.copy = params->halves ? params->halves + begin : NULL;
    for (size_t i = 0; i < PL_OPTIMIZER_SLOTS; i++)
        slot[i] = pl_optimizer_slot_at(params, o, i, state);
    switch (options->kind) {
    case PLUME_SGD:
        kernels->sgd(&(struct pl_sgd_args){
            .update = update,
            .lr = schedule->lr,
            .momentum = momentum,
            .weight_decay = decay,
            .nesterov = options->nesterov,
            .velocity = slot[0],
        });
        break;
    case PLUME_ADAM:
    case PLUME_ADAMW:
        kernels->adam(&(struct pl_adam_args){
            .update = update,
            .lr = schedule->lr,
            .beta1 = pl_schedule_momentum(schedule, options->beta1),
            .beta2 = options->beta2,
            .eps = options->eps,
            .weight_decay = decay,
            .decoupled = options->kind == PLUME_ADAMW,
            .step = segment->step,
            .m = slot[0],
            .v = slot[1],
        });
        break;
    case PLUME_RMSPROP:
        kernels->rmsprop(&(struct pl_rmsprop_args){
            .update = update,
            .lr = schedule->lr,
            .alpha = options->alpha,
            .eps = options->eps,
            .momentum = momentum,
            .weight_decay = decay,
            .v = slot[0],
            .mean = options->centered ? slot[1] : NULL,
            .velocity = slot[options->centered ? 2 : 1],
        });
        break;
    case PLUME_ADAGRAD:
        kernels->adagrad(&(struct pl_adagrad_args){
            .update = update,
            .lr = schedule->lr / (1 + ((double)segment->step - 1) * options->lr_decay),
            .eps = options->eps,
            .weight_decay = decay,
            .sum = slot[0],
        });
        break;
    }
}

bool pl_optimizer_next_segment(const struct pl_optimizers *all,
                               const struct pl_optimizer *o,
                               const struct pl_optimizer_range *range,
                               size_t *at,
                               struct pl_optimizer_segment *ret)
{
    struct pl_param *const *list = all->params->order;
    size_t end = range->first + range->n, first, next;
    size_t own_end = range->own + range->own_count;

    for (; *at < range->n && list[range->first + *at]->unused; ++*at)
        list[range->first + *at]->missed++;
    if (*at >= range->n)
        return false;
    first = range->first + *at;
    for (next = first + 1; next < end && !list[next]->unused; next++)
        if (list[next]->missed != list[first]->missed)
            break;
    *at = next - range->first;
    *ret = (struct pl_optimizer_segment){
        .optimizer = o,
        .range = range,
        .from = PL_MAX(list[first]->offset, range->own),
        .to = PL_MIN(next < end ? list[next]->offset : range->offset + range->count, own_end),
        .step = o->steps - list[first]->missed,
    };
    ret->to = PL_MAX(ret->from, ret->to);
    return true;
}

/* Updates this rank's part of a segment. how: what all updates of the step have in common. */
static void update_part(const struct pl_optimizers *all,
                        const struct pl_optimizer_segment *segment,
                        const struct pl_kernels *kernels,
                        const struct pl_update *how)
{
    const struct pl_params *params = all->params;
    size_t begin = segment->from, end = segment->to;
    struct pl_update update = *how;

    if (params->by_node && begin < end)
        pl_node_update_part(segment->optimizer, params, segment->range,
                            pl_comm_node(params->by_node)->rank, &begin, &end);
    if (begin >= end)
        return;
    if (params->by_node)
        update.n_mirrors = pl_node_update_mirrors(params, begin, all->mirrors);
    update.mirrors = all->mirrors;
    update.n = end - begin;
    update.grad = pl_params_grad(params, begin);
    pl_optimizer_update(all, segment, begin, kernels, &update);
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
    bool finite[PL_OPTIMIZERS_MAX];
    struct pl_update how = {.factor = 1, .clip = pl_clip_value(clip)};
    double norm = 0;
    int r;

    pl_device_enter(optimizers->params->dev);
    if (result.measured && !scaled && !ret && pl_grad_clips_on_device(optimizers, n)) {
        how.factor_at = pl_grad_clip(optimizers, first, kernels, clip->limit);
    } else if (result.measured) {
        r = pl_grad_norm(optimizers, first, n, kernels, scaled ? 1.0 / (double)scaler->scale : 1,
                         scaled, finite, &norm, &result.norm, err);
        if (r < 0)
            return r;
        how.factor = pl_clip_factor(clip, norm);
    }
    for (size_t i = 0; i < n; i++) {
        struct pl_optimizer *o = &optimizers->list[first + i];

        if (scaled && !finite[i]) {
            result.skipped = true;
            continue;
        }
        o->steps++;
        for (size_t k = 0; k < o->n_ranges; k++) {
            struct pl_optimizer_segment segment;

            for (size_t at = 0;
                 pl_optimizer_next_segment(optimizers, o, &o->ranges[k], &at, &segment);)
                update_part(optimizers, &segment, kernels, &how);
        }
    }
    if (scaler)
        pl_scaler_update(scaler, result.skipped);
    if (ret)
        *ret = result;
    return optimizers->params->meets ? pl_comm_node_barrier(optimizers->params->meets, err) : 0;
}
