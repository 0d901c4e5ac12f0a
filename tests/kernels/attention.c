/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

/* q, k and v side by side, as one linear layer makes them; or each on its own. */
static void place(struct pl_attention_args *a, const float *in, float *grad, bool packed)
{
    size_t width = a->heads * a->dim, next = packed ? width : a->batch * a->time * width;

    a->row = packed ? 3 * width : width;
    a->q = in;
    a->k = in + next;
    a->v = in + 2 * next;
    a->dq = grad;
    a->dk = grad + next;
    a->dv = grad + 2 * next;
}

static struct pl_attention_args random_shape(void)
{
    struct pl_attention_args a = {.batch = 1 + check_random(2),
                                  .heads = 1 + check_random(3),
                                  .dim = 1 + check_random(40),
                                  .time = 1 + check_random(check_random(3) ? 40 : 200),
                                  .causal = check_random(3)};

    a.dq_add = a.dk_add = a.dv_add = check_random(2);
    a.scale = 1 / sqrt((double)a.dim);
    return a;
}

static void one(const struct pl_kernels *ref, const struct pl_kernels *got, enum fill fill)
{
    struct pl_attention_args a = random_shape(), g;
    size_t n_y = a.batch * a.time * a.heads * a.dim, n_lse = a.batch * a.heads * a.time;
    bool packed = check_random(2);
    float *in = check_floats(3 * n_y, fill), *dy = check_floats(n_y, FILL_RANDOM);
    float *grad = check_floats(3 * n_y, FILL_RANDOM), *grad2 = check_copy(grad, 3 * n_y);
    float *y = check_floats(n_y, FILL_RANDOM), *y2 = check_floats(n_y, FILL_RANDOM);
    float *lse = check_floats(n_lse, FILL_RANDOM), *lse2 = check_floats(n_lse, FILL_RANDOM);
    /* Scores are sums of dim terms, at most sqrt(dim) in all; their errors, and those of the
     * exponential (2e-7) and of sums over the keys, are relative ones of the probabilities. */
    double relative = (8 * (double)a.dim + 60 + (double)a.time) * CHECK_EPS;

    check_case("attention batch %zu time %zu heads %zu dim %zu causal %d packed %d add %d fill %d",
               a.batch, a.time, a.heads, a.dim, a.causal, packed, a.dq_add, (int)fill);
    g = a;
    place(&a, in, grad, packed);
    place(&g, in, grad2, packed);
    a.dy = g.dy = dy;
    a.y = y;
    a.lse = lse;
    g.y = y2;
    g.lse = lse2;
    ref->attention_forward(&a);
    got->attention_forward(&g);
    for (size_t i = 0; i < n_y; i++)
        check_close("y", i, y2[i], y[i], relative);
    for (size_t i = 0; i < n_lse; i++)
        check_close("lse", i, lse2[i], lse[i], relative + 8 * CHECK_EPS);
    memcpy(y2, y, n_y * sizeof(*y));
    memcpy(lse2, lse, n_lse * sizeof(*lse));
    ref->attention_backward(&a);
    got->attention_backward(&g);
    /* dv adds up at most a probability of 1 a query; dscores are at most 2 dim in size. */
    for (size_t i = 0; i < 3 * n_y; i++)
        check_close("gradient", i, grad2[i], grad[i],
                    relative * (2 * sqrt((double)a.dim) + 4) +
                        (double)a.time * CHECK_EPS * (1 + fabsf(grad[i])));
    check_end_case();
}

static double weighted(void *ctx)
{
    const struct pl_attention_args *a = ctx;
    double sum = 0;

    pl_kernels_ref(PL_REAL_F64)->attention_forward(a);
    for (size_t i = 0; i < a->batch * a->time * a->heads * a->dim; i++)
        sum += ((const double *)a->y)[i] * ((const double *)a->dy)[i];
    return sum;
}

void check_gradients(const struct pl_kernels *f64)
{
    for (int n = 0; n < 4; n++) {
        struct pl_attention_args a = {.batch = 2,
                                      .heads = 2,
                                      .dim = 1 + check_random(4),
                                      .time = 1 + check_random(6),
                                      .causal = n % 2};
        size_t width = a.heads * a.dim, n_y = a.batch * a.time * width;
        double *in = check_doubles(3 * n_y), *grad = check_doubles(3 * n_y);

        check_case("attention gradient, time %zu dim %zu causal %d", a.time, a.dim, a.causal);
        a.scale = 0.7;
        a.row = 3 * width;
        a.q = in;
        a.k = in + width;
        a.v = in + 2 * width;
        a.dq = grad;
        a.dk = grad + width;
        a.dv = grad + 2 * width;
        a.y = check_doubles(n_y);
        a.dy = check_doubles(n_y);
        a.lse = check_doubles(a.batch * a.heads * a.time);
        weighted(&a);
        f64->attention_backward(&a);
        check_gradient("d(qkv)", weighted, &a, in, 3 * n_y, grad, n_y);
        check_end_case();
    }
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const enum fill fills[] = {FILL_RANDOM, FILL_RANDOM, FILL_ZERO, FILL_DENORM};

    /* Large scores differ by more than 1 after rounding, which no probability survives. */
    for (int n = 0; n < 60; n++)
        one(ref, got, fills[check_random(PL_COUNT(fills))]);
}
