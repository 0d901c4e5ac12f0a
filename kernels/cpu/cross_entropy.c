/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define CHUNKS 256
#define ELEMENTS ((size_t)16384)
#define LANES 16
#define PIECE 512 /* exponentials that are computed at a time and not kept */

/* The maximum of a row. A NaN at index 0 stays; others are skipped (the sum becomes NaN anyway). */
static float largest(const float *restrict z, size_t n)
{
    float lane[LANES];
    size_t c = 0;

    for (size_t k = 0; k < LANES; k++)
        lane[k] = z[0];
    for (; c + LANES <= n; c += LANES)
        for (size_t k = 0; k < LANES; k++)
            lane[k] = z[c + k] > lane[k] ? z[c + k] : lane[k];
    for (; c < n; c++)
        lane[0] = z[c] > lane[0] ? z[c] : lane[0];
    for (size_t k = 1; k < LANES; k++)
        lane[0] = lane[k] > lane[0] ? lane[k] : lane[0];
    return lane[0];
}

/* In lanes: a single sum would wait for each addition. */
static double sum_of_piece(const float *restrict exps, size_t n)
{
    double lane[LANES] = {0};
    size_t c = 0;

    for (; c + LANES <= n; c += LANES)
        for (size_t k = 0; k < LANES; k++)
            lane[k] += exps[c + k];
    for (; c < n; c++)
        lane[c % LANES] += exps[c];
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return lane[0];
}

/* exps [n] = e^(z - max); returns their sum. */
static double exponentials(float *restrict exps, const float *restrict z, size_t n, float max)
{
    for (size_t c = 0; c < n; c++)
        exps[c] = pl_exp_nonpositive(z[c] - max);
    return sum_of_piece(exps, n);
}

static double sum_of(const float *z, size_t n, float max)
{
    float exps[PIECE];
    double sum = 0;

    for (size_t c = 0; c < n; c += PIECE)
        sum += exponentials(exps, z + c, PL_MIN(n - c, (size_t)PIECE), max);
    return sum;
}

/* The loss of a row; writes its probabilities, and its maximum and sum, if they are kept. */
static double row_loss(const float *z, float *restrict p, float *max_sum, size_t n, int32_t label)
{
    float max = largest(z, n), inverse;
    double sum = p ? exponentials(p, z, n, max) : sum_of(z, n, max);

    inverse = (float)(1 / sum);
    for (size_t c = 0; p && c < n; c++)
        p[c] *= inverse;
    if (max_sum) {
        max_sum[0] = max;
        max_sum[1] = (float)sum;
    }
    if (label < 0 || (size_t)label >= n)
        return NAN;
    return log(sum) - ((double)z[label] - max);
}

/* Rows per chunk: about ELEMENTS elements, and at most CHUNKS chunks. It depends on the shape only,
 * since it determines the order in which losses are summed. */
static size_t grain(const struct pl_cross_entropy_args *a)
{
    return PL_MAX(ELEMENTS / PL_MAX(a->classes, (size_t)1) + 1, (a->rows + CHUNKS - 1) / CHUNKS);
}

/* The loss of a row; its logits become their gradient, times `scale`. */
static double row_ahead(float *z, size_t n, int32_t label, float scale)
{
    bool in = label >= 0 && (size_t)label < n;
    float max = largest(z, n), hot = in ? z[label] : 0, over_sum;
    double sum;

    for (size_t c = 0; c < n; c++)
        z[c] = pl_exp_nonpositive(z[c] - max);
    sum = sum_of_piece(z, n);
    over_sum = (float)(scale / sum);
    for (size_t c = 0; c < n; c++)
        z[c] *= over_sum;
    if (!in)
        return NAN;
    z[label] -= scale;
    return log(sum) - ((double)hot - max);
}

struct losses {
    const struct pl_cross_entropy_args *a;
    size_t grain;
    double sum[CHUNKS];
};

static void forward_rows(void *ctx, size_t begin, size_t end)
{
    struct losses *losses = ctx;
    const struct pl_cross_entropy_args *a = losses->a;
    size_t n = a->classes;
    float scale = (float)(1 / (double)(a->of ? a->of : a->rows));
    double sum = 0, loss;

    for (size_t r = begin; r < end; r++) {
        const float *z = (const float *)a->logits + r * n;
        float *dz = (float *)a->dlogits + r * n;

        if (a->ahead) {
            if (dz != z)
                memcpy(dz, z, n * sizeof(*z));
            loss = row_ahead(dz, n, a->labels[r], scale);
        } else {
            loss = row_loss(z, a->probs ? (float *)a->probs + r * n : NULL,
                            a->max_sum ? (float *)a->max_sum + 2 * r : NULL, n, a->labels[r]);
        }
        if (a->of)
            a->row_loss[a->first + r] = loss;
        sum += loss;
    }
    losses->sum[begin / losses->grain] = sum;
}

void PL_CPU(cross_entropy_forward)(const struct pl_cross_entropy_args *a)
{
    struct losses losses = {.a = a, .grain = grain(a)};
    double total = 0;

    pl_pool_parallel(a->rows, losses.grain, forward_rows, &losses);
    if (a->of && a->first + a->rows < a->of)
        return;
    for (size_t r = 0; a->of && r < a->first; r++)
        total += a->row_loss[r];
    for (size_t i = 0; i * losses.grain < a->rows; i++)
        total += losses.sum[i];
    *(float *)a->loss = (float)(total / (double)(a->of ? a->of : a->rows));
}

/* dz (+)= scale p. */
static void put_row(float *restrict dz, const float *restrict p, size_t n, float scale, bool add)
{
    if (add) {
        for (size_t c = 0; c < n; c++)
            dz[c] += scale * p[c];
    } else {
        for (size_t c = 0; c < n; c++)
            dz[c] = scale * p[c];
    }
}

/* The same with p recomputed; max_sum: the row's, or NULL. */
static void
put_again(float *dz, const float *z, const float *max_sum, size_t n, float scale, bool add)
{
    float exps[PIECE], max = max_sum ? max_sum[0] : largest(z, n);
    float over_sum = (float)(scale / (max_sum ? (double)max_sum[1] : sum_of(z, n, max)));

    for (size_t c = 0; c < n; c += PIECE) {
        size_t part = PL_MIN(n - c, (size_t)PIECE);

        exponentials(exps, z + c, part, max);
        put_row(dz + c, exps, part, over_sum, add);
    }
}

static void backward_rows(void *ctx, size_t begin, size_t end)
{
    const struct pl_cross_entropy_args *a = ctx;
    size_t n = a->classes;
    float scale = *(const float *)a->dloss / (float)a->rows;

    for (size_t r = begin; r < end; r++) {
        float *dz = (float *)a->dlogits + r * n;
        int32_t label = a->labels[r];

        if (a->probs)
            put_row(dz, (const float *)a->probs + r * n, n, scale, a->dx_add);
        else
            put_again(dz, (const float *)a->logits + r * n,
                      a->max_sum ? (const float *)a->max_sum + 2 * r : NULL, n, scale, a->dx_add);
        if (label >= 0 && (size_t)label < n)
            dz[label] -= scale;
    }
}

/* Forward has written the gradients; the factor is the loss' own gradient, which mostly is 1. */
static void scale_some(void *ctx, size_t begin, size_t end)
{
    const struct pl_cross_entropy_args *a = ctx;
    float *dz = a->dlogits, scale = *(const float *)a->dloss;

    for (size_t i = begin; i < end; i++)
        dz[i] *= scale;
}

void PL_CPU(cross_entropy_backward)(const struct pl_cross_entropy_args *a)
{
    if (a->ahead && *(const float *)a->dloss != 1)
        pl_pool_parallel(a->rows * a->classes, ELEMENTS, scale_some, (void *)(uintptr_t)a);
    else if (!a->ahead)
        pl_pool_parallel(a->rows, grain(a), backward_rows, (void *)(uintptr_t)a);
}
