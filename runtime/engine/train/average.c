/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/average.h"
#include "runtime/engine/optim/precision.h"

static int average(struct pl_trainer *t, void *arena, size_t count, struct pl_error *err)
{
    enum pl_real real = t->ctx.params.real;
    struct pl_device_map map;
    int r;

    if (!arena || count == 0)
        return 0;
    r = pl_device_map(t->dev, arena, count * pl_real_size(real), PL_DEVICE_READ | PL_DEVICE_WRITE,
                      &map, err);
    if (r < 0)
        return r;
    r = pl_comm_allreduce(t->comm, map.data, count, real, 1.0 / t->comm->size, err);
    pl_device_unmap(&map);
    return r;
}

/* Ranks differ if some have skipped a batch, or not used a parameter. */
static int share_counts(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_params *params = &t->ctx.params;
    size_t n = t->optimizers.n + params->n;
    _cleanup_free_ uint64_t *counts = calloc(n, sizeof(*counts));
    int r;

    if (!counts)
        return pl_error_nomem(err);
    for (size_t i = 0; i < n; i++)
        counts[i] = i < t->optimizers.n ? t->optimizers.list[i].steps
                                        : params->list[i - t->optimizers.n]->missed;
    r = pl_comm_broadcast(t->comm, counts, n * sizeof(*counts), err);
    for (size_t i = 0; i < n && r == 0; i++) {
        if (i < t->optimizers.n)
            t->optimizers.list[i].steps = counts[i];
        else
            params->list[i - t->optimizers.n]->missed = counts[i];
    }
    return r;
}

int pl_average_now(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_params *params = &t->ctx.params;
    int r;

    if (t->alone_steps == 0)
        return 0;
    t->alone_steps = 0;
    pl_device_enter(t->dev);
    params->values_version++;
    r = average(t, params->values, params->count, err);
    for (size_t i = 0; i < t->optimizers.n; i++)
        for (size_t k = 0; k < pl_optimizer_slots(&t->optimizers.list[i]) && r == 0; k++)
            r = average(t, t->optimizers.list[i].slot[k], t->optimizers.list[i].count, err);
    if (r == 0)
        r = share_counts(t, err);
    return r < 0 ? r : pl_precision_round(t->options, t->kernels, params, err);
}

int pl_average_step(struct pl_trainer *t, struct pl_error *err)
{
    if (!t->strategy.average_every)
        return 0;
    t->alone_steps++;
    return t->alone_steps >= t->strategy.average_every ? pl_average_now(t, err) : 0;
}
