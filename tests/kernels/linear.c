/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* Rounding a sum of n products in any order, in f32: at most n + 2 half-ulps of the sum of the
 * magnitudes (Higham 2002, section 3.1); products of denormals may vanish altogether. */
static double bound(size_t n, double magnitude)
{
    return (double)(n + 3) * CHECK_EPS * magnitude + (double)(n + 1) * 1.5e-45;
}

struct sample {
    size_t rows, in, out;
    enum pl_activation act;
    enum pl_activation x_act; /* NONE: x is of no activation */
    bool bias, dx_add, dw_add, db_add, dw_wide, db_wide, sums, sums_add;
    const float *x, *x_pre, *w, *b, *dy;
};

struct gradient {
    const struct pl_kernels *k;
    struct pl_linear_args args;
};

static void forward(const struct pl_kernels *ref, const struct pl_kernels *got, struct sample *s)
{
    struct pl_linear_args a = {.rows = s->rows,
                               .in = s->in,
                               .out = s->out,
                               .act = s->act,
                               .x = s->x,
                               .w = s->w,
                               .b = s->bias ? s->b : NULL};
    float *want = check_floats(s->rows * s->out, FILL_RANDOM);
    float *have = check_floats(s->rows * s->out, FILL_RANDOM);
    float *pre = check_floats(s->rows * s->out, FILL_RANDOM);

    /* Slopes are at most 1.13, and the formulas' own error is below 4e-7 of the argument. */
    double act_error = pl_activation_needs_pre(s->act) ? 6e-7 : 0;

    a.pre = pl_activation_needs_pre(s->act) ? pre : NULL;
    a.y = want;
    ref->linear_forward(&a);
    a.y = have;
    got->linear_forward(&a);
    for (size_t r = 0; r < s->rows; r++) {
        for (size_t o = 0; o < s->out; o++) {
            double sum = s->bias ? fabs(s->b[o]) : 0;

            for (size_t i = 0; i < s->in; i++)
                sum += fabs((double)s->x[r * s->in + i] * s->w[o * s->in + i]);
            check_close("y", r * s->out + o, have[r * s->out + o], want[r * s->out + o],
                        act_error * (1 + sum) + bound(s->in, sum));
        }
    }
}

static double magnitude(const struct sample *s, const float *dz, double slope_error, size_t k)
{
    double own = slope_error > 0 ? slope_error * fabs((double)s->dy[k]) : 0; /* for any dy */

    return fabs((double)dz[k]) + own;
}

/* dz is kept in the table's type: times a slope it may be rounded to a neighbour of ref's. */
static double dz_error(const struct sample *s, const float *dz, size_t k)
{
    return pl_activation_needs_pre(s->act) ? check_rounding(dz[k]) : 0;
}

static void backward(const struct pl_kernels *ref, const struct pl_kernels *got, struct sample *s)
{
    size_t n_x = s->rows * s->in, n_w = s->out * s->in, n_y = s->rows * s->out;
    float *y = check_floats(n_y, FILL_RANDOM), *dz = check_floats(n_y, FILL_RANDOM);
    float *pre = check_floats(n_y, FILL_RANDOM);
    float *dx = check_floats(n_x, FILL_RANDOM), *dw = check_floats(n_w, FILL_RANDOM);
    float *db = check_floats(s->out, FILL_RANDOM), *dz2 = check_copy(s->dy, n_y);
    float *dx2 = check_copy(dx, n_x), *dw2 = check_copy(dw, n_w), *db2 = check_copy(db, s->out);
    float *sums = check_floats(s->in, FILL_RANDOM), *sums2 = check_copy(sums, s->in);
    const float *before = check_copy(sums, s->in);
    struct pl_linear_args a = {.rows = s->rows,
                               .in = s->in,
                               .out = s->out,
                               .act = s->act,
                               .x_act = s->x_act,
                               .x_pre = s->x_act ? s->x_pre : NULL,
                               .dx_add = s->dx_add,
                               .dw_add = s->dw_add,
                               .db_add = s->db_add,
                               .dw_wide = s->dw_wide,
                               .db_wide = s->db_wide,
                               .dx_sums_add = s->sums_add,
                               .x = s->x,
                               .w = s->w,
                               .y = y,
                               .pre = pre,
                               .dy = s->dy,
                               .dz = dz,
                               .dx = dx,
                               .dw = dw,
                               .db = s->bias ? db : NULL,
                               .dx_sums = s->sums ? sums : NULL};
    /* A slope's own error is below 1e-6, and bound() allows 2.4e-7 of each of its terms at least.
     */
    double slope_error = pl_activation_needs_pre(s->act) ? 5 : 0;

    ref->linear_backward(&a);
    a.dy = a.dz = dz2; /* in place, as the engine does */
    a.dx = dx2;
    a.dw = dw2;
    a.db = s->bias ? db2 : NULL;
    a.dx_sums = s->sums ? sums2 : NULL;
    got->linear_backward(&a);
    for (size_t i = 0; i < s->in && s->sums; i++) { /* of its own dx, which is rounded */
        double sum = s->sums_add ? before[i] : 0, all = fabs(sum);

        for (size_t r = 0; r < s->rows; r++) {
            sum += dx2[r * s->in + i];
            all += fabs(dx2[r * s->in + i]);
        }
        check_close("dx_sums", i, sums2[i], sum, bound(s->rows, all) - check_rounding(sum));
    }
    for (size_t r = 0; r < s->rows; r++) {
        for (size_t i = 0; i < s->in; i++) {
            double sum = 1, error = 0; /* 1: what was there */

            for (size_t o = 0; o < s->out; o++) {
                sum += fabs(magnitude(s, dz, slope_error, r * s->out + o) * s->w[o * s->in + i]);
                error += fabs(dz_error(s, dz, r * s->out + o) * s->w[o * s->in + i]);
            }
            /* A slope is below 1.2, its error below 1e-6; what it is times is rounded, too. */
            error += bound(s->out, sum);
            if (s->x_act)
                error = 1.2 * (error + check_rounding(sum)) + 2e-6 * sum;
            check_close("dx", r * s->in + i, dx2[r * s->in + i], dx[r * s->in + i], error);
        }
    }
    for (size_t o = 0; o < s->out; o++) {
        double column = 1, column_error = 0;

        for (size_t r = 0; r < s->rows; r++) {
            column += fabs(magnitude(s, dz, slope_error, r * s->out + o));
            column_error += dz_error(s, dz, r * s->out + o);
        }
        if (s->db_wide) /* not rounded to the table's type */
            column_error -= check_rounding(db[o]);
        check_close("db", o, db2[o], db[o], bound(s->rows, column) + column_error);
        for (size_t i = 0; i < s->in; i++) {
            double sum = 1, error = 0;

            for (size_t r = 0; r < s->rows; r++) {
                sum += fabs(magnitude(s, dz, slope_error, r * s->out + o) * s->x[r * s->in + i]);
                error += fabs(dz_error(s, dz, r * s->out + o) * s->x[r * s->in + i]);
            }
            if (s->dw_wide)
                error -= check_rounding(dw[o * s->in + i]);
            check_close("dw", o * s->in + i, dw2[o * s->in + i], dw[o * s->in + i],
                        bound(s->rows, sum) + error);
        }
    }
}

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t in,
                size_t out,
                enum fill fill)
{
    struct sample s = {.rows = rows,
                       .in = in,
                       .out = out,
                       .act = (enum pl_activation)check_random(PL_ACT_SIGMOID + 1),
                       .x_act = (enum pl_activation)check_random(PL_ACT_SIGMOID + 1),
                       .bias = check_random(2),
                       .dx_add = check_random(2),
                       .dw_add = check_random(2),
                       .db_add = check_random(2),
                       .dw_wide = check_random(2),
                       .db_wide = check_random(2),
                       .sums = check_random(2),
                       .sums_add = check_random(2),
                       .x = check_floats(rows * in, fill),
                       .x_pre = check_floats(rows * in, FILL_RANDOM),
                       .w = check_floats(out * in, fill),
                       .b = check_floats(out, fill),
                       .dy = check_floats(rows * out, fill)};

    if (!pl_activation_needs_pre(s.x_act))
        s.x_act = PL_ACT_NONE;
    s.dx_add &= !s.x_act;
    s.sums &= s.x_act != PL_ACT_NONE;
    check_case("linear rows %zu in %zu out %zu act %d before %d bias %d add %d%d%d wide %d%d sums "
               "%d%d fill %d",
               rows, in, out, (int)s.act, (int)s.x_act, s.bias, s.dx_add, s.dw_add, s.db_add,
               s.dw_wide, s.db_wide, s.sums, s.sums_add, fill);
    forward(ref, got, &s);
    backward(ref, got, &s);
    check_end_case();
}

/* The sums of some columns of wider rows, in which a layer's gradient is. */
static void sums_alone(
    const struct pl_kernels *ref, const struct pl_kernels *got, size_t rows, size_t out, bool packs)
{
    /* packs: the kernel with whole packs */
    size_t row = packs ? (out = 8 * (1 + out / 8)) + 8 * check_random(9) : out + check_random(9);
    size_t n = rows ? (rows - 1) * row + out : 0;
    const float *dy = check_floats(n, FILL_RANDOM);
    float *want = check_floats(out, FILL_RANDOM), *have = check_copy(want, out);
    struct pl_linear_args a = {.rows = rows,
                               .out = out,
                               .dy_row = row,
                               .db_add = check_random(2),
                               .db_wide = check_random(2),
                               .dy = n ? dy : NULL};

    check_case("column sums of %zu rows of %zu, %zu apart, add %d wide %d", rows, out, row,
               a.db_add, a.db_wide);
    a.db = want;
    ref->linear_backward(&a);
    a.db = have;
    got->linear_backward(&a);
    for (size_t o = 0; o < out; o++) {
        double all = 1;

        for (size_t r = 0; r < rows; r++)
            all += fabs((double)dy[r * row + o]);
        check_close("db", o, have[o], want[o],
                    bound(rows, all) - (a.db_wide ? check_rounding(want[o]) : 0));
    }
    check_end_case();
}

/* Rounding does not grow with the number of the rows, whose gradients are alike. */
static void
many_rows(const struct pl_kernels *ref, const struct pl_kernels *got, enum pl_activation act)
{
    size_t rows = check_many(60000, 6000), n = 2 * rows;
    float *dy = check_floats(n, FILL_RANDOM), *dz = check_floats(n, FILL_ZERO);
    float *y = check_floats(n, FILL_RANDOM);
    float *want = check_floats(2, FILL_ZERO), *have = check_floats(2, FILL_ZERO);
    struct pl_linear_args a = {
        .rows = rows, .in = 1, .out = 2, .act = act, .y = y, .pre = y, .dy = dy, .dz = dz};

    for (size_t i = 0; i < n; i++)
        dy[i] = fabsf(dy[i]);
    check_case("linear of %zu rows, act %d", rows, (int)act);
    a.db = want;
    ref->linear_backward(&a);
    a.db = have;
    got->linear_backward(&a);
    for (size_t o = 0; o < 2; o++)
        check_close("db", o, have[o], want[o], 2e-6 * fabs(want[o]));
    check_end_case();
}

/* The loss is the sum of y weighted with dy. */
static double weighted(void *ctx)
{
    struct gradient *g = ctx;
    double sum = 0;

    g->k->linear_forward(&g->args);
    for (size_t i = 0; i < g->args.rows * g->args.out; i++)
        sum += ((const double *)g->args.y)[i] * ((const double *)g->args.dy)[i];
    return sum;
}

void check_gradients(const struct pl_kernels *f64)
{
    double *x = check_doubles(3 * 5), *w = check_doubles(4 * 5), *b = check_doubles(4);
    double *dx = check_doubles(3 * 5), *dw = check_doubles(4 * 5), *db = check_doubles(4);
    struct gradient g = {f64,
                         {.rows = 3,
                          .in = 5,
                          .out = 4,
                          .x = x,
                          .w = w,
                          .b = b,
                          .dy = check_doubles(3 * 4),
                          .y = check_doubles(3 * 4),
                          .pre = check_doubles(3 * 4),
                          .dz = check_doubles(3 * 4),
                          .dx = dx,
                          .dw = dw,
                          .db = db}};

    for (enum pl_activation act = PL_ACT_NONE; act <= PL_ACT_SIGMOID; act++) {
        check_case("linear gradient, act %d", (int)act);
        g.args.act = act;
        weighted(&g);
        f64->linear_backward(&g.args);
        check_gradient("dx", weighted, &g, x, 3 * 5, dx, 20);
        check_gradient("dw", weighted, &g, w, 4 * 5, dw, 20);
        check_gradient("db", weighted, &g, b, 4, db, 20);
    }
    check_end_case();
}

static void run(void *args)
{
    const struct gradient *g = args;

    g->k->linear_forward(&g->args);
    g->k->linear_backward(&g->args);
}

static void threads(const struct pl_kernels *got, size_t rows, size_t in, size_t out)
{
    float *dw = check_floats(out * in, FILL_RANDOM), *y = check_floats(rows * out, FILL_RANDOM);
    struct gradient g = {got,
                         {.rows = rows,
                          .in = in,
                          .out = out,
                          .act = PL_ACT_GELU,
                          .dw_add = true,
                          .x = check_floats(rows * in, FILL_RANDOM),
                          .w = check_floats(out * in, FILL_RANDOM),
                          .b = check_floats(out, FILL_RANDOM),
                          .dy = check_floats(rows * out, FILL_RANDOM),
                          .y = y,
                          .pre = check_floats(rows * out, FILL_RANDOM),
                          .dz = check_floats(rows * out, FILL_RANDOM),
                          .dx = check_floats(rows * in, FILL_RANDOM),
                          .dw = dw,
                          .db = check_floats(out, FILL_RANDOM)}};

    check_case("linear rows %zu on 1, 2 and 3 threads", rows);
    check_threads("dw", run, &g, dw, out * in);
    check_threads("y", run, &g, y, rows * out);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const size_t sizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65};

    for (size_t n = 0; n < check_many(120, 120); n++)
        one(ref, got, sizes[check_random(PL_COUNT(sizes))], sizes[check_random(PL_COUNT(sizes))],
            sizes[check_random(PL_COUNT(sizes))], (enum fill)check_random(FILL_SPECIAL));
    one(ref, got, 5, 300, 18, FILL_RANDOM);        /* more than one panel deep */
    for (size_t n = 0; n < check_many(10, 3); n++) /* few rows of large matrices */
        one(ref, got, 5 + check_random(28), 32 + check_random(60), 128 + check_random(90),
            (enum fill)check_random(FILL_SPECIAL));
    one(ref, got, 13, 513, 40, FILL_LARGE);
    one(ref, got, 160, 130, 150, FILL_RANDOM); /* several blocks of rows */
    one(ref, got, 5, 3, 4200, FILL_RANDOM);    /* several blocks of columns */
    for (size_t n = 0; n < check_many(40, 10); n++)
        sums_alone(ref, got, check_random(4) ? check_random(300) : 0, 1 + check_random(70),
                   check_random(2));
    /* More pieces than are added at once, and of more rows than a block reads at once: in f64,
     * where fewer do. */
    sums_alone(ref, got, 1100 + check_random(40), 64, true);
    if (!check_host() && check_storage() == PL_REAL_F64)
        sums_alone(ref, got, 580, 2040, true);
    for (enum pl_activation act = PL_ACT_NONE; act <= PL_ACT_SIGMOID; act++)
        if (check_host())
            many_rows(ref, got, act);
    threads(got, 150, 401, 170);
    threads(got, 30, 101, 170);
}
