/* SPDX-License-Identifier: MIT */
#include "kernels/kernels.h"

const struct pl_kernels *pl_kernels_best(enum pl_real real)
{
    const struct pl_kernels *best = NULL, *table;

    if (real == PL_REAL_F32)
        for (unsigned level = 0; level < 3; level++)
            if ((table = pl_kernels_cpu(level)))
                best = table;
    return best ? best : pl_kernels_ref(real);
}
