/* SPDX-License-Identifier: MIT */
/* GFLOP/s of the linear op's forward pass on square f32 matrices: the best of those that fit into a
 * second. The share of the peak in ./dev bench engine is a share of this. */
#include "common/base/fs.h"
#include "kernels/kernels.h"

#include <stdlib.h>

#define N ((size_t)1024)
#define ROUNDS 12

int main(void)
{
    const struct pl_kernels *k = pl_kernels_best(PL_REAL_F32);
    float *m = aligned_alloc(64, 3 * N * N * sizeof(*m));
    double best = 0;

    if (!m)
        return 1;
    for (size_t i = 0; i < 3 * N * N; i++)
        m[i] = (float)(i % 17) * 0.125F - 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct pl_linear_args args = {
            .rows = N, .in = N, .out = N, .x = m, .w = m + N * N, .y = m + 2 * N * N};
        uint64_t start = pl_now_ns();
        double rate;

        k->linear_forward(&args);
        rate = 2.0 * (double)(N * N * N) / (double)(pl_now_ns() - start);
        best = rate > best ? rate : best;
    }
    printf("%.2f\n", best);
    free(m);
    return 0;
}
