/* SPDX-License-Identifier: MIT */
/* Permutations with gaps, in all sizes of elements. */
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

#define MOST 20000 /* elements per case */

/* Strides for the dimensions in some order, now and then with a gap; returns the elements spanned.
 */
static size_t layout(size_t rank, const size_t *shape, size_t *stride)
{
    size_t order[PL_COPY_RANK], step = 1;

    for (size_t d = 0; d < rank; d++)
        order[d] = rank - 1 - d;
    for (size_t d = rank; check_random(2) && d-- > 1;) {
        size_t other = check_random(d + 1), keep = order[d];

        order[d] = order[other];
        order[other] = keep;
    }
    for (size_t i = 0; i < rank; i++) {
        stride[order[i]] = step;
        step *= shape[order[i]] + (check_random(4) == 0);
    }
    return step;
}

/* from, to: the elements spanned. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                struct pl_copy_args a,
                size_t from,
                size_t to,
                enum fill fill)
{
    size_t n_from = from * a.bytes / sizeof(float) + 1, n_to = to * a.bytes / sizeof(float) + 1;
    float *src = check_floats(n_from, fill), *dst = check_floats(n_to, fill), *dst2;
    char *odd = NULL, *odd2 = NULL;

    check_case("copy rank %zu of %zu bytes add %d fill %d, span %zu to %zu", a.rank, a.bytes, a.add,
               fill, from, to);
    dst2 = check_copy(dst, n_to);
    a.src = src;
    a.dst = dst;
    if (a.bytes == 8) { /* misaligned floats are no addresses of doubles */
        odd = aligned_alloc(64, (to * 8 + 127) / 64 * 64);
        odd2 = aligned_alloc(64, (to * 8 + 127) / 64 * 64);
        memset(odd, 1, to * 8);
        memset(odd2, 1, to * 8);
        a.src = memcpy(aligned_alloc(64, (from * 8 + 127) / 64 * 64), src, from * 8);
        a.dst = odd;
    }
    ref->copy(&a);
    a.dst = odd2 ? odd2 : (void *)dst2;
    got->copy(&a);
    if (odd)
        check_close("bytes", 0, memcmp(odd, odd2, to * 8), 0, 0);
    else if (a.add)
        check_same("dst", dst2, dst, n_to);
    else
        check_close("bytes", 0, memcmp(dst, dst2, n_to * sizeof(float)), 0, 0);
    if (odd)
        free((void *)(uintptr_t)a.src);
    free(odd);
    free(odd2);
    check_end_case();
}

/* Swaps heads and times in a slice of a wider array: many adjacent elements on both sides, most of
 * them aligned. */
static void heads(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    struct pl_copy_args a = {.rank = 3, .bytes = (size_t)1 << check_random(4)};
    size_t dim = (size_t)4 << check_random(5), wide;

    a.shape[0] = 1 + check_random(20);
    a.shape[1] = 1 + check_random(5);
    a.shape[2] = check_random(4) ? dim : 1 + check_random(dim);
    wide = a.shape[1] * dim + check_random(3) * 8;
    for (size_t d = 0; d < 3; d++) {
        a.src_stride[d] = (size_t[]){wide, dim, 1}[d];
        a.dst_stride[d] = (size_t[]){dim, a.shape[0] * dim, 1}[d];
    }
    a.add = a.bytes == sizeof(float) && check_random(2);
    one(ref, got, a, a.shape[0] * wide, a.shape[0] * a.shape[1] * dim,
        (enum fill)check_random(FILL_COUNT));
}

/* Two sides that swap, long enough for tiles, in or around other dimensions. */
static void sides(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    struct pl_copy_args a = {.rank = 4, .bytes = (size_t)1 << check_random(4)};
    size_t across = 1 + check_random(check_random(2) ? 40 : 130), down = 1 + check_random(100);
    size_t gap = check_random(3) * 8, some = 1 + check_random(3), inner = check_random(4) ? 1 : 4;
    size_t line = across + gap;

    /* [some, down, across, inner] is read from [some, down, line, inner], and written to [across,
     * some, down, inner]. */
    for (size_t d = 0; d < 4; d++) {
        a.shape[d] = (size_t[]){some, down, across, inner}[d];
        a.src_stride[d] = (size_t[]){down * line * inner, line * inner, inner, 1}[d];
        a.dst_stride[d] = (size_t[]){down * inner, inner, some * down * inner, 1}[d];
    }
    a.add = a.bytes == sizeof(float) && check_random(2);
    one(ref, got, a, some * down * line * inner, some * down * across * inner,
        (enum fill)check_random(FILL_COUNT));
}

/* [some, thin, wide] from or to [some, wide, thin], with gaps now and then between the lines of the
 * former, and between the parts of the latter. */
static void thin_lines(const struct pl_kernels *ref,
                       const struct pl_kernels *got,
                       size_t some,
                       size_t thin,
                       size_t wide,
                       size_t bytes)
{
    size_t line = wide + check_random(3), part = wide * thin + check_random(3);
    const size_t lines[3] = {thin * line, line, 1}, whole[3] = {part, 1, thin};
    bool in_src = check_random(2);
    enum fill fill = (enum fill)check_random(FILL_COUNT);

    for (int i = 0; i < 2; i++, in_src = !in_src) {
        struct pl_copy_args a = {.rank = 3, .bytes = bytes};
        size_t first = check_random(2); /* the dimensions in this order, or in the other one */

        for (size_t d = 0; d < 3; d++) {
            size_t to = d == 0 ? 0 : d == 1 ? 1 + first : 2 - first;

            a.shape[to] = (size_t[]){some, thin, wide}[d];
            a.src_stride[to] = (in_src ? whole : lines)[d];
            a.dst_stride[to] = (in_src ? lines : whole)[d];
        }
        for (int add = 0; add <= (bytes == sizeof(float)); add++) {
            a.add = add;
            one(ref, got, a, in_src ? some * part : some * lines[0],
                in_src ? some * lines[0] : some * part, fill);
        }
    }
}

/* Dimensions of few elements, next to one of many or of just enough, in blocks that are as small as
 * possible (where `some` is), or as large. */
static void thin(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    const size_t thin[] = {2, 3, 6, 9, 14, 15, 16, 17}, wide[] = {15, 16, 45, 100};

    for (size_t t = 0; t < PL_COUNT(thin); t++) {
        for (size_t w = 0; w < PL_COUNT(wide); w++)
            for (size_t bytes = 1; bytes <= 8; bytes *= 2)
                thin_lines(ref, got, 1 + check_random(3), thin[t], wide[w], bytes);
        thin_lines(ref, got, 64, thin[t], 3 * 1024 / thin[t] + check_random(40),
                   (size_t)1 << check_random(4));
    }
}

/* ref against a permutation that one can see. */
static void transpose(const struct pl_kernels *k)
{
    const float src[6] = {1, 2, 3, 4, 5, 6}, want[6] = {1, 4, 2, 5, 3, 6};
    float dst[6] = {0};
    struct pl_copy_args a = {.rank = 2,
                             .shape = {3, 2},
                             .src_stride = {1, 3},
                             .dst_stride = {2, 1},
                             .bytes = sizeof(float),
                             .src = src,
                             .dst = dst};

    check_case("copy: a transpose");
    k->copy(&a);
    check_same("copied", dst, want, 6);
    a.add = true;
    k->copy(&a);
    for (size_t i = 0; i < 6; i++)
        check_close("added", i, (double)dst[i], 2 * (double)want[i], 0);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    transpose(ref);
    transpose(got);
    for (int i = 0; i < 300; i++)
        heads(ref, got);
    for (int i = 0; i < 40; i++)
        sides(ref, got);
    thin(ref, got);
    for (size_t i = 0; i < check_many(2000, 2000); i++) {
        struct pl_copy_args a = {.rank = check_random(6), .bytes = (size_t)1 << check_random(4)};
        size_t count = 1, from, to;

        for (size_t d = 0; d < a.rank; d++) {
            a.shape[d] = 1 + check_random(d + 1 == a.rank ? 40 : 7);
            count *= a.shape[d];
        }
        if (count > MOST)
            continue;
        a.add = a.bytes == sizeof(float) && check_random(2);
        from = layout(a.rank, a.shape, a.src_stride);
        to = layout(a.rank, a.shape, a.dst_stride);
        one(ref, got, a, from, to, (enum fill)check_random(FILL_COUNT));
    }
}
