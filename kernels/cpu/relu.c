/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

void PL_CPU(relu_forward)(const struct pl_relu_args *a)
{
    const float *restrict x = a->x;
    float *restrict y = a->y;

    for (size_t k = 0; k < a->n; k++)
        y[k] = x[k] <= 0 ? 0 : x[k];
}

void PL_CPU(relu_backward)(const struct pl_relu_args *a)
{
    const float *restrict y = a->y, *restrict dy = a->dy;
    float *restrict dx = a->dx;

    if (a->dx_add) {
        for (size_t k = 0; k < a->n; k++)
            dx[k] += y[k] <= 0 ? 0 : dy[k];
    } else {
        for (size_t k = 0; k < a->n; k++)
            dx[k] = y[k] <= 0 ? 0 : dy[k];
    }
}
