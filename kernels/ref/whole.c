/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(whole)(const struct pl_whole_args *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->op < PL_WHOLE_LT)
            a->y[i] = pl_whole_number(a->op, a->a[i], a->b[i % a->m]);
        else
            ((real *)a->real)[i] = (real)pl_whole_value(a->op, a->a[i], a->b[i % a->m]);
}
