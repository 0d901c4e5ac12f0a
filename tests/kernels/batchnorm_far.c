/* SPDX-License-Identifier: MIT */
/* The variance that batch norm computes of numbers far from 0, by arithmetic in place of ref. */
#include "tests/kernels/check.h"
#include "tests/lib/today.h"

#include <math.h>

enum { MOST = 8 };

/* Of numbers with fractions, as they are: the f64 sums about their mean. Sums in f32, of however
 * few terms, may lose what f32 results show. first: the value of each channel's first, NAN: as
 * others.
 */
static void as_they_are(const struct pl_kernels *got,
                        size_t batch,
                        size_t channels,
                        size_t inner,
                        double far,
                        double first)
{
    static double sums[1 + 2 * MOST];
    size_t values = batch * channels * inner;
    float *x = check_floats(values, FILL_ZERO), *y = check_floats(values, FILL_RANDOM);
    float *mean = check_floats(channels, FILL_RANDOM), *inv_std = check_copy(mean, channels);
    struct pl_batchnorm_args a = {.batch = batch,
                                  .channels = channels,
                                  .inner = inner,
                                  .training = true,
                                  .alone = true,
                                  .x = x,
                                  .sums = sums,
                                  .mean = mean,
                                  .inv_std = inv_std,
                                  .y = y};

    check_case("batchnorm %zux%zux%zu, %g from 0, first %g", batch, channels, inner, far, first);
    for (size_t i = 0; i < values; i++) {
        double v = 0;

        for (int k = 0; k < 4; k++)
            v += (double)check_random(1 << 20) * 0x1p-20 - 0.5;
        x[i] = (float)(i < inner * channels && i % inner == 0 && !isnan(first) ? first : far + v);
    }
    got->batchnorm_sums(&a);
    got->batchnorm_forward(&a);
    for (size_t c = 0; c < channels; c++) {
        double m = 0, var = 0, n = (double)(batch * inner);

        for (int pass = 0; pass < 2; pass++)
            for (size_t k = 0; k < batch * inner; k++) {
                double v = (double)x[(k / inner * channels + c) * inner + k % inner];

                if (pass)
                    var += (v - m) * (v - m) / n;
                else
                    m += v / n;
            }
        /* A rounding of each result, and one of a sum. */
        check_close("mean", c, mean[c], m, 1.01 * CHECK_EPS * (fabs(m) + sqrt(var)));
        check_close("inv_std", c, inv_std[c], 1 / sqrt(var), 1.5 * CHECK_EPS / sqrt(var));
    }
    check_end_case();
}

/* The squares of whole numbers near 2^24 need all bits of an f64, so that the mean of few of them
 * has lost the variance. momentum is 1. Not alone, with sums from the means of the first ones.
 * Channels that are a multiple of 4, GPUs take together. The last one is not far. */
static void one(const struct pl_kernels *got,
                size_t batch,
                size_t channels,
                size_t inner,
                float far,
                bool alone)
{
    static double sums[1 + 2 * MOST], shift[MOST];
    size_t values = batch * channels * inner;
    double less[MOST] = {0}, squares[MOST] = {0}, n = (double)(batch * inner);
    float *x = check_floats(values, FILL_ZERO), *y = check_floats(values, FILL_RANDOM);
    float *mean = check_floats(channels, FILL_RANDOM), *inv_std = check_copy(mean, channels);
    float *of_mean = check_copy(mean, channels), *of_var = check_copy(mean, channels);
    struct pl_batchnorm_args a = {.batch = batch,
                                  .channels = channels,
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

    check_case("batchnorm %zux%zux%zu, %g from 0, alone %d", batch, channels, inner, far, alone);
    for (size_t i = 0; i < values; i++) {
        size_t c = i / inner % channels;
        double v = c ? (double)check_random(8) : 3; /* one is constant */

        if (c == 2 && i < inner * channels && i % inner == 0)
            v = 1000; /* a channel's first is no measure of the others */

        x[i] = (float)((c + 1 < channels ? far : 0) - v);
        less[c] += v;
        squares[c] += v * v;
    }
    got->batchnorm_sums(&a);
    for (size_t c = 0; c < channels; c++)
        shift[c] = sums[1 + c] / sums[0];
    if (!alone) {
        a.shift = shift;
        got->batchnorm_sums(&a);
    }
    got->batchnorm_forward(&a);
    for (size_t c = 0; c < channels; c++) {
        double m = (c + 1 < channels ? far : 0) - less[c] / n,
               var = (squares[c] - less[c] * less[c] / n) / n;

        check_close("mean", c, mean[c], m, 2 * CHECK_EPS * fabs(m));
        check_close("inv_std", c, inv_std[c], 1 / sqrt(var + a.eps), 1e-6 / sqrt(var + a.eps));
        check_close("running_mean", c, of_mean[c], m, 2 * CHECK_EPS * fabs(m));
        check_close("running_var", c, of_var[c], var * n / (n - 1), 2e-6 * var);
    }
    check_end_case();
}

/* The sums include another rank's values. x itself has no variance. The sums keep the variance of
 * all values, as these numbers are exact in f64. */
static void joint(const struct pl_kernels *got, size_t channels, size_t inner)
{
    static double sums[1 + 2 * MOST];
    size_t values = 2 * channels * inner;
    double n = 4 * (double)inner, m = 0x1p20, var = 0.25;
    float *x = check_floats(values, FILL_ZERO), *y = check_floats(values, FILL_RANDOM);
    float *mean = check_floats(channels, FILL_RANDOM), *inv_std = check_copy(mean, channels);
    struct pl_batchnorm_args a = {.batch = 2,
                                  .channels = channels,
                                  .inner = inner,
                                  .eps = 1e-5,
                                  .training = true,
                                  .x = x,
                                  .sums = sums,
                                  .mean = mean,
                                  .inv_std = inv_std,
                                  .y = y};

    check_case("batchnorm of two ranks, 2x%zux%zu", channels, inner);
    for (size_t i = 0; i < values; i++)
        x[i] = (float)m;
    sums[0] = n;
    for (size_t c = 0; c < channels; c++) {
        sums[1 + c] = n * m;
        sums[1 + channels + c] = n * (m * m + var);
    }
    got->batchnorm_forward(&a);
    for (size_t c = 0; c < channels; c++) {
        check_close("mean", c, mean[c], m, 2 * CHECK_EPS * m);
        check_close("inv_std", c, inv_std[c], 1 / sqrt(var + a.eps), 1e-6 / sqrt(var + a.eps));
    }
    check_end_case();
}

static void all(const struct pl_kernels *got, float far, bool alone)
{
    for (int i = 0; i < 6; i++) {
        one(got, 60 + check_random(30), 5, 1 + check_random(7), far, alone); /* channels together */
        one(got, 5 + check_random(9), 5, 8 + check_random(40), far, alone);
    }
    for (size_t channels = 5; channels <= MOST; channels += MOST - 5) {
        one(got, 3000, channels, 1, far, alone);
        one(got, 3, channels, 3000, far, alone);
    }
}

/* 16 bits have no such numbers. */
void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const float places[] = {0x1p24f, -0x1p23f, 1e6f, 1e5f, 1e4f, 1e3f, 0};

    bool wide = check_storage() == PL_REAL_F32 || check_storage() == PL_REAL_F64;

    for (size_t inner = 1; inner <= 64 && wide; inner *= 8) {
        joint(ref, 5, inner);
        joint(got, 5, inner);
        joint(got, MOST, inner);
    }
    for (size_t i = 0; i < PL_COUNT(places) && wide; i++)
        for (int odd = 0; odd < 3 && today(i, 3); odd++) {
            double first = odd == 0 ? (double)NAN : odd == 1 ? (double)places[i] + 100 : 1e15;

            as_they_are(got, 700, 4, 1, (double)places[i] / 64, first);
            as_they_are(got, 3, 5, 700, (double)places[i] / 64, first);
            as_they_are(got, 5, 3, 332, (double)places[i] / 64, first);
            as_they_are(got, 9, 5, 1, (double)places[i] / 64, first);
        }
    for (size_t i = 0; i < PL_COUNT(places) && wide; i++)
        for (int alone = 1; alone >= 0 && today(i, 3); alone--) {
            all(ref, places[i], alone);
            all(got, places[i], alone);
        }
}
