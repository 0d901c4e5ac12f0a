/* SPDX-License-Identifier: MIT */
#include "kernels/philox.h"
#include "kernels/ref/real.h"

void PL_REF(dropout)(const struct pl_dropout_args *a)
{
    uint32_t limit = pl_dropout_limit(a->p), lanes[4] = {0};
    uint64_t high = a->draw ? *a->draw : a->counter[1];
    real scale = (real)(1 / (1 - a->p));
    const real *src = a->src;
    real *dst = a->dst;

    for (size_t i = 0; i < a->n; i++) {
        size_t at = i + a->skip;
        real value;

        if (at % 4 == 0 || i == 0)
            pl_philox(a->key, a->counter[0] + at / 4, high, lanes);
        value = lanes[at % 4] < limit ? 0 : src[i] * scale;
        dst[i] = a->add ? dst[i] + value : value;
    }
}
