/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(embedding_forward)(const struct pl_embedding_args *a)
{
    const real *table = a->table;
    real *y = a->y;

    for (size_t r = 0; r < a->rows; r++)
        for (size_t i = 0; i < a->dim; i++)
            y[r * a->dim + i] = a->ids[r] >= 0 && (size_t)a->ids[r] < a->vocab
                                    ? table[(size_t)a->ids[r] * a->dim + i]
                                    : (real)NAN;
}

void PL_REF(embedding_backward)(const struct pl_embedding_args *a)
{
    const real *dy = a->dy;
    real *dtable = a->dtable;

    for (size_t i = 0; !a->dtable_add && i < a->vocab * a->dim; i++)
        dtable[i] = 0;
    for (size_t r = 0; r < a->rows; r++)
        for (size_t i = 0; i < a->dim && a->ids[r] >= 0 && (size_t)a->ids[r] < a->vocab; i++)
            dtable[(size_t)a->ids[r] * a->dim + i] += dy[r * a->dim + i];
}
