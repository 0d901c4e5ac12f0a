/* SPDX-License-Identifier: MIT */
/* Each file of this folder is compiled once per x86-64 level (PL_CPU_LEVEL 0, 3, 4: baseline,
 * -march=x86-64-v3 with AVX2 and FMA, -v4 with AVX-512); the table is chosen at run time.
 * target_clones is not used: its resolvers run before a sanitizer's runtime is initialised, and
 * clang 14 has none in C. Other processors than x86-64 have level 0 only. */
#ifndef PL_KERNELS_CPU_LEVEL_H
#define PL_KERNELS_CPU_LEVEL_H

#include "kernels/kernels.h"

#ifndef PL_CPU_LEVEL
#define PL_CPU_LEVEL 0
#endif
#if PL_CPU_LEVEL == 4 && defined(PL_CPU_ANYWHERE) /* for tests on machines without AVX-512 */
#define PL_CPU(name) pl_cpu_v4_anywhere_##name
#define PL_CPU_NAME "cpu/v4 in small vectors"
#define PL_LANES 16
#elif PL_CPU_LEVEL == 4
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

/* Marks a loop whose iterations are independent, even if the pointers are equal. */
#ifdef __clang__
#define PL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define PL_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* C [m, n] (row stride ldc) = act(scale A B + bias + row_bias), or with C added to the product if
 * `add`. A(i,k) = a[i * a_row + k * a_col], B(k,j) = b[k * b_row + j * b_col]; of each pair of
 * strides one must be 1. The result's bits do not depend on the number of threads. */
struct pl_gemm {
    size_t m, n, k;
    const float *a;
    size_t a_row, a_col;
    const float *b;
    size_t b_row, b_col;
    float *c;
    size_t ldc;
    float scale; /* 0 = 1 */
    bool add;
    const float *bias;     /* [n], or NULL */
    const float *row_bias; /* [m], or NULL */
    bool relu;
    /* Called by any thread when a part of C is complete and still in the cache; may be NULL. */
    void (*done)(const struct pl_gemm *g, size_t i, size_t m, size_t j, size_t n);
    void *ctx; /* for done */
};

/* Our own loops, on the caller's group of threads. */
void PL_CPU(gemm)(const struct pl_gemm *g);

#endif
