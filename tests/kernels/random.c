/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum pl_random kind)
{
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    uint64_t draw = check_random(UINT64_MAX);
    double p = kind == PL_RANDOM_BERNOULLI ? (double)check_random(11) / 10 : -1.5;
    struct pl_random_args a = {.n = n,
                               .kind = kind,
                               .p = p,
                               .q = 2.25,
                               .key = check_random(UINT64_MAX),
                               .counter = {check_random(UINT64_MAX), check_random(UINT64_MAX)},
                               .skip = (unsigned)check_random(4),
                               .y = y,
                               .draw = check_random(2) ? &draw : NULL};

    check_case("random n %zu kind %d p %g skip %u draw %d", n, (int)kind, p, a.skip,
               a.draw != NULL);
    ref->random(&a);
    a.y = y2;
    if (a.draw && check_random(2)) { /* the same number, given the other way */
        a.counter[1] = draw;
        a.draw = NULL;
    }
    got->random(&a);
    if (kind != PL_RANDOM_NORMAL)
        check_same("y", y2, y, n);
    else /* up to 7 deviations, rounded once */
        for (size_t i = 0; i < n; i++)
            check_close("y", i, y2[i], y[i], 16 * CHECK_EPS);
    check_end_case();
}

/* Mean, variance, fourth moment and extremes of many. The limits are some deviations of these. */
static void moments(const struct pl_kernels *got)
{
    static const struct {
        enum pl_random kind;
        double p, q, mean, variance, fourth, low, high;
    } want[] = {
        {PL_RANDOM_UNIFORM, -1, 3, 1, 4.0 / 3, 3.2, -1, 3},
        {PL_RANDOM_BERNOULLI, 0.3, 0, 0.3, 0.21, 0.0777, 0, 1},
        {PL_RANDOM_NORMAL, 1, 2, 1, 4, 48, -12, 14},
    };
    size_t n = 100000;
    float *y = check_floats(n, FILL_RANDOM);

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        double sum = 0, square = 0, fourth = 0, low = 1e9, high = -1e9;

        check_case("random moments of kind %zu", i);
        got->random(&(struct pl_random_args){
            .n = n, .kind = want[i].kind, .p = want[i].p, .q = want[i].q, .key = 7, .y = y});
        for (size_t k = 0; k < n; k++) {
            double d = y[k] - want[i].mean;

            sum += d / (double)n;
            square += d * d / (double)n;
            fourth += d * d * d * d / (double)n;
            low = fmin(low, y[k]);
            high = fmax(high, y[k]);
        }
        check_close("mean", i, sum, 0, 0.03);
        check_close("variance", i, square, want[i].variance, 0.02 * want[i].variance + 0.002);
        check_close("fourth moment", i, fourth, want[i].fourth, 0.05 * want[i].fourth);
        check_close("low", i, low >= want[i].low, 1, 0);
        check_close("high", i, high <= want[i].high, 1, 0);
        check_end_case();
        y = check_floats(n, FILL_RANDOM);
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (int kind = PL_RANDOM_UNIFORM; kind <= PL_RANDOM_NORMAL; kind++) {
        for (size_t n = 1; n < 60; n++)
            one(ref, got, n, (enum pl_random)kind);
        one(ref, got, 10007, (enum pl_random)kind);
    }
    moments(got);
}
