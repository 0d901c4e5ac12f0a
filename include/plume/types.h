/* SPDX-License-Identifier: MIT */
/* The types of Plume's module interface. Included by plume/module.h. */
#ifndef PL_TYPES_H
#define PL_TYPES_H

#include <stddef.h>
#include <stdint.h>

#define PLUME_RANK_MAX 5   /* dimensions of a tensor */
#define PLUME_FIELDS_MAX 8 /* fields of a batch */

enum plume_dtype {
    PLUME_F32 = 1,
    PLUME_F64 = 2,
    PLUME_I32 = 3,
    PLUME_U8 = 4,
    PLUME_BF16 = 5, /* the upper half of an f32 */
    PLUME_F16 = 6,  /* IEEE 754 binary16 */
    PLUME_U16 = 7,  /* arrays only */
};

typedef struct plume_tensor plume_tensor; /* opaque; row-major, dense */
typedef struct plume_array plume_array;   /* opaque; read-only samples of a data file */
struct plume_context;

#endif
