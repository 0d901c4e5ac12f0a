/* SPDX-License-Identifier: MIT */
/* Conversion of samples from an array into a batch. */
#ifndef PL_RUNTIME_ENGINE_DATA_LOADER_FILL_H
#define PL_RUNTIME_ENGINE_DATA_LOADER_FILL_H

#include "runtime/engine/data/array.h"
#include "runtime/engine/device/tensor.h"

/* True if batches of type `want` (PLUME_F32 = real) can be made from arrays of type `have`. */
bool pl_loader_converts(enum plume_dtype have, enum plume_dtype want);

/* Converts n elements from src (unaligned) to dst of type `to` (the engine's real type, or
 * PLUME_I32): value * scale + shift in dst's type; integers are copied. */
void pl_loader_convert(void *dst,
                       enum plume_dtype to,
                       const void *src,
                       enum plume_dtype from,
                       size_t n,
                       double scale,
                       double shift);

#endif
