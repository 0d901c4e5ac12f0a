/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(correct)(const struct pl_correct_args *a)
{
    const real *logits = a->logits;
    real *count = a->count;
    size_t n = 0;

    for (size_t r = 0; r < a->rows; r++) {
        const real *z = logits + r * a->classes;
        size_t best = 0;

        for (size_t c = 1; c < a->classes; c++)
            if (z[c] > z[best])
                best = c;
        n += a->labels[r] >= 0 && (size_t)a->labels[r] == best;
    }
    count[0] = (real)n;
}
