/* SPDX-License-Identifier: MIT */
/* Read-only arrays in NumPy's .npy format, versions 1.0 to 3.0 (numpy.lib.format), mapped into
 * memory. Little-endian u1, i4, f4 and f8 in C order. */
#ifndef PL_RUNTIME_ENGINE_NPY_H
#define PL_RUNTIME_ENGINE_NPY_H

#include "common/base/error.h"
#include "plume/module.h"

struct plume_array {
    enum plume_dtype dtype;
    size_t rank;
    size_t shape[PLUME_RANK_MAX];
    size_t count;     /* elements */
    const void *data; /* maybe not aligned to its type: read by memcpy */
    void *map;        /* NULL where the array lies in the parsed text itself */
    size_t map_bytes;
};

/* Parses a file's bytes; ret->data points into them. -EINVAL says what is wrong, -ENOTSUP names
 * a type or order that is not read. */
int pl_npy_parse(const void *bytes, size_t len, struct plume_array *ret, struct pl_error *err);

/* Maps the file; undone by pl_npy_close(). */
int pl_npy_open(const char *path, struct plume_array *ret, struct pl_error *err);
void pl_npy_close(struct plume_array *array);

#endif
