/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/draw.h"
#include "kernels/pool/pool.h"

#include <stdatomic.h>

#define STREAM_INIT 0x696e6974u

/* Of a parameter, by rank 0. */
struct spec {
    struct pl_initial initial;
    uint64_t given; /* 1: rank 0 has its values */
};

struct draw {
    struct pl_params *params;
    const struct spec *specs; /* by number of the parameter, as declared */
    uint64_t seed;
    size_t from, to; /* elements of the arena */
    atomic_bool failed;
};

bool pl_params_drawn_together(const struct pl_params *params, const struct pl_comm *comm)
{
    return comm && comm->size > 1 && params->dev->ops->host && !pl_params_partial(params) &&
           !params->peers;
}

void pl_params_stream(uint64_t seed, size_t i, struct pl_rng *ret)
{
    pl_rng_init(ret, seed, STREAM_INIT + ((uint64_t)i << 32));
}

/* The element at which a rank's share begins: that of a parameter, or the end. */
static size_t begin_of_share(const struct pl_params *params, unsigned rank, unsigned size)
{
    for (size_t k = 0; k < params->n && rank < size; k++)
        if (params->order[k]->offset * size >= params->flags * rank)
            return params->order[k]->offset;
    return params->flags;
}

static void draw_range(void *ctx, size_t begin, size_t end)
{
    struct draw *a = ctx;

    for (size_t i = begin; i < end; i++) {
        const struct pl_param *p = a->params->list[i];
        struct pl_rng rng;

        if (a->specs[i].given || p->offset < a->from || p->offset >= a->to)
            continue;
        pl_params_stream(a->seed, i, &rng);
        if (pl_initial_values(&a->specs[i].initial, p->tensor, &rng, p->tensor->data, NULL) < 0)
            atomic_store(&a->failed, true);
    }
}

/* The values that rank 0's module has given. */
static int spread_given(const struct draw *a, struct pl_comm *comm, struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < a->params->n && r == 0; i++) {
        const struct pl_param *p = a->params->list[i];
        const plume_tensor *t = p->tensor;

        if (!a->specs[i].given)
            continue;
        if (comm->rank == 0)
            pl_initial_put(t, t->data, 0, t->count, p->given);
        r = pl_comm_broadcast(comm, t->data, t->count * pl_dtype_size(t->dtype), err);
    }
    return r;
}

int pl_params_draw(struct pl_params *params,
                   struct pl_comm *comm,
                   uint64_t seed,
                   struct pl_error *err)
{
    _cleanup_free_ struct spec *specs = calloc(PL_MAX(params->n, (size_t)1), sizeof(*specs));
    _cleanup_free_ size_t *offset = calloc((size_t)comm->size + 1, sizeof(*offset));
    struct draw a = {.params = params, .specs = specs, .seed = seed};
    int r;

    if (!specs || !offset)
        return pl_error_nomem(err);
    if (params->n == 0)
        return 0;
    for (size_t i = 0; i < params->n; i++) {
        specs[i].initial.kind = params->list[i]->initial.kind;
        specs[i].initial.a = params->list[i]->initial.a;
        specs[i].initial.b = params->list[i]->initial.b;
        specs[i].given = params->list[i]->given != NULL;
    }
    r = pl_comm_broadcast(comm, specs, params->n * sizeof(*specs), err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i <= comm->size; i++)
        offset[i] = begin_of_share(params, i, comm->size) * pl_real_size(params->real);
    a.from = offset[comm->rank] / pl_real_size(params->real);
    a.to = offset[comm->rank + 1] / pl_real_size(params->real);
    pl_pool_parallel(params->n, 1, draw_range, &a);
    if (atomic_load(&a.failed))
        return pl_error_nomem(err);
    r = pl_comm_allgather(comm, params->values, offset, err);
    return r == 0 ? spread_given(&a, comm, err) : r;
}
