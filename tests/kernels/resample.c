/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

/* Each element is a sum of a few of a range that a weight of at most 1 multiplies, in f32 on CPUs:
 * a rounding per term, of numbers up to `terms`. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t outer,
                size_t n,
                size_t m,
                size_t inner,
                enum pl_resample mode)
{
    size_t x = outer * n * inner, y = outer * m * inner;
    double terms = 2 + 3 * ((double)m / (double)n + (double)n / (double)m);
    float *out = check_floats(y, FILL_RANDOM), *out2 = check_floats(y, FILL_RANDOM);
    float *dx = check_floats(x, FILL_RANDOM), *dx2 = check_copy(dx, x);
    struct pl_resample_args a = {.outer = outer,
                                 .n = n,
                                 .m = m,
                                 .inner = inner,
                                 .mode = mode,
                                 .dx_add = check_random(2),
                                 .x = check_floats(x, FILL_RANDOM),
                                 .dy = check_floats(y, FILL_RANDOM),
                                 .y = out,
                                 .dx = dx};

    check_case("resample outer %zu n %zu m %zu inner %zu mode %d", outer, n, m, inner, (int)mode);
    ref->resample_forward(&a);
    ref->resample_backward(&a);
    a.y = out2;
    a.dx = dx2;
    got->resample_forward(&a);
    got->resample_backward(&a);
    for (size_t i = 0; i < y; i++)
        check_close("y", i, out2[i], out[i], 4 * terms * CHECK_EPS);
    for (size_t i = 0; i < x; i++)
        check_close("dx", i, dx2[i], dx[i], 4 * terms * terms * CHECK_EPS);
    check_end_case();
}

/* Ranges: inside x, never back, of weights that sum to one. */
static void ranges(size_t n, size_t m, enum pl_resample mode)
{
    struct pl_taps last = {0, 1, 1, 0};

    check_case("ranges n %zu m %zu mode %d", n, m, (int)mode);
    for (size_t i = 0; i < m; i++) {
        struct pl_taps t = pl_taps_of(mode, n, m, i);

        check_close("count", i, t.count > 0, 1, 0);
        check_close("end", i, t.first + t.count <= n, 1, 0);
        check_close("first", i, t.first >= last.first, 1, 0);
        check_close("last", i, t.first + t.count >= (i ? last.first + last.count : 0), 1, 0);
        check_close("sum", i, t.weight + t.others * (double)(t.count - 1), 1, 1e-12);
        last = t;
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (int mode = PL_RESAMPLE_NEAREST; mode <= PL_RESAMPLE_AREA; mode++) {
        for (size_t n = 1; n < 30; n++)
            for (size_t m = 1; m < 70; m += 1 + check_random(3))
                ranges(n, m, (enum pl_resample)mode);
        for (size_t i = 0; i < check_many(150, 40); i++)
            one(ref, got, 1 + check_random(4), 1 + check_random(12), 1 + check_random(25),
                check_random(2) ? 1 : 1 + check_random(40), (enum pl_resample)mode);
    }
}
