/* SPDX-License-Identifier: MIT */
/* Runs tables of other types on the op tests' f32 arrays: each call converts its inputs into memory
 * of exactly the size that the op may access, and converts its outputs back. Outputs that are not
 * read start as NaNs. Row statistics of a 16-bit table are f32 (kernels/cuda/cuda.h) and are not
 * rounded. */
#ifndef PL_TESTS_KERNELS_TYPED_H
#define PL_TESTS_KERNELS_TYPED_H

#include "kernels/kernels.h"

enum typed_side {
    TYPED_REF,
    TYPED_GOT,
    TYPED_SIDES,
};

/* A table that takes f32, rounds it to `storage` and calls `table`, whose own type is table->real.
 * One per side at a time, valid until the next call for that side. Functions that `table` lacks
 * call absent(name). */
const struct pl_kernels *typed_table(enum typed_side side,
                                     const struct pl_kernels *table,
                                     enum pl_real storage,
                                     void (*absent)(const char *name));

/* Memory that only the table of TYPED_GOT can use. Neither fails: they end the program. */
struct typed_memory {
    /* A copy there, its alignment at least 64. */
    void *(*put)(const void *from, size_t bytes);
    /* Brings it back when the op is done, and frees it. */
    void (*take)(void *to, void *copy, size_t bytes);
};

/* From now on TYPED_GOT's arrays are copied there for each call; NULL = they stay. Borrowed. */
void typed_elsewhere(const struct typed_memory *memory);

/* The nearest number of that type. */
float typed_round(enum pl_real storage, float x);

#endif
