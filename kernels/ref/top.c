/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* Inserts each element into a list of the k first so far. */
void PL_REF(top)(const struct pl_top_args *a)
{
    for (size_t o = 0; o < a->outer; o++)
        for (size_t i = 0; i < a->inner; i++) {
            const real *x = (const real *)a->x + o * a->n * a->inner + i;
            int32_t *index = a->index + o * a->k * a->inner + i;

            for (size_t j = 0; j < a->n; j++) {
                size_t at = j < a->k ? j : a->k;

                for (; at > 0; at--) {
                    int32_t other = index[(at - 1) * a->inner];

                    if (!pl_top_before(a->least, a->nan_first, x[j * a->inner],
                                       x[(size_t)other * a->inner]))
                        break;
                    if (at < a->k)
                        index[at * a->inner] = other;
                }
                if (at < a->k)
                    index[at * a->inner] = (int32_t)j;
            }
        }
}
