/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(affine)(const struct pl_affine_args *a)
{
    real scale = (real)a->scale, shift = (real)a->shift;
    const real *x = a->x;
    real *y = a->y;

    for (size_t i = 0; i < a->n; i++) {
        real value = scale * x[i] + shift;

        y[i] = a->add ? y[i] + value : value;
    }
}
