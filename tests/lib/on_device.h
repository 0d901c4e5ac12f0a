/* SPDX-License-Identifier: MIT */
/* Tensors' memory in tests of the engine: by the device, so that they hold for any. */
#ifndef PL_TESTS_LIB_ON_DEVICE_H
#define PL_TESTS_LIB_ON_DEVICE_H

#include "runtime/engine/tensor.h"

#include <math.h>

/* Element 0; NaN where the device fails. */
static inline double on_device_scalar(const plume_tensor *t)
{
    double value = NAN;

    pl_tensor_scalar(t, pl_device_cpu(), &value, NULL);
    return value;
}

/* A copy of memory that the test frees; NULL where the device fails. */
static inline void *on_device_read(void *memory, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    if (copy && pl_device_download(pl_device_cpu(), copy, memory, bytes, NULL) < 0) {
        free(copy);
        return NULL;
    }
    return copy;
}

#endif
