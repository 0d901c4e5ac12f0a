/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/stages.h"

#include <string.h>

#define PIECE_BYTES ((size_t)1 << 20) /* sent or summed at a time */

int pl_stages_set_bounds(struct pl_params *params, struct pl_error *err)
{
    struct pl_param_stages *stages = &params->stages;
    size_t *bounds = calloc(stages->n + 1, sizeof(*bounds)), i = 0;

    if (!bounds)
        return pl_error_nomem(err);
    /* A stage begins at the first parameter whose first use is not before its ops. Those that the
     * tape does not use are the last stage's. */
    for (unsigned s = 1; s < stages->n; s++) {
        while (i < params->n && params->order[i]->first_use < stages->cut[s])
            i++;
        bounds[s] = i < params->n ? params->order[i]->offset : params->flags;
    }
    bounds[stages->n] = params->flags;
    free(stages->bounds);
    stages->bounds = bounds;
    params->own_from = bounds[stages->own];
    params->own_to = bounds[stages->own + 1];
    return 0;
}

void pl_stages_point(struct pl_params *params)
{
    size_t size = pl_real_size(params->real);

    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];
        plume_tensor *t = p->tensor;

        if (pl_param_is_own(params, p)) {
            t->data = params->shard == PL_SHARD_PARAM ? NULL : pl_params_value(params, p->offset);
            t->grad = pl_params_shard_grads(params) || params->evaluates
                          ? NULL
                          : pl_params_grad(params, p->offset);
        } else {
            t->data = p->borrowed;
            t->grad = p->borrowed ? (char *)p->borrowed + t->count * size : NULL;
        }
    }
}

unsigned pl_stages_owner(const struct pl_param_stages *stages, const struct pl_param *p)
{
    unsigned s = 0;

    while (s + 1 < stages->n && p->offset >= stages->bounds[s + 1])
        s++;
    return s;
}

bool pl_stages_use(struct pl_params *params, unsigned stage, struct pl_param *p)
{
    uint64_t bit = 1ull << stage;

    if ((p->borrowers & bit) || pl_stages_owner(&params->stages, p) == stage)
        return false;
    p->borrowers |= bit;
    return true;
}

int pl_stages_borrow(struct pl_params *params, struct pl_error *err)
{
    size_t size = pl_real_size(params->real);
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++) {
        struct pl_param *p = params->list[i];
        bool borrows = p->borrowers & (1ull << params->stages.own);

        if (!borrows) {
            pl_device_free(params->dev, p->borrowed);
            p->borrowed = NULL;
        } else if (!p->borrowed) {
            r = pl_device_alloc_zero(params->dev, 2 * p->tensor->count * size, "tied parameters",
                                     &p->borrowed, err);
        }
    }
    pl_stages_point(params);
    params->plans = 0;
    return r;
}

int pl_stages_fetch(struct pl_comm *comm,
                    struct pl_device *dev,
                    unsigned owner,
                    const void *from,
                    void *to,
                    size_t bytes,
                    struct pl_error *err)
{
    _cleanup_free_ size_t *offset = calloc((size_t)comm->size + 1, sizeof(*offset));
    _cleanup_free_ char *piece = malloc(PL_MIN(bytes, PIECE_BYTES) + 1);
    int r = offset && piece ? 0 : pl_error_nomem(err);

    for (size_t at = 0, n; at < bytes && r == 0; at += n) {
        n = PL_MIN(bytes - at, PIECE_BYTES);
        for (unsigned i = 0; i <= comm->size; i++)
            offset[i] = i > owner ? n : 0;
        if (comm->rank == owner)
            r = pl_device_download(dev, piece, (const char *)from + at, n, err);
        if (r == 0)
            r = pl_comm_allgather(comm, piece, offset, err);
        if (r == 0 && to)
            pl_device_upload(dev, (char *)to + at, piece, n);
    }
    return r;
}

int pl_stages_share_values(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++) {
        struct pl_param *p = params->order[i];

        if (p->borrowers)
            r = pl_stages_fetch(comm, params->dev, pl_stages_owner(&params->stages, p),
                                pl_param_value(params, p), p->borrowed,
                                p->tensor->count * pl_real_size(params->real), err);
    }
    return r;
}

static int sum_grad(struct pl_params *params,
                    struct pl_comm *comm,
                    struct pl_param *p,
                    char *piece,
                    struct pl_error *err)
{
    size_t size = pl_real_size(params->real), bytes = p->tensor->count * size, n;
    bool own = pl_param_is_own(params, p);
    char *grad = p->tensor->grad;
    int r = 0;

    for (size_t at = 0; at < bytes && r == 0; at += n) {
        n = PL_MIN(bytes - at, PIECE_BYTES);
        if (grad)
            r = pl_device_download(params->dev, piece, grad + at, n, err);
        else
            memset(piece, 0, n);
        if (r == 0)
            r = pl_comm_allreduce(comm, piece, n / size, params->real, 1, err);
        if (r == 0 && own)
            pl_device_upload(params->dev, grad + at, piece, n);
    }
    return r;
}

int pl_stages_sum_grads(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    _cleanup_free_ char *piece = malloc(PIECE_BYTES);
    int r = piece ? 0 : pl_error_nomem(err);

    for (size_t i = 0; i < params->n && r == 0; i++)
        if (params->order[i]->borrowers && params->order[i]->tensor->wants_grad)
            r = sum_grad(params, comm, params->order[i], piece, err);
    return r;
}

int pl_stages_share_buffers(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    int r = 0;

    params->buffers_version++;
    for (size_t i = 0; i < params->n_buffers && r == 0; i++) {
        const struct pl_buffer *b = &params->buffers[i];

        r = pl_stages_fetch(comm, params->dev, b->stage, b->tensor->data, b->tensor->data,
                            b->tensor->count * pl_real_size(params->real), err);
    }
    return r;
}

/* ---- moving ---- */

/* Gives the values their place in new arenas. */
static int move_values(struct pl_params *params,
                       struct pl_comm *comm,
                       const struct pl_params *old,
                       struct pl_error *err)
{
    size_t size = pl_real_size(params->real);
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++) {
        struct pl_param *p = params->order[i];
        unsigned from = pl_stages_owner(&old->stages, p), to = pl_stages_owner(&params->stages, p);
        size_t bytes = p->tensor->count * size;
        void *value = pl_param_value(params, p), *before = pl_param_value(old, p);

        if (from != to)
            r = pl_stages_fetch(comm, params->dev, from, before, value, bytes, err);
        else if (value)
            params->dev->ops->copy(params->dev, value, before, bytes);
    }
    return r;
}

int pl_stages_move(struct pl_params *params,
                   struct pl_comm *comm,
                   const size_t *cut,
                   size_t **ret_old,
                   struct pl_error *err)
{
    size_t size = pl_real_size(params->real), own;
    struct pl_params old = *params, next = *params;
    int r;

    memcpy(params->stages.cut, cut, (params->stages.n + 1) * sizeof(*cut));
    next.stages.bounds = NULL;
    r = pl_stages_set_bounds(&next, err);
    if (r < 0)
        return r;
    own = next.own_to - next.own_from;
    next.values_from = next.grads_from = next.own_from;
    next.values = next.grads = NULL;
    r = pl_device_alloc_zero(params->dev, PL_MAX(own * size, (size_t)64), "parameters",
                             &next.values, err);
    if (r == 0)
        r = pl_device_alloc_zero(params->dev, (own + params->count - params->flags) * size,
                                 "gradients", &next.grads, err);
    if (r == 0)
        r = move_values(&next, comm, &old, err);
    if (r < 0) {
        pl_device_free(params->dev, next.values);
        pl_device_free(params->dev, next.grads);
        free(next.stages.bounds);
        return r;
    }
    next.flag_list = (char *)next.grads + own * size;
    next.values_version++;
    *params = next;
    pl_device_free(params->dev, old.values);
    pl_device_free(params->dev, old.grads);
    for (size_t i = 0; i < params->n; i++)
        params->list[i]->borrowers = 0;
    *ret_old = old.stages.bounds;
    return pl_stages_borrow(params, err);
}
