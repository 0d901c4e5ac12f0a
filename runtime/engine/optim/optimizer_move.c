/* SPDX-License-Identifier: MIT */
/* The optimizers' state of a pipeline whose cut moves. */
#include "runtime/engine/optim/grad_norm.h"
#include "runtime/engine/params/stages.h"

#include <string.h>

static int move_param(const struct pl_optimizers *all,
                      const struct pl_optimizer *before,
                      const struct pl_optimizer *o,
                      struct pl_param *p,
                      const struct pl_param_stages *old,
                      struct pl_error *err)
{
    const struct pl_params *params = all->params;
    unsigned owner = pl_stages_owner(old, p), next = pl_stages_owner(&params->stages, p);
    size_t bytes = p->tensor->count * pl_real_size(params->real), from, count;
    int r = 0;

    for (size_t slot = 0; slot < pl_optimizer_slots(o) && r == 0; slot++) {
        void *was = pl_optimizer_state(all, before, slot, p, &from, &count);
        void *is = pl_optimizer_state(all, o, slot, p, &from, &count);

        if (owner != next)
            r = pl_stages_fetch(all->comm, params->dev, owner, was, is, bytes, err);
        else if (is)
            params->dev->ops->copy(params->dev, is, was, bytes);
    }
    return r;
}

static int move_one(const struct pl_optimizers *all,
                    struct pl_optimizer *o,
                    const struct pl_param_stages *old,
                    struct pl_error *err)
{
    const struct pl_params *params = all->params;
    struct pl_optimizer before = *o;
    int r = 0;

    o->ranges = calloc(o->n_ranges + 1, sizeof(*o->ranges));
    memset(o->slot, 0, sizeof(o->slot));
    if (o->ranges && o->n_ranges)
        memcpy(o->ranges, before.ranges, o->n_ranges * sizeof(*o->ranges));
    r = o->ranges ? pl_optimizer_make_state(o, params, err) : pl_error_nomem(err);
    for (size_t i = 0; i < params->n && r == 0; i++)
        if (pl_optimizer_has(o, params->order[i]))
            r = move_param(all, &before, o, params->order[i], old, err);
    for (size_t k = 0; k < PL_OPTIMIZER_SLOTS; k++)
        pl_device_free(params->dev, before.slot[k]);
    free(before.ranges);
    return r;
}

int pl_optimizers_move(struct pl_optimizers *optimizers, const size_t *old, struct pl_error *err)
{
    const struct pl_param_stages stages = {.n = optimizers->params->stages.n,
                                           .bounds = (size_t *)(uintptr_t)old};
    int r = 0;

    for (size_t i = 0; i < optimizers->n && r == 0; i++)
        r = move_one(optimizers, &optimizers->list[i], &stages, err);
    pl_grad_norm_finish(optimizers);
    return r < 0 ? r : pl_grad_norm_init(optimizers, err);
}
