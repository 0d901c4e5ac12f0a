/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(one_hot)(const struct pl_one_hot_args *a)
{
    real *y = a->y;

    for (size_t r = 0; r < a->rows; r++)
        for (size_t c = 0; c < a->classes; c++)
            if (a->labels[r] < 0 || (size_t)a->labels[r] >= a->classes)
                y[r * a->classes + c] = (real)NAN;
            else
                y[r * a->classes + c] = (size_t)a->labels[r] == c;
}
