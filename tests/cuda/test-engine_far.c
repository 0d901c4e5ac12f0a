/* SPDX-License-Identifier: MIT */
/* Elements that are farther apart than 32 bits count, on the emulator: rows of arrays of several
 * GB, of which only the pages that are used have memory. */
#include "common/base/macros.h"
#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define FAR ((size_t)1 << 32) /* elements, or more */
#define BYTES ((size_t)32 << 30)

static void *reserve(void)
{
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    return p;
}

/* The place of element i of an array with these strides. */
static size_t place(const struct pl_copy_args *a, const size_t *stride, size_t i)
{
    size_t at = 0;

    for (size_t d = a->rank; d-- > 0; i /= a->shape[d])
        at += i % a->shape[d] * stride[d];
    return at;
}

static void copied(const struct pl_copy_args *given, size_t bytes, bool add)
{
    struct pl_copy_args a = *given;
    char *src = reserve(), *dst = reserve();
    size_t n = 1;

    for (size_t d = 0; d < a.rank; d++)
        n *= a.shape[d];
    for (size_t i = 0; i < n; i++) {
        if (add) {
            ((float *)src)[place(&a, a.src_stride, i)] = (float)i;
            ((float *)dst)[place(&a, a.dst_stride, i)] = 1;
        } else {
            memcpy(src + place(&a, a.src_stride, i) * bytes, &i, bytes);
        }
    }
    a.bytes = bytes;
    a.add = add;
    a.src = src;
    a.dst = dst;
    pl_kernels_cuda(PL_REAL_F32)->copy(&a);
    for (size_t i = 0; i < n; i++) {
        const char *to = dst + place(&a, a.dst_stride, i) * bytes;

        if (add ? *(const float *)to != (float)(i + 1) : memcmp(to, &i, bytes) != 0)
            fail_msg("element %zu of %zu, of %zu bytes, add %d", i, n, bytes, add);
    }
    munmap(src, BYTES);
    munmap(dst, BYTES);
}

/* Element by element, by tiles and by lines; what is read is far apart, or what is written. */
static void test_copies(void **state)
{
    static const struct pl_copy_args forms[] = {
        {.rank = 3,
         .shape = {3, 5, 7},
         .src_stride = {FAR / 2 + 3, 14, 2},
         .dst_stride = {35, 7, 1}},
        {.rank = 2, .shape = {33, 40}, .src_stride = {1, FAR / 32 + 5}, .dst_stride = {40, 1}},
        {.rank = 3, .shape = {2, 3, 40}, .src_stride = {FAR + 8, 1, 3}, .dst_stride = {120, 40, 1}},
        {.rank = 3, .shape = {2, 40, 3}, .src_stride = {FAR + 1, 1, 40}, .dst_stride = {120, 3, 1}},
    };

    for (size_t i = 0; i < PL_COUNT(forms); i++)
        for (int swap = 0; swap < 2; swap++)
            for (size_t bytes = 2; bytes <= 4; bytes += 2)
                for (int add = 0; add <= (bytes == 4); add++) {
                    struct pl_copy_args a = forms[i];

                    if (swap) {
                        memcpy(a.src_stride, forms[i].dst_stride, sizeof(a.src_stride));
                        memcpy(a.dst_stride, forms[i].src_stride, sizeof(a.dst_stride));
                    }
                    copied(&a, bytes, add);
                }
}

/* The last rows of a table, by 16 bytes and element by element. */
static void test_embedding(void **state)
{
    for (size_t dim = 63; dim <= 64; dim++) {
        const size_t vocab = FAR / 60 + 3;
        const int32_t ids[] = {(int32_t)vocab - 1, 0, (int32_t)(vocab - 2)};
        float *table = reserve(), *y = calloc(3 * dim, sizeof(*y));
        struct pl_embedding_args a = {
            .rows = 3, .dim = dim, .vocab = vocab, .ids = ids, .table = table, .y = y};

        assert_non_null(y);
        for (size_t i = 0; i < 3 * dim; i++)
            table[(size_t)ids[i / dim] * dim + i % dim] = (float)i;
        pl_kernels_cuda(PL_REAL_F32)->embedding_forward(&a);
        for (size_t i = 0; i < 3 * dim; i++)
            if (y[i] != (float)i)
                fail_msg("dim %zu: y[%zu] is %g", dim, i, (double)y[i]);
        free(y);
        munmap(table, BYTES);
    }
}

/* Elements of the last rows. */
static void test_gather(void **state)
{
    enum { INNER = 64, M = 3 };
    const size_t n = FAR / INNER + 3;
    float *x = reserve(), y[M * INNER];
    int32_t index[M * INNER];
    struct pl_gather_args a = {
        .outer = 1, .n = n, .m = M, .inner = INNER, .index = index, .x = x, .y = y};

    for (size_t i = 0; i < PL_COUNT(index); i++) {
        index[i] = (int32_t)(n - 1 - i / INNER * 2);
        x[(size_t)index[i] * INNER + i % INNER] = (float)i;
    }
    pl_kernels_cuda(PL_REAL_F32)->gather_forward(&a);
    for (size_t i = 0; i < PL_COUNT(index); i++)
        assert_true(y[i] == (float)i);
    munmap(x, BYTES);
}

/* The column sums of rows that are far apart, as those of a part of a wide layer. */
static void test_sums(void **state)
{
    enum { ROWS = 70, OUT = 24 };
    const size_t row = FAR / 64 + 8;
    float *dy = reserve(), db[OUT];
    struct pl_linear_args a = {.rows = ROWS, .out = OUT, .dy_row = row, .dy = dy, .db = db};

    for (size_t i = 0; i < ROWS * OUT; i++)
        dy[i / OUT * row + i % OUT] = (float)(i / OUT + i % OUT);
    pl_kernels_cuda(PL_REAL_F32)->linear_backward(&a);
    for (size_t i = 0; i < OUT; i++)
        assert_true(db[i] == (float)(ROWS * (ROWS - 1) / 2 + ROWS * i));
    munmap(dy, BYTES);
}

/* The second head begins FAR elements after the first. Both have the same numbers. */
static void test_attention(void **state)
{
    enum { TIME = 70, DIM = 24, N = TIME * DIM };
    const struct pl_attention_strides at = {0, DIM, FAR + 4};
    float *of[8], lse[2 * TIME]; /* q, k, v, y, dy, dq, dk, dv */
    struct pl_attention_args a = {.batch = 1,
                                  .heads = 2,
                                  .time = TIME,
                                  .keys = TIME,
                                  .dim = DIM,
                                  .causal = true,
                                  .scale = 0.25,
                                  .q_at = at,
                                  .k_at = at,
                                  .v_at = at,
                                  .y_at = at,
                                  .dy_at = at,
                                  .dq_at = at,
                                  .dk_at = at,
                                  .dv_at = at,
                                  .lse = lse};

    for (size_t k = 0; k < 8; k++) {
        of[k] = reserve();
        for (size_t i = 0; i < 2 * N && (k < 3 || k == 4); i++)
            of[k][i / N * at.head + i % N] = (float)((i % N * 7 + k * 5) % 13) / 8 - 0.7f;
    }
    a.q = of[0];
    a.k = of[1];
    a.v = of[2];
    a.y = of[3];
    a.dy = of[4];
    a.dq = of[5];
    a.dk = of[6];
    a.dv = of[7];
    pl_kernels_cuda(PL_REAL_F32)->attention_forward(&a);
    pl_kernels_cuda(PL_REAL_F32)->attention_backward(&a);
    for (size_t k = 3; k < 8; k++) {
        assert_true(of[k][N / 2] != 0);
        assert_memory_equal(of[k], of[k] + at.head, N * sizeof(float));
    }
    for (size_t k = 0; k < 8; k++)
        munmap(of[k], BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),    cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_gather),    cmocka_unit_test(test_sums),
        cmocka_unit_test(test_attention),
    };

    void *p = mmap(NULL, 8 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED) {
        puts("1..0 # SKIP this process may not have 256 GB of addresses");
        return 0;
    }
    munmap(p, 8 * BYTES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
