/* SPDX-License-Identifier: MIT */
/* A step of the optimizers: clipping, the loss scale, and the kernels that update. */
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/optim/grad_norm.h"
#include "runtime/engine/optim/node_update.h"
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/params/halves.h"

/* Updates the own elements of [from, to) of a range, whose parameters have the same step number.
 * how: what all updates of the step have in common. */
static void update_part(const struct pl_optimizers *all,
                        const struct pl_optimizer *o,
                        const struct pl_optimizer_range *range,
                        size_t from,
                        size_t to,
                        uint64_t step,
                        const struct pl_kernels *kernels,
                        const struct pl_update *how)
{
    const struct pl_params *params = all->params;
    const struct plume_optimizer *options = &o->options;
    const struct pl_group *group = range->group ? &o->groups[range->group - 1] : NULL;
    const struct pl_schedule *schedule = group ? &group->schedule : &o->schedule;
    double decay = group ? group->weight_decay : options->weight_decay;
    double momentum = pl_schedule_momentum(schedule, options->momentum);
    void *slot[PL_OPTIMIZER_SLOTS];
    size_t begin = PL_MAX(from, range->own), end = PL_MIN(to, range->own + range->own_count);
    size_t state;
    struct pl_update update = *how;

    if (params->by_node && begin < end)
        pl_node_update_part(o, params, range, &begin, &end);
    if (begin >= end)
        return;
    state = range->state + begin - range->own;
    if (params->by_node)
        update.n_mirrors = pl_node_update_mirrors(params, begin, all->mirrors);
    update.mirrors = all->mirrors;
    update.n = end - begin;
    update.grad = pl_params_grad(params, begin);
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
            .step = step,
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
            .lr = schedule->lr / (1 + ((double)step - 1) * options->lr_decay),
            .eps = options->eps,
            .weight_decay = decay,
            .sum = slot[0],
        });
        break;
    }
}

/* Updates neighbours at once if all are used and have missed as many steps: usually the range. */
static void update_range(const struct pl_optimizers *all,
                         const struct pl_optimizer *o,
                         const struct pl_optimizer_range *range,
                         const struct pl_kernels *kernels,
                         const struct pl_update *how)
{
    struct pl_param *const *list = all->params->order;
    size_t end = range->first + range->n, next;

    for (size_t i = range->first; i < end; i = next) {
        next = i + 1;
        if (list[i]->unused) {
            list[i]->missed++;
            continue;
        }
        while (next < end && !list[next]->unused && list[next]->missed == list[i]->missed)
            next++;
        update_part(all, o, range, list[i]->offset,
                    next < end ? list[next]->offset : range->offset + range->count,
                    o->steps - list[i]->missed, kernels, how);
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
        for (size_t k = 0; k < o->n_ranges; k++)
            update_range(optimizers, o, &o->ranges[k], kernels, &how);
    }
    if (scaler)
        pl_scaler_update(scaler, result.skipped);
    if (ret)
        *ret = result;
    return optimizers->params->meets ? pl_comm_node_barrier(optimizers->params->meets, err) : 0;
}
