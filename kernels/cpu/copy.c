/* SPDX-License-Identifier: MIT */
/* Neighbouring dimensions that both sides step through evenly are merged. The rest is copied row by
 * row; a row that is dense on both sides is one memcpy(). */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <string.h>

#define GRAIN 32768 /* elements */

static struct pl_copy_args merge(const struct pl_copy_args *a)
{
    struct pl_copy_args m = *a;

    m.rank = 0;
    for (size_t d = 0; d < a->rank; d++) {
        size_t last = m.rank - 1, n = a->shape[d];

        if (n == 1)
            continue;
        if (m.rank && m.src_stride[last] == n * a->src_stride[d] &&
            m.dst_stride[last] == n * a->dst_stride[d]) {
            m.shape[last] *= n;
            m.src_stride[last] = a->src_stride[d];
            m.dst_stride[last] = a->dst_stride[d];
        } else {
            m.shape[m.rank] = n;
            m.src_stride[m.rank] = a->src_stride[d];
            m.dst_stride[m.rank++] = a->dst_stride[d];
        }
    }
    if (m.rank == 0) {
        m.rank = m.shape[0] = m.src_stride[0] = m.dst_stride[0] = 1;
        for (size_t d = 0; d < a->rank; d++)
            m.shape[0] *= a->shape[d]; /* 1, or 0 */
    }
    return m;
}

static void add_row(const struct pl_copy_args *a, void *to_row, const void *from_row)
{
    float *restrict dst = to_row;
    const float *restrict src = from_row;
    size_t n = a->shape[a->rank - 1], from = a->src_stride[a->rank - 1];
    size_t to = a->dst_stride[a->rank - 1];

    if (from == 1 && to == 1)
        for (size_t i = 0; i < n; i++)
            dst[i] += src[i];
    else
        for (size_t i = 0; i < n; i++)
            dst[i * to] += src[i * from];
}

#define COPY_ROW(type)                                                                             \
    do {                                                                                           \
        for (size_t i_ = 0; i_ < n; i_++)                                                          \
            ((type *)dst)[i_ * to] = ((const type *)src)[i_ * from];                               \
    } while (0)

static void copy_row(const struct pl_copy_args *a, void *restrict dst, const void *restrict src)
{
    size_t n = a->shape[a->rank - 1], from = a->src_stride[a->rank - 1];
    size_t to = a->dst_stride[a->rank - 1];

    if (from == 1 && to == 1)
        memcpy(dst, src, n * a->bytes);
    else if (a->bytes == 4)
        COPY_ROW(uint32_t);
    else if (a->bytes == 2)
        COPY_ROW(uint16_t);
    else if (a->bytes == 8)
        COPY_ROW(uint64_t);
    else
        COPY_ROW(uint8_t);
}

static void rows(void *ctx, size_t begin, size_t end)
{
    const struct pl_copy_args *a = ctx;
    size_t outer = a->rank - 1, index[PL_COPY_RANK], from = 0, to = 0, rest = begin;

    for (size_t d = outer; d-- > 0; rest /= a->shape[d]) {
        index[d] = rest % a->shape[d];
        from += index[d] * a->src_stride[d];
        to += index[d] * a->dst_stride[d];
    }
    for (size_t row = begin; row < end; row++) {
        const char *src = (const char *)a->src + from * a->bytes;
        char *dst = (char *)a->dst + to * a->bytes;

        if (a->add)
            add_row(a, dst, src);
        else
            copy_row(a, dst, src);
        for (size_t d = outer; d-- > 0;) {
            from += a->src_stride[d];
            to += a->dst_stride[d];
            if (++index[d] < a->shape[d])
                break;
            from -= a->src_stride[d] * a->shape[d];
            to -= a->dst_stride[d] * a->shape[d];
            index[d] = 0;
        }
    }
}

void PL_CPU(copy)(const struct pl_copy_args *a)
{
    struct pl_copy_args m;
    size_t n = 1;

    if (a->rank == 1) { /* nothing to merge or to divide among threads */
        (a->add ? add_row : copy_row)(a, a->dst, a->src);
        return;
    }
    m = merge(a);
    for (size_t d = 0; d + 1 < m.rank; d++)
        n *= m.shape[d];
    if (n && m.shape[m.rank - 1])
        pl_pool_parallel(n, 1 + GRAIN / m.shape[m.rank - 1], rows, &m);
}
