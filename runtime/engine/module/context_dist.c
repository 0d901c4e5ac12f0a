/* SPDX-License-Identifier: MIT */
/* The implementation of struct plume_dist_api. */
#include "common/base/parse.h"
#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/module/context.h"

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

/* Checks that a communicator exists. */
static int ready(struct pl_context *ctx, size_t real_bytes)
{
    struct pl_error err = {0};
    int r = 0;

    if (!ctx->comm)
        r = pl_error_set(&err, -EINVAL,
                         "collectives may not be called before the ranks are connected");
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
        return result(ctx, pl_error_nomem(&err), &err);
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

/* ---- outputs ---- */

void pl_outputs_begin(struct plume_outputs *outputs, unsigned parts)
{
    memset(outputs, 0, sizeof(*outputs));
    outputs->parts = parts;
    outputs->n = 1;
    memcpy(outputs->list[0].name, "loss", sizeof("loss"));
}

void pl_outputs_loss(struct plume_outputs *outputs, unsigned part, plume_tensor *loss)
{
    outputs->list[0].part[part] = loss;
}

int pl_outputs_check(const struct plume_outputs *outputs, struct pl_error *err)
{
    for (size_t i = 0; i < outputs->n; i++)
        for (unsigned k = 1; k < outputs->parts; k++)
            if (!outputs->list[i].part[k] != !outputs->list[i].part[0])
                return pl_error_set(err, -EINVAL,
                                    "part %u of the batch gave no output '%s', others did",
                                    outputs->list[i].part[k] ? 0 : k, outputs->list[i].name);
    return 0;
}

static struct pl_output *find_output(const struct plume_outputs *outputs, const char *name)
{
    for (size_t i = 0; i < outputs->n; i++)
        if (strcmp(outputs->list[i].name, name) == 0)
            return (struct pl_output *)&outputs->list[i];
    return NULL;
}

static void refuse_output(struct pl_context *ctx, const char *what, const char *name)
{
    pl_context_refuse(ctx, -EINVAL, "output '%s' %s", name, what);
}

static void api_output(struct plume_context *pl, const char *name, plume_tensor *value)
{
    struct pl_context *ctx = of(pl);
    struct plume_outputs *outputs = ctx->outputs;
    struct pl_output *o;

    if (!name)
        name = ""; /* a bad name */
    if (!value)
        return; /* follows from an earlier failure, or the missing output is reported later */
    if (!outputs) {
        refuse_output(ctx, "is given outside of a step", name);
        return;
    }
    if (!pl_context_is_of_step(ctx, value)) {
        refuse_output(ctx, PL_IS_OF_EARLIER, name);
        return;
    }
    o = find_output(outputs, name);
    if (!o && outputs->n < PL_OUTPUTS_MAX && strlen(name) < sizeof(o->name) &&
        pl_name_valid(name, strlen(name))) {
        o = &outputs->list[outputs->n++];
        memcpy(o->name, name, strlen(name) + 1);
    }
    if (!o || o == &outputs->list[0])
        refuse_output(ctx, "has a bad name, or exceeds the limit", name);
    else if (o->part[ctx->part])
        refuse_output(ctx, "is given twice", name);
    else
        o->part[ctx->part] = value;
}

static unsigned api_parts(const struct plume_outputs *outputs)
{
    return outputs->parts;
}

static plume_tensor *
api_whole(struct plume_context *pl, const struct plume_outputs *outputs, const char *name)
{
    struct pl_output *o = find_output(outputs, name);
    plume_tensor *rows[PL_PARTS_MAX];

    if (!o || !o->part[0]) {
        refuse_output(of(pl), "is requested, but the step did not give it", name);
        return NULL;
    }
    if (outputs->parts == 1)
        return o->part[0];
    for (unsigned i = 0; i < outputs->parts && !o->whole; i++)
        rows[i] = o->part[i]->rank ? o->part[i] : plume_reshape(pl, o->part[i], 1, (size_t[]){1});
    if (!o->whole)
        o->whole = plume_cat(pl, outputs->parts, rows);
    return o->whole;
}

static plume_tensor *api_part(struct plume_context *pl,
                              const struct plume_outputs *outputs,
                              const char *name,
                              unsigned part)
{
    const struct pl_output *o = find_output(outputs, name);

    if (!o || part >= outputs->parts || !o->part[part]) {
        refuse_output(of(pl), "is requested, but the step did not give it", name);
        return NULL;
    }
    return o->part[part];
}

/* ---- a module's own part of a checkpoint ---- */

static int api_save(struct plume_context *pl, const char *name, const void *bytes, size_t n)
{
    struct pl_context *ctx = of(pl);
    char full[PL_CHECKPOINT_NAME_MAX];
    struct pl_error err = {0};
    int r;

    if (!name || (!bytes && n))
        r = pl_error_set(&err, -EINVAL, "save: the name or the bytes are NULL");
    else if (!ctx->checkpoint || strlen(name) > 64 || !pl_name_valid(name, strlen(name)))
        r = pl_error_set(&err, -EINVAL,
                         "save: '%s' is a bad name, or the call is outside on_save_checkpoint",
                         name);
    else {
        snprintf(full, sizeof(full), PL_CHECKPOINT_PREFIX "extras/%s", name);
        r = pl_checkpoint_add(ctx->checkpoint, full, PLUME_U8, 1, &n, bytes, &err);
    }
    return result(ctx, r, &err);
}

static const void *api_load(struct plume_context *pl, const char *name, size_t *ret_n)
{
    const struct pl_checkpoint_tensor *t;
    struct pl_context *ctx = of(pl);
    char full[PL_CHECKPOINT_NAME_MAX];
    struct pl_error err = {0};

    if (!ctx->checkpoint) {
        result(ctx, pl_error_set(&err, -EINVAL, "load: may only be called in on_load_checkpoint"),
               &err);
        return NULL;
    }
    snprintf(full, sizeof(full), PL_CHECKPOINT_PREFIX "extras/%s", name ? name : "");
    t = pl_checkpoint_find(ctx->checkpoint, full);
    if (!t)
        return NULL;
    if (ret_n)
        *ret_n = t->bytes;
    return t->data;
}

const struct plume_dist_api pl_context_dist = {
    .struct_size = sizeof(struct plume_dist_api),
    .allreduce = api_allreduce,
    .all_gather = api_all_gather,
    .broadcast = api_broadcast,
    .output = api_output,
    .parts = api_parts,
    .whole = api_whole,
    .part = api_part,
    .save = api_save,
    .load = api_load,
};
