/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

void PL_CPU(correct)(const struct pl_correct_args *a)
{
    size_t hits = 0;

    for (size_t r = 0; r < a->rows; r++) {
        const float *z = (const float *)a->logits + r * a->classes;
        size_t best = 0;

        for (size_t c = 1; c < a->classes; c++)
            best = z[c] > z[best] ? c : best;
        hits += a->labels[r] >= 0 && (size_t)a->labels[r] == best;
    }
    *(float *)a->count = (float)hits;
}
