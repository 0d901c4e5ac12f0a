/* SPDX-License-Identifier: MIT */
/* Runs tables of other types on the op tests' arrays of f32: each call converts what it reads into
 * memory of exactly the size that the op may touch, and back what it writes; what it writes without
 * reading it begins as NaNs. What a 16-bit table's op keeps of a row is f32 (kernels/cuda/cuda.h)
 * and is not rounded. */
#ifndef PL_TESTS_KERNELS_TYPED_H
#define PL_TESTS_KERNELS_TYPED_H

#include "kernels/kernels.h"

enum typed_side {
    TYPED_REF,
    TYPED_GOT,
    TYPED_SIDES,
};

/* A table that takes f32, rounds it to `storage` and calls `table`, whose own type is table->real.
 * One a side at a time; good until the next call for that side. Functions that `table` has not call
 * absent(name). */
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
