/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/param_parts.h"

#include <string.h>

static int make_part(struct pl_params *params, struct pl_param *p, struct pl_split_at at)
{
    plume_tensor *part = calloc(1, sizeof(*part));
    size_t shape[PLUME_RANK_MAX];
    int r;

    if (!part)
        return -ENOMEM;
    memcpy(shape, p->whole->shape, sizeof(shape));
    shape[at.dim] /= params->peers->size;
    r = pl_tensor_init(part, p->whole->dtype, p->whole->rank, shape);
    if (r < 0) {
        free(part);
        return r;
    }
    part->is_param = true;
    part->wants_grad = p->whole->wants_grad;
    part->number = p->whole->number;
    p->tensor = part;
    p->at = at;
    return 0;
}

int pl_param_parts_make(struct pl_params *params,
                        struct pl_comm *peers,
                        const struct pl_split_at *at,
                        plume_tensor **ret_local,
                        struct pl_error *err)
{
    params->peers = peers;
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];
        size_t k = p->whole->number - 1;

        if (at[k].groups && make_part(params, p, at[k]) < 0)
            return pl_error_nomem(err);
        if (at[k].groups)
            ret_local[k] = p->tensor;
    }
    return 0;
}

/* Copies one rank's part from (or to) the whole. */
static void copy(const struct pl_params *params,
                 const struct pl_param *p,
                 unsigned rank,
                 char *part,
                 char *whole,
                 bool to_whole)
{
    struct pl_split_part s = pl_split_part(p->whole, p->at);
    size_t element = pl_real_size(params->real);
    size_t run = s.size / params->peers->size * s.inner * element;

    for (size_t i = 0; i < s.outer; i++) {
        char *mine = part + i * run, *there = whole + i * s.size * s.inner * element + rank * run;

        memcpy(to_whole ? there : mine, to_whole ? mine : there, run);
    }
}

int pl_param_part_put(const struct pl_params *params,
                      const struct pl_param *p,
                      void *own,
                      const struct pl_shard_span *span,
                      const void *whole,
                      struct pl_error *err)
{
    size_t size = pl_real_size(params->real), count = span ? span->count : p->tensor->count;
    _cleanup_free_ char *part = NULL;
    const char *from = whole;

    if (pl_param_is_split(p)) {
        part = malloc(p->tensor->count * size);
        if (!part)
            return pl_error_nomem(err);
        copy(params, p, params->peers->rank, part, (char *)(uintptr_t)whole, false);
        from = part;
    }
    if (span)
        from += span->from * size;
    if (count)
        pl_device_upload(params->dev, own, from, count * size);
    return 0;
}

/* The ranks' parts, one after another. */
static int gather_parts(const struct pl_params *params,
                        struct pl_comm *shards,
                        const struct pl_param *p,
                        const void *own,
                        char *all,
                        struct pl_error *err)
{
    unsigned n = params->peers->size, rank = params->peers->rank;
    size_t bytes = p->tensor->count * pl_real_size(params->real);
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    int r;

    if (!offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * bytes;
    if (shards)
        r = pl_shard_gather(params, shards, p, own, all + rank * bytes, err);
    else
        r = pl_device_download(params->dev, all + rank * bytes, own, bytes, err);
    return r < 0 ? r : pl_comm_allgather(params->peers, all, offset, err);
}

int pl_param_part_gather(const struct pl_params *params,
                         struct pl_comm *shards,
                         const struct pl_param *p,
                         const void *own,
                         void *ret_whole,
                         struct pl_error *err)
{
    size_t bytes = p->tensor->count * pl_real_size(params->real);
    _cleanup_free_ char *all = NULL;
    int r;

    if (!pl_param_is_split(p) && shards)
        return pl_shard_gather(params, shards, p, own, ret_whole, err);
    if (!pl_param_is_split(p))
        return ret_whole ? pl_device_download(params->dev, ret_whole, own, bytes, err) : 0;
    all = malloc(params->peers->size * bytes);
    r = all ? gather_parts(params, shards, p, own, all, err) : pl_error_nomem(err);
    for (unsigned i = 0; i < params->peers->size && r == 0 && ret_whole; i++)
        copy(params, p, i, all + i * bytes, ret_whole, true);
    return r;
}
