/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* As in linear.c. */
static double bound(size_t n, double magnitude)
{
    return (double)(n + 4) * CHECK_EPS * magnitude + (double)(n + 1) * 1.5e-45;
}

static size_t pick(void)
{
    static const size_t sizes[] = {1, 2, 5, 7, 8, 16, 17, 31, 33, 64, 65};

    return sizes[check_random(PL_COUNT(sizes))];
}

static float at(const float *p, bool transposed, size_t row, size_t i, size_t j)
{
    return transposed ? p[j * row + i] : p[i * row + j];
}

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t m,
                size_t n,
                size_t k,
                size_t batch,
                enum fill fill)
{
    struct pl_matmul_args s = {.batch = batch,
                               .m = m,
                               .n = n,
                               .k = k,
                               .a_transposed = check_random(2),
                               .b_transposed = check_random(2),
                               .add = check_random(2),
                               .scale = check_random(2) ? 1 : 0.125};
    size_t gap = check_random(3), a_rows = s.a_transposed ? k : m, b_rows = s.b_transposed ? n : k;
    float *want, *have;

    check_case("matmul m %zu n %zu k %zu batch %zu transposed %d%d add %d gap %zu fill %d", m, n, k,
               batch, s.a_transposed, s.b_transposed, s.add, gap, fill);
    s.a_row = (s.a_transposed ? m : k) + gap;
    s.b_row = (s.b_transposed ? k : n) + gap;
    s.c_row = n + gap;
    s.a_batch = a_rows * s.a_row;
    s.b_batch = check_random(2) ? b_rows * s.b_row : 0;
    s.c_batch = m * s.c_row;
    s.a = check_floats(batch * s.a_batch, fill);
    s.b = check_floats(s.b_batch ? batch * s.b_batch : b_rows * s.b_row, fill);
    want = check_floats(batch * s.c_batch, FILL_RANDOM);
    have = check_copy(want, batch * s.c_batch);
    s.c = want;
    ref->matmul(&s);
    s.c = have;
    got->matmul(&s);
    for (size_t t = 0; t < batch; t++) {
        const float *a = (const float *)s.a + t * s.a_batch,
                    *b = (const float *)s.b + t * s.b_batch;

        for (size_t i = 0; i < m; i++) {
            for (size_t j = 0; j < s.c_row; j++) {
                size_t c = t * s.c_batch + i * s.c_row + j;
                double sum = 1;

                for (size_t l = 0; j < n && l < k; l++)
                    sum += fabs((double)at(a, s.a_transposed, s.a_row, i, l) *
                                at(b, s.b_transposed, s.b_row, l, j));
                check_close("c", c, have[c], want[c], j < n ? bound(k, sum) : 0);
            }
        }
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 0; n < check_many(150, 150); n++)
        one(ref, got, pick(), pick(), pick(), 1 + check_random(3),
            (enum fill)check_random(FILL_SPECIAL));
    one(ref, got, 150, 60, 500, 1, FILL_RANDOM);
    one(ref, got, 10, 200, 500, 2, FILL_RANDOM);
    one(ref, got, 200, 10, 500, 2, FILL_LARGE);
    one(ref, got, 7, 70, 3001, 2, FILL_RANDOM); /* sums in several pieces */
    one(ref, got, 4, 5, 0, 2, FILL_RANDOM);
}
