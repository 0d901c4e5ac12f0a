/* SPDX-License-Identifier: MIT */
/* A run's report of its memory before the first step: its need, and if that is more than there is,
 * the options that need less. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_MEMORY_PLAN_H
#define PL_RUNTIME_ENGINE_TRAIN_MEMORY_PLAN_H

#include "runtime/engine/train/memory_need.h"

#include <stdio.h>

/* Plans are within 5 % of what a run takes. */
#define PL_MEMORY_MARGIN 1.05

#define PL_MEMORY_CHOICE 96

/* Options, and the bytes that a rank needs with them. */
struct pl_memory_choice {
    char text[PL_MEMORY_CHOICE];
    double bytes;
};

/* True if so much fits, with the margin. */
static inline bool pl_memory_fits(double bytes, double limit)
{
    return bytes * PL_MEMORY_MARGIN <= limit;
}

/* Writes the choices that fit, with their bytes, in their order, "A (1.0 MB), or B (2.0 MB)".
 * Returns their number. Pure. */
size_t pl_memory_choose(
    const struct pl_memory_choice *list, size_t n, double limit, char *ret, size_t size);

/* Before training. Rank 0 prints the number of parameters and the bytes that a rank needs; if they
 * are more than the limit it warns, and names options whose plans fit. *ret: the bytes of rank 0; 0
 * = not planned (an XLA device, no epoch). Collective. Traces the steps on full batches: the errors
 * of pl_memory_need(). */
int pl_memory_plan(struct pl_trainer *trainer, double *ret, struct pl_error *err);

#endif
