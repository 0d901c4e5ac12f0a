/* SPDX-License-Identifier: MIT */
/* The variance that batch norm computes of numbers far from 0, by arithmetic in place of ref. */
#include "tests/kernels/check.h"

#include <math.h>

enum { CHANNELS = 5 };

/* The squares of whole numbers near 2^24 need all bits of an f64, so that the mean of few of them
 * has lost the variance. momentum is 1. Not alone, with sums from the means of the first ones. */
static void one(const struct pl_kernels *got, size_t batch, size_t inner, float far, bool alone)
{
    static double sums[1 + 2 * CHANNELS], shift[CHANNELS];
    size_t values = batch * CHANNELS * inner;
    double less[CHANNELS] = {0}, squares[CHANNELS] = {0}, n = (double)(batch * inner);
    float *x = check_floats(values, FILL_ZERO), *y = check_floats(values, FILL_RANDOM);
    float *mean = check_floats(CHANNELS, FILL_RANDOM), *inv_std = check_copy(mean, CHANNELS);
    float *of_mean = check_copy(mean, CHANNELS), *of_var = check_copy(mean, CHANNELS);
    struct pl_batchnorm_args a = {.batch = batch,
                                  .channels = CHANNELS,
                                  .inner = inner,
                                  .momentum = 1,
                                  .eps = 1e-5,
                                  .training = true,
                                  .alone = alone,
                                  .x = x,
                                  .sums = sums,
                                  .running_mean = of_mean,
                                  .running_var = of_var,
                                  .mean = mean,
                                  .inv_std = inv_std,
                                  .y = y};

    check_case("batchnorm %zux%zu, %g from 0, alone %d", batch, inner, far, alone);
    for (size_t i = 0; i < values; i++) {
        size_t c = i / inner % CHANNELS;
        double v = c ? (double)check_random(8) : 3; /* one is constant */

        x[i] = (float)(far - v);
        less[c] += v;
        squares[c] += v * v;
    }
    got->batchnorm_sums(&a);
    for (size_t c = 0; c < CHANNELS; c++)
        shift[c] = sums[1 + c] / sums[0];
    if (!alone) {
        a.shift = shift;
        got->batchnorm_sums(&a);
    }
    got->batchnorm_forward(&a);
    for (size_t c = 0; c < CHANNELS; c++) {
        double m = far - less[c] / n, var = (squares[c] - less[c] * less[c] / n) / n;

        check_close("mean", c, mean[c], m, 2 * CHECK_EPS * fabs(m));
        check_close("inv_std", c, inv_std[c], 1 / sqrt(var + a.eps), 1e-6 / sqrt(var + a.eps));
        check_close("running_mean", c, of_mean[c], m, 2 * CHECK_EPS * fabs(m));
        check_close("running_var", c, of_var[c], var * n / (n - 1), 2e-6 * var);
    }
    check_end_case();
}

static void all(const struct pl_kernels *got, float far, bool alone)
{
    for (int i = 0; i < 6; i++) {
        one(got, 60 + check_random(30), 1 + check_random(7), far, alone); /* channels together */
        one(got, 5 + check_random(9), 8 + check_random(40), far, alone);
    }
    one(got, 3000, 1, far, alone);
    one(got, 3, 3000, far, alone);
}

/* Alone, devices that are no host's keep the formula (kernels/args_linear.h). 16 bits have no such
 * numbers. */
void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const float places[] = {0x1p24f, -0x1p23f, 1e6f, 1e5f, 1e4f, 1e3f, 0};

    bool wide = check_storage() == PL_REAL_F32 || check_storage() == PL_REAL_F64;

    for (size_t i = 0; i < PL_COUNT(places) && wide; i++)
        for (int alone = check_host(); alone >= 0; alone--) {
            all(ref, places[i], alone);
            all(got, places[i], alone);
        }
}
