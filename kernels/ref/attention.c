/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* One query of a head: where it and the first key and value are. */
struct query {
    size_t at, first; /* elements into q, and into k and v */
    size_t y, lse;    /* elements into y and dy; into lse */
    size_t keys;
};

static struct query query_of(const struct pl_attention_args *a, size_t b, size_t h, size_t t)
{
    size_t first = b * a->time * a->row + h * a->dim;

    return (struct query){
        .at = first + t * a->row,
        .first = first,
        .y = ((b * a->time + t) * a->heads + h) * a->dim,
        .lse = (b * a->heads + h) * a->time + t,
        .keys = a->causal ? t + 1 : a->time,
    };
}

static double dot(const real *x, const real *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * y[i];
    return sum;
}

static double score(const struct pl_attention_args *a, const struct query *s, size_t key)
{
    return a->scale *
           dot((const real *)a->q + s->at, (const real *)a->k + s->first + key * a->row, a->dim);
}

static void forward(const struct pl_attention_args *a, const struct query *s)
{
    const real *v = (const real *)a->v + s->first;
    real *y = (real *)a->y + s->y;
    double max = -INFINITY, sum = 0;

    for (size_t j = 0; j < s->keys; j++) {
        double x = score(a, s, j);

        max = x > max || isnan(x) ? x : max;
    }
    for (size_t j = 0; j < s->keys; j++)
        sum += exp(score(a, s, j) - max);
    for (size_t d = 0; d < a->dim; d++) {
        double value = 0;

        for (size_t j = 0; j < s->keys; j++)
            value += exp(score(a, s, j) - max) / sum * v[j * a->row + d];
        y[d] = (real)value;
    }
    ((real *)a->lse)[s->lse] = (real)(max + log(sum));
}

/* With p the probabilities: dv += p dy; dscore = p (dy v - dy y). */
static void backward(const struct pl_attention_args *a, const struct query *s)
{
    const real *dy = (const real *)a->dy + s->y, *q = (const real *)a->q + s->at;
    double mean = dot(dy, (const real *)a->y + s->y, a->dim);

    for (size_t j = 0; j < s->keys; j++) {
        size_t at = s->first + j * a->row;
        double p = exp(score(a, s, j) - ((const real *)a->lse)[s->lse]);
        double ds = a->scale * p * (dot(dy, (const real *)a->v + at, a->dim) - mean);

        for (size_t d = 0; d < a->dim; d++) {
            if (a->dv)
                ((real *)a->dv)[at + d] += (real)(p * dy[d]);
            if (a->dq)
                ((real *)a->dq)[s->at + d] += (real)(ds * ((const real *)a->k)[at + d]);
            if (a->dk)
                ((real *)a->dk)[at + d] += (real)(ds * q[d]);
        }
    }
}

static void clear(const struct pl_attention_args *a, void *grad, bool add)
{
    for (size_t t = 0; grad && !add && t < a->batch * a->time; t++)
        for (size_t i = 0; i < a->heads * a->dim; i++)
            ((real *)grad)[t * a->row + i] = 0;
}

void PL_REF(attention_forward)(const struct pl_attention_args *a)
{
    for (size_t b = 0; b < a->batch; b++)
        for (size_t h = 0; h < a->heads; h++)
            for (size_t t = 0; t < a->time; t++) {
                struct query s = query_of(a, b, h, t);

                forward(a, &s);
            }
}

void PL_REF(attention_backward)(const struct pl_attention_args *a)
{
    clear(a, a->dq, a->dq_add);
    clear(a, a->dk, a->dk_add);
    clear(a, a->dv, a->dv_add);
    for (size_t b = 0; b < a->batch; b++)
        for (size_t h = 0; h < a->heads; h++)
            for (size_t t = 0; t < a->time; t++) {
                struct query s = query_of(a, b, h, t);

                backward(a, &s);
            }
}
