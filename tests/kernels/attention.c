/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

/* [batch, rows, heads, dim], or heads before rows, dense or with gaps; or one of the three parts of
 * [batch, rows, 3, heads, dim], as one linear layer makes them. */
enum layout { TIMES_FIRST, HEADS_FIRST, PACKED };

static struct pl_attention_strides
strides(const struct pl_attention_args *a, enum layout layout, size_t rows, size_t gap)
{
    size_t row = a->dim + gap;

    if (layout == HEADS_FIRST)
        return (struct pl_attention_strides){a->heads * rows * row + gap, row, rows * row};
    row = (layout == PACKED ? 3 : 1) * a->heads * a->dim + gap;
    return (struct pl_attention_strides){rows * row, row, a->dim};
}

static struct pl_attention_args random_shape(void)
{
    static const size_t dims[] = {8, 16, 32, 40, 64, 128, 256};
    bool large = check_random(8) == 0;
    size_t long_time = check_many(450, 150); /* of blocks of keys: 384, CUDA's 64 */
    struct pl_attention_args a = {
        .batch = 1 + check_random(2),
        .heads = 1 + check_random(3),
        .dim = check_random(2) ? 1 + check_random(40) : dims[check_random(large ? 5 : 7)],
        .time = 1 + check_random(large             ? long_time
                                 : check_random(3) ? 40
                                                   : 120),
        .causal = check_random(3),
    };

    a.keys = a.causal || check_random(2) ? a.time : 1 + check_random(large ? long_time : 120);
    a.dq_add = check_random(2);
    a.dk_add = check_random(2);
    a.dv_add = check_random(2);
    a.scale = check_random(4) ? 1 / sqrt((double)a.dim) : 0.25 / (double)a.dim;
    return a;
}

/* The arrays of a case: inputs, results of ref, and results of the backend. */
struct arrays {
    size_t n_q, n_kv, n_y, n_lse; /* elements */
    float *q, *k, *v, *dy;
    float *y[2], *lse[2], *dq[2], *dk[2], *dv[2];
};

static struct arrays make(struct pl_attention_args *a, enum fill fill)
{
    enum layout layout = a->time == a->keys ? check_random(3) : check_random(2);
    size_t gap = layout == PACKED ? 0 : check_random(3), gap_y = check_random(3);
    struct arrays x = {.n_lse = a->batch * a->heads * a->time};
    size_t next = a->heads * a->dim;

    a->q_at = a->dq_at = strides(a, layout, a->time, gap);
    a->k_at = a->v_at = a->dk_at = a->dv_at = strides(a, layout, a->keys, gap);
    a->y_at = a->dy_at = strides(a, check_random(2), a->time, gap_y);
    x.n_q = a->batch * a->q_at.batch;
    x.n_kv = layout == PACKED ? 0 : a->batch * a->k_at.batch;
    x.n_y = a->batch * a->y_at.batch;
    x.q = check_floats(x.n_q, fill);
    x.k = layout == PACKED ? x.q + next : check_floats(x.n_kv, fill);
    x.v = layout == PACKED ? x.q + 2 * next : check_floats(x.n_kv, fill);
    x.dy = check_floats(x.n_y, FILL_RANDOM);
    x.y[0] = check_floats(x.n_y, FILL_RANDOM);
    x.lse[0] = check_floats(x.n_lse, FILL_RANDOM);
    x.dq[0] = check_floats(x.n_q, FILL_RANDOM);
    x.dk[0] = layout == PACKED ? x.dq[0] + next : check_floats(x.n_kv, FILL_RANDOM);
    x.dv[0] = layout == PACKED ? x.dq[0] + 2 * next : check_floats(x.n_kv, FILL_RANDOM);
    x.y[1] = check_copy(x.y[0], x.n_y);
    x.lse[1] = check_copy(x.lse[0], x.n_lse);
    x.dq[1] = check_copy(x.dq[0], x.n_q);
    x.dk[1] = layout == PACKED ? x.dq[1] + next : check_copy(x.dk[0], x.n_kv);
    x.dv[1] = layout == PACKED ? x.dq[1] + 2 * next : check_copy(x.dv[0], x.n_kv);
    a->q = x.q;
    a->k = x.k;
    a->v = x.v;
    a->dy = x.dy;
    check_case(
        "attention batch %zu time %zu keys %zu heads %zu dim %zu causal %d layout %d gaps %zu "
        "%zu fill %d",
        a->batch, a->time, a->keys, a->heads, a->dim, a->causal, (int)layout, gap, gap_y,
        (int)fill);
    return x;
}

/* True if a gradient is wanted: the bits of `wanted`, for q, k and v. */
static void use(struct pl_attention_args *a, const struct arrays *x, int which, unsigned wanted)
{
    a->y = x->y[which];
    a->lse = x->lse[which];
    a->dq = wanted & 1 ? x->dq[which] : NULL;
    a->dk = wanted & 2 ? x->dk[which] : NULL;
    a->dv = wanted & 4 ? x->dv[which] : NULL;
}

static void
all_close(const char *what, const float *got, const float *want, size_t n, double tolerance)
{
    for (size_t i = 0; i < n; i++)
        check_close(what, i, got[i], want[i], tolerance);
}

static void one(const struct pl_kernels *ref, const struct pl_kernels *got, enum fill fill)
{
    struct pl_attention_args a = random_shape();
    struct arrays x = make(&a, fill);
    unsigned wanted = check_random(2) ? 7 : (unsigned)check_random(8);
    /* Scores are sums of dim terms, at most sqrt(dim) in all; their errors, and those of the
     * exponential (2e-7) and of sums over the keys, are relative ones of the probabilities. */
    double relative = (8 * (double)a.dim + 60 + (double)a.keys) * CHECK_EPS;
    /* A probability of at most 1 times dscores of at most 2 dim. */
    double query = relative * (2 * sqrt((double)a.dim) + 4);
    /* These add up over the queries. Random probabilities are near 1 / keys, but the first query of
     * a causal head gives all to one key. */
    double key = query + (double)a.time * CHECK_EPS * (4 + sqrt((double)a.dim));

    use(&a, &x, 0, wanted);
    ref->attention_forward(&a);
    use(&a, &x, 1, wanted);
    got->attention_forward(&a);
    all_close("y", x.y[1], x.y[0], x.n_y, relative);
    all_close("lse", x.lse[1], x.lse[0], x.n_lse, relative + 8 * CHECK_EPS);
    memcpy(x.y[1], x.y[0], x.n_y * sizeof(float));
    memcpy(x.lse[1], x.lse[0], x.n_lse * sizeof(float));
    use(&a, &x, 0, wanted);
    ref->attention_backward(&a);
    use(&a, &x, 1, wanted);
    got->attention_backward(&a);
    /* Of the packed layout dq is all three. */
    all_close(x.n_kv ? "dq" : "dq, dk, dv", x.dq[1], x.dq[0], x.n_q, x.n_kv ? query : key);
    all_close("dk", x.dk[1], x.dk[0], x.n_kv, key);
    all_close("dv", x.dv[1], x.dv[0], x.n_kv, key);
    check_end_case();
}

static float *row(float *p, const struct pl_attention_strides *s, size_t b, size_t t, size_t h)
{
    return p + b * s->batch + t * s->time + h * s->head;
}

/* A NaN reaches each y that sees it, and the other heads come out as if it were not there. */
static void not_a_number(const struct pl_kernels *got)
{
    struct pl_attention_args a = random_shape();
    struct arrays x = make(&a, FILL_RANDOM);
    size_t bad_batch = check_random(a.batch), bad_head = check_random(a.heads);
    size_t t = check_random(a.keys), d = check_random(a.dim);
    bool in_key = check_random(2);

    use(&a, &x, 0, 7);
    got->attention_forward(&a);
    row(in_key ? x.k : x.v, &a.k_at, bad_batch, t, bad_head)[d] = NAN;
    use(&a, &x, 1, 7);
    got->attention_forward(&a);
    for (size_t b = 0; b < a.batch; b++)
        for (size_t h = 0; h < a.heads; h++)
            for (size_t i = 0; i < a.time; i++) {
                const float *clean = row(x.y[0], &a.y_at, b, i, h);
                const float *y = row(x.y[1], &a.y_at, b, i, h);

                if (b != bad_batch || h != bad_head)
                    check_same("y of another head", y, clean, a.dim);
                else if (!a.causal || i >= t)
                    check_close("y that sees a NaN", i, y[d], NAN, 0);
            }
    check_end_case();
}

/* Without keys y is 0, and backward adds nothing to dq. */
static void no_keys(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    struct pl_attention_args a = random_shape();
    struct arrays x;

    a.causal = false;
    a.keys = 0;
    x = make(&a, FILL_RANDOM);
    for (int which = 0; which < 2; which++) {
        const struct pl_kernels *k = which ? got : ref;

        use(&a, &x, which, 7);
        k->attention_forward(&a);
        k->attention_backward(&a);
    }
    for (size_t b = 0; b < a.batch; b++)
        for (size_t h = 0; h < a.heads; h++)
            for (size_t t = 0; t < a.time; t++)
                for (size_t d = 0; d < a.dim; d++)
                    check_close("y", t, row(x.y[1], &a.y_at, b, t, h)[d], 0, 0);
    all_close("y", x.y[1], x.y[0], x.n_y, 0);
    all_close("lse", x.lse[1], x.lse[0], x.n_lse, 0);
    all_close("dq", x.dq[1], x.dq[0], x.n_q, 0);
    check_end_case();
}

/* Scores far apart: probabilities of 0 and 1, and none above 1 in backward. */
static void far_apart(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    struct pl_attention_args a = random_shape();
    struct arrays x;
    double error;

    a.dim = 1;
    a.scale = 1000;
    error = a.scale * (double)a.keys * CHECK_EPS;
    x = make(&a, FILL_RANDOM);
    for (size_t b = 0; b < a.batch; b++)
        for (size_t h = 0; h < a.heads; h++) {
            for (size_t t = 0; t < a.time; t++)
                *row(x.q, &a.q_at, b, t, h) = t % 2 ? 1 : -1;
            for (size_t t = 0; t < a.keys; t++)
                *row(x.k, &a.k_at, b, t, h) = (float)((t * 7) % a.keys);
        }
    for (int which = 0; which < 2; which++) {
        const struct pl_kernels *k = which ? got : ref;

        use(&a, &x, which, 7);
        k->attention_forward(&a);
        k->attention_backward(&a);
    }
    /* lse holds numbers of this size in f32, so probabilities made from it have such errors. */
    all_close("y", x.y[1], x.y[0], x.n_y, 1e-5);
    all_close("lse", x.lse[1], x.lse[0], x.n_lse, 2 * error);
    all_close("dv", x.dv[1], x.dv[0], x.n_kv, 4 * error * (double)a.time);
    check_end_case();
}

/* The key that a query of one_hot() sees all of. */
static size_t key_of(const struct pl_attention_args *a, float *k, size_t b, size_t h, size_t t)
{
    float sign = *row((float *)(uintptr_t)a->q, &a->q_at, b, t, h);
    size_t best = 0;

    for (size_t j = 1; j < (a->causal ? t + 1 : a->keys); j++)
        if (sign * *row(k, &a->k_at, b, j, h) > sign * *row(k, &a->k_at, b, best, h))
            best = j;
    return best;
}

/* Each probability is 0 or 1, however large the scores are: dv is a sum of rows of dy. */
static void one_hot(const struct pl_kernels *got)
{
    struct pl_attention_args a = random_shape();
    struct arrays x;
    double *want;

    if (check_storage() != PL_REAL_F32) /* lse comes back in f32 */
        return;
    a.dim = 1;
    a.scale = check_random(2) ? 1000.7 : 3e6;
    a.dv_add = false;
    x = make(&a, FILL_RANDOM);
    want = check_doubles(a.batch * a.heads * a.keys);
    memset(want, 0, a.batch * a.heads * a.keys * sizeof(*want));
    for (size_t b = 0; b < a.batch; b++)
        for (size_t h = 0; h < a.heads; h++) {
            for (size_t t = 0; t < a.time; t++)
                *row(x.q, &a.q_at, b, t, h) = t % 3 ? 1.1f : -1.3f;
            for (size_t t = 0; t < a.keys; t++)
                *row(x.k, &a.k_at, b, t, h) = (float)(t + 1) * (t % 2 ? 1.37f : -1.61f);
            for (size_t t = 0; t < a.time; t++)
                want[(b * a.heads + h) * a.keys + key_of(&a, x.k, b, h, t)] +=
                    *row(x.dy, &a.dy_at, b, t, h);
        }
    use(&a, &x, 1, 4);
    got->attention_forward(&a);
    got->attention_backward(&a);
    for (size_t i = 0; i < a.batch * a.heads * a.keys; i++) {
        size_t b = i / a.keys / a.heads, h = i / a.keys % a.heads, t = i % a.keys;

        check_close("dv", i, *row(x.dv[1], &a.dv_at, b, t, h), want[i],
                    4 * (double)a.time * CHECK_EPS);
    }
    check_end_case();
}

static const struct pl_kernels *threaded;

static void forward_threaded(void *args)
{
    threaded->attention_forward(args);
}

static void backward_threaded(void *args)
{
    threaded->attention_backward(args);
}

static void threads(const struct pl_kernels *got)
{
    struct pl_attention_args a = random_shape();
    struct arrays x = make(&a, FILL_RANDOM);

    threaded = got;
    use(&a, &x, 0, 7);
    check_threads("y", forward_threaded, &a, x.y[0], x.n_y);
    check_threads("dq", backward_threaded, &a, x.dq[0], x.n_q);
    check_end_case();
}

static double weighted(void *ctx)
{
    const struct pl_attention_args *a = ctx;
    size_t n = a->batch * a->time * a->heads * a->dim;
    double sum = 0;

    pl_kernels_ref(PL_REAL_F64)->attention_forward(a);
    for (size_t i = 0; i < n; i++)
        sum += ((const double *)a->y)[i] * ((const double *)a->dy)[i];
    return sum;
}

void check_gradients(const struct pl_kernels *f64)
{
    for (int n = 0; n < 6; n++) {
        struct pl_attention_args a = {.batch = 2,
                                      .heads = 2,
                                      .dim = 1 + check_random(4),
                                      .time = 1 + check_random(6),
                                      .causal = n % 2,
                                      .scale = 0.7};
        size_t width = a.heads * a.dim, n_q, n_k;
        double *q, *k, *v;

        a.keys = a.causal ? a.time : 1 + check_random(6);
        check_case("attention gradient, time %zu keys %zu dim %zu causal %d", a.time, a.keys, a.dim,
                   a.causal);
        n_q = a.batch * a.time * width;
        n_k = a.batch * a.keys * width;
        a.q_at = a.dq_at = a.y_at = a.dy_at = strides(&a, TIMES_FIRST, a.time, 0);
        a.k_at = a.v_at = a.dk_at = a.dv_at = strides(&a, HEADS_FIRST, a.keys, 0);
        a.q = q = check_doubles(n_q);
        a.k = k = check_doubles(n_k);
        a.v = v = check_doubles(n_k);
        a.dq = check_doubles(n_q);
        a.dk = check_doubles(n_k);
        a.dv = check_doubles(n_k);
        a.y = check_doubles(n_q);
        a.dy = check_doubles(n_q);
        a.lse = check_doubles(a.batch * a.heads * a.time);
        weighted(&a);
        f64->attention_backward(&a);
        check_gradient("dq", weighted, &a, q, n_q, a.dq, n_q);
        check_gradient("dk", weighted, &a, k, n_k, a.dk, n_q);
        check_gradient("dv", weighted, &a, v, n_k, a.dv, n_q);
        check_end_case();
    }
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const enum fill fills[] = {FILL_RANDOM, FILL_RANDOM, FILL_ZERO, FILL_DENORM};

    /* Large scores differ by more than 1 after rounding, which no probability survives. */
    for (size_t n = 0; n < check_many(80, 24); n++)
        one(ref, got, fills[check_random(PL_COUNT(fills))]);
    for (size_t n = 0; n < check_many(20, 5); n++) {
        not_a_number(got);
        no_keys(ref, got);
        far_apart(ref, got);
        one_hot(got);
    }
    for (size_t n = 0; n < check_many(5, 1); n++)
        threads(got);
}
