/* SPDX-License-Identifier: MIT */
/* What stands behind struct plume_dist_api. */
#include "runtime/engine/context.h"

#include <string.h>

static struct pl_context *of(struct plume_context *pl)
{
    return (struct pl_context *)pl;
}

static int result(struct pl_context *ctx, int r, const struct pl_error *err)
{
    if (r < 0)
        pl_context_keep(ctx, r, err);
    return r;
}

/* Whether there is a communicator yet. */
static int ready(struct pl_context *ctx, size_t real_bytes)
{
    struct pl_error err = {0};
    int r = 0;

    if (!ctx->comm)
        r = pl_error_set(&err, -EINVAL, "collectives may only be called once there are ranks");
    else if (real_bytes != sizeof(float) && real_bytes != sizeof(double))
        r = pl_error_set(&err, -EINVAL, "allreduce: numbers have 4 or 8 bytes, not %zu",
                         real_bytes);
    return result(ctx, r, &err);
}

static int
api_allreduce(struct plume_context *pl, void *buf, size_t count, size_t real_bytes, double scale)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};
    int r = ready(ctx, real_bytes);

    if (r < 0)
        return r;
    return result(ctx,
                  pl_comm_allreduce(ctx->comm, buf, count,
                                    real_bytes == sizeof(double) ? PL_REAL_F64 : PL_REAL_F32, scale,
                                    &err),
                  &err);
}

static int api_all_gather(struct plume_context *pl, const void *mine, size_t bytes, void *ret_all)
{
    struct pl_context *ctx = of(pl);
    _cleanup_free_ size_t *offset = calloc((size_t)pl->world_size + 1, sizeof(*offset));
    struct pl_error err = {0};
    int r = ready(ctx, sizeof(float));

    if (r < 0)
        return r;
    if (!offset)
        return result(ctx, pl_error_set(&err, -ENOMEM, "out of memory"), &err);
    for (unsigned i = 0; i <= pl->world_size; i++)
        offset[i] = i * bytes;
    memcpy((char *)ret_all + offset[pl->rank], mine, bytes);
    return result(ctx, pl_comm_allgather(ctx->comm, ret_all, offset, &err), &err);
}

static int api_broadcast(struct plume_context *pl, void *buf, size_t bytes)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};
    int r = ready(ctx, sizeof(float));

    return r < 0 ? r : result(ctx, pl_comm_broadcast(ctx->comm, buf, bytes, &err), &err);
}

const struct plume_dist_api pl_context_dist = {
    .struct_size = sizeof(struct plume_dist_api),
    .allreduce = api_allreduce,
    .all_gather = api_all_gather,
    .broadcast = api_broadcast,
};
