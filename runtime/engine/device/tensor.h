/* SPDX-License-Identifier: MIT */
/* Tensors: row-major arrays of at most PLUME_RANK_MAX dimensions. Plain data. The memory of `data`
 * and `grad` is a device's (device.h) and belongs to the maker of the tensor (parameter arenas, a
 * tape, the loader). A view shares the memory of another tensor, its base, with an offset and
 * strides of its own. */
#ifndef PL_RUNTIME_ENGINE_DEVICE_TENSOR_H
#define PL_RUNTIME_ENGINE_DEVICE_TENSOR_H

#include "plume/module.h"
#include "runtime/engine/device/device.h"

#include <stdbool.h>

struct plume_tensor {
    enum plume_dtype dtype;
    size_t rank;
    size_t shape[PLUME_RANK_MAX];
    size_t stride[PLUME_RANK_MAX]; /* elements from one index of a dimension to the next */
    size_t count;                  /* elements */
    void *data;
    void *grad;         /* same count and dtype; NULL if no gradient is wanted */
    plume_tensor *base; /* NULL, or the tensor that this is a view of (never itself a view) */
    size_t offset;      /* of a view, in elements */
    bool channels_last; /* four dimensions, in memory in the order 0, 2, 3, 1; never a view */
    bool wants_grad;
    bool is_param;              /* grad lies in the gradient arena */
    unsigned number;            /* of a parameter or buffer, from 1; 0 otherwise */
    bool reached;               /* used by tape_writes.c: on the path to a root */
    uint8_t written;            /* used by tape_writes.c: how much of the gradient is written */
    const struct pl_tape *tape; /* the tape that made it; NULL for leaves */
    size_t node;                /* the node that made it */
};

/* Bytes of one element; 0 for no dtype. */
size_t pl_dtype_size(enum plume_dtype dtype);
enum plume_dtype pl_dtype_of_real(enum pl_real real);

/* Product of the dimensions. -ERANGE if it overflows or rank > PLUME_RANK_MAX. */
int pl_shape_count(size_t rank, const size_t *shape, size_t *ret);

/* Sets dtype, shape and count; the rest becomes zero. Errors as pl_shape_count(). */
int pl_tensor_init(plume_tensor *t, enum plume_dtype dtype, size_t rank, const size_t *shape);

bool pl_dtype_is_real(enum plume_dtype dtype);
bool pl_dtype_is_16bit(enum plume_dtype dtype);
/* "f32"; "?" for no dtype. */
const char *pl_dtype_name(enum plume_dtype dtype);

/* Gives a tensor of four dimensions, which has no memory yet, channels last. */
void pl_tensor_set_channels_last(plume_tensor *t);

/* True if the elements are contiguous in row-major order. */
bool pl_tensor_is_dense(const plume_tensor *t);

/* True if the elements are contiguous in the order that channels last have. */
bool pl_tensor_fits_channels_last(const plume_tensor *t);

/* The tensor whose memory this is: t itself or its base. */
static inline plume_tensor *pl_tensor_root(plume_tensor *t)
{
    return t->base ? t->base : t;
}

/* First element; NULL while there is no memory. */
void *pl_tensor_data(const plume_tensor *t);
void *pl_tensor_grad(const plume_tensor *t);

/* Element 0 of a real tensor with memory on `dev`, as a double. Waits for the device's earlier
 * work. -EIO. */
int pl_tensor_scalar(const plume_tensor *t,
                     struct pl_device *dev,
                     double *ret,
                     struct pl_error *err);

/* The same in two calls; work queued in between is not waited for. One at a time. */
void pl_tensor_peek(const plume_tensor *t, struct pl_device *dev, struct pl_device_peek *ret);
int pl_tensor_peeked(const plume_tensor *t,
                     struct pl_device_peek *peek,
                     double *ret,
                     struct pl_error *err);

/* "f32[8, 64]" into buf, always terminated. Returns buf. */
const char *pl_tensor_text(const plume_tensor *t, char *buf, size_t size);

#endif
