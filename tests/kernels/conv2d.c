/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    size_t batch, in, height, width, out, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

static size_t y_count(const struct pl_conv2d_args *a)
{
    return a->batch * a->out * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
           pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
}

static struct pl_conv2d_args args_of(const struct shape *s)
{
    return (struct pl_conv2d_args){.batch = s->batch,
                                   .in = s->in,
                                   .height = s->height,
                                   .width = s->width,
                                   .out = s->out,
                                   .kernel_h = s->kernel_h,
                                   .kernel_w = s->kernel_w,
                                   .stride_h = s->stride_h,
                                   .stride_w = s->stride_w,
                                   .pad_h = s->pad_h,
                                   .pad_w = s->pad_w};
}

/* Rounding of sums of n products of numbers whose products stay below `largest`, in both ways of
 * adding up, each in f32 (Higham 2002, section 3.1). */
static void compare(
    const char *what, const float *have, const float *want, size_t count, size_t n, double largest)
{
    double tolerance = 2 * (double)(n + 4) * CHECK_EPS * ((double)n * largest + 1) + 1e-40;

    for (size_t i = 0; i < count; i++)
        check_close(what, i, have[i], want[i], tolerance);
}

static double largest(const float *p, size_t n)
{
    double max = 0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)p[i]));
    return max;
}

/* ref's results of the cases so far: it computes as long as all else together, and each table of
 * the CPU has the same cases. An entry counts only for the same arguments and numbers. */
static struct kept {
    uint64_t key;
    float *y, *dx, *dw, *db;
} kept[800];

static uint64_t mixed(uint64_t key, const void *data, size_t bytes)
{
    const unsigned char *p = data;

    for (size_t i = 0; p && i < bytes; i += sizeof(uint32_t)) {
        uint32_t word = 0;

        memcpy(&word, p + i, PL_MIN(bytes - i, sizeof(word)));
        key = (key ^ word) * 0x9e3779b97f4a7c15u;
        key ^= key >> 29;
    }
    return key;
}

static float *stored(const float *from, size_t n)
{
    float *copy = malloc(n * sizeof(*copy));

    if (!copy)
        abort();
    return memcpy(copy, from, n * sizeof(*copy));
}

/* ref's forward and backward of the arguments, computed or as they were before. */
static void
reference(const struct pl_kernels *ref, const struct pl_conv2d_args *a, const struct shape *s)
{
    size_t n_x = s->batch * s->in * s->height * s->width, n_y = y_count(a);
    size_t n_w = s->out * s->in * s->kernel_h * s->kernel_w;
    uint64_t key = mixed(check_storage(), s, sizeof(*s));
    struct kept *k;

    key = mixed(key, a->x, n_x * sizeof(float));
    key = mixed(key, a->w, n_w * sizeof(float));
    key = mixed(key, a->b, s->out * sizeof(float));
    key = mixed(key, a->dy, n_y * sizeof(float));
    key = mixed(key, a->dx, n_x * sizeof(float));
    key = mixed(key, a->dw, n_w * sizeof(float));
    key = mixed(key, a->db, s->out * sizeof(float));
    key = mixed(key, (bool[]){a->relu, a->last, a->dx_add, a->dw_add, a->db_add, a->b}, 6);
    for (k = kept; k < kept + PL_COUNT(kept) && k->y; k++)
        if (k->key == key) {
            memcpy(a->y, k->y, n_y * sizeof(float));
            memcpy(a->dx, k->dx, n_x * sizeof(float));
            memcpy(a->dw, k->dw, n_w * sizeof(float));
            memcpy(a->db, k->db, s->out * sizeof(float));
            return;
        }
    ref->conv2d_forward(a);
    ref->conv2d_backward(a);
    if (k < kept + PL_COUNT(kept))
        *k = (struct kept){key, stored(a->y, n_y), stored(a->dx, n_x), stored(a->dw, n_w),
                           stored(a->db, s->out)};
}

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                const struct shape *s,
                enum fill fill)
{
    struct pl_conv2d_args a = args_of(s), g;
    size_t n_x = s->batch * s->in * s->height * s->width, k = s->in * s->kernel_h * s->kernel_w;
    size_t n_w = s->out * k, n_y = y_count(&a), windows = n_y / s->out;
    float *x = check_floats(n_x, fill), *w = check_floats(n_w, fill), *dy = check_floats(n_y, fill);
    float *y = check_floats(n_y, FILL_RANDOM), *y2 = check_floats(n_y, FILL_RANDOM);
    float *dx = check_floats(n_x, FILL_RANDOM), *dx2 = check_copy(dx, n_x);
    float *dw = check_floats(n_w, FILL_RANDOM), *dw2 = check_copy(dw, n_w);
    float *db = check_floats(s->out, FILL_RANDOM), *db2 = check_copy(db, s->out);
    double mx = largest(x, n_x), mw = largest(w, n_w), md = largest(dy, n_y);

    a.relu = check_random(2);
    a.last = check_random(3) == 0;
    a.dx_add = check_random(2);
    a.dw_add = check_random(2);
    a.db_add = check_random(2);
    check_case("conv2d x %zux%zux%zux%zu out %zu kernel %zux%zu stride %zux%zu pad %zux%zu relu %d "
               "last %d add %d%d%d fill %d",
               s->batch, s->in, s->height, s->width, s->out, s->kernel_h, s->kernel_w, s->stride_h,
               s->stride_w, s->pad_h, s->pad_w, a.relu, a.last, a.dx_add, a.dw_add, a.db_add,
               (int)fill);
    a.x = x;
    a.w = w;
    a.b = check_random(2) ? check_floats(s->out, fill) : NULL;
    a.y = y;
    a.dy = dy;
    a.dx = dx;
    a.dw = dw;
    a.db = db;
    g = a;
    g.y = y2;
    reference(ref, &a, s);
    got->conv2d_forward(&g);
    compare("y", y2, y, n_y, k, mx * mw + (a.b ? largest(a.b, s->out) : 0));
    g.y = y; /* rounding must not decide what relu passes */
    g.dx = dx2;
    g.dw = dw2;
    g.db = db2;
    got->conv2d_backward(&g);
    compare("dx", dx2, dx, n_x, s->out * s->kernel_h * s->kernel_w, md * mw);
    compare("dw", dw2, dw, n_w, windows, md * mx);
    compare("db", db2, db, s->out, windows, md);
    check_end_case();
}

/* Some elements are not finite: what has none in its window stays as it is. */
static void mended(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    struct shape s = {1 + check_random(3), 1 + check_random(4), 1 + check_random(9),
                      1 + check_random(9), 1 + check_random(5), 1 + check_random(4),
                      1 + check_random(4), 1 + check_random(3), 1 + check_random(3),
                      check_random(3),     check_random(3)};
    struct pl_conv2d_args a;
    size_t n_x, n_y, k = s.in * s.kernel_h * s.kernel_w;
    float *x, *y, *y2;
    uint32_t n_bad = (uint32_t)check_random(4);

    s.height += s.kernel_h;
    s.width += s.kernel_w;
    a = args_of(&s);
    n_x = s.batch * s.in * s.height * s.width;
    n_y = y_count(&a);
    x = check_floats(n_x, FILL_RANDOM);
    y = check_floats(n_y, FILL_RANDOM);
    y2 = check_copy(y, n_y);
    a.relu = check_random(2);
    a.last = check_random(2);
    check_case("conv2d mended, %u bad, x %zux%zux%zux%zu out %zu kernel %zux%zu stride %zux%zu pad "
               "%zux%zu relu %d last %d",
               n_bad, s.batch, s.in, s.height, s.width, s.out, s.kernel_h, s.kernel_w, s.stride_h,
               s.stride_w, s.pad_h, s.pad_w, a.relu, a.last);
    for (uint32_t i = 0; i < n_bad; i++)
        x[check_random(n_x)] = bad[check_random(PL_COUNT(bad))];
    a.x = x;
    a.w = check_floats(s.out * k, FILL_RANDOM);
    a.b = check_random(2) ? check_floats(s.out, FILL_RANDOM) : NULL;
    a.bad = &n_bad;
    a.y = y;
    ref->conv2d_mend(&a);
    a.y = y2;
    got->conv2d_mend(&a);
    compare("y", y2, y, n_y, k, 1);
    check_end_case();
}

static float *shifted(size_t n, float mean)
{
    float *p = check_floats(n, FILL_RANDOM);

    for (size_t i = 0; i < n; i++)
        p[i] += mean;
    return p;
}

static double *widened(const float *from, size_t n)
{
    double *p = check_doubles(n);

    for (size_t i = 0; i < n; i++)
        p[i] = (double)from[i];
    return p;
}

static double rms(const float *have, const double *want, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += ((double)have[i] - want[i]) * ((double)have[i] - want[i]);
    return sqrt(sum / (double)n);
}

/* y as a plain sum of f32 numbers; ref's gradients are such sums. */
static void plain_forward(const struct pl_conv2d_args *a, float *y)
{
    size_t oh = pl_conv_size(a->height, 3, 1, a->pad_h),
           ow = pl_conv_size(a->width, 3, 1, a->pad_w);

    for (size_t k = 0; k < a->batch * a->out * oh * ow; k++) {
        size_t n = k / (a->out * oh * ow), o = k / (oh * ow) % a->out;

        y[k] = 0;
        for (size_t t = 0; t < a->in * 9; t++) {
            size_t c = t / 9, i = k / ow % oh + t % 9 / 3 - a->pad_h;
            size_t j = k % ow + t % 3 - a->pad_w;

            if (i < a->height && j < a->width)
                y[k] += ((const float *)a->x)[((n * a->in + c) * a->height + i) * a->width + j] *
                        ((const float *)a->w)[o * a->in * 9 + t];
        }
    }
}

/* Tiles of 3x3 kernels add and subtract pixels before they multiply, so they round more often than
 * a plain sum does: eight times its error is the most that a training run gets instead of it. */
static void accuracy(const struct pl_kernels *got, const struct shape *s, float mean)
{
    struct pl_conv2d_args a = args_of(s), plain, exact;
    size_t n_x = s->batch * s->in * s->height * s->width, n_w = s->out * s->in * 9;
    size_t n_y = y_count(&a);

    check_case("conv2d's error, in %zu out %zu image %zux%zu pad %zu mean %g", s->in, s->out,
               s->height, s->width, s->pad_h, (double)mean);
    a.x = shifted(n_x, mean);
    a.w = check_floats(n_w, FILL_RANDOM);
    a.dy = shifted(n_y, mean);
    a.y = check_floats(n_y, FILL_ZERO);
    a.dx = check_floats(n_x, FILL_ZERO);
    a.dw = check_floats(n_w, FILL_ZERO);
    got->conv2d_forward(&a);
    got->conv2d_backward(&a);
    plain = a;
    plain.y = check_floats(n_y, FILL_ZERO);
    plain.dx = check_floats(n_x, FILL_ZERO);
    plain.dw = check_floats(n_w, FILL_ZERO);
    plain_forward(&plain, plain.y);
    pl_kernels_ref(PL_REAL_F32)->conv2d_backward(&plain);
    exact = a;
    exact.x = widened(a.x, n_x);
    exact.w = widened(a.w, n_w);
    exact.dy = widened(a.dy, n_y);
    exact.y = check_doubles(n_y);
    exact.dx = check_doubles(n_x);
    exact.dw = check_doubles(n_w);
    pl_kernels_ref(PL_REAL_F64)->conv2d_forward(&exact);
    pl_kernels_ref(PL_REAL_F64)->conv2d_backward(&exact);
    check_close("error of y", 0, rms(a.y, exact.y, n_y), 0, 8 * rms(plain.y, exact.y, n_y));
    check_close("error of dx", 0, rms(a.dx, exact.dx, n_x), 0, 8 * rms(plain.dx, exact.dx, n_x));
    check_close("error of dw", 0, rms(a.dw, exact.dw, n_w), 0, 8 * rms(plain.dw, exact.dw, n_w));
    check_end_case();
}

struct gradient {
    const struct pl_kernels *k;
    struct pl_conv2d_args args;
};

static double weighted(void *ctx)
{
    struct gradient *g = ctx;
    double sum = 0;

    g->k->conv2d_forward(&g->args);
    for (size_t i = 0; i < y_count(&g->args); i++)
        sum += ((const double *)g->args.y)[i] * ((const double *)g->args.dy)[i];
    return sum;
}

void check_gradients(const struct pl_kernels *f64)
{
    static const struct shape shapes[] = {{2, 2, 5, 4, 3, 3, 3, 1, 1, 0, 0},
                                          {1, 2, 5, 6, 2, 3, 2, 2, 1, 1, 1},
                                          {1, 1, 4, 4, 2, 1, 1, 1, 2, 1, 0}};

    for (size_t i = 0; i < PL_COUNT(shapes); i++) {
        const struct shape *s = &shapes[i];
        struct gradient g = {f64, args_of(s)};
        size_t n_x = s->batch * s->in * s->height * s->width;
        size_t n_w = s->out * s->in * s->kernel_h * s->kernel_w, n_y = y_count(&g.args);
        double *x = check_doubles(n_x), *w = check_doubles(n_w), *b = check_doubles(s->out);
        double *dx = check_doubles(n_x), *dw = check_doubles(n_w), *db = check_doubles(s->out);

        check_case("conv2d gradient %zu", i);
        g.args.x = x;
        g.args.w = w;
        g.args.b = b;
        g.args.y = check_doubles(n_y);
        g.args.dy = check_doubles(n_y);
        g.args.dx = dx;
        g.args.dw = dw;
        g.args.db = db;
        f64->conv2d_backward(&g.args);
        check_gradient("dx", weighted, &g, x, n_x, dx, 20);
        check_gradient("dw", weighted, &g, w, n_w, dw, 40);
        check_gradient("db", weighted, &g, b, s->out, db, 40);
        check_end_case();
    }
}

static void run(void *args)
{
    const struct gradient *g = args;

    g->k->conv2d_forward(&g->args);
    g->k->conv2d_backward(&g->args);
}

static void threads(const struct pl_kernels *got, const struct shape *s)
{
    struct gradient g = {got, args_of(s)};
    size_t n_x = s->batch * s->in * s->height * s->width;
    size_t n_w = s->out * s->in * s->kernel_h * s->kernel_w, n_y = y_count(&g.args);
    float *dw = check_floats(n_w, FILL_RANDOM);

    check_case("conv2d on 1, 2 and 3 threads");
    g.args.relu = true;
    g.args.x = check_floats(n_x, FILL_RANDOM);
    g.args.w = check_floats(n_w, FILL_RANDOM);
    g.args.b = check_floats(s->out, FILL_RANDOM);
    g.args.y = check_floats(n_y, FILL_RANDOM);
    g.args.dy = check_floats(n_y, FILL_RANDOM);
    g.args.dx = check_floats(n_x, FILL_RANDOM);
    g.args.dw = dw;
    g.args.db = check_floats(s->out, FILL_RANDOM);
    check_threads("dw", run, &g, dw, n_w);
    check_end_case();
}

static size_t from(size_t low, size_t high)
{
    return low + check_random(high - low + 1);
}

/* f16 has no CHECK_LARGE, and the padding's zeros times infinity may be NaNs. */
static enum fill finite_fill(void)
{
    return (enum fill)check_random(check_storage() == PL_REAL_F16 ? FILL_LARGE : FILL_SPECIAL);
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const struct shape repeated[] = {{19, 5, 12, 13, 7, 3, 3, 1, 1, 1, 1},
                                            {19, 5, 12, 13, 7, 3, 3, 2, 2, 1, 1},
                                            {19, 17, 12, 13, 18, 3, 3, 1, 1, 1, 1},
                                            {37, 17, 7, 8, 18, 3, 3, 1, 1, 1, 1},
                                            {19, 65, 3, 4, 130, 3, 3, 1, 1, 1, 1}};
    static const struct shape measured[] = {
        {2, 3, 12, 12, 16, 3, 3, 1, 1, 1, 1},  {2, 16, 12, 12, 16, 3, 3, 1, 1, 0, 0},
        {2, 64, 10, 10, 32, 3, 3, 1, 1, 1, 1}, {1, 512, 7, 8, 16, 3, 3, 1, 1, 1, 1},
        {1, 16, 8, 8, 512, 3, 3, 1, 1, 1, 1},  {4, 64, 4, 4, 32, 3, 3, 1, 1, 1, 1}};

    for (size_t n = 0; n < check_many(150, 25); n++) {
        struct shape s = {.batch = from(1, 3),
                          .in = from(1, 5),
                          .height = from(1, 20),
                          .width = from(1, 40),
                          .out = from(1, 14),
                          .kernel_h = from(1, 5),
                          .kernel_w = from(1, 5),
                          .stride_h = check_random(2) ? 1 : from(1, 3),
                          .stride_w = 1,
                          .pad_h = from(0, 2),
                          .pad_w = from(0, 2)};

        s.stride_w = s.stride_h == 1 ? 1 : from(1, 3);
        s.height = PL_MAX(s.height, s.kernel_h);
        s.width = PL_MAX(s.width, s.kernel_w);
        one(ref, got, &s, finite_fill());
    }
    /* by tiles */
    for (size_t n = 0; n < check_many(40, 6); n++) {
        struct shape s = {.batch = from(1, 6),
                          .in = from(4, 40),
                          .height = from(2, 20),
                          .width = from(2, 30),
                          .out = from(4, 40),
                          .kernel_h = 3,
                          .kernel_w = 3,
                          .stride_h = 1,
                          .stride_w = 1,
                          .pad_h = from(0, 2),
                          .pad_w = from(0, 2)};

        s.height = PL_MAX(s.height, 3 - s.pad_h);
        s.width = PL_MAX(s.width, 3 - s.pad_w);
        one(ref, got, &s, finite_fill());
    }
    /* all remainders of tiles */
    for (size_t n = 0; n < check_many(52, 4); n++) {
        struct shape s = {.batch = from(1, 5),
                          .in = from(1, 70),
                          .height = 1 + n % 13,
                          .width = 1 + (n / 13 + n) % 13,
                          .out = from(1, 70),
                          .kernel_h = 3,
                          .kernel_w = 3,
                          .stride_h = 1,
                          .stride_w = 1,
                          .pad_h = from(0, 2),
                          .pad_w = from(0, 2)};

        s.pad_h = s.height < 3 ? PL_MAX(s.pad_h, (size_t)1) : s.pad_h;
        s.pad_w = s.width < 3 ? PL_MAX(s.pad_w, (size_t)1) : s.pad_w;
        one(ref, got, &s, finite_fill());
    }
    /* few windows: of several images at once */
    for (size_t n = 0; n < check_many(40, 6); n++) {
        struct shape s = {.batch = from(2, 9),
                          .in = from(1, 40),
                          .height = from(1, 4),
                          .width = from(1, 4),
                          .out = from(1, 40),
                          .kernel_h = from(1, 3),
                          .kernel_w = from(1, 3),
                          .stride_h = from(1, 2),
                          .stride_w = from(1, 2),
                          .pad_h = from(0, 2),
                          .pad_w = from(0, 2)};

        while (s.height + 2 * s.pad_h < s.kernel_h) /* taps may be in the padding only */
            s.height++;
        while (s.width + 2 * s.pad_w < s.kernel_w)
            s.width++;
        one(ref, got, &s, finite_fill());
    }
    for (size_t n = 0; check_host() && n < check_many(PL_COUNT(measured), 0); n++) {
        accuracy(got, &measured[n], 0);
        accuracy(got, &measured[n], 10);
    }
    for (size_t n = 0; n < check_many(60, 15); n++)
        mended(ref, got);
    /* more columns than are kept at once: groups of images, the last one shorter */
    if (check_many(true, false))
        one(ref, got, &(struct shape){67, 512, 4, 4, 3, 3, 3, 1, 1, 1, 1}, FILL_RANDOM);
    if (check_many(true, false)) /* of tiles, too */
        one(ref, got, &(struct shape){57, 512, 3, 3, 16, 3, 3, 1, 1, 1, 1}, FILL_RANDOM);
    if (check_many(true, false))
        one(ref, got, &(struct shape){2, 130, 6, 60, 128, 3, 3, 1, 1, 1, 1}, FILL_RANDOM);
    one(ref, got, &(struct shape){2, 70, 7, 8, 66, 3, 3, 1, 1, 1, 1}, FILL_RANDOM);
    one(ref, got, &(struct shape){check_many(20, 3), 1, 28, 28, 8, 3, 3, 1, 1, 0, 0}, FILL_RANDOM);
    one(ref, got, &(struct shape){2, 40, 9, 9, 20, 3, 3, 1, 1, 1, 1}, FILL_RANDOM);
    for (size_t n = 0; n < check_many(PL_COUNT(repeated), 1); n++)
        threads(got, &repeated[n]);
}
