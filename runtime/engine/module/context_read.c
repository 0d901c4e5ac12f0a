/* SPDX-License-Identifier: MIT */
/* Modules read parameters, buffers, and tensors that a step keeps. */
#include "runtime/engine/module/context_read.h"
#include "common/base/parse.h"
#include "kernels/half.h"
#include "runtime/engine/params/apart.h"
#include "runtime/engine/params/param_parts.h"

#include <string.h>

static void *find_named(struct pl_context *ctx, const char *name, bool grad, plume_tensor **ret)
{
    struct pl_params *params = &ctx->params;

    for (size_t i = 0; i < params->n; i++)
        if (strcmp(params->list[i]->name, name) == 0) {
            *ret = params->list[i]->tensor;
            return grad ? (*ret)->grad : (*ret)->data;
        }
    for (size_t i = 0; i < params->n_buffers && !grad; i++)
        if (strcmp(params->buffers[i].name, name) == 0) {
            *ret = params->buffers[i].tensor;
            return (*ret)->data;
        }
    return NULL;
}

plume_tensor *pl_context_keep_tensor(struct plume_context *pl, const char *name, plume_tensor *t)
{
    struct pl_context *ctx = (struct pl_context *)pl;
    struct pl_kept *kept = &ctx->kept[ctx->n_kept];
    struct pl_error err = {0};
    plume_tensor *unused;
    int r;

    if (!name)
        name = ""; /* a bad name */
    if (t && ctx->tape && !ctx->error.code && !pl_context_is_of_step(ctx, t)) {
        pl_context_refuse(ctx, -EINVAL, "keep: '%s' " PL_IS_OF_EARLIER, name);
        return NULL;
    }
    if (!t || !ctx->keeping || ctx->error.code || ctx->split)
        return t;
    for (size_t i = 0; i < ctx->n_kept; i++)
        if (ctx->kept[i].part == ctx->part && strcmp(ctx->kept[i].name, name) == 0) {
            pl_context_refuse(ctx, -EEXIST, "keep: the step keeps '%s' twice", name);
            return NULL;
        }
    if (ctx->n_kept == PL_KEPT_MAX || strlen(name) >= sizeof(kept->name) ||
        !pl_name_valid(name, strlen(name)) || find_named(ctx, name, false, &unused)) {
        pl_context_refuse(ctx, -EINVAL,
                          "keep: '%s' is a bad name, a parameter's or a buffer's, or exceeds the "
                          "limit of %d tensors",
                          name, PL_KEPT_MAX);
        return NULL;
    }
    r = pl_tape_keep(ctx->tape, &t, &err);
    if (r < 0) {
        pl_context_keep(ctx, r, &err);
        return NULL;
    }
    memcpy(kept->name, name, strlen(name) + 1);
    kept->part = ctx->part;
    kept->t = t;
    ctx->n_kept++;
    return t;
}

static bool is_kept(const struct pl_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_kept; i++)
        if (strcmp(ctx->kept[i].name, name) == 0)
            return true;
    return false;
}

static void widen(enum plume_dtype dtype, const void *from, size_t n, double *to)
{
    for (size_t i = 0; i < n; i++)
        switch (dtype) {
        case PLUME_F64:
            to[i] = ((const double *)from)[i];
            break;
        case PLUME_F32:
            to[i] = (double)((const float *)from)[i];
            break;
        case PLUME_I32:
            to[i] = ((const int32_t *)from)[i];
            break;
        default:
            to[i] = (double)pl_f32_of_half(dtype == PLUME_BF16 ? PL_HALF_BF16 : PL_HALF_F16,
                                           ((const uint16_t *)from)[i]);
        }
}

/* One part's numbers. */
static int
read_kept_part(const plume_tensor *t, enum plume_what what, double *ret, struct pl_error *err)
{
    void *data = what == PLUME_GRADIENT ? t->grad : t->data;
    struct pl_device_map map;
    int r = pl_device_map(t->tape->dev, data, t->count * pl_dtype_size(t->dtype), PL_DEVICE_READ,
                          &map, err);

    if (r < 0)
        return r;
    widen(t->dtype, map.data, t->count, ret);
    pl_device_unmap(&map);
    return 0;
}

/* The parts follow one another, as they do along dimension 0. */
static int
read_kept(struct pl_context *ctx, const char *name, enum plume_what what, size_t n, double *ret)
{
    struct pl_error err = {0};
    size_t at = 0, count = 0;
    int r = 0;

    if (ctx->params.fetch)
        return pl_context_refuse(ctx, -ENOTSUP, "read '%s': it does not leave an XLA device", name);
    if (ctx->params.stages.n)
        return pl_context_refuse(
            ctx, -ENOTSUP, "read '%s': with strategy pipeline no rank runs the whole step", name);
    if (!ctx->kept_ready)
        return pl_context_refuse(ctx, -ENOENT, "read '%s': the step that keeps it has not run yet",
                                 name);
    for (size_t i = 0; i < ctx->n_kept; i++)
        if (strcmp(ctx->kept[i].name, name) == 0) {
            count += ctx->kept[i].t->count;
            if (what == PLUME_GRADIENT && !ctx->kept[i].t->grad)
                return pl_context_refuse(ctx, -ENOENT, "read '%s': the loss does not depend on it",
                                         name);
        }
    if (n != count)
        return pl_context_refuse(ctx, -EINVAL, "read '%s': it has %zu numbers, not %zu", name,
                                 count, n);
    for (size_t i = 0; i < ctx->n_kept && r == 0; i++)
        if (strcmp(ctx->kept[i].name, name) == 0) {
            r = read_kept_part(ctx->kept[i].t, what, ret + at, &err);
            at += ctx->kept[i].t->count;
        }
    if (r < 0)
        pl_context_keep(ctx, r, &err);
    return r;
}

/* True for a parameter of which each rank has a part. */
static bool is_split(const struct pl_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->params.n; i++)
        if (strcmp(ctx->params.list[i]->name, name) == 0)
            return pl_param_is_split(ctx->params.list[i]);
    return false;
}

/* Gradients that the ranks of the node have apart. */
static int read_apart(struct pl_context *ctx, const plume_tensor *t, double *ret)
{
    const struct pl_params *params = &ctx->params;
    size_t size = pl_real_size(params->real);
    size_t from = (size_t)((char *)t->grad - (char *)pl_params_grad(params, 0)) / size;
    _cleanup_free_ void *sum = malloc(t->count * size);
    struct pl_error err = {0};

    if (!sum) {
        pl_context_keep(ctx, pl_error_nomem(&err), &err);
        return -ENOMEM;
    }
    pl_params_sum_apart(params, pl_kernels_best(params->real), from, t->count, sum);
    widen(t->dtype, sum, t->count, ret);
    return 0;
}

int pl_context_read(
    struct plume_context *pl, const char *name, enum plume_what what, size_t n, double *ret)
{
    struct pl_context *ctx = (struct pl_context *)pl;
    struct pl_device_map map;
    struct pl_error err = {0};
    plume_tensor *t;
    void *data;
    int r;

    if (!name || !ret)
        return pl_context_refuse(ctx, -EINVAL,
                                 "read: the name or the place of the numbers is NULL");
    if (ctx->configuring || ctx->tape || !ctx->params.values)
        return pl_context_refuse(ctx, -EINVAL, "read '%s': not in configure and steps", name);
    if (what <= PLUME_GRADIENT && is_kept(ctx, name))
        return read_kept(ctx, name, what, n, ret);
    if (what == PLUME_GRADIENT && ctx->params.shard)
        return pl_context_refuse(
            ctx, -ENOTSUP, "read '%s': with strategy sharded no rank has whole gradients", name);
    if (pl_params_partial(&ctx->params))
        return pl_context_refuse(ctx, -ENOTSUP, "read '%s': with %s no rank has the whole model",
                                 name,
                                 ctx->params.stages.n ? "strategy pipeline" : "--shard param");
    if (what == PLUME_GRADIENT && ctx->params.fetch)
        return pl_context_refuse(ctx, -ENOTSUP, "read '%s': gradients do not leave an XLA device",
                                 name);
    if (is_split(ctx, name))
        return pl_context_refuse(
            ctx, -ENOTSUP, "read '%s': with --tensor-parallel no rank has the whole of it", name);
    data = find_named(ctx, name, what == PLUME_GRADIENT, &t);
    if (!data || what > PLUME_GRADIENT)
        return pl_context_refuse(ctx, -ENOENT, "read '%s': there is no such %s%s", name,
                                 what == PLUME_GRADIENT ? "parameter" : "parameter or buffer",
                                 ctx->split ? ", and --tensor-parallel keeps no tensors of a step"
                                            : "");
    if (n != t->count)
        return pl_context_refuse(ctx, -EINVAL, "read '%s': it has %zu numbers, not %zu", name,
                                 t->count, n);
    if (what == PLUME_GRADIENT && ctx->params.apart)
        return read_apart(ctx, t, ret);
    r = pl_params_fetch(&ctx->params, &err);
    if (r == 0)
        r = pl_device_map(ctx->params.dev, data, n * pl_dtype_size(t->dtype), PL_DEVICE_READ, &map,
                          &err);
    if (r < 0) {
        pl_context_keep(ctx, r, &err);
        return r;
    }
    for (size_t i = 0; i < n; i++)
        ret[i] = t->dtype == PLUME_F64 ? ((const double *)map.data)[i]
                                       : (double)((const float *)map.data)[i];
    pl_device_unmap(&map);
    return 0;
}
