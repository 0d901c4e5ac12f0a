/* SPDX-License-Identifier: MIT */
#include "kernels/philox.h"
#include "kernels/ref/real.h"

void PL_REF(random)(const struct pl_random_args *a)
{
    uint64_t high = a->draw ? *a->draw : a->counter[1];
    real *y = a->y;

    for (size_t i = 0; i < a->n; i++) {
        uint32_t number[4];
        size_t at = i + a->skip;
        unsigned k = at % 4;

        pl_philox(a->key, a->counter[0] + at / 4, high, number);
        if (a->kind == PL_RANDOM_UNIFORM)
            y[i] = (real)(a->p + (a->q - a->p) * pl_random_uniform(number, k));
        else if (a->kind == PL_RANDOM_BERNOULLI)
            y[i] = (real)pl_random_bernoulli(number, k, a->p);
        else
            y[i] = (real)(a->p + a->q * pl_random_normal(number, k));
    }
}
