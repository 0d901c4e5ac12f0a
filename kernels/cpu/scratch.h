/* SPDX-License-Identifier: MIT */
/* Scratch memory of a thread, kept until the thread ends. */
#ifndef PL_KERNELS_CPU_SCRATCH_H
#define PL_KERNELS_CPU_SCRATCH_H

#include <stddef.h>

/* Who uses it: uses that may be active at the same time on one thread differ. */
enum pl_scratch {
    PL_SCRATCH_GEMM_A,
    PL_SCRATCH_GEMM_B,
    PL_SCRATCH_CONV,
    PL_SCRATCH_CONV_SHARED,
    PL_SCRATCH_SUMS, /* partial sums of the thread that calls */
    PL_SCRATCH_ATTENTION,
    PL_SCRATCH_COUNT,
};

/* At least `bytes` bytes, 64-byte aligned, contents undefined; the same memory at each call while
 * it suffices. NULL where there is no memory. */
void *pl_scratch(enum pl_scratch use, size_t bytes);

#endif
