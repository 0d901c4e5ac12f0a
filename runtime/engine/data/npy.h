/* SPDX-License-Identifier: MIT */
/* Read-only arrays in NumPy's .npy format, versions 1.0 to 3.0 (numpy.lib.format), mapped into
 * memory. Little-endian b1, u1, u2, i4, i8 (narrowed to i4 in own memory), f4 and f8 in C order. */
#ifndef PL_RUNTIME_ENGINE_DATA_NPY_H
#define PL_RUNTIME_ENGINE_DATA_NPY_H

#include "runtime/engine/data/array.h"

/* Parses a file's bytes; ret->data points into them or is ret->own. -EINVAL: malformed; -ENOTSUP
 * names a type or order that is not supported. */
int pl_npy_parse(const void *bytes, size_t len, struct plume_array *ret, struct pl_error *err);

#endif
