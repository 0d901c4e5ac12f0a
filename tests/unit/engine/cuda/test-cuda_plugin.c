/* SPDX-License-Identifier: MIT */
/* plume-cuda.so itself, with NVIDIA's libraries: it loads, is of this release, exports only its
 * tables, and reports what is missing. With a GPU, memory is copied there and back. */
#include "kernels/half.h"
#include "runtime/engine/device/gpu.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct pl_device_ops *load(void)
{
    const struct pl_device_ops *ops = NULL;
    struct pl_error err = {0};

    assert_int_equal(setenv("PLUME_PLUGIN_DIR", PL_CUDA_PLUGIN_DIR, 1), 0);
    if (pl_gpu_devices(&ops, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return ops;
}

static void test_it_exports_its_tables_only(void **state)
{
    void *handle = dlopen(PL_CUDA_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    const struct pl_nccl_table *nccl;

    if (!handle)
        fail_msg("%s", dlerror());
    assert_non_null(dlsym(handle, PL_DEVICE_CUDA_SYMBOL));
    assert_null(dlsym(handle, "pl_error_set"));
    assert_null(dlsym(handle, "pl_kernels_cuda"));
    assert_int_equal(dlsym(handle, PL_NCCL_TABLE_SYMBOL) != NULL, PL_HAVE_NCCL);
    load();
    assert_int_equal(pl_gpu_nccl(&nccl, NULL), PL_HAVE_NCCL ? 0 : -ENOTSUP);
    assert_int_equal(dlclose(handle), 0);
}

static void test_it_counts_devices_or_says_why_not(void **state)
{
    const struct pl_device_ops *ops = load();
    struct pl_device *dev = NULL;
    struct pl_error err = {0};
    unsigned n = 0;
    int r;

    assert_string_equal(ops->name, "cuda");
    assert_false(ops->host);
    r = ops->count(&n, &err);
    if (r == 0) {
        assert_in_range(n, 1, 1024);
        return;
    }
    assert_int_equal(r, -ENODEV);
    assert_true(strstr(err.text, "driver") || strstr(err.text, "GPU"));
    assert_int_equal(ops->open(0, NULL, &dev, NULL), -ENODEV);
    assert_null(dev);
}

static void test_tables_are_complete(void **state)
{
    const struct pl_device_ops *ops = load();

    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F16; real++) {
        const struct pl_kernels *k = ops->kernels(NULL, real);

        assert_non_null(k);
        assert_int_equal(k->real, real);
        assert_memory_equal(k->name, "cuda/", 5);
#define THERE(function, args) assert_non_null(k->function);
        PL_KERNEL_LIST(THERE)
#undef THERE
    }
}

static void test_memory_goes_there_and_back(void **state)
{
    const struct pl_device_ops *ops = load();
    static unsigned char from[9 << 20], back[9 << 20];
    struct pl_device *dev = NULL;
    struct pl_error err = {0};
    void *p = NULL;

    if (ops->open(0, NULL, &dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    ops->enter(dev);
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i * 7 + i / 4096);
    assert_int_equal(ops->alloc(dev, sizeof(from), "a test", &p, &err), 0);
    ops->upload(dev, p, from, sizeof(from));
    ops->zero(dev, p, 3);
    if (ops->download(dev, back, p, sizeof(from), &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    memset(from, 0, 3);
    assert_memory_equal(back, from, sizeof(from));
    ops->close(dev);
}

/* Rows of 256 through a square matrix, then dropout: a kernel of cublasLt's, and one of ours that
 * finds its counter in memory. */
#define ROWS 64
#define WIDTH 256

struct step {
    const struct pl_device_ops *ops;
    struct pl_device *dev;
    const struct pl_kernels *k;
    float *x, *w, *y, *z;
    uint64_t *draw;
};

static void *get(const struct step *s, size_t bytes)
{
    struct pl_error err = {0};
    void *p = NULL;

    if (s->ops->alloc(s->dev, bytes, "a test", &p, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return p;
}

static void run_step(const struct step *s)
{
    s->ops->zero(s->dev, s->z, ROWS * WIDTH * sizeof(float));
    s->k->linear_forward(&(struct pl_linear_args){
        .rows = ROWS, .in = WIDTH, .out = WIDTH, .x = s->x, .w = s->w, .y = s->y});
    s->k->dropout(&(struct pl_dropout_args){.n = ROWS * WIDTH,
                                            .p = 0.5,
                                            .key = 7,
                                            .add = true,
                                            .src = s->y,
                                            .dst = s->z,
                                            .draw = s->draw});
}

static void read_step(const struct step *s, float *z)
{
    struct pl_error err = {0};

    if (s->ops->download(s->dev, z, s->z, ROWS * WIDTH * sizeof(float), &err) < 0)
        fail_msg("%s", pl_error_text(&err));
}

/* The step plainly, then as a graph, with the same counters: the same bits. */
static void test_a_graph_does_what_its_calls_do(void **state)
{
    static float from[WIDTH * WIDTH], want[3][ROWS * WIDTH], got[ROWS * WIDTH];
    struct step s = {.ops = load()};
    struct pl_device_graph *graph = NULL;
    struct pl_error err = {0};

    if (s.ops->open(0, NULL, &s.dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    s.ops->enter(s.dev);
    s.k = s.ops->kernels(s.dev, PL_REAL_F32);
    s.x = get(&s, ROWS * WIDTH * sizeof(float));
    s.w = get(&s, sizeof(from));
    s.y = get(&s, sizeof(got));
    s.z = get(&s, sizeof(got));
    s.draw = get(&s, sizeof(*s.draw));
    for (size_t i = 0; i < PL_COUNT(from); i++)
        from[i] = (float)(i % 251) - 125;
    s.ops->upload(s.dev, s.x, from, ROWS * WIDTH * sizeof(float));
    s.ops->upload(s.dev, s.w, from, sizeof(from));
    for (uint64_t draw = 0; draw < 3; draw++) {
        s.ops->upload(s.dev, s.draw, &draw, sizeof(draw));
        run_step(&s);
        read_step(&s, want[draw]);
    }
    assert_memory_not_equal(want[0], want[1], sizeof(got));

    if (s.ops->capture_begin(s.dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    run_step(&s);
    if (s.ops->capture_end(s.dev, &graph, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    read_step(&s, got);
    assert_memory_equal(got, want[2], sizeof(got)); /* nothing was run */
    for (uint64_t draw = 0; draw < 3; draw++) {
        s.ops->upload(s.dev, s.draw, &draw, sizeof(draw));
        assert_int_equal(s.ops->replay(s.dev, graph), 0);
        read_step(&s, got);
        assert_memory_equal(got, want[draw], sizeof(got));
    }
    s.ops->graph_free(s.dev, graph);

    /* A download during a capture fails the capture only. */
    assert_int_equal(s.ops->capture_begin(s.dev, &err), 0);
    run_step(&s);
    assert_int_equal(s.ops->download(s.dev, got, s.z, sizeof(got), &err), -EBUSY);
    assert_int_equal(s.ops->capture_end(s.dev, &graph, &err), -EIO);
    run_step(&s);
    read_step(&s, got);
    assert_memory_equal(got, want[2], sizeof(got));
    s.ops->close(s.dev);
}

/* GPT's attention: q, k and v of a token are adjacent. */
#define BATCH 2
#define HEADS 3
#define TIME 256
#define DIM 64
#define TOKEN (HEADS * DIM)
#define TOKENS (BATCH * TIME)

struct attention {
    void *qkv, *y, *lse, *dy, *dqkv;
};

/* Nobody falls back in silence: the library has done all since `before`. */
static void assert_by_library(const struct step *s, struct pl_device_calls before, uint64_t n)
{
    struct pl_device_calls now;

    s->ops->calls(s->dev, &now);
    assert_int_equal(now.own - before.own, 0);
    assert_int_equal(now.library - before.library, n);
}

static void attend(const struct pl_kernels *k, const struct attention *on)
{
    const struct pl_attention_strides three = {TIME * 3 * TOKEN, 3 * TOKEN, DIM};
    const struct pl_attention_strides one = {TIME * TOKEN, TOKEN, DIM};
    size_t shift = TOKEN * pl_real_size(k->real);
    struct pl_attention_args a = {
        .batch = BATCH,
        .heads = HEADS,
        .time = TIME,
        .keys = TIME,
        .dim = DIM,
        .causal = true,
        .scale = 0.125,
        .q = on->qkv,
        .k = (char *)on->qkv + shift,
        .v = (char *)on->qkv + 2 * shift,
        .y = on->y,
        .lse = on->lse,
        .dy = on->dy,
        .dq = on->dqkv,
        .dk = (char *)on->dqkv + shift,
        .dv = (char *)on->dqkv + 2 * shift,
        .q_at = three,
        .k_at = three,
        .v_at = three,
        .dq_at = three,
        .dk_at = three,
        .dv_at = three,
        .y_at = one,
        .dy_at = one,
    };

    k->attention_forward(&a);
    k->attention_backward(&a);
}

/* n numbers of bf16's 8 bits, between -1 and 1; as f32 and as bf16. */
static void make_numbers(float *f32, uint16_t *bf16, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        bf16[i] = pl_half_of_f32(PL_HALF_BF16, (float)((int)(seed >> 16 & 255) - 127) / 128);
        f32[i] = pl_f32_of_half(PL_HALF_BF16, bf16[i]);
    }
}

static void compare_numbers(
    const struct pl_device_ops *ops, struct pl_device *dev, void *at, const float *want, size_t n)
{
    uint16_t *got = malloc(n * sizeof(*got));
    struct pl_error err = {0};
    double largest = 0;

    assert_non_null(got);
    if (ops->download(dev, got, at, n * sizeof(*got), &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++) {
        double x = (double)pl_f32_of_half(PL_HALF_BF16, got[i]);

        if (!(fabs(x - (double)want[i]) <= 0.02 * largest))
            fail_msg("number %zu is %g, not %g", i, x, (double)want[i]);
    }
    free(got);
}

/* By cuDNN, which has all of it. */
static void test_attention_in_bf16_is_refs(void **state)
{
    static float x[TOKENS * 3 * TOKEN], dx[TOKENS * 3 * TOKEN], y[TOKENS * TOKEN],
        dy[TOKENS * TOKEN], lse[TOKENS * HEADS];
    static uint16_t x16[TOKENS * 3 * TOKEN], dy16[TOKENS * TOKEN];
    struct step s = {.ops = load()};
    struct pl_device_calls before;
    struct attention there;
    struct pl_error err = {0};

    make_numbers(x, x16, PL_COUNT(x), 1);
    make_numbers(dy, dy16, PL_COUNT(dy), 2);
    attend(pl_kernels_ref(PL_REAL_F32), &(struct attention){x, y, lse, dy, dx});
    if (s.ops->open(0, NULL, &s.dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    s.ops->enter(s.dev);
    there = (struct attention){get(&s, sizeof(x16)), get(&s, sizeof(dy16)), get(&s, sizeof(lse)),
                               get(&s, sizeof(dy16)), get(&s, sizeof(x16))};
    s.ops->calls(s.dev, &before);
    for (int again = 0; again < 2; again++) {
        s.ops->upload(s.dev, there.qkv, x16, sizeof(x16));
        s.ops->upload(s.dev, there.dy, dy16, sizeof(dy16));
        attend(s.ops->kernels(s.dev, PL_REAL_BF16), &there);
        compare_numbers(s.ops, s.dev, there.y, y, PL_COUNT(y));
        compare_numbers(s.ops, s.dev, there.dqkv, dx, PL_COUNT(dx));
    }
    assert_by_library(&s, before, 4);
    s.ops->close(s.dev);
}

/* GPT-2's products in bf16, small: each by cublasLt, and so many kernels as it takes. */
static void test_products_are_by_the_library(void **state)
{
    struct step s = {.ops = load()};
    struct pl_device_calls before;
    struct pl_error err = {0};
    struct pl_linear_args a = {.rows = 128, .in = 256, .out = 512, .act = PL_ACT_GELU_TANH};
    const struct pl_kernels *k;

    if (s.ops->open(0, NULL, &s.dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    s.ops->enter(s.dev);
    k = s.ops->kernels(s.dev, PL_REAL_BF16);
    a.x = get(&s, a.rows * a.in * 2);
    a.w = get(&s, a.out * a.in * 2);
    a.b = get(&s, a.out * 2);
    a.y = get(&s, a.rows * a.out * 2);
    a.pre = get(&s, a.rows * a.out * 2);
    a.dy = a.dz = get(&s, a.rows * a.out * 2);
    a.dx = get(&s, a.rows * a.in * 2);
    a.dw = get(&s, a.out * a.in * 2);
    a.db = get(&s, a.out * 2);
    s.ops->zero(s.dev, (void *)(uintptr_t)a.x, a.rows * a.in * 2);
    s.ops->zero(s.dev, (void *)(uintptr_t)a.w, a.out * a.in * 2);
    s.ops->zero(s.dev, (void *)(uintptr_t)a.b, a.out * 2);
    s.ops->zero(s.dev, (void *)(uintptr_t)a.dy, a.rows * a.out * 2);
    s.ops->calls(s.dev, &before);
    k->linear_forward(&a);
    assert_by_library(&s, before, 1);
    k->linear_backward(&a);
    assert_by_library(&s, before, 3);
    if (s.ops->sync(s.dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    s.ops->close(s.dev);
}

#define NEED_A_GPU 4 /* the last ones */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_exports_its_tables_only),
        cmocka_unit_test(test_it_counts_devices_or_says_why_not),
        cmocka_unit_test(test_tables_are_complete),
        cmocka_unit_test(test_memory_goes_there_and_back),
        cmocka_unit_test(test_a_graph_does_what_its_calls_do),
        cmocka_unit_test(test_attention_in_bf16_is_refs),
        cmocka_unit_test(test_products_are_by_the_library),
    };
    const struct pl_device_ops *ops = NULL;
    struct pl_error err = {0};
    unsigned n = 0;

    if (setenv("PLUME_PLUGIN_DIR", PL_CUDA_PLUGIN_DIR, 1) < 0)
        return 1;
    if (!getenv("PLUME_TEST_GPU")) /* suite unit, whose limit of time is short: no card is used */
        return _cmocka_run_group_tests("tests", tests, PL_COUNT(tests) - NEED_A_GPU, NULL, NULL);
    if (pl_gpu_devices(&ops, &err) == 0 && ops->count(&n, &err) == 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    if (access("/dev/nvidia0", F_OK) < 0) {
        printf("%s\n", pl_error_text(&err));
        return 77;
    }
    print_message("# what needs a GPU is not tested: %s\n", pl_error_text(&err));
    return _cmocka_run_group_tests("tests", tests, PL_COUNT(tests) - NEED_A_GPU, NULL, NULL);
}
