/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

#define SLICE 64 /* columns of dim that are summed at once */

/* Row `time` of a head, in an array with these strides. */
static size_t at(const struct pl_attention_strides *s, size_t batch, size_t time, size_t head)
{
    return batch * s->batch + time * s->time + head * s->head;
}

static double dot(const real *x, const real *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * y[i];
    return sum;
}

struct query {
    size_t batch, time, head;
    size_t keys; /* the number that it sees */
};

static double score(const struct pl_attention_args *a, const struct query *s, size_t key)
{
    const real *q = (const real *)a->q + at(&a->q_at, s->batch, s->time, s->head);
    const real *k = (const real *)a->k + at(&a->k_at, s->batch, key, s->head);

    return a->scale * dot(q, k, a->dim);
}

static const real *value(const struct pl_attention_args *a, const struct query *s, size_t key)
{
    return (const real *)a->v + at(&a->v_at, s->batch, key, s->head);
}

static real *lse(const struct pl_attention_args *a, const struct query *s)
{
    return (real *)a->lse + (s->batch * a->heads + s->head) * a->time + s->time;
}

static void forward(const struct pl_attention_args *a, const struct query *s)
{
    real *y = (real *)a->y + at(&a->y_at, s->batch, s->time, s->head);
    double max = -INFINITY, sum = 0;

    for (size_t j = 0; j < s->keys; j++) {
        double x = score(a, s, j);

        max = x > max || isnan(x) ? x : max;
    }
    for (size_t j = 0; j < s->keys; j++)
        sum += exp(score(a, s, j) - max);
    for (size_t d0 = 0; d0 < a->dim; d0 += SLICE) {
        size_t width = PL_MIN(a->dim - d0, (size_t)SLICE);
        double mean[SLICE] = {0};

        for (size_t j = 0; j < s->keys; j++) {
            double p = exp(score(a, s, j) - max) / sum;

            for (size_t d = 0; d < width; d++)
                mean[d] += p * value(a, s, j)[d0 + d];
        }
        for (size_t d = 0; d < width; d++)
            y[d0 + d] = (real)mean[d];
    }
    *lse(a, s) = (real)(max + log(sum));
}

/* With p the probabilities: dv += p dy; dscore = p (dy v - dy y). */
static void backward(const struct pl_attention_args *a, const struct query *s)
{
    const real *dy = (const real *)a->dy + at(&a->dy_at, s->batch, s->time, s->head);
    const real *y = (const real *)a->y + at(&a->y_at, s->batch, s->time, s->head);
    const real *q = (const real *)a->q + at(&a->q_at, s->batch, s->time, s->head);
    size_t dq = at(&a->dq_at, s->batch, s->time, s->head);
    double mean = dot(dy, y, a->dim);

    for (size_t j = 0; j < s->keys; j++) {
        const real *k = (const real *)a->k + at(&a->k_at, s->batch, j, s->head);
        size_t dk = at(&a->dk_at, s->batch, j, s->head), dv = at(&a->dv_at, s->batch, j, s->head);
        double p = exp(score(a, s, j) - *lse(a, s));
        double ds = a->scale * p * (dot(dy, value(a, s, j), a->dim) - mean);

        for (size_t d = 0; d < a->dim; d++) {
            if (a->dv)
                ((real *)a->dv)[dv + d] += (real)(p * dy[d]);
            if (a->dq)
                ((real *)a->dq)[dq + d] += (real)(ds * k[d]);
            if (a->dk)
                ((real *)a->dk)[dk + d] += (real)(ds * q[d]);
        }
    }
}

static void for_queries(const struct pl_attention_args *a,
                        void (*body)(const struct pl_attention_args *a, const struct query *s))
{
    struct query s;

    for (s.batch = 0; s.batch < a->batch; s.batch++)
        for (s.head = 0; s.head < a->heads; s.head++)
            for (s.time = 0; s.time < a->time; s.time++) {
                s.keys = a->causal ? s.time + 1 : a->keys;
                body(a, &s);
            }
}

static void clear(const struct pl_attention_args *a,
                  real *grad,
                  const struct pl_attention_strides *strides,
                  size_t rows)
{
    for (size_t b = 0; b < a->batch; b++)
        for (size_t t = 0; t < rows; t++)
            for (size_t h = 0; h < a->heads; h++)
                for (size_t d = 0; d < a->dim; d++)
                    grad[at(strides, b, t, h) + d] = 0;
}

void PL_REF(attention_forward)(const struct pl_attention_args *a)
{
    for_queries(a, forward);
}

void PL_REF(attention_backward)(const struct pl_attention_args *a)
{
    if (a->dq && !a->dq_add)
        clear(a, a->dq, &a->dq_at, a->time);
    if (a->dk && !a->dk_add)
        clear(a, a->dk, &a->dk_at, a->keys);
    if (a->dv && !a->dv_add)
        clear(a, a->dv, &a->dv_at, a->keys);
    for_queries(a, backward);
}
