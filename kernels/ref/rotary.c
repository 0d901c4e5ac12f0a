/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(rotary)(const struct pl_rotary_args *a)
{
    const real *x = a->x;
    real *y = a->y;
    size_t half = a->dim / 2;

    for (size_t r = 0; r < a->outer * a->time * a->rows; r++)
        for (size_t i = 0; i < half; i++) {
            double time = (double)(a->first + r / a->rows % a->time);
            double angle = time * pow(a->base, -2 * (double)i / (double)a->dim);
            double c = cos(angle), s = a->back ? -sin(angle) : sin(angle);
            size_t one = r * a->dim + (a->interleaved ? 2 * i : i);
            size_t two = a->interleaved ? one + 1 : one + half;
            double first = x[one] * c - x[two] * s, second = x[one] * s + x[two] * c;

            y[one] = (real)((a->add ? y[one] : 0) + first);
            y[two] = (real)((a->add ? y[two] : 0) + second);
        }
}
