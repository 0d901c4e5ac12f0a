/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

void PL_CPU(arange)(const struct pl_arange_args *a)
{
    for (size_t i = 0; i < a->n; i++)
        a->y[i] = (int32_t)(a->first + (int64_t)i * a->step);
}
