/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(widen)(const struct pl_half_args *a)
{
    real *wide = a->wide;

    for (size_t i = 0; i < a->n; i++) {
        real x = pl_f32_of_half(a->type, a->half[i]);

        wide[i] = a->add ? wide[i] + x : x;
    }
}

/* From double through float: two roundings, which differ from one only if the first lands on a tie.
 */
void PL_REF(narrow)(const struct pl_half_args *a)
{
    const real *wide = a->wide;

    for (size_t i = 0; i < a->n; i++) {
        float x = (float)wide[i];

        a->half[i] = pl_half_of_f32(a->type, a->add ? pl_f32_of_half(a->type, a->half[i]) + x : x);
    }
}
