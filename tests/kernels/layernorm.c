/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* Form of the arrays beside the norm. */
struct shape {
    size_t rows, n;
    bool affine, rms, sum, too, sums, x_half, y_half;
    enum pl_half half;
};

/* An array that may be of 16 bits in the tables of f32. */
static void *array(const struct shape *s, bool half, size_t count, enum fill fill)
{
    float *p = check_floats(count, fill);
    uint16_t *h = (uint16_t *)p;

    /* Sums that 8 bits hold: ref's are not rounded before their mean is taken. */
    for (size_t i = 0; s->sum && fill == FILL_RANDOM && i < count; i++)
        p[i] = (float)((int)check_random(129) - 64) / 64;
    for (size_t i = 0; half && i < count; i++)
        h[i] = pl_half_of_f32(s->half, p[i]);
    return p;
}

static double at(const struct shape *s, bool half, const void *p, size_t i)
{
    return half ? pl_f32_of_half(s->half, ((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* Neighbours in 16 bits may come of one and the same number. */
static double apart(const struct shape *s, bool half, double want)
{
    return !half                     ? 0
           : s->half == PL_HALF_BF16 ? 0x1p-7 * fabs(want)
                                     : 0x1p-10 * fabs(want) + 0x1p-24;
}

/* Means and variances are sums of n terms in f32 lanes, ref's in f64: their relative error grows
 * with n / 32 roundings; where the variance is near 0 only eps keeps the quotient finite, so eps is
 * 1e-3 here. dgamma sums rows terms. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                const struct shape *s,
                enum fill fill)
{
    size_t rows = s->rows, n = s->n, count = rows * n;
    bool shift = s->affine && check_random(3);
    const float *gamma = check_floats(n, FILL_RANDOM), *beta = check_floats(n, FILL_RANDOM);
    void *y[2], *sum[2], *dx[2], *too[2];
    float *mean[2], *rstd[2], *dg[2], *db[2], *sums[2];
    const float *before;
    struct pl_layernorm_args a = {.rows = rows,
                                  .n = n,
                                  .eps = 1e-3,
                                  .rms = s->rms,
                                  .dx_add = check_random(2),
                                  .dgamma_add = check_random(2),
                                  .dbeta_add = check_random(2),
                                  .dx_sums_add = check_random(2),
                                  .x_half = s->x_half,
                                  .y_half = s->y_half,
                                  .half = s->half,
                                  .x = array(s, s->x_half, count, fill),
                                  .gamma = s->affine ? gamma : NULL,
                                  .beta = shift ? beta : NULL,
                                  .dy = array(s, s->y_half, count, FILL_RANDOM)};

    check_case("layernorm rows %zu n %zu affine %d shift %d rms %d sum %d too %d sums %d halves %d "
               "%d type "
               "%d fill %d",
               rows, n, s->affine, shift, s->rms, s->sum, s->too, s->sums, s->x_half, s->y_half,
               (int)s->half, (int)fill);
    if (s->sum) {
        a.a = a.x;
        a.b_rows = rows && check_random(2) ? 1 + check_random(rows) : 0;
        a.b = array(s, s->y_half, a.b_rows ? a.b_rows * n : count, fill);
    }
    dx[0] = array(s, s->x_half, count, FILL_RANDOM);
    dg[0] = check_floats(n, FILL_RANDOM);
    db[0] = check_floats(n, FILL_RANDOM);
    dx[1] = check_copy(dx[0], count);
    dg[1] = check_copy(dg[0], n);
    db[1] = check_copy(db[0], n);
    sums[0] = check_floats(n, FILL_RANDOM);
    sums[1] = check_copy(sums[0], n);
    before = check_copy(sums[0], n);
    for (int i = 0; i < 2; i++) {
        a.x = s->sum ? NULL : a.x;
        a.y = y[i] = check_floats(count, FILL_RANDOM);
        a.sum = sum[i] = s->sum ? check_floats(count, FILL_RANDOM) : NULL;
        a.mean = mean[i] = check_floats(rows, FILL_RANDOM);
        a.rstd = rstd[i] = check_floats(rows, FILL_RANDOM);
        a.dx = dx[i];
        a.dx_too = too[i] = s->too ? check_floats(count, FILL_RANDOM) : NULL;
        a.dgamma = s->affine ? dg[i] : NULL;
        a.dbeta = shift ? db[i] : NULL;
        a.dx_sums = s->sums ? sums[i] : NULL;
        (i ? got : ref)->layernorm_forward(&a);
        a.x = s->sum ? sum[i] : a.x;
        a.sum = NULL;
        (i ? got : ref)->layernorm_backward(&a);
    }
    for (size_t i = 0; i < count; i++) {
        double want = at(s, s->y_half, y[0], i);

        check_close("y", i, at(s, s->y_half, y[1], i), want,
                    1e-5 * (1 + fabs(want)) + apart(s, s->y_half, want));
        want = at(s, s->x_half, dx[0], i);
        check_close("dx", i, at(s, s->x_half, dx[1], i), want,
                    2e-4 * (1 + fabs(want)) + apart(s, s->x_half, want));
        if (s->too &&
            at(s, s->y_half, too[1], i) !=
                (s->y_half && !s->x_half
                     ? pl_f32_of_half(s->half, pl_half_of_f32(s->half, ((float *)dx[1])[i]))
                     : at(s, s->x_half, dx[1], i)))
            check_close("dx_too", i, at(s, s->y_half, too[1], i), want, 0);
        if (s->sum)
            check_close("sum", i, at(s, s->x_half, sum[1], i), at(s, s->x_half, sum[0], i), 0);
        if (s->sum && fill == FILL_RANDOM)
            check_close("ref's sum", i, at(s, s->x_half, sum[0], i),
                        at(s, s->x_half, a.a, i) +
                            at(s, s->y_half, a.b, a.b_rows ? i % (a.b_rows * n) : i),
                        0);
    }
    for (size_t i = 0; i < rows; i++) {
        check_close("mean", i, mean[1][i], mean[0][i], 1e-6);
        check_close("rstd", i, rstd[1][i], rstd[0][i], 1e-5 * rstd[0][i]);
    }
    for (size_t i = 0; i < n; i++) {
        check_close("dgamma", i, dg[1][i], dg[0][i], 1e-4 * (1 + fabs(dg[0][i])));
        check_close("dbeta", i, db[1][i], db[0][i], 1e-4 * (1 + fabs(db[0][i])));
    }
    for (size_t i = 0; i < n && s->sums; i++) { /* of its own dx, as it was rounded */
        double total = a.dx_sums_add ? before[i] : 0, all = fabs(total);

        for (size_t r = 0; r < rows; r++) {
            double x = at(s, s->too ? s->y_half : s->x_half, s->too ? too[1] : dx[1], r * n + i);

            total += x;
            all += fabs(x);
        }
        check_close("dx_sums", i, sums[1][i], total, (double)(rows + 3) * CHECK_EPS * all + 1e-44);
    }
    check_end_case();
}

/* Half of the rows are multiples of 8: kernels may take so many at once. */
static void random_case(
    const struct pl_kernels *ref, const struct pl_kernels *got, size_t rows, size_t least, size_t n)
{
    struct shape s = {.rows = 1 + check_random(rows),
                      .n = least + 1 + check_random(n),
                      .affine = check_random(2),
                      .rms = check_random(3) == 0,
                      .sum = check_random(2),
                      .too = check_random(2),
                      .sums = check_random(2)};

    if (check_random(2))
        s.n = (s.n + 7) / 8 * 8;
    if (check_storage() == PL_REAL_F32) {
        s.y_half = check_random(3);
        s.x_half = s.y_half && check_random(2);
        s.half = check_random(2) ? PL_HALF_BF16 : PL_HALF_F16;
    }
    one(ref, got, &s,
        s.sum && (s.x_half || check_storage() != PL_REAL_F32)
            ? FILL_RANDOM
            : (enum fill)check_random(FILL_DENORM + 1));
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(300, 100); i++)
        random_case(ref, got, 20, 0, 150);
    for (size_t i = 0; i < check_many(8, 4); i++)
        random_case(ref, got, 3, 200, 2500);
    one(ref, got, &(struct shape){.rows = 3, .n = 9001, .affine = true}, FILL_RANDOM);
    one(ref, got, &(struct shape){.rows = 3, .n = 9000, .affine = true}, FILL_RANDOM);
    one(ref, got, &(struct shape){.rows = 3, .n = 9001, .affine = true, .rms = true}, FILL_RANDOM);
    /* Columns in a pass of their own, with several rows on each line and several pieces. */
    one(ref, got, &(struct shape){.rows = 140, .n = 1033, .affine = true}, FILL_RANDOM);
    /* Several blocks, and rows of each, of every layout (layernorm.cuh). */
    for (size_t n = 1024; n <= 4096; n *= 2)
        for (int half = 0; half < 2; half++)
            one(ref, got,
                &(struct shape){.rows = n == 1024 ? 42 : 9,
                                .n = n - 8 * check_random(5),
                                .affine = true,
                                .too = true,
                                .sums = true,
                                .y_half = half && check_storage() == PL_REAL_F32,
                                .half = PL_HALF_BF16},
                FILL_RANDOM);
    one(ref, got, &(struct shape){.rows = 700, .n = 129, .affine = true}, FILL_RANDOM);
    one(ref, got, &(struct shape){.rows = 700, .n = 136, .affine = true, .sum = true, .too = true},
        FILL_RANDOM);
    one(ref, got,
        &(struct shape){.rows = 701,
                        .n = 136,
                        .affine = true,
                        .too = true,
                        .sums = true,
                        .y_half = check_storage() == PL_REAL_F32,
                        .half = PL_HALF_BF16},
        FILL_RANDOM);
}
