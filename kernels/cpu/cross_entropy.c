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

void PL_CPU(cross_entropy_forward)(const struct pl_cross_entropy_args *a)
{
    size_t n = a->classes;
    double total = 0;

    for (size_t r = 0; r < a->rows; r++) {
        const float *restrict z = (const float *)a->logits + r * n;
        float *restrict p = (float *)a->probs + r * n;
        int32_t label = a->labels[r];
        float max = z[0], inverse;
        double sum = 0;

        for (size_t c = 1; c < n; c++)
            max = z[c] > max ? z[c] : max;
        for (size_t c = 0; c < n; c++)
            p[c] = exp_nonpositive(z[c] - max);
        for (size_t c = 0; c < n; c++)
            sum += p[c];
        inverse = (float)(1 / sum);
        for (size_t c = 0; c < n; c++)
            p[c] *= inverse;
        if (label < 0 || (size_t)label >= n)
            total = NAN;
        else
            total += log(sum) - ((double)z[label] - max);
    }
    *(float *)a->loss = (float)(total / (double)a->rows);
}

void PL_CPU(cross_entropy_backward)(const struct pl_cross_entropy_args *a)
{
    size_t n = a->classes;
    float scale = *(const float *)a->dloss / (float)a->rows;

    for (size_t r = 0; r < a->rows; r++) {
        const float *restrict p = (const float *)a->probs + r * n;
        float *restrict dz = (float *)a->dlogits + r * n;
        int32_t label = a->labels[r];

        if (a->dx_add) {
            for (size_t c = 0; c < n; c++)
                dz[c] += scale * p[c];
        } else {
            for (size_t c = 0; c < n; c++)
                dz[c] = scale * p[c];
        }
        if (label >= 0 && (size_t)label < n)
            dz[label] -= scale;
    }
}
