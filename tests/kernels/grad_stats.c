/* SPDX-License-Identifier: MIT */
#include "kernels/pool/pool.h"
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

/* The contents are the same for ref and got, and the sum is of one order: no tolerance. */
static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    float *g = check_floats(n, fill), *g2 = check_copy(g, n);
    double squares = -1, squares2 = -2;
    bool finite = false, finite2 = true, clips = check_random(2);
    double before = check_random(2) ? 0.7 : 0, total = before, total2 = before;
    double factor = -1, factor2 = -1;
    struct pl_grad_stats_args a = {
        .n = n, .scale = check_random(2) ? 1.0 / 1024 : 1, .limit = check_random(2) ? 1 : 1000};

    check_case("grad_stats n %zu scale %g fill %d", n, a.scale, fill);
    a.grad = g;
    a.ret_squares = &squares;
    a.ret_finite = &finite;
    a.total = clips ? &total : NULL;
    a.ret_factor = clips ? &factor : NULL;
    ref->grad_stats(&a);
    a.grad = g2;
    a.ret_squares = &squares2;
    a.ret_finite = &finite2;
    a.total = clips ? &total2 : NULL;
    a.ret_factor = clips ? &factor2 : NULL;
    got->grad_stats(&a);
    check_same("grad", g2, g, n);
    check_close("squares", 0, squares2, squares, 0);
    check_close("total", 0, total2, total, 0);
    check_close("factor", 0, factor2, factor, 0);
    if (clips && isfinite(squares)) {
        check_close("total", 0, total, before + squares, 0);
        check_close("factor", 0, factor, fmin(1, a.limit / (sqrt(total) + 1e-6)), 0);
    }
    check_close("finite", 0, finite2, finite, 0);
    check_close("finite or not", 0, isfinite(squares2), finite, 0);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 100; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (enum fill)fill);
    /* A GPU knows nothing of these threads. */
    for (unsigned threads = 1; threads <= 3 && threads <= check_many(9, 1); threads++) {
        pl_pool_resize(threads);
        one(ref, got, 16384, FILL_RANDOM);
        one(ref, got, 16385, FILL_LARGE);
        one(ref, got, 100003, FILL_RANDOM);
        one(ref, got, 16384 * 257 + 5, FILL_RANDOM);
    }
    pl_pool_resize(0);
}
