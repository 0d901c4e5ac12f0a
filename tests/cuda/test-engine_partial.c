/* SPDX-License-Identifier: MIT */
/* The bytes of partial sums that the engine counts, against what the kernels ask for: they write
 * all of it in one kernel and read it in the next. */
#include "kernels/cuda/cuda.h"
#include "runtime/engine/ops/partial.h"
#include "tests/cuda/emulator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum pl_real reals[] = {PL_REAL_F32, PL_REAL_F64, PL_REAL_BF16};

/* n zeros of 8 bytes at most; freed by done(). */
static void *held[16];
static size_t n_held;

static void *zeros(size_t n)
{
    void *p = aligned_alloc(64, (n * sizeof(double) + 63) / 64 * 64);

    assert_non_null(p);
    memset(p, 0, n * sizeof(double));
    assert_true(n_held < sizeof(held) / sizeof(held[0]));
    return held[n_held++] = p;
}

static void done(void)
{
    while (n_held)
        free(held[--n_held]);
}

static void same(double counted, const char *what, size_t rows, size_t n, enum pl_real real)
{
    double asked = 2.0 * (double)pl_emu_scratch_asked();

    if (counted != asked)
        fail_msg("%s of %zu x %zu, type %d: %.0f bytes are counted, %.0f are moved", what, rows, n,
                 real, counted, asked);
    done();
}

static void test_bias(void **state)
{
    const size_t rows[] = {1, 31, 33, 700, 6000}, columns[] = {1, 8, 77, 264, 768};

    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < 5; i++)
            for (size_t k = 0; k < 5; k++) {
                size_t n = columns[k];
                struct pl_linear_args args = {.rows = rows[i],
                                              .out = n,
                                              .dy_row = n,
                                              .dy = zeros(rows[i] * n),
                                              .db = zeros(n)};

                pl_emu_scratch_asked();
                pl_kernels_cuda(reals[t])->linear_backward(&args);
                same(pl_partial_of_bias(rows[i], n, reals[t]), "bias", rows[i], n, reals[t]);
            }
}

static void batchnorm(struct pl_partial_batchnorm *norm)
{
    size_t c = norm->channels, n = norm->batch * c * norm->inner;
    struct pl_batchnorm_args args = {.batch = norm->batch,
                                     .channels = c,
                                     .inner = norm->inner,
                                     .training = true,
                                     .relu = norm->again,
                                     .x_half = norm->halves,
                                     .y_half = norm->halves,
                                     .half = PL_HALF_BF16,
                                     .x = zeros(n),
                                     .dy = zeros(n),
                                     .mean = zeros(c),
                                     .inv_std = zeros(c),
                                     .sums = zeros(2 * c + 1),
                                     .back_sums = zeros(2 * c + 1)};

    pl_emu_scratch_asked();
    pl_kernels_cuda(norm->real)->batchnorm_sums(&args);
    assert_true(pl_partial_of_batchnorm(norm) == 2.0 * (double)pl_emu_scratch_asked());
    pl_kernels_cuda(norm->real)->batchnorm_back_sums(&args);
    norm->backward = true;
    same(pl_partial_of_batchnorm(norm), "batch norm", norm->batch * norm->inner, c, norm->real);
}

/* Several images with their channels last, or one row per channel. */
static void test_batchnorm(void **state)
{
    const struct {
        size_t batch, channels, inner;
    } shapes[] = {{1, 1, 1},    {6272, 64, 1}, {900, 512, 1}, {30000, 8, 1}, {500, 7, 1},
                  {2, 3, 5000}, {4, 2, 20000}, {3, 5, 4099},  {16, 40, 49}};

    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            for (int how = 0; how < 4; how++)
                batchnorm(&(struct pl_partial_batchnorm){shapes[i].batch, shapes[i].channels,
                                                         shapes[i].inner, reals[t],
                                                         .halves = how & 1, .again = how & 2});
}

static void layernorm(size_t rows, size_t n, enum pl_real real, unsigned how)
{
    struct pl_partial_norm norm = {.rows = rows,
                                   .n = n,
                                   .real = real,
                                   .y_half = real == PL_REAL_F32 && how & 1,
                                   .params = how & 2,
                                   .dx_sums = how & 4};
    struct pl_layernorm_args args = {.rows = rows,
                                     .n = n,
                                     .y_half = norm.y_half,
                                     .half = PL_HALF_BF16,
                                     .x = zeros(rows * n),
                                     .dy = zeros(rows * n),
                                     .mean = zeros(rows),
                                     .rstd = zeros(rows),
                                     .dx = zeros(rows * n),
                                     .dgamma = norm.params ? zeros(n) : NULL,
                                     .dx_sums = norm.dx_sums ? zeros(n) : NULL};

    pl_emu_scratch_asked();
    pl_kernels_cuda(real)->layernorm_backward(&args);
    same(pl_partial_of_layernorm(&norm), "layer norm", rows, n, real);
}

static void test_layernorm(void **state)
{
    const size_t rows[] = {1, 17, 70}, columns[] = {8, 30, 256, 264, 768, 776, 1024, 1032, 1280};

    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < 3; i++)
            for (size_t k = 0; k < 9; k++)
                for (unsigned how = 0; how < 8; how++)
                    layernorm(rows[i], columns[k], reals[t], how);
    for (unsigned how = 6; how < 8; how++) {
        layernorm(6400, 768, PL_REAL_F32, how);
        layernorm(140, 8200, PL_REAL_F32, how);
        layernorm(140, 1033, PL_REAL_F32, how);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_batchnorm),
        cmocka_unit_test(test_layernorm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
