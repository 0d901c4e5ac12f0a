/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"
#include "tests/lib/today.h"

#include <math.h>
#include <string.h>

#define CHANNELS_MAX 9
#define CHANNELS_MOST 300

/* x and dx, or y and dy, may have 16 bits in the tables of f32. */
static void *array(const struct pl_batchnorm_args *a, bool half, enum fill fill)
{
    size_t n = a->batch * a->channels * a->inner;
    float *p = check_floats(n, fill);
    uint16_t *h = (uint16_t *)p;

    for (size_t i = 0; half && i < n; i++)
        h[i] = pl_half_of_f32(a->half, p[i]);
    return p;
}

static double at(const struct pl_batchnorm_args *a, bool half, const void *p, size_t i)
{
    return half ? pl_f32_of_half(a->half, ((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* Neighbours in 16 bits may come of one and the same number. */
static double apart(const struct pl_batchnorm_args *a, bool half, double want)
{
    return !half                     ? 0
           : a->half == PL_HALF_BF16 ? 0x1p-7 * fabs(want)
                                     : 0x1p-10 * fabs(want) + 0x1p-24;
}

struct buffers {
    double sums[1 + 2 * CHANNELS_MOST], back_sums[1 + 2 * CHANNELS_MOST];
};

static size_t count(const struct pl_batchnorm_args *a)
{
    return a->batch * a->channels * a->inner;
}

static struct pl_batchnorm_args outputs(struct pl_batchnorm_args a, struct buffers *b)
{
    a.sums = b->sums;
    a.back_sums = b->back_sums;
    a.factors = check_floats(PL_BATCHNORM_FACTORS * a.channels, FILL_RANDOM);
    a.mean = check_floats(a.channels, FILL_RANDOM);
    a.inv_std = check_floats(a.channels, FILL_RANDOM);
    a.running_mean = check_copy(a.running_mean, a.channels);
    a.running_var = check_copy(a.running_var, a.channels);
    a.y = check_floats(count(&a), FILL_RANDOM);
    a.dx = check_copy(a.dx, count(&a));
    a.dr = a.dr ? check_copy(a.dr, count(&a)) : NULL;
    a.dw = check_copy(a.dw, a.channels);
    a.db = check_copy(a.db, a.channels);
    return a;
}

/* lost: what does not depend on the result's size. */
static void compare_sums(
    const char *what, const void *have, const void *want, size_t n, double tolerance, double lost)
{
    for (size_t i = 0; i < n; i++) {
        double w = ((const float *)want)[i];

        check_close(what, i, ((const float *)have)[i], w, tolerance * (1 + fabs(w)) + lost);
    }
}

static void
compare(const char *what, const void *have, const void *want, size_t n, double tolerance)
{
    compare_sums(what, have, want, n, tolerance, 0);
}

/* With r, 16 bits are rounded twice: neighbours of at most |y| + r before it is added, and between
 * numbers of 16 bits after, where one that is half-way goes up, and its neighbour down. */
static void compare_y(const struct pl_batchnorm_args *have,
                      const struct pl_batchnorm_args *want,
                      double tolerance)
{
    for (size_t i = 0; i < count(want); i++) {
        double w = at(want, want->y_half, want->y, i);
        double r = want->r ? fabs(at(want, want->y_half, want->r, i)) : 0;

        check_close("y", i, at(want, want->y_half, have->y, i), w,
                    (tolerance + (r ? check_rounding(1) : 0)) * (1 + fabs(w) + r) +
                        apart(want, want->y_half, (r ? 2 : 1) * (fabs(w) + r)));
    }
}

/* A backend may compute again whether relu has passed y (args_linear.h): a gradient where rounding
 * decides that becomes 0. */
static void drop_close_calls(const struct pl_batchnorm_args *a, void *dy)
{
    for (size_t i = 0; a->relu && !a->r && i < count(a); i++) {
        size_t c = i / a->inner % a->channels;
        double w = a->w ? ((const float *)a->w)[c] : 1, b = a->b ? ((const float *)a->b)[c] : 0;
        double scaled = (at(a, a->x_half, a->x, i) - ((const float *)a->mean)[c]) *
                        ((const float *)a->inv_std)[c] * w;

        if (fabs(scaled + b) > 1e-5 * (fabs(scaled) + fabs(b)) + 1e-6)
            continue;
        if (a->y_half)
            ((uint16_t *)dy)[i] = 0;
        else
            ((float *)dy)[i] = 0;
    }
}

static void all(const struct pl_kernels *k, const struct pl_batchnorm_args *a)
{
    if (a->training)
        k->batchnorm_sums(a);
    k->batchnorm_forward(a);
}

/* channels: 0 for any. halves: x and y have 16 bits, if the table's type is f32. */
static void one_of(const struct pl_kernels *ref,
                   const struct pl_kernels *got,
                   size_t batch,
                   size_t channels,
                   size_t inner,
                   enum fill fill,
                   bool halves)
{
    static struct buffers b[2];
    struct pl_batchnorm_args s = {.batch = batch,
                                  .channels = channels ? channels : 1 + check_random(CHANNELS_MAX),
                                  .inner = inner,
                                  .eps = 1e-5,
                                  .momentum = 0.1,
                                  .training = check_random(3),
                                  .relu = check_random(2),
                                  .alone = check_random(2),
                                  .dx_add = check_random(2),
                                  .dw_add = check_random(2),
                                  .db_add = check_random(2),
                                  .dr_add = check_random(2)};
    struct pl_batchnorm_args want, have;
    bool affine = check_random(2), sum = check_random(3) == 0;
    bool shifted = s.training && !s.alone && check_random(2);
    float *var = check_floats(s.channels, FILL_RANDOM);
    size_t n = count(&s);
    double lost;
    void *dy;

    if (check_storage() == PL_REAL_F32 && fill != FILL_LARGE) { /* f16 has no such numbers */
        s.x_half = halves || check_random(2);
        s.y_half = halves || check_random(2);
        s.half = check_random(2) ? PL_HALF_BF16 : PL_HALF_F16;
        s.relu_of_y = check_random(2);
    }
    check_case("batchnorm %zux%zux%zu training %d relu %d alone %d shifted %d affine %d sum %d add "
               "%d%d%d%d halves %d%d type %d fill %d",
               s.batch, s.channels, s.inner, s.training, s.relu, s.alone, shifted, affine, sum,
               s.dx_add, s.dw_add, s.db_add, s.dr_add, s.x_half, s.y_half, (int)s.half, (int)fill);
    for (size_t c = 0; c < s.channels; c++)
        var[c] = fabsf(var[c]) + 0.1f;
    s.x = array(&s, s.x_half, fill);
    s.dy = dy = array(&s, s.y_half, FILL_RANDOM);
    s.shift = shifted ? check_doubles(s.channels) : NULL;
    s.r = sum ? array(&s, s.y_half, FILL_RANDOM) : NULL;
    s.dr = sum ? array(&s, s.y_half, FILL_RANDOM) : NULL;
    s.w = affine ? check_floats(s.channels, FILL_RANDOM) : NULL;
    s.b = affine ? check_floats(s.channels, FILL_RANDOM) : NULL;
    s.running_mean = check_floats(s.channels, FILL_RANDOM);
    s.running_var = var;
    s.dx = array(&s, s.x_half, FILL_RANDOM);
    s.dw = check_floats(s.channels, FILL_RANDOM);
    s.db = check_floats(s.channels, FILL_RANDOM);
    want = outputs(s, &b[0]);
    have = outputs(s, &b[1]);
    all(ref, &want);
    all(got, &have);
    /* The sums are doubles on both sides, so what differs is a few roundings of each value; x hat
     * is below sqrt(values) <= 15 and inv_std below 320. Large numbers of 16 bits may cancel each
     * other exactly: what small ones add then depends on the order. */
    lost = fill == FILL_LARGE ? 0x1p-52 * CHECK_LARGE : 0;
    compare_sums("mean", have.mean, want.mean, s.channels, 1e-6, lost);
    compare("inv_std", have.inv_std, want.inv_std, s.channels, 1e-6);
    compare_sums("running_mean", have.running_mean, want.running_mean, s.channels, 1e-6, lost);
    compare("running_var", have.running_var, want.running_var, s.channels, 1e-6);
    compare_y(&have, &want, fill == FILL_LARGE && !s.training ? 1e12 : 1e-5);
    memcpy(have.y, want.y, n * sizeof(float)); /* rounding must not decide what relu passes */
    memcpy(have.mean, want.mean, s.channels * sizeof(float));
    memcpy(have.inv_std, want.inv_std, s.channels * sizeof(float));
    drop_close_calls(&want, dy);
    ref->batchnorm_back_sums(&want);
    got->batchnorm_back_sums(&have);
    for (size_t i = 0; !s.alone && i < 1 + 2 * s.channels; i++)
        check_close("back_sums", i, b[1].back_sums[i], b[0].back_sums[i],
                    1e-12 * (fabs(b[0].back_sums[i]) + (fill == FILL_LARGE ? 1e20 : 1000)));
    memcpy(b[1].back_sums, b[0].back_sums, sizeof(b[0].back_sums));
    for (size_t i = 0; sum && i < n; i++) {
        double w = at(&s, s.y_half, want.dr, i);

        check_close("dr", i, at(&s, s.y_half, have.dr, i), w,
                    4 * CHECK_EPS * fabs(w) + (s.dr_add ? apart(&s, s.y_half, w) : 0));
    }
    ref->batchnorm_backward(&want);
    got->batchnorm_backward(&have);
    compare("dw", have.dw, want.dw, s.channels, fill == FILL_LARGE && !s.training ? 1e13 : 1e-5);
    compare("db", have.db, want.db, s.channels, 1e-6);
    for (size_t c = 0; c < s.channels; c++) {
        double scale = ((float *)want.inv_std)[c];

        for (size_t i = 0; i < s.batch * s.inner; i++) {
            size_t k = (i / s.inner * s.channels + c) * s.inner + i % s.inner;
            double w = at(&s, s.x_half, want.dx, k);

            check_close("dx", k, at(&s, s.x_half, have.dx, k), w,
                        CHECK_EPS * (2 + 200 * scale) + apart(&s, s.x_half, w));
        }
    }
    have.dx = NULL; /* not wanted */
    ref->batchnorm_backward(&have);
    got->batchnorm_backward(&have);
    check_end_case();
}

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t batch,
                size_t channels,
                size_t inner,
                enum fill fill)
{
    one_of(ref, got, batch, channels, inner, fill, false);
}

/* A copy of n numbers of an array that may have 16 bits. */
static void *copied(const struct pl_batchnorm_args *a, bool half, const void *p, bool to_half)
{
    float *wide = check_floats(count(a), FILL_RANDOM);

    for (size_t i = 0; i < count(a); i++)
        if (to_half)
            ((uint16_t *)wide)[i] = pl_half_of_f32(a->half, ((const float *)p)[i]);
        else
            wide[i] = (float)at(a, half, p, i);
    return wide;
}

static void
same(const struct pl_batchnorm_args *a, const char *what, const void *have, const void *want)
{
    for (size_t i = 0; i < count(a); i++)
        check_close(what, i, ((const uint16_t *)have)[i], ((const uint16_t *)want)[i], 0);
}

/* The host's kernels have the bits of f32 arrays that are converted before and after them. */
static void converts(const struct pl_kernels *got, size_t batch, size_t channels, size_t inner)
{
    static struct buffers b[2];
    struct pl_batchnorm_args f32, have,
        s = {.batch = batch,
             .channels = channels,
             .inner = inner,
             .eps = 1e-5,
             .momentum = 0.1,
             .training = check_random(3),
             .relu = check_random(2),
             .relu_of_y = check_random(2),
             .dx_add = check_random(2),
             .x_half = true,
             .y_half = true,
             .half = check_random(2) ? PL_HALF_BF16 : PL_HALF_F16};

    check_case("batchnorm of 16 bits %zux%zux%zu training %d relu %d%d add %d type %d", batch,
               channels, inner, s.training, s.relu, s.relu_of_y, s.dx_add, (int)s.half);
    s.x = array(&s, true, FILL_RANDOM);
    s.dy = array(&s, true, FILL_RANDOM);
    s.dx = array(&s, true, FILL_RANDOM);
    s.w = check_floats(channels, FILL_RANDOM);
    /* Some results are above 0, but not in f16. */
    s.b = check_floats(channels, FILL_RANDOM);
    s.running_mean = check_floats(channels, FILL_RANDOM);
    s.running_var = check_floats(channels, FILL_RANDOM);
    s.dw = s.db = check_floats(channels, FILL_RANDOM);
    for (size_t c = 0; c < channels; c++) {
        ((float *)s.running_var)[c] = fabsf(((float *)s.running_var)[c]) + 0.1f;
        if (c % 2) {
            ((float *)s.w)[c] *= 0x1p-24f;
            ((float *)s.b)[c] = 0;
        }
    }
    have = outputs(s, &b[0]);
    f32 = outputs(s, &b[1]);
    f32.x_half = f32.y_half = false;
    f32.x = copied(&s, true, s.x, false);
    f32.dy = copied(&s, true, s.dy, false);
    f32.dx = copied(&s, true, s.dx, false);
    all(got, &have);
    all(got, &f32);
    same(&s, "y", have.y, copied(&s, false, f32.y, true));
    if (s.relu_of_y)
        f32.y = copied(&s, true, have.y, false);
    got->batchnorm_back_sums(&have);
    got->batchnorm_back_sums(&f32);
    for (size_t i = 0; i < 1 + 2 * channels; i++)
        check_close("back_sums", i, b[0].back_sums[i], b[1].back_sums[i], 0);
    compare("dw", have.dw, f32.dw, channels, 0);
    got->batchnorm_backward(&have);
    got->batchnorm_backward(&f32);
    same(&s, "dx", have.dx, copied(&s, false, f32.dx, true));
    check_end_case();
}

struct gradient {
    const struct pl_kernels *k;
    struct pl_batchnorm_args args;
};

static double weighted(void *ctx)
{
    struct gradient *g = ctx;
    double sum = 0;

    all(g->k, &g->args);
    for (size_t i = 0; i < count(&g->args); i++)
        sum += ((const double *)g->args.y)[i] * ((const double *)g->args.dy)[i];
    return sum;
}

void check_gradients(const struct pl_kernels *f64)
{
    static struct buffers b;

    for (int training = 0; training < 2; training++) {
        struct gradient g = {f64,
                             {.batch = 3,
                              .channels = 2,
                              .inner = 4,
                              .eps = 1e-2,
                              .momentum = 0.1,
                              .training = training,
                              .sums = b.sums,
                              .back_sums = b.back_sums,
                              .dy = check_doubles(24),
                              .mean = check_doubles(2),
                              .inv_std = check_doubles(2),
                              .y = check_doubles(24)}};
        double *x = check_doubles(24), *w = check_doubles(2), *bias = check_doubles(2);
        double *dx = check_doubles(24), *dw = check_doubles(2), *db = check_doubles(2);

        check_case("batchnorm gradient, training %d", training);
        g.args.x = x;
        g.args.w = w;
        g.args.b = bias;
        g.args.dx = dx;
        g.args.dw = dw;
        g.args.db = db;
        if (!training) {
            g.args.running_mean = check_doubles(2);
            g.args.running_var = check_doubles(2);
            for (size_t c = 0; c < 2; c++)
                ((double *)g.args.running_var)[c] += 1.5;
        }
        weighted(&g);
        f64->batchnorm_back_sums(&g.args);
        f64->batchnorm_backward(&g.args);
        check_gradient("dx", weighted, &g, x, 24, dx, 200);
        check_gradient("dw", weighted, &g, w, 2, dw, 200);
        check_gradient("db", weighted, &g, bias, 2, db, 200);
        check_end_case();
    }
}

/* Two halves of a batch with their sums added up are the batch. */
static void split(const struct pl_kernels *k)
{
    enum { BATCH = 6, CHANNELS = 3, INNER = 5, HALF = BATCH / 2 * CHANNELS * INNER };
    static struct buffers b, part[2];
    struct pl_batchnorm_args s = {
        .batch = BATCH, .channels = CHANNELS, .inner = INNER, .eps = 1e-5, .training = true};
    struct pl_batchnorm_args whole, half[2];

    check_case("batchnorm of two ranks");
    s.x = check_floats((size_t)2 * HALF, FILL_RANDOM);
    s.dy = check_floats((size_t)2 * HALF, FILL_RANDOM);
    s.dx = check_floats((size_t)2 * HALF, FILL_RANDOM);
    s.dw = s.db = check_floats(CHANNELS, FILL_RANDOM);
    s.running_mean = s.running_var = check_floats(CHANNELS, FILL_RANDOM);
    whole = outputs(s, &b);
    whole.running_mean = NULL;
    all(k, &whole);
    k->batchnorm_back_sums(&whole);
    k->batchnorm_backward(&whole);
    for (int i = 0; i < 2; i++) {
        half[i] = outputs(s, &part[i]);
        half[i].running_mean = NULL;
        half[i].batch = BATCH / 2;
        half[i].x = (const float *)s.x + i * HALF;
        half[i].dy = (const float *)s.dy + i * HALF;
        k->batchnorm_sums(&half[i]);
    }
    for (size_t i = 0; i < 1 + 2 * CHANNELS; i++)
        part[0].sums[i] = part[1].sums[i] = part[0].sums[i] + part[1].sums[i];
    for (int i = 0; i < 2; i++) {
        k->batchnorm_forward(&half[i]);
        k->batchnorm_back_sums(&half[i]);
    }
    for (size_t i = 0; i < 1 + 2 * CHANNELS; i++)
        part[0].back_sums[i] = part[1].back_sums[i] = part[0].back_sums[i] + part[1].back_sums[i];
    for (int i = 0; i < 2; i++) {
        k->batchnorm_backward(&half[i]);
        compare("y", half[i].y, (float *)whole.y + i * HALF, HALF, 1e-6);
        compare("dx", half[i].dx, (float *)whole.dx + i * HALF, HALF, 1e-5);
    }
    check_end_case();
}

/* A channel with a value that is not finite has no variance: all of it becomes NaN, as PyTorch's,
 * and so does its running variance. Else evaluation would find numbers in spite of a mean that is
 * infinite, and relu zeros. */
static void not_finite(
    const struct pl_kernels *ref, const struct pl_kernels *got, size_t inner, bool alone, bool relu)
{
    enum { BATCH = 4, CHANNELS = 4 };
    const float bad[CHANNELS] = {INFINITY, -INFINITY, NAN, 0.5f};
    static struct buffers b[2];
    struct pl_batchnorm_args want, have,
        s = {.batch = BATCH,
             .channels = CHANNELS,
             .inner = inner,
             .eps = 1e-5,
             .momentum = 0.1,
             .training = true,
             .alone = alone,
             .relu = relu};
    float *x = check_floats(count(&s), FILL_RANDOM);

    check_case("batchnorm of what is not finite, inner %zu alone %d relu %d", inner, alone, relu);
    for (size_t c = 0; c < CHANNELS; c++)
        x[(CHANNELS + c) * inner + inner / 2] = bad[c];
    s.x = x;
    s.dx = check_floats(count(&s), FILL_RANDOM);
    s.dw = s.db = s.running_mean = s.running_var = check_floats(CHANNELS, FILL_RANDOM);
    want = outputs(s, &b[0]);
    have = outputs(s, &b[1]);
    all(ref, &want);
    all(got, &have);
    for (size_t i = 0; i < count(&s); i++)
        if (isfinite(bad[i / inner % CHANNELS]) == 0) {
            check_close("y of ref", i, ((float *)want.y)[i], NAN, 0);
            check_close("y", i, ((float *)have.y)[i], NAN, 0);
        }
    for (size_t c = 0; c < CHANNELS; c++) {
        double w = isfinite(bad[c]) ? ((float *)want.running_var)[c] : NAN;

        check_close("running_var of ref", c, ((float *)want.running_var)[c], w, 0);
        check_close("running_var", c, ((float *)have.running_var)[c], w, 1e-6 * (1 + fabs(w)));
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 0; n < check_many(200, 200); n++)
        one(ref, got, 2 + check_random(5), 0, 1 + check_random(40),
            (enum fill)check_random(FILL_SPECIAL));
    for (size_t n = 0; n < check_many(40, 40);
         n++) { /* neighbours at once, of a channel and of several */
        one(ref, got, 2 + check_random(5), 0, 8 * (1 + check_random(8)),
            (enum fill)check_random(FILL_SPECIAL));
        one(ref, got, 2 + check_random(30), 4 + 4 * check_random(2), 1,
            (enum fill)check_random(FILL_SPECIAL));
    }
    for (size_t n = 0; n < check_many(4, 4); n++) { /* sums in several pieces */
        one(ref, got, 500 + check_random(500), 0, 1, FILL_RANDOM);
        one(ref, got, 3 + check_random(3), 0, 2000 + check_random(100), FILL_RANDOM);
    }
    for (size_t n = 0; n < check_many(4, 1); n++) /* short channels, in several blocks */
        one(ref, got, 2 + check_random(3), CHANNELS_MOST - check_random(60), 1 + check_random(7),
            (enum fill)check_random(FILL_SPECIAL));
    for (size_t n = 0; n < check_many(8, 8); n++) { /* 16 bytes of 16-bit numbers at once */
        one(ref, got, 1 + check_random(900), 8 * (1 + check_random(3)), 1, FILL_RANDOM);
        one(ref, got, 2 + check_random(40), 8 * (1 + check_random(CHANNELS_MOST / 8 - 1)), 1,
            (enum fill)check_random(FILL_SPECIAL));
    }
    for (size_t n = 0; n < check_many(4, 4); n++) /* the same in several blocks */
        one_of(ref, got, 2000 + check_random(200), 16, 1, FILL_RANDOM, true);
    one(ref, got, 3, 2, 4096, FILL_RANDOM);
    /* Sums in so many pieces that a block adds few columns of them. */
    if (!check_host() && today(0, 3))
        one_of(ref, got, 17000, 15, 1, FILL_RANDOM, false);
    /* More rows than a GPU has threads for: some of them have two. */
    if (!check_host() && today(1, 3)) {
        one_of(ref, got, 1000, 299, 1, FILL_RANDOM, false);
        if (check_storage() == PL_REAL_F32)
            one_of(ref, got, 7400, 296, 1, FILL_RANDOM, true);
    }
    split(got);
    for (size_t n = 0; n < 30 && check_host() && check_storage() == PL_REAL_F32; n++) {
        converts(got, 2 + check_random(5), 1 + check_random(CHANNELS_MAX), 1 + check_random(7));
        converts(got, 2 + check_random(5), 1 + check_random(CHANNELS_MAX), 8 + check_random(60));
        converts(got, 2 + check_random(3), 1 + check_random(3), 400 + check_random(1200));
    }
    for (unsigned way = 0; way < 8; way++)
        not_finite(ref, got, way & 1 ? 5 : 1, way & 2, way & 4);
}
