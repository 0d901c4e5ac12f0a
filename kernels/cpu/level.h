/* SPDX-License-Identifier: MIT */
/* Each file of this folder is compiled once an x86-64 level (PL_CPU_LEVEL 0, 3, 4: baseline,
 * -march=x86-64-v3 with AVX2 and FMA, -v4 with AVX-512); the table is chosen at run time. This
 * rather than target_clones: its resolvers run before a sanitizer's run time is up, and clang 14
 * has none in C. Elsewhere than on x86-64 there is level 0 only. */
#ifndef PL_KERNELS_CPU_LEVEL_H
#define PL_KERNELS_CPU_LEVEL_H

#include "kernels/kernels.h"

#ifndef PL_CPU_LEVEL
#define PL_CPU_LEVEL 0
#endif
#if PL_CPU_LEVEL == 4
#define PL_CPU(name) pl_cpu_v4_##name
#define PL_CPU_NAME "cpu/v4"
#define PL_LANES 16
#elif PL_CPU_LEVEL == 3
#define PL_CPU(name) pl_cpu_v3_##name
#define PL_CPU_NAME "cpu/v3"
#define PL_LANES 8
#else
#define PL_CPU(name) pl_cpu_v0_##name
#define PL_CPU_NAME "cpu/v0"
#define PL_LANES 4
#endif

#define PL_CPU_DECLARE(function, args) void PL_CPU(function)(const struct pl_##args##_args *a);
PL_KERNEL_LIST(PL_CPU_DECLARE)
#undef PL_CPU_DECLARE

/* In front of a loop in which no pass reads what another writes, though the pointers may be equal.
 */
#ifdef __clang__
#define PL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define PL_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* C [m, n] (row stride ldc) = A B, or C + A B where add. A(i,k) = a[i * a_row + k * a_col],
 * B(k,j) = b[k * b_row + j * b_col]; of each pair of strides one must be 1. */
struct pl_gemm {
    size_t m, n, k;
    const float *a;
    size_t a_row, a_col;
    const float *b;
    size_t b_row, b_col;
    float *c;
    size_t ldc;
    bool add;
};

/* Own loops on the calling thread: for small matrices, and where there is no oneDNN. */
void PL_CPU(gemm)(const struct pl_gemm *g);

/* oneDNN's, for matrices so large that its start-up (some 20 ms, once) pays. Returns false where
 * the product is small or the library is not there; nothing is done then. */
bool pl_gemm_dnnl(const struct pl_gemm *g);

#endif
