/* SPDX-License-Identifier: MIT */
/* Prints two numbers in GFLOP/s of one thread, each the best of many rounds: the linear op's
 * forward pass on square f32 matrices (the "gemm peak" of ./dev bench engine), and multiply-adds in
 * registers, the upper bound (0 on an unknown processor). */
#include "common/base/fs.h"
#include "kernels/kernels.h"

#include <stdlib.h>

#define N ((size_t)1024)
#define ROUNDS 40

static double gemm(const struct pl_kernels *k, float *m)
{
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct pl_linear_args args = {
            .rows = N, .in = N, .out = N, .x = m, .w = m + N * N, .y = m + 2 * N * N};
        uint64_t start = pl_now_ns();
        double rate;

        k->linear_forward(&args);
        rate = 2.0 * (double)(N * N * N) / (double)(pl_now_ns() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

#if defined(__x86_64__)
#define CHAINS 12 /* enough to hide the latency of a multiply-add */
#define ADDS 1000000

/* Chains of dependent multiply-adds in vectors of `width` floats. */
#define DEFINE_FMA(name, width, isa)                                                               \
    __attribute__((target(isa))) static double name(void)                                          \
    {                                                                                              \
        typedef float vector __attribute__((vector_size((width) * sizeof(float))));                \
        vector sum[CHAINS] = {{0}}, x = {0}, y = {0};                                              \
        uint64_t start;                                                                            \
        double took;                                                                               \
                                                                                                   \
        x += 0.5F;                                                                                 \
        y += 0.25F;                                                                                \
        start = pl_now_ns();                                                                       \
        for (int i = 0; i < ADDS; i++)                                                             \
            _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)                              \
            {                                                                                      \
                sum[c] = sum[c] * x + y;                                                           \
                __asm__ volatile("" : "+x"(sum[c]));                                               \
            }                                                                                      \
        took = (double)(pl_now_ns() - start);                                                      \
        return 2.0 * (width)*CHAINS * ADDS / took;                                                 \
    }

DEFINE_FMA(fma_v3, 8, "avx2,fma")
DEFINE_FMA(fma_v4, 16, "avx512f")

static double multiply_add(void)
{
    double best = 0;

    for (int round = 0; round < ROUNDS; round++) {
        double rate = 0;

        if (__builtin_cpu_supports("avx512f"))
            rate = fma_v4();
        else if (__builtin_cpu_supports("fma"))
            rate = fma_v3();
        best = rate > best ? rate : best;
    }
    return best;
}
#else
static double multiply_add(void)
{
    return 0;
}
#endif

int main(void)
{
    float *m = aligned_alloc(64, 3 * N * N * sizeof(*m));

    if (!m)
        return 1;
    for (size_t i = 0; i < 3 * N * N; i++)
        m[i] = (float)(i % 17) * 0.125F - 1;
    printf("%.2f %.2f\n", gemm(pl_kernels_best(PL_REAL_F32), m), multiply_add());
    free(m);
    return 0;
}
