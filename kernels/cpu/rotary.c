/* SPDX-License-Identifier: MIT */
/* Parallel over time: the sines of a time are computed once for all batches and heads. */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define GRAIN 4096
#define PAIRS 64

struct turn {
    size_t from, n; /* pairs */
    float c[PAIRS], s[PAIRS];
};

static void row(const struct pl_rotary_args *a, const struct turn *t, size_t at)
{
    size_t step = a->interleaved ? 2 : 1, other = a->interleaved ? 1 : a->dim / 2;
    const float *x = (const float *)a->x + at * a->dim + t->from * step;
    float *y = (float *)a->y + at * a->dim + t->from * step;

    for (size_t i = 0; i < t->n; i++) {
        float one = x[i * step], two = x[i * step + other];
        float first = one * t->c[i] - two * t->s[i], second = one * t->s[i] + two * t->c[i];

        y[i * step] = a->add ? y[i * step] + first : first;
        y[i * step + other] = a->add ? y[i * step + other] + second : second;
    }
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_rotary_args *a = ctx;
    struct turn t;

    for (size_t time = begin; time < end; time++)
        for (t.from = 0; t.from < a->dim / 2; t.from += t.n) {
            t.n = PL_MIN((size_t)PAIRS, a->dim / 2 - t.from);
            for (size_t i = 0; i < t.n; i++) {
                double angle = (double)(a->first + time) *
                               pow(a->base, -2 * (double)(t.from + i) / (double)a->dim);

                t.c[i] = (float)cos(angle);
                t.s[i] = (float)(a->back ? -sin(angle) : sin(angle));
            }
            for (size_t o = 0; o < a->outer; o++)
                for (size_t r = 0; r < a->rows; r++)
                    row(a, &t, (o * a->time + time) * a->rows + r);
        }
}

void PL_CPU(rotary)(const struct pl_rotary_args *a)
{
    pl_pool_parallel(a->time, 1 + GRAIN / (a->outer * a->rows * a->dim + 1), body, (void *)a);
}
