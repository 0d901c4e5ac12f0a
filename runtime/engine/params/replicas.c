/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/replicas.h"

#define ALIGN(bytes) (((bytes) + PL_DEVICE_ALIGN - 1) / PL_DEVICE_ALIGN * PL_DEVICE_ALIGN)

int pl_replicas_init(struct pl_replicas *replicas,
                     struct pl_params *params,
                     struct pl_device *const *devices,
                     unsigned n,
                     struct pl_error *err)
{
    struct pl_replica *list = calloc(PL_MAX(n, 1u), sizeof(*list));

    if (!list)
        return pl_error_nomem(err);
    for (unsigned i = 0; i < n; i++)
        list[i].dev = devices ? devices[i] : params->dev;
    *replicas = (struct pl_replicas){.params = params, .list = list, .n = n};
    return 0;
}

void pl_replicas_finish(struct pl_replicas *replicas)
{
    for (unsigned i = 0; i < replicas->n; i++) {
        struct pl_replica *to = &replicas->list[i];

        pl_device_free(to->dev, to->values);
        pl_device_free(to->dev, to->buffers);
        free(to->copies);
    }
    if (replicas->packed)
        pl_device_free(replicas->params->dev, replicas->packed);
    free(replicas->list);
    *replicas = (struct pl_replicas){0};
}

static size_t bytes_of(const plume_tensor *t)
{
    return t->count * pl_dtype_size(t->dtype);
}

/* The offset of a buffer among all; with n_buffers, their total bytes. */
static size_t place_of_buffer(const struct pl_params *params, size_t buffer)
{
    size_t sum = 0;

    for (size_t i = 0; i < buffer; i++)
        sum += ALIGN(bytes_of(params->buffers[i].tensor));
    return sum;
}

/* Allocates a copy, and sets the address of each tensor in it. */
static int make(struct pl_replicas *r, struct pl_replica *to, struct pl_error *err)
{
    const struct pl_params *params = r->params;
    size_t size = pl_real_size(params->real), n = params->n + params->n_buffers;
    int code = 0;

    if (params->count && !to->values)
        code = pl_device_alloc(to->dev, params->count * size, "parameters", &to->values, err);
    r->buffers_bytes = place_of_buffer(params, params->n_buffers);
    if (code == 0 && r->buffers_bytes && !to->buffers)
        code = pl_device_alloc(to->dev, r->buffers_bytes, "buffers", &to->buffers, err);
    if (code == 0 && r->buffers_bytes && !r->packed)
        code = pl_device_alloc(params->dev, r->buffers_bytes, "buffers", &r->packed, err);
    if (code < 0)
        return code;
    to->copies = calloc(PL_MAX(n, (size_t)1), sizeof(*to->copies));
    if (!to->copies)
        return pl_error_nomem(err);
    for (size_t i = 0; i < params->n; i++)
        to->copies[params->list[i]->tensor->number - 1] =
            (char *)to->values + params->list[i]->offset * size;
    for (size_t i = 0; i < params->n_buffers; i++)
        to->copies[params->buffers[i].tensor->number - 1] =
            (char *)to->buffers + place_of_buffer(params, i);
    return 0;
}

/* All buffers of a model in one copy: each copy between devices has a fixed cost. */
static void pack(struct pl_replicas *r)
{
    const struct pl_params *params = r->params;

    if (r->packed_version == params->buffers_version)
        return;
    for (size_t i = 0; i < params->n_buffers; i++)
        pl_device_copy_from(params->dev, (char *)r->packed + place_of_buffer(params, i),
                            params->dev, params->buffers[i].tensor->data,
                            bytes_of(params->buffers[i].tensor));
    r->packed_version = params->buffers_version;
}

static void bring(struct pl_replicas *r, struct pl_replica *to)
{
    const struct pl_params *params = r->params;

    if (to->values_version != params->values_version)
        pl_device_copy_from(to->dev, to->values, params->dev, params->values,
                            params->count * pl_real_size(params->real));
    to->values_version = params->values_version;
    if (r->buffers_bytes && to->buffers_version != params->buffers_version) {
        pack(r);
        pl_device_copy_from(to->dev, to->buffers, params->dev, r->packed, r->buffers_bytes);
    }
    to->buffers_version = params->buffers_version;
}

int pl_replicas_refresh(struct pl_replicas *replicas, unsigned n, struct pl_error *err)
{
    for (unsigned i = 1; i < n; i++) {
        struct pl_replica *to = &replicas->list[i];
        int r = 0;

        if (!pl_replicas_elsewhere(replicas, i))
            continue;
        if (!to->copies)
            r = make(replicas, to, err);
        if (r < 0)
            return r;
        bring(replicas, to);
    }
    return 0;
}

int pl_replicas_sync(struct pl_replicas *replicas, struct pl_error *err)
{
    int r = 0;

    for (unsigned i = 1; i < replicas->n && r == 0; i++)
        if (pl_replicas_elsewhere(replicas, i))
            r = pl_device_sync(replicas->list[i].dev, err);
    return r;
}
