/* SPDX-License-Identifier: MIT */
/* A row is read from memory once and stays in the cache for its two passes; 12 bytes per element
 * forward (20 with a sum before, instead of 24), 20 backward. The gradients of gamma and beta are
 * summed by chunks of rows, then over the chunks, so that they do not depend on the number of
 * threads. */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/scratch.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define CHUNKS_MAX 64

static size_t grain_of(const struct pl_layernorm_args *a)
{
    return PL_MAX(1 + (size_t)16384 / a->n, (a->rows + CHUNKS_MAX - 1) / CHUNKS_MAX);
}

/* Returns the row of the sum. */
static const float *add_row(const struct pl_layernorm_args *args, size_t r)
{
    const float *restrict a = (const float *)args->a + r * args->n;
    const float *restrict b =
        (const float *)args->b + (args->b_rows ? r % args->b_rows : r) * args->n;
    float *restrict sum = (float *)args->sum + r * args->n;

    for (size_t i = 0; i < args->n; i++)
        sum[i] = a[i] + b[i];
    return sum;
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_layernorm_args *a = ctx;
    const float *restrict gamma = a->gamma, *restrict beta = a->beta;
    size_t n = a->n;

    for (size_t r = begin; r < end; r++) {
        const float *restrict x = a->sum ? add_row(a, r) : (const float *)a->x + r * n;
        float *restrict y = (float *)a->y + r * n;
        float mean = a->rms ? 0 : PL_LANE_SUM(n, x[i]) / (float)n;
        float var = PL_LANE_SUM(n, (x[i] - mean) * (x[i] - mean)) / (float)n;
        float rstd = 1 / sqrtf(var + (float)a->eps);

        if (gamma && beta)
            for (size_t i = 0; i < n; i++)
                y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
        else
            for (size_t i = 0; i < n; i++)
                y[i] = (x[i] - mean) * rstd * (gamma ? gamma[i] : 1) + (beta ? beta[i] : 0);
        ((float *)a->mean)[r] = mean;
        ((float *)a->rstd)[r] = rstd;
    }
}

void PL_CPU(layernorm_forward)(const struct pl_layernorm_args *a)
{
    if (a->y_half) /* no tape asks for it here */
        pl_kernels_ref(PL_REAL_F32)->layernorm_forward(a);
    else
        pl_pool_parallel(a->rows, grain_of(a), forward, (void *)a);
}

struct backward {
    const struct pl_layernorm_args *args;
    size_t grain;
    float *partial; /* [chunk][2][n]: dgamma, dbeta */
};

static void dx_row(const struct pl_layernorm_args *a, size_t r)
{
    size_t n = a->n;
    const float *restrict x = (const float *)a->x + r * n, *restrict dy =
                                                               (const float *)a->dy + r * n;
    const float *restrict gamma = a->gamma;
    float *restrict dx = (float *)a->dx + r * n;
    float mean = ((const float *)a->mean)[r], rstd = ((const float *)a->rstd)[r], sum, sum_z;

    if (gamma) {
        sum = a->rms ? 0 : PL_LANE_SUM(n, dy[i] * gamma[i]) / (float)n;
        sum_z = PL_LANE_SUM(n, dy[i] * gamma[i] * (x[i] - mean)) * rstd / (float)n;
    } else {
        sum = a->rms ? 0 : PL_LANE_SUM(n, dy[i]) / (float)n;
        sum_z = PL_LANE_SUM(n, dy[i] * (x[i] - mean)) * rstd / (float)n;
    }
    if (a->dx_add)
        for (size_t i = 0; i < n; i++)
            dx[i] += rstd * (dy[i] * (gamma ? gamma[i] : 1) - sum - (x[i] - mean) * rstd * sum_z);
    else
        for (size_t i = 0; i < n; i++)
            dx[i] = rstd * (dy[i] * (gamma ? gamma[i] : 1) - sum - (x[i] - mean) * rstd * sum_z);
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct backward *b = ctx;
    const struct pl_layernorm_args *a = b->args;
    size_t n = a->n;
    float *restrict dgamma = b->partial ? b->partial + begin / b->grain * 2 * n : NULL;
    float *restrict dbeta = dgamma ? dgamma + n : NULL;

    if (dgamma)
        memset(dgamma, 0, 2 * n * sizeof(*dgamma));
    for (size_t r = begin; r < end; r++) {
        const float *restrict x = (const float *)a->x + r * n;
        const float *restrict dy = (const float *)a->dy + r * n;
        float mean = ((const float *)a->mean)[r], rstd = ((const float *)a->rstd)[r];

        if (a->dx)
            dx_row(a, r);
        if (a->dx && a->dx_too)
            memcpy((float *)a->dx_too + r * n, (float *)a->dx + r * n, n * sizeof(float));
        for (size_t i = 0; dgamma && i < n; i++) {
            dgamma[i] += dy[i] * (x[i] - mean) * rstd;
            dbeta[i] += dy[i];
        }
    }
}

static void collect(float *to, bool add, const float *partial, size_t chunks, size_t n)
{
    for (size_t i = 0; to && i < n; i++) {
        float sum = add ? to[i] : 0;

        for (size_t c = 0; c < chunks; c++)
            sum += partial[c * 2 * n + i];
        to[i] = sum;
    }
}

void PL_CPU(layernorm_backward)(const struct pl_layernorm_args *a)
{
    struct backward b = {.args = a, .grain = grain_of(a)};
    size_t chunks = (a->rows + b.grain - 1) / b.grain;

    if (a->y_half || a->dx_sums) {
        pl_kernels_ref(PL_REAL_F32)->layernorm_backward(a);
        return;
    }
    if (a->dgamma || a->dbeta)
        b.partial = pl_scratch(PL_SCRATCH_SUMS, chunks * 2 * a->n * sizeof(float));
    pl_pool_parallel(a->rows, b.grain, backward, &b);
    if (!b.partial) {
        if (a->dgamma || a->dbeta)
            pl_scratch_lost();
        return;
    }
    collect(a->dgamma, a->dgamma_add, b.partial, chunks, a->n);
    collect(a->dbeta, a->dbeta_add, b.partial + a->n, chunks, a->n);
}
