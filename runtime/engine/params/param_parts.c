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
                      void *part,
                      const void *whole,
                      struct pl_error *err)
{
    struct pl_device_map map;
    int r = pl_device_map(params->dev, part, p->tensor->count * pl_real_size(params->real),
                          PL_DEVICE_WRITE, &map, err);

    if (r < 0)
        return r;
    copy(params, p, params->peers->rank, map.data, (char *)(uintptr_t)whole, false);
    pl_device_unmap(&map);
    return 0;
}

int pl_param_part_gather(const struct pl_params *params,
                         const struct pl_param *p,
                         const void *part,
                         void *ret_whole,
                         struct pl_error *err)
{
    unsigned n = params->peers->size, rank = params->peers->rank;
    size_t bytes = p->tensor->count * pl_real_size(params->real);
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    _cleanup_free_ char *all = malloc(n * bytes);
    int r;

    if (!offset || !all)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * bytes;
    r = pl_device_download(params->dev, all + rank * bytes, part, bytes, err);
    if (r == 0)
        r = pl_comm_allgather(params->peers, all, offset, err);
    for (unsigned i = 0; i < n && r == 0 && ret_whole; i++)
        copy(params, p, i, all + i * bytes, ret_whole, true);
    return r;
}
