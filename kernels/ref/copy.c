/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

#include <string.h>

void PL_REF(copy)(const struct pl_copy_args *a)
{
    size_t count = 1;

    for (size_t d = 0; d < a->rank; d++)
        count *= a->shape[d];
    for (size_t i = 0; i < count; i++) {
        size_t from = 0, to = 0, rest = i;

        for (size_t d = a->rank; d-- > 0; rest /= a->shape[d]) {
            from += rest % a->shape[d] * a->src_stride[d];
            to += rest % a->shape[d] * a->dst_stride[d];
        }
        if (a->add)
            ((real *)a->dst)[to] += ((const real *)a->src)[from];
        else
            memcpy((char *)a->dst + to * a->bytes, (const char *)a->src + from * a->bytes,
                   a->bytes);
    }
}
