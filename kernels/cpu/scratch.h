/* SPDX-License-Identifier: MIT */
/* Scratch memory per thread, kept until the thread ends. */
#ifndef PL_KERNELS_CPU_SCRATCH_H
#define PL_KERNELS_CPU_SCRATCH_H

#include <stddef.h>

/* The users: uses that may be active at the same time on one thread have different numbers. */
enum pl_scratch {
    PL_SCRATCH_GEMM_A,
    PL_SCRATCH_GEMM_B,
    PL_SCRATCH_GEMM_C,
    PL_SCRATCH_CONV,
    PL_SCRATCH_CONV_SHARED,
    PL_SCRATCH_SUMS, /* partial sums of the calling thread */
    PL_SCRATCH_ATTENTION,
    PL_SCRATCH_COUNT,
};

/* At least `bytes` bytes, 64-byte aligned, uninitialised; the same memory at each call if it is
 * large enough. NULL if out of memory. */
void *pl_scratch(enum pl_scratch use, size_t bytes);

/* Says that an op has no result, because it got no scratch memory: pl_kernels_lost() is true from
 * now on. An op that can do without does not say so. */
void pl_scratch_lost(void);

#endif
