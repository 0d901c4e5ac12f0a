/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/shard.h"

#include <string.h>

#define GATHER_BYTES ((size_t)1 << 20) /* at a time, where the result is not kept */

size_t pl_shard_block(const struct pl_params *params)
{
    size_t most = (size_t)PL_SHARD_UNIT * PL_SHARD_BLOCKS;

    return PL_SHARD_UNIT * PL_MAX((params->flags + most - 1) / most, (size_t)1);
}

size_t pl_shard_begin(const struct pl_params *params, unsigned rank, unsigned size)
{
    size_t block = pl_shard_block(params), n = (params->flags + block - 1) / block;

    if (params->stages.n)
        return params->stages.bounds[rank];

    return PL_MIN(n * rank / size * block, params->flags);
}

void pl_shard_offsets(
    const struct pl_params *params, unsigned size, size_t from, size_t to, size_t *ret)
{
    for (unsigned i = 0; i <= size; i++)
        ret[i] = PL_MIN(PL_MAX(pl_shard_begin(params, i, size), from), to) - from;
}

void pl_shard_take(struct pl_params *params, unsigned rank, unsigned size)
{
    params->own_from = pl_shard_begin(params, rank, size);
    params->own_to = pl_shard_begin(params, rank + 1, size);
}

int pl_shard_share_values(
    struct pl_params *params, struct pl_comm *comm, size_t from, size_t to, struct pl_error *err)
{
    _cleanup_free_ size_t *offset = calloc((size_t)comm->size + 1, sizeof(*offset));
    size_t size = pl_real_size(params->real);

    if (!offset)
        return pl_error_nomem(err);
    pl_shard_offsets(params, comm->size, from, to, offset);
    for (unsigned i = 0; i <= comm->size; i++)
        offset[i] *= size;
    return pl_comm_allgather_on(comm, params->dev, pl_params_value(params, from), offset, err);
}

struct pl_shard_span pl_shard_span(const struct pl_params *params, const struct pl_param *param)
{
    size_t from = PL_MAX(param->offset, params->own_from);
    size_t to = PL_MIN(param->offset + param->tensor->count, params->own_to);

    return from < to ? (struct pl_shard_span){from - param->offset, to - from}
                     : (struct pl_shard_span){0};
}

void *pl_shard_part(const struct pl_params *params, const struct pl_param *param, const void *arena)
{
    struct pl_shard_span span = pl_shard_span(params, param);
    size_t at = param->offset + span.from - params->own_from;

    return span.count ? (char *)(uintptr_t)arena + at * pl_real_size(params->real) : NULL;
}

/* Elements [from, to) of the arenas. buf: the host's memory for them. */
static int gather_piece(const struct pl_params *params,
                        struct pl_comm *comm,
                        const void *own,
                        size_t from,
                        size_t to,
                        void *buf,
                        size_t *offset,
                        struct pl_error *err)
{
    size_t size = pl_real_size(params->real);
    int r;

    pl_shard_offsets(params, comm->size, from, to, offset);
    for (unsigned i = 0; i <= comm->size; i++)
        offset[i] *= size;
    r = pl_device_download(params->dev, (char *)buf + offset[comm->rank], own,
                           offset[comm->rank + 1] - offset[comm->rank], err);
    return r < 0 ? r : pl_comm_allgather(comm, buf, offset, err);
}

int pl_shard_gather(const struct pl_params *params,
                    struct pl_comm *comm,
                    const struct pl_param *param,
                    const void *own,
                    void *ret_whole,
                    struct pl_error *err)
{
    size_t size = pl_real_size(params->real), most = GATHER_BYTES / size, step;
    size_t end = param->offset + param->tensor->count;
    _cleanup_free_ size_t *offset = calloc((size_t)comm->size + 1, sizeof(*offset));
    _cleanup_free_ char *scratch = ret_whole ? NULL : malloc(most * size);
    int r = offset && (scratch || ret_whole) ? 0 : pl_error_nomem(err);

    for (size_t at = param->offset; at < end && r == 0; at += step) {
        char *buf = ret_whole ? (char *)ret_whole + (at - param->offset) * size : scratch;

        step = PL_MIN(end - at, most);
        r = gather_piece(params, comm, own, at, at + step, buf, offset, err);
        if (own)
            own = (const char *)own + offset[comm->rank + 1] - offset[comm->rank];
    }
    return r;
}
