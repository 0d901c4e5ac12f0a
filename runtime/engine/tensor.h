/* SPDX-License-Identifier: MIT */
/* Tensors: dense row-major arrays of at most PLUME_RANK_MAX dimensions. Plain data; the memory of
 * `data` and `grad` belongs to whoever made the tensor (parameter arenas, a tape, the loader). */
#ifndef PL_RUNTIME_ENGINE_TENSOR_H
#define PL_RUNTIME_ENGINE_TENSOR_H

#include "common/base/error.h"
#include "kernels/kernels.h"
#include "plume/module.h"

#include <stdbool.h>

struct plume_tensor {
    enum plume_dtype dtype;
    size_t rank;
    size_t shape[PLUME_RANK_MAX];
    size_t count; /* elements */
    void *data;
    void *grad; /* same count and dtype; NULL where none is wanted */
    bool wants_grad;
    bool is_param; /* grad lies in the arena, zeroed once a step, always added to */
    bool reached;  /* a tape's own: on the path to the loss */
};

/* Bytes of one element; 0 for no dtype. */
size_t pl_dtype_size(enum plume_dtype dtype);
enum plume_dtype pl_dtype_of_real(enum pl_real real);

/* Product of the dimensions; -ERANGE where it does not fit or rank > PLUME_RANK_MAX. */
int pl_shape_count(size_t rank, const size_t *shape, size_t *ret);

/* Sets dtype, shape and count; the rest becomes zero. Errors as pl_shape_count(). */
int pl_tensor_init(plume_tensor *t, enum plume_dtype dtype, size_t rank, const size_t *shape);

/* "f32[8, 64]" into buf, always terminated. Returns buf. */
const char *pl_tensor_text(const plume_tensor *t, char *buf, size_t size);

#endif
