/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#define GRAIN 32768
#define CHUNKS_MAX 256

struct sums {
    const struct pl_mse_args *args;
    size_t chunk;
    double sums[CHUNKS_MAX];
};

static void forward(void *ctx, size_t begin, size_t end)
{
    struct sums *s = ctx;
    const float *restrict a = s->args->a, *restrict b = s->args->b;
    double lane[16] = {0};
    size_t i = begin;

    for (; i + 16 <= end; i += 16)
        for (size_t k = 0; k < 16; k++) {
            double d = (double)a[i + k] - b[i + k];

            lane[k] += d * d;
        }
    for (; i < end; i++)
        lane[i % 16] += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    s->sums[begin / s->chunk] = lane[0];
}

void PL_CPU(mse_forward)(const struct pl_mse_args *a)
{
    struct sums s = {.args = a,
                     .chunk = PL_MAX((size_t)GRAIN, (a->n + CHUNKS_MAX - 1) / CHUNKS_MAX)};
    double sum = 0;

    pl_pool_parallel(a->n, s.chunk, forward, &s);
    for (size_t i = 0; i * s.chunk < a->n; i++)
        sum += s.sums[i];
    *(float *)a->loss = (float)(sum / (double)a->n);
}

static void slope(size_t n,
                  bool add,
                  float scale,
                  const float *restrict a,
                  const float *restrict b,
                  float *restrict dst)
{
    if (add)
        for (size_t i = 0; i < n; i++)
            dst[i] += scale * (a[i] - b[i]);
    else
        for (size_t i = 0; i < n; i++)
            dst[i] = scale * (a[i] - b[i]);
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_mse_args *p = ctx;
    const float *a = (const float *)p->a + begin, *b = (const float *)p->b + begin;
    float scale = 2 * *(const float *)p->dloss / (float)p->n;

    if (p->da)
        slope(end - begin, p->da_add, scale, a, b, (float *)p->da + begin);
    if (p->db)
        slope(end - begin, p->db_add, -scale, a, b, (float *)p->db + begin);
}

void PL_CPU(mse_backward)(const struct pl_mse_args *a)
{
    pl_pool_parallel(a->n, GRAIN, backward, (void *)a);
}
