/* SPDX-License-Identifier: MIT */
/* On a GPU: NVIDIA's libraries do what this test names, and our own kernels do none of it. Each
 * call is counted, and the results are ref's. Products and layers in every type, convolutions in
 * every type and in tf32, attention in 16 bits. Without a GPU, the same convolutions are counted in
 * test-cuda_conv_counts and have plans in test-cudnn_plans. */
#include "kernels/half.h"
#include "runtime/engine/device/gpu.h"
#include "tests/unit/engine/cuda/conv_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST 8192 /* numbers of an array */

struct card {
    const struct pl_device_ops *ops;
    struct pl_device *dev;
    const struct pl_kernels *k;
    struct pl_device_calls before;
    void *arrays[16];
    size_t n;
};

static const struct type {
    const char *name;
    enum pl_real real;
    bool tf32;
    double within; /* of an array's largest number. Numbers have 5 bits, so that most sums are
                    * exact: what is left is the rounding of results, of gelu's slopes before a
                    * product, and what Winograd's algorithm loses in f32 */
} types[] = {{"f32", PL_REAL_F32, false, 1e-4},
             {"tf32", PL_REAL_F32, true, 2e-3},
             {"f64", PL_REAL_F64, false, 1e-12},
             {"bf16", PL_REAL_BF16, false, 0.02},
             {"f16", PL_REAL_F16, false, 0.004}};

static struct card open_card(const struct type *type)
{
    struct card c = {.ops = NULL};
    struct pl_error err = {0};

    if (pl_gpu_devices(&c.ops, &err) < 0 ||
        c.ops->open(0, &(struct pl_device_options){.tf32 = type->tf32}, &c.dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    c.ops->enter(c.dev);
    c.k = c.ops->kernels(c.dev, type->real);
    c.ops->calls(c.dev, &c.before);
    return c;
}

/* Since the last such call. */
static void assert_calls(struct card *c, const char *what, uint64_t library, uint64_t own)
{
    struct pl_device_calls now;

    c->ops->calls(c->dev, &now);
    if (now.library - c->before.library != library || now.own - c->before.own != own)
        fail_msg("%s: %llu by libraries and %llu by own kernels, not %llu and %llu", what,
                 (unsigned long long)(now.library - c->before.library),
                 (unsigned long long)(now.own - c->before.own), (unsigned long long)library,
                 (unsigned long long)own);
    c->before = now;
}

static void *get(struct card *c, size_t n)
{
    struct pl_error err = {0};
    void **p = &c->arrays[c->n++];

    assert_in_range(c->n, 1, PL_COUNT(c->arrays));
    if (c->ops->alloc(c->dev, n * pl_real_size(c->k->real), "a test", p, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return *p;
}

static void close_card(struct card *c)
{
    struct pl_error err = {0};

    if (c->ops->sync(c->dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    for (size_t i = 0; i < c->n; i++)
        c->ops->free(c->dev, c->arrays[i]);
    c->ops->close(c->dev);
}

static void put(const struct card *c, void *to, const double *from, size_t n)
{
    size_t size = pl_real_size(c->k->real);
    char *image = calloc(n, size);

    assert_non_null(image);
    for (size_t i = 0; i < n; i++) {
        float x = (float)from[i];
        uint16_t half = pl_half_of_f32(c->k->real == PL_REAL_F16 ? PL_HALF_F16 : PL_HALF_BF16, x);

        memcpy(image + i * size,
               size == 8   ? (const void *)&from[i]
               : size == 4 ? (void *)&x
                           : &half,
               size);
    }
    c->ops->upload(c->dev, to, image, n * size);
    free(image);
}

static void compare(
    const struct card *c, const char *what, double within, void *at, const double *want, size_t n)
{
    size_t size = pl_real_size(c->k->real);
    struct pl_error err = {0};
    char *image = malloc(n * size);
    double largest = 0;

    assert_non_null(image);
    if (c->ops->download(c->dev, image, at, n * size, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        double f64;
        float f32;
        uint16_t half;

        memcpy(size == 8 ? (void *)&f64 : size == 4 ? (void *)&f32 : &half, image + i * size, size);
        if (size == 4)
            f64 = (double)f32;
        else if (size == 2)
            f64 = (double)pl_f32_of_half(c->k->real == PL_REAL_F16 ? PL_HALF_F16 : PL_HALF_BF16,
                                         half);
        if (!(fabs(f64 - want[i]) <= within * largest))
            fail_msg("%s: number %zu is %.17g, not %.17g", what, i, f64, want[i]);
    }
    free(image);
}

/* n multiples of 1/16 between -1 and 1: each type has them, and sums of some hundred products. */
static void make_numbers(double *to, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        to[i] = ((double)(seed >> 16 & 31) - 15.5 + 0.5) / 16;
    }
}

static void one_convolution(const struct type *type, const struct conv_case *of)
{
    static double host[CONV_ARRAYS][MOST];
    struct card c = open_card(type);
    struct pl_conv2d_args a = conv_case_args(of);
    void *there[CONV_ARRAYS], *here[CONV_ARRAYS];
    char what[64];

    for (int i = 0; i < CONV_ARRAYS; i++) {
        size_t n = conv_case_count(of, (enum conv_array)i);

        assert_in_range(n, 1, MOST);
        make_numbers(host[i], n, (uint32_t)i + 1);
        /* No sum is 0, at which relu's slope would be a matter of rounding. */
        for (size_t k = 0; i == CONV_B && k < n; k++)
            host[i][k] = 1.0 / 512;
        there[i] = get(&c, n);
        here[i] = host[i];
        put(&c, there[i], host[i], n);
    }
    conv_case_set(&a, of, there);
    snprintf(what, sizeof(what), "%s, case %td", type->name, of - conv_cases);
    c.k->conv2d_forward(&a);
    assert_calls(&c, what, CONV_FORWARD_CALLS, 0);
    c.k->conv2d_backward(&a);
    assert_calls(&c, what, CONV_BACKWARD_CALLS, 0);
    conv_case_set(&a, of, here);
    pl_kernels_ref(PL_REAL_F64)->conv2d_forward(&a);
    pl_kernels_ref(PL_REAL_F64)->conv2d_backward(&a);
    for (int i = CONV_Y; i < (of->after ? CONV_ARRAYS : CONV_DB); i++)
        compare(&c, what, type->within, there[i], host[i], conv_case_count(of, (enum conv_array)i));
    close_card(&c);
}

static void test_convolutions_are_by_the_library(void **state)
{
    for (size_t i = 0; i < PL_COUNT(types); i++)
        for (size_t k = 0; k < PL_COUNT(conv_cases); k++)
            one_convolution(&types[i], &conv_cases[k]);
}

#define ROWS 24
#define IN 32
#define OUT 48

/* A layer with bias and an activation, forward; then the gradients of x, w and b. */
static void one_layer(const struct type *type, enum pl_activation act)
{
    enum { X, W, B, DY, Y, DX, DW, DB, PRE, DZ, ARRAYS };
    static const size_t n[ARRAYS] = {ROWS * IN, OUT * IN, OUT, ROWS * OUT, ROWS * OUT,
                                     ROWS * IN, OUT * IN, OUT, ROWS * OUT, ROWS * OUT};
    static double host[ARRAYS][ROWS * OUT + OUT * IN];
    struct card c = open_card(type);
    void *there[ARRAYS];
    char what[64];

    snprintf(what, sizeof(what), "%s layer, activation %d", type->name, (int)act);
    for (int i = 0; i < ARRAYS; i++) {
        make_numbers(host[i], n[i], (uint32_t)i + 1);
        for (size_t k = 0; i == B && k < n[i]; k++)
            host[i][k] = 1.0 / 512;
        there[i] = get(&c, n[i]);
        put(&c, there[i], host[i], n[i]);
    }
    for (int here = 0; here < 2; here++) {
        const struct pl_kernels *k = here ? pl_kernels_ref(PL_REAL_F64) : c.k;
        void *of[ARRAYS];
        struct pl_linear_args a;

        for (int i = 0; i < ARRAYS; i++)
            of[i] = here ? host[i] : there[i];
        a = (struct pl_linear_args){.rows = ROWS,
                                    .in = IN,
                                    .out = OUT,
                                    .act = act,
                                    .x = of[X],
                                    .w = of[W],
                                    .b = of[B],
                                    .dy = of[DY],
                                    .y = of[Y],
                                    .dx = of[DX],
                                    .dw = of[DW],
                                    .db = of[DB],
                                    .pre = of[PRE],
                                    .dz = of[DZ]};
        k->linear_forward(&a);
        if (!here)
            assert_calls(&c, what, 1, 0);
        k->linear_backward(&a);
        if (!here)
            assert_calls(&c, what, 2, 0);
    }
    for (int i = Y; i <= DB; i++)
        compare(&c, what, type->within, there[i], host[i], n[i]);
    close_card(&c);
}

static void test_layers_are_by_the_library(void **state)
{
    for (size_t i = 0; i < PL_COUNT(types); i++) {
        one_layer(&types[i], PL_ACT_NONE);
        one_layer(&types[i], PL_ACT_RELU);
        one_layer(&types[i], PL_ACT_GELU_TANH);
    }
}

static void test_products_are_by_the_library(void **state)
{
    enum { BATCH = 2, A = ROWS * IN, B = IN * OUT, C = ROWS * OUT };
    static double a[BATCH * A], b[BATCH * B], y[BATCH * C];

    make_numbers(a, PL_COUNT(a), 1);
    make_numbers(b, PL_COUNT(b), 2);
    for (size_t i = 0; i < 4 * PL_COUNT(types); i++) {
        const struct type *type = &types[i / 4];
        struct pl_matmul_args of = {.batch = BATCH,
                                    .m = ROWS,
                                    .n = OUT,
                                    .k = IN,
                                    .a_transposed = i % 2,
                                    .b_transposed = i / 2 % 2,
                                    .a_row = i % 2 ? ROWS : IN,
                                    .b_row = i / 2 % 2 ? IN : OUT,
                                    .c_row = OUT,
                                    .a_batch = A,
                                    .b_batch = B,
                                    .c_batch = C,
                                    .scale = 0.5,
                                    .a = a,
                                    .b = b,
                                    .c = y};
        struct card c = open_card(type);
        void *there = get(&c, PL_COUNT(y));

        pl_kernels_ref(PL_REAL_F64)->matmul(&of);
        of.a = get(&c, PL_COUNT(a));
        of.b = get(&c, PL_COUNT(b));
        of.c = there;
        put(&c, (void *)(uintptr_t)of.a, a, PL_COUNT(a));
        put(&c, (void *)(uintptr_t)of.b, b, PL_COUNT(b));
        c.k->matmul(&of);
        assert_calls(&c, type->name, 1, 0);
        compare(&c, type->name, type->within, there, y, PL_COUNT(y));
        close_card(&c);
    }
}

/* In 16 bits; cuDNN is not asked for other types, and our own kernels are counted. */
static void test_attention_is_counted(void **state)
{
    enum { HEADS = 2, TIME = 64, DIM = 64, TOKEN = HEADS * DIM };

    for (size_t i = 0; i < PL_COUNT(types); i++) {
        struct card c = open_card(&types[i]);
        bool half = pl_real_size(types[i].real) == 2;
        char *qkv = get(&c, TIME * 3 * TOKEN), *dqkv = get(&c, TIME * 3 * TOKEN);
        size_t shift = TOKEN * pl_real_size(types[i].real);
        const struct pl_attention_strides three = {TIME * 3 * TOKEN, 3 * TOKEN, DIM};
        const struct pl_attention_strides one = {TIME * TOKEN, TOKEN, DIM};
        struct pl_attention_args a = {.batch = 1,
                                      .heads = HEADS,
                                      .time = TIME,
                                      .keys = TIME,
                                      .dim = DIM,
                                      .causal = true,
                                      .scale = 0.125,
                                      .q = qkv,
                                      .k = qkv + shift,
                                      .v = qkv + 2 * shift,
                                      .y = get(&c, TIME * TOKEN),
                                      .lse = get(&c, 2 * HEADS * TIME), /* f32 for 16 bits */
                                      .dy = get(&c, TIME * TOKEN),
                                      .dq = dqkv,
                                      .dk = dqkv + shift,
                                      .dv = dqkv + 2 * shift,
                                      .q_at = three,
                                      .k_at = three,
                                      .v_at = three,
                                      .dq_at = three,
                                      .dk_at = three,
                                      .dv_at = three,
                                      .y_at = one,
                                      .dy_at = one};

        c.ops->zero(c.dev, qkv, 3 * TIME * shift);
        c.ops->zero(c.dev, (void *)(uintptr_t)a.dy, TIME * shift);
        c.k->attention_forward(&a);
        assert_calls(&c, types[i].name, half, !half);
        c.k->attention_backward(&a);
        assert_calls(&c, types[i].name, half, !half);
        close_card(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions_are_by_the_library),
        cmocka_unit_test(test_layers_are_by_the_library),
        cmocka_unit_test(test_products_are_by_the_library),
        cmocka_unit_test(test_attention_is_counted),
    };
    const struct pl_device_ops *ops = NULL;
    struct pl_error err = {0};
    unsigned n = 0;

    if (pl_gpu_devices(&ops, &err) == 0 && ops->count(&n, &err) == 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    printf("%s\n", pl_error_text(&err));
    return access("/dev/nvidia0", F_OK) < 0 ? 77 : 1;
}
