/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

#include <math.h>
#include <string.h>

/* e^x for x <= 0 (or NaN), in vector registers where the compiler inlines it into a loop: Cody and
 * Waite's reduction to |r| <= ln(2)/2 and the Taylor polynomial of degree 7, relative error below
 * 2e-7. Below -87 it stays at e^-87, which is nothing beside the row's largest term, 1. */
static inline float exp_nonpositive(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = clamped * 1.44269504f + magic;
    float n = shifted - magic;
    float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.98412698e-4f;
    uint32_t bits;
    float power;

    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 127u) << 23; /* the integer stands in the low bits of shifted */
    memcpy(&power, &bits, sizeof(power));
    return p * power;
}

#define CHUNK 512 /* exponentials that are not kept */

static float largest(const float *restrict z, size_t n)
{
    float max = z[0];

    for (size_t c = 1; c < n; c++)
        max = z[c] > max ? z[c] : max;
    return max;
}

/* exps [n] = e^(z - max); returns their sum. */
static double exponentials(float *restrict exps, const float *restrict z, size_t n, float max)
{
    double sum = 0;

    for (size_t c = 0; c < n; c++)
        exps[c] = exp_nonpositive(z[c] - max);
    for (size_t c = 0; c < n; c++)
        sum += exps[c];
    return sum;
}

static double sum_of(const float *z, size_t n, float max)
{
    float exps[CHUNK];
    double sum = 0;

    for (size_t c = 0; c < n; c += CHUNK)
        sum += exponentials(exps, z + c, PL_MIN(n - c, (size_t)CHUNK), max);
    return sum;
}

void PL_CPU(cross_entropy_forward)(const struct pl_cross_entropy_args *a)
{
    size_t n = a->classes;
    double total = 0;

    for (size_t r = 0; r < a->rows; r++) {
        const float *z = (const float *)a->logits + r * n;
        float *restrict p = a->probs ? (float *)a->probs + r * n : NULL;
        int32_t label = a->labels[r];
        float max = largest(z, n), inverse;
        double sum = p ? exponentials(p, z, n, max) : sum_of(z, n, max);

        inverse = (float)(1 / sum);
        for (size_t c = 0; p && c < n; c++)
            p[c] *= inverse;
        if (label < 0 || (size_t)label >= n)
            total = NAN;
        else
            total += log(sum) - ((double)z[label] - max);
    }
    *(float *)a->loss = (float)(total / (double)a->rows);
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

/* The same with p made again. */
static void put_again(float *dz, const float *z, size_t n, float scale, bool add)
{
    float exps[CHUNK], max = largest(z, n), over_sum = (float)(scale / sum_of(z, n, max));

    for (size_t c = 0; c < n; c += CHUNK) {
        size_t part = PL_MIN(n - c, (size_t)CHUNK);

        exponentials(exps, z + c, part, max);
        put_row(dz + c, exps, part, over_sum, add);
    }
}

void PL_CPU(cross_entropy_backward)(const struct pl_cross_entropy_args *a)
{
    size_t n = a->classes;
    float scale = *(const float *)a->dloss / (float)a->rows;

    for (size_t r = 0; r < a->rows; r++) {
        float *dz = (float *)a->dlogits + r * n;
        int32_t label = a->labels[r];

        if (a->probs)
            put_row(dz, (const float *)a->probs + r * n, n, scale, a->dx_add);
        else
            put_again(dz, (const float *)a->logits + r * n, n, scale, a->dx_add);
        if (label >= 0 && (size_t)label < n)
            dz[label] -= scale;
    }
}
