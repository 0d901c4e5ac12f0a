/* SPDX-License-Identifier: MIT */
/* Products asked of cublasLt: against ref, through a fake that does what the descriptors say. All
 * numbers are small integers, so that every order of summing gives the same bits. */
#include "common/base/macros.h"
#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "runtime/engine/cuda/util/libs.h"
#include "runtime/engine/cuda/util/plan_cache.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/fakes/fake_cudart.h"
#include "tests/unit/engine/cuda/said.h"

#include <cuda_runtime_api.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST 4096 /* elements of an array */
#define ARRAYS 11

static struct pl_cuda_stream stream;
static struct pl_cuda_calls calls;
static struct pl_cuda_libs libs;
static struct pl_cuda_status status;
static struct pl_kernels table[2]; /* by enum pl_real: f32 and f64 over ref */
static _Alignas(256) char workspace[256];
static _Alignas(256) double memory[2][ARRAYS][MOST + 32]; /* ref's and ours */
static uint64_t seed;

struct pl_cuda_stream *pl_cuda_stream_current(void)
{
    return &stream;
}

void *pl_cuda_stream_scratch(struct pl_cuda_stream *s, size_t bytes)
{
    static _Alignas(256) char scratch[1024];

    assert_ptr_equal(s, &stream);
    assert_in_range(bytes, 1, sizeof(scratch));
    return scratch;
}

static uint32_t draw(uint32_t limit)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % limit;
}

static void *array(int side, int which, enum pl_real real, const uint8_t *shift)
{
    return (char *)memory[side][which] + shift[which] * pl_real_size(real);
}

/* The same contents on both sides, between zeros. */
static void fill(enum pl_real real)
{
    for (size_t i = 0; i < ARRAYS; i++) {
        for (size_t j = 0; j < MOST + 32; j++) {
            double x = (double)draw(5) - 2;

            if (real == PL_REAL_F64)
                memory[0][i][j] = x;
            else
                ((float *)memory[0][i])[j] = (float)x;
        }
    }
    memcpy(memory[1], memory[0], sizeof(memory[0]));
}

static double value(int side, int which, enum pl_real real, size_t i)
{
    return real == PL_REAL_F64 ? memory[side][which][i] : ((float *)memory[side][which])[i];
}

static void compare(enum pl_real real, double tolerance, const char *what)
{
    for (int i = 0; i < ARRAYS; i++) {
        for (size_t j = 0; j < MOST + 32; j++) {
            double want = value(0, i, real, j), got = value(1, i, real, j);

            if (fabs(got - want) > tolerance)
                fail_msg("seed %llu: %s: array %d [%zu] is %g, not %g", (unsigned long long)seed,
                         what, i, j, got, want);
        }
    }
}

static uint64_t fake_now(void)
{
    return fake_lt.now;
}

/* what: NULL, or the kind of card on which answers are timed. */
static void start_timed(bool tf32, const char *what)
{
    const struct pl_timing timing = {.what = what, .now_ns = fake_now};
    struct pl_cublaslt *lt = NULL;

    memset(&fake_lt, 0, sizeof(fake_lt));
    memset(&status, 0, sizeof(status));
    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F64; real++) {
        table[real] = *pl_kernels_ref(real);
        pl_cublaslt_install(&table[real]);
    }
    assert_int_equal(pl_cublaslt_create(workspace, sizeof(workspace), tf32, what ? &timing : NULL,
                                        &status, &lt, NULL),
                     0);
    calls = (struct pl_cuda_calls){0};
    libs = (struct pl_cuda_libs){.stream = &stream, .lt = lt, .calls = &calls};
    pl_cuda_libs_set(&libs);
}

static void start(bool tf32)
{
    start_timed(tf32, NULL);
}

static void end(void)
{
    pl_cublaslt_destroy(libs.lt);
    libs.lt = NULL;
    assert_int_equal(fake_lt.handles, 0);
}

static struct pl_matmul_args draw_matmul(void)
{
    struct pl_matmul_args s = {
        .batch = 1 + draw(3),
        .m = 1 + draw(12),
        .n = 1 + draw(12),
        .k = draw(13),
        .a_transposed = draw(2),
        .b_transposed = draw(2),
        .add = draw(2),
        .scale = (double[]){1, 0.5, -2}[draw(3)],
    };
    size_t loose = draw(2) ? draw(4) : 0;

    s.a_row = (s.a_transposed ? s.m : s.k) + loose;
    s.b_row = (s.b_transposed ? s.k : s.n) + loose;
    s.c_row = s.n + loose;
    s.a_batch = draw(4) ? (s.a_transposed ? s.k : s.m) * s.a_row + draw(2) * loose : 0;
    s.b_batch = draw(2) ? (s.b_transposed ? s.n : s.k) * s.b_row + draw(2) * loose : 0;
    s.c_batch = s.m * s.c_row + draw(2) * loose;
    return s;
}

static void one_matmul(enum pl_real real)
{
    struct pl_matmul_args s = draw_matmul();
    uint8_t shift[ARRAYS];

    for (size_t i = 0; i < ARRAYS; i++)
        shift[i] = draw(2) ? 0 : (uint8_t)draw(8);
    fill(real);
    for (int side = 0; side < 2; side++) {
        s.a = array(side, 0, real, shift);
        s.b = array(side, 1, real, shift);
        s.c = array(side, 2, real, shift);
        (side ? table[real] : *pl_kernels_ref(real)).matmul(&s);
    }
    compare(real, 0, "matmul");
}

static void test_matmul_is_refs(void **state)
{
    start(false);
    seed = 1;
    for (unsigned i = 0; i < 600; i++)
        one_matmul(i % 2 ? PL_REAL_F64 : PL_REAL_F32);
    assert_in_range(fake_lt.products, 500, 600); /* but for k = 0 */
    end();
}

/* All of a layer's, or a random part of it. */
static struct pl_linear_args draw_linear(bool easy)
{
    return (struct pl_linear_args){
        .rows = draw(14),
        .in = 1 + draw(14),
        .out = easy ? 8 * (1 + draw(2)) : 1 + draw(14),
        .act = (enum pl_activation)draw(PL_ACT_SIGMOID + 1),
        .x_act = (enum pl_activation)draw(PL_ACT_SIGMOID + 1),
        .dx_add = draw(2),
        .dw_add = draw(2),
        .db_add = draw(2),
    };
}

static void one_linear(enum pl_real real, bool easy)
{
    struct pl_linear_args s = draw_linear(easy);
    bool bias = draw(3), dx = draw(4), dw = draw(4), db = draw(4), in_place = draw(2);
    uint8_t shift[ARRAYS];
    char what[100];
    bool sloped = pl_activation_needs_pre(s.x_act) && !s.dx_add;

    for (size_t i = 0; i < ARRAYS; i++)
        shift[i] = easy ? 0 : (uint8_t)draw(8);
    fill(real);
    for (int side = 0; side < 2; side++) {
        const struct pl_kernels *k = side ? &table[real] : pl_kernels_ref(real);

        s.x = array(side, 0, real, shift);
        s.w = array(side, 1, real, shift);
        s.b = bias ? array(side, 2, real, shift) : NULL;
        s.y = array(side, 3, real, shift);
        s.pre = pl_activation_needs_pre(s.act) ? array(side, 4, real, shift) : NULL;
        k->linear_forward(&s);
        s.dy = array(side, 5, real, shift);
        s.dz = array(side, in_place || s.act == PL_ACT_NONE ? 5 : 6, real, shift);
        s.x_pre = sloped ? array(side, 10, real, shift) : NULL;
        s.dx = dx ? array(side, 7, real, shift) : NULL;
        s.dw = dw ? array(side, 8, real, shift) : NULL;
        s.db = db ? array(side, 9, real, shift) : NULL;
        k->linear_backward(&s);
    }
    snprintf(what, sizeof(what), "linear %zu %zu %zu act %d before %d bias %d add %d%d%d", s.rows,
             s.in, s.out, (int)s.act, sloped ? (int)s.x_act : 0, bias, s.dx_add, s.dw_add,
             s.db_add);
    compare(real, s.act > PL_ACT_RELU || sloped ? 2e-4 : 0,
            what); /* f32 of other activations' roundings */
}

static void test_linear_is_refs(void **state)
{
    start(false);
    seed = 2;
    for (unsigned i = 0; i < 900; i++)
        one_linear(i % 2 ? PL_REAL_F64 : PL_REAL_F32, i % 3 == 0);
    assert_in_range(fake_lt.products, 1500, 2700);
    end();
}

static void test_what_the_library_cannot_do_is_our_own(void **state)
{
    for (int mode = 0; mode < 4; mode++) {
        start(false);
        fake_lt.no_algorithm = mode == 0;
        fake_lt.no_epilogue = mode == 1;
        fake_lt.not_supported = mode == 2;
        if (mode == 3)
            end(); /* a stream without it */
        seed = 3;
        for (unsigned i = 0; i < 200; i++) {
            one_matmul(i % 2 ? PL_REAL_F64 : PL_REAL_F32);
            one_linear(i % 2 ? PL_REAL_F64 : PL_REAL_F32, i % 3 == 0);
        }
        assert_true(mode == 1 ? fake_lt.products > 200 : fake_lt.products == 0);
        assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
        if (mode != 3)
            end();
    }
}

static void test_epilogues_are_fused(void **state)
{
    static const struct {
        enum pl_activation act;
        bool bias;
        unsigned forward;
    } rows[] = {{PL_ACT_NONE, true, 1}, {PL_ACT_RELU, true, 1},      {PL_ACT_RELU, false, 1},
                {PL_ACT_GELU, true, 1}, {PL_ACT_GELU_TANH, true, 1}, {PL_ACT_GELU_TANH, false, 1}};
    static const uint8_t shift[ARRAYS];

    start(true);
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        struct pl_kernels bare = *pl_kernels_ref(PL_REAL_F32);
        struct pl_linear_args s = {.rows = 4, .in = 6, .out = 16, .act = rows[i].act};

        bare.linear_forward = NULL; /* were it called ... */
        if (s.act != PL_ACT_GELU)   /* the only one here in two passes */
            bare.unary_forward = NULL;
        table[PL_REAL_F32] = bare;
        pl_cublaslt_install(&table[PL_REAL_F32]);
        fake_lt.products = 0;
        fill(PL_REAL_F32);
        s.x = array(1, 0, PL_REAL_F32, shift);
        s.w = array(1, 1, PL_REAL_F32, shift);
        s.b = rows[i].bias ? array(1, 2, PL_REAL_F32, shift) : NULL;
        s.y = array(1, 3, PL_REAL_F32, shift);
        s.pre = array(1, 4, PL_REAL_F32, shift);
        table[PL_REAL_F32].linear_forward(&s);
        assert_int_equal(fake_lt.products, rows[i].forward);
    }
    /* Backward without an activation: two products, and db with dw. */
    struct pl_linear_args s = {.rows = 4, .in = 6, .out = 16};
    struct pl_kernels bare = *pl_kernels_ref(PL_REAL_F32);

    bare.linear_backward = NULL;
    table[PL_REAL_F32] = bare;
    pl_cublaslt_install(&table[PL_REAL_F32]);
    s.x = array(1, 0, PL_REAL_F32, shift);
    s.w = array(1, 1, PL_REAL_F32, shift);
    s.dy = s.dz = array(1, 5, PL_REAL_F32, shift);
    s.dx = array(1, 7, PL_REAL_F32, shift);
    s.dw = array(1, 8, PL_REAL_F32, shift);
    s.db = array(1, 9, PL_REAL_F32, shift);
    fake_lt.products = fake_lt.tf32 = 0;
    table[PL_REAL_F32].linear_backward(&s);
    assert_int_equal(fake_lt.products, 2);
    assert_int_equal(fake_lt.tf32, 2); /* as allowed above */
    /* The slope of the layer before is at the end of dx's. */
    bare.unary_backward = NULL;
    table[PL_REAL_F32] = bare;
    pl_cublaslt_install(&table[PL_REAL_F32]);
    s.in = 8;
    s.x_act = PL_ACT_GELU_TANH;
    s.x_pre = array(1, 10, PL_REAL_F32, shift);
    table[PL_REAL_F32].linear_backward(&s);
    assert_int_equal(fake_lt.products, 4);
    end();
}

static void test_algorithms_are_asked_for_once_a_shape(void **state)
{
    static const uint8_t shift[ARRAYS], odd[ARRAYS] = {1, 0};
    struct pl_matmul_args s = {
        .batch = 1, .m = 4, .n = 5, .k = 6, .a_row = 6, .b_row = 5, .c_row = 5, .scale = 1};

    start(false);
    fill(PL_REAL_F32);
    for (unsigned i = 0; i < 10; i++) {
        s.a = array(1, 0, PL_REAL_F32, shift);
        s.b = array(1, 1, PL_REAL_F32, shift);
        s.c = array(1, 2 + (int)i % 3, PL_REAL_F32, shift);
        s.scale = i;
        table[PL_REAL_F32].matmul(&s);
    }
    assert_int_equal(fake_lt.heuristics, 1);
    assert_int_equal(fake_lt.tf32, 0);
    s.a = array(1, 0, PL_REAL_F32, odd); /* another alignment may want another algorithm */
    table[PL_REAL_F32].matmul(&s);
    assert_int_equal(fake_lt.heuristics, 2);
    s.add = true;
    table[PL_REAL_F32].matmul(&s);
    assert_int_equal(fake_lt.heuristics, 3);
    fake_lt.no_algorithm = true;
    s.m = 3;
    listen_to_stderr();
    table[PL_REAL_F32].matmul(&s);
    table[PL_REAL_F32].matmul(&s);
    assert_string_equal(what_was_said(),
                        "plume: warning: cublasLt does not do this, our own kernels do: f32 "
                        "product, [3, 6] [6, 5], batch 1: the functionality is not supported\n");
    assert_int_equal(fake_lt.heuristics, 4); /* that there is none is remembered as well */
    assert_int_equal(atomic_load(&calls.library), 12);
    assert_int_equal(atomic_load(&calls.own), 2);
    end();
}

static void test_shared_b_is_one_matrix(void **state)
{
    struct pl_matmul_args s = {.batch = 3,
                               .m = 4,
                               .n = 5,
                               .k = 6,
                               .a_row = 6,
                               .b_row = 5,
                               .c_row = 5,
                               .a_batch = 24,
                               .c_batch = 20,
                               .scale = 1};
    struct pl_cublaslt_key key;
    struct pl_cublaslt_data data;

    assert_true(pl_cublaslt_of_matmul(&s, PL_REAL_BF16, false, false, &key, &data));
    assert_int_equal(key.batch, 1);
    assert_int_equal(key.n, 12);
    s.a_batch = 30;
    assert_true(pl_cublaslt_of_matmul(&s, PL_REAL_BF16, false, false, &key, &data));
    assert_int_equal(key.batch, 3);
    assert_int_equal(key.align_b, 2); /* 30 elements of 2 bytes apart */
    s.n = (size_t)1 << 31;
    assert_false(pl_cublaslt_of_matmul(&s, PL_REAL_BF16, false, false, &key, &data));
}

static void test_sixteen_bits(void **state)
{
    static _Alignas(256) uint16_t a[64 * 8], b[64 * 8], c[64];
    struct pl_matmul_args s = {.batch = 1,
                               .m = 8,
                               .n = 8,
                               .k = 8,
                               .a_row = 8,
                               .b_row = 8,
                               .c_row = 8,
                               .scale = 0.5,
                               .a = a,
                               .b = b,
                               .c = c};

    start(true);
    for (enum pl_real real = PL_REAL_BF16; real <= PL_REAL_F16; real++) {
        enum pl_half half = real == PL_REAL_BF16 ? PL_HALF_BF16 : PL_HALF_F16;
        struct pl_kernels k = {.real = real};

        pl_cublaslt_install(&k);
        for (size_t i = 0; i < 64; i++) {
            a[i] = pl_half_of_f32(half, (float)(i % 5));
            b[i] = pl_half_of_f32(half, i % 9 == 0); /* one */
        }
        k.matmul(&s);
        for (size_t i = 0; i < 64; i++)
            assert_true(pl_f32_of_half(half, c[i]) == (float)(i % 5) / 2);
    }
    assert_int_equal(fake_lt.products, 2);
    assert_int_equal(fake_lt.tf32, 0);
    end();
}

/* Gradients of weights and bias in f32, which 16 bits would round; each added or not, by a library
 * that writes both in one pass, that does so in 16 bits only, and by one without epilogues. */
static void test_wide_gradients(void **state)
{
    static _Alignas(256) uint16_t x[300 * 8], dy[300 * 16], db[16];
    static _Alignas(256) float dw[16 * 8], db_wide[16];

    for (unsigned i = 0; i < 96; i++) {
        enum pl_real real = i % 2 ? PL_REAL_F16 : PL_REAL_BF16;
        enum pl_half half = i % 2 ? PL_HALF_F16 : PL_HALF_BF16;
        unsigned mode = i / 32;
        bool wide = i / 2 % 2, db_add = i / 4 % 2, dw_add = i / 8 % 2, bias = i / 16 % 2;
        struct pl_kernels k = {.real = real};
        struct pl_linear_args s = {.rows = 300,
                                   .in = 8,
                                   .out = 16,
                                   .dw_add = dw_add,
                                   .db_add = db_add,
                                   .dw_wide = true,
                                   .db_wide = wide,
                                   .x = x,
                                   .dy = dy,
                                   .dz = dy,
                                   .dw = dw,
                                   .db = !bias  ? NULL
                                         : wide ? (void *)db_wide
                                                : (void *)db};
        float start_w = dw_add ? (float)0x1p-12 : 0, of_one = mode == 1 ? 2096 : 2100;

        if (mode == 2) /* db would be a kernel's of our own, which this table lacks */
            s.db = NULL;
        start(false);
        pl_cublaslt_install(&k);
        fake_lt.no_wide_bgrad = mode == 1;
        fake_lt.no_epilogue = mode == 2;
        if (real == PL_REAL_F16 || mode != 1 || !s.db || (db_add && !wide))
            of_one = 2100; /* f16 has it; what no epilogue does is done by a plain product */
        if (mode == 1 && s.db && db_add && !wide)
            s.db = NULL;
        for (size_t j = 0; j < PL_COUNT(x); j++)
            x[j] = pl_half_of_f32(half, 7);
        for (size_t j = 0; j < PL_COUNT(dy); j++)
            dy[j] = pl_half_of_f32(half, j % 16 == 3 ? 1 : 0);
        for (size_t j = 0; j < PL_COUNT(dw); j++)
            dw[j] = (float)0x1p-12;
        for (size_t j = 0; j < 16; j++) {
            db[j] = pl_half_of_f32(half, 4);
            db_wide[j] = 4;
        }
        k.linear_backward(&s);
        assert_int_equal(fake_lt.products, 1);
        for (size_t j = 0; j < PL_COUNT(dw); j++)
            if (dw[j] != (j / 8 == 3 ? of_one : 0) + start_w)
                fail_msg("case %u: dw[%zu] is %.9g", i, j, (double)dw[j]);
        for (size_t j = 0; s.db && j < 16; j++) {
            float got = wide ? db_wide[j] : pl_f32_of_half(half, db[j]);

            if (got != (j == 3 ? 300 : 0) + (db_add ? 4 : 0))
                fail_msg("case %u: db[%zu] is %.9g", i, j, (double)got);
        }
        end();
    }
}

static void test_a_failed_product_is_reported(void **state)
{
    static const uint8_t shift[ARRAYS];
    struct pl_matmul_args s = {
        .batch = 1, .m = 4, .n = 5, .k = 6, .a_row = 6, .b_row = 5, .c_row = 5, .scale = 1};
    struct pl_error err = {0};

    start(false);
    s.a = array(1, 0, PL_REAL_F32, shift);
    s.b = array(1, 1, PL_REAL_F32, shift);
    s.c = array(1, 2, PL_REAL_F32, shift);
    fake_lt.broken = true;
    table[PL_REAL_F32].matmul(&s);
    assert_int_equal(pl_cuda_report(&status, "cuda:0", &err), -EIO);
    assert_string_equal(err.text,
                        "cublasLtMatmul failed on cuda:0: the GPU program failed to execute");
    end();
}

/* A product with its answers' times. Returns who has done it. */
static unsigned timed_product(size_t m, bool add, const unsigned *ns, unsigned answers)
{
    static const uint8_t shift[ARRAYS];
    struct pl_matmul_args s = {.batch = 1,
                               .m = m,
                               .n = 5,
                               .k = 6,
                               .a_row = 6,
                               .b_row = 5,
                               .c_row = 5,
                               .scale = 1,
                               .add = add,
                               .a = array(1, 0, PL_REAL_F32, shift),
                               .b = array(1, 1, PL_REAL_F32, shift),
                               .c = array(1, 2, PL_REAL_F32, shift)};

    fake_lt.answers = answers;
    memset(fake_lt.ns, 0, sizeof(fake_lt.ns));
    memcpy(fake_lt.ns, ns, answers * sizeof(*ns));
    fill(PL_REAL_F32);
    table[PL_REAL_F32].matmul(&s);
    s.a = array(0, 0, PL_REAL_F32, shift);
    s.b = array(0, 1, PL_REAL_F32, shift);
    s.c = array(0, 2, PL_REAL_F32, shift);
    pl_kernels_ref(PL_REAL_F32)->matmul(&s);
    compare(PL_REAL_F32, 0, "timed");
    return fake_lt.last;
}

static const unsigned third[] = {100, 0, 70, 80, 90, 90, 90, 90, 1};

#define CARD "card 1"

/* A home of its own with the choice for one product. `file`: where it is. */
static void new_home(char home[64], char file[192])
{
    char pattern[128];
    glob_t found;

    snprintf(home, 64, "/tmp/plume-test-XXXXXX");
    assert_non_null(mkdtemp(home));
    assert_int_equal(setenv("PLUME_HOME", home, 1), 0);
    start_timed(false, CARD);
    assert_int_equal(timed_product(4, false, third, 9), 2);
    end();
    snprintf(pattern, sizeof(pattern), "%s/gpu-products/*", home);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(file, 192, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static void end_home(const char *home)
{
    char text[128];
    glob_t found;

    snprintf(text, sizeof(text), "%s/gpu-products/*", home);
    assert_int_equal(glob(text, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        assert_int_equal(unlink(found.gl_pathv[i]), 0);
    globfree(&found);
    snprintf(text, sizeof(text), "%s/gpu-products", home);
    assert_int_equal(rmdir(text), 0);
    assert_int_equal(rmdir(home), 0);
}

static void test_the_fastest_answer_is_taken_and_kept(void **state)
{
    static const unsigned hardly[] = {100, 99, 100}, refused[] = {0, 60, 50}, later[] = {9, 8, 7};
    char home[64], file[192];
    struct stat st;

    new_home(home, file);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    start_timed(false, CARD); /* the next process: nobody is asked, whatever is faster by now */
    assert_int_equal(timed_product(4, false, later, 3), 2);
    assert_int_equal(timed_product(4, true, later, 3), 2);
    assert_int_equal(fake_lt.heuristics, 0);
    assert_int_equal(fake_lt.products, 2);
    assert_int_equal(timed_product(3, false, hardly, 3), 0);
    assert_int_equal(fake_lt.asked, 8);
    assert_int_equal(fake_lt.products, 2 + 3 * 5 + 1);
    assert_int_equal(timed_product(2, false, refused, 3), 2);
    assert_int_equal(timed_product(1, true, later, 3), 0); /* what adds cannot be tried */
    assert_int_equal(fake_lt.asked, 1);
    end();
    start_timed(false, "card 2");
    assert_int_equal(timed_product(4, false, hardly, 3), 0);
    assert_int_equal(fake_lt.heuristics, 1);
    end();
    start(false); /* --deterministic */
    assert_int_equal(timed_product(4, false, third, 9), 0);
    assert_int_equal(fake_lt.asked, 1);
    end();
    end_home(home);
}

/* A product that adds cannot be timed. Its first answer stays, in this run and the next, whatever
 * is found later for the product that writes. */
static void test_what_adds_stays_as_it_was(void **state)
{
    static const unsigned later[] = {9, 8, 7};
    char home[64], file[192];

    new_home(home, file);
    for (int run = 0; run < 2; run++) {
        start_timed(false, CARD);
        assert_int_equal(timed_product(3, true, later, 3), 0);
        assert_int_equal(timed_product(3, false, later, 3), 2);
        assert_int_equal(timed_product(3, true, later, 3), 0);
        assert_int_equal(timed_product(4, true, later, 3), 2); /* whose other was timed before */
        assert_int_equal(fake_lt.heuristics, run ? 0 : 2);
        end();
    }
    end_home(home);
}

/* Two processes that have begun together keep what both have found. */
static void test_choices_of_several_processes_are_kept(void **state)
{
    char home[64], file[192];
    struct pl_cublaslt *one, *other;

    new_home(home, file);
    start_timed(false, CARD);
    one = libs.lt;
    start_timed(false, CARD);
    other = libs.lt;
    libs.lt = one;
    assert_int_equal(timed_product(3, false, third, 9), 2);
    libs.lt = other;
    assert_int_equal(timed_product(2, false, third, 9), 2);
    pl_cublaslt_destroy(one);
    pl_cublaslt_destroy(other);
    start_timed(false, CARD);
    for (size_t m = 2; m <= 4; m++)
        assert_int_equal(timed_product(m, false, third, 9), 2);
    assert_int_equal(fake_lt.heuristics, 0);
    end();
    end_home(home);
}

/* Ranks time the same product, and one is a little later: all do as the first, now and in the next
 * run. */
static void test_ranks_take_the_choice_of_the_first(void **state)
{
    static const unsigned second[] = {100, 50, 60};
    char home[64], file[192];
    struct pl_cublaslt *one, *other;

    new_home(home, file);
    start_timed(false, CARD);
    one = libs.lt;
    start_timed(false, CARD);
    other = libs.lt;
    for (size_t m = 2; m <= 3; m++) {
        libs.lt = m == 2 ? one : other;
        assert_int_equal(timed_product(m, false, third, 9), 2);
        libs.lt = m == 2 ? other : one;
        assert_int_equal(timed_product(m, false, second, 3), 2);
        assert_int_equal(timed_product(m, false, second, 3), 2);
    }
    pl_cublaslt_destroy(one);
    pl_cublaslt_destroy(other);
    start_timed(false, CARD);
    for (size_t m = 2; m <= 3; m++)
        assert_int_equal(timed_product(m, false, second, 3), 2);
    assert_int_equal(fake_lt.heuristics, 0);
    end();
    end_home(home);
}

/* Changes one byte of a file; returns what it was. */
static char change(const char *file, long at, char to)
{
    FILE *f = fopen(file, "r+");
    char was;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    was = (char)fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(to ? to : was == '1' ? '2' : '1', f);
    assert_int_equal(fclose(f), 0);
    return was;
}

static void test_damaged_choices_are_timed_again(void **state)
{
    static const unsigned later[] = {9, 8, 7, 6};
    char home[64], file[192];

    for (int how = 0; how < 6; how++) {
        new_home(home, file);
        if (how == 0)
            change(file, -40, 0); /* of the value */
        else if (how == 1)
            change(file, 3, 'x'); /* of the head */
        else if (how == 2)
            assert_int_equal(truncate(file, 100), 0);
        else if (how == 3)
            assert_int_equal(truncate(file, 0), 0);
        else if (how == 4)
            assert_int_equal(chmod(file, 0666), 0);
        else
            change(file, -1, ' ');
        listen_to_stderr();
        start_timed(false, CARD);
        if (!strstr(what_was_said(), "choices of products are timed again: "))
            fail_msg("case %d: nothing is said", how);
        assert_int_equal(timed_product(4, false, later, 4), 3);
        assert_int_equal(fake_lt.heuristics, 1);
        end();
        start_timed(false, CARD); /* it was replaced */
        assert_int_equal(timed_product(4, false, third, 9), 3);
        assert_int_equal(fake_lt.heuristics, 0);
        end();
        end_home(home);
    }
}

/* A choice that the library refuses is asked for again. */
static void test_a_refused_choice_is_asked_for_again(void **state)
{
    static const unsigned later[] = {10, 20, 0, 30};
    char home[64], file[192];

    new_home(home, file);
    start_timed(false, CARD);
    assert_int_equal(timed_product(4, false, later, 4), 0);
    assert_int_equal(fake_lt.heuristics, 1);
    assert_int_equal(atomic_load(&calls.library), 1);
    end();
    start_timed(false, CARD); /* it was replaced */
    assert_int_equal(timed_product(4, false, later, 4), 0);
    assert_int_equal(fake_lt.heuristics, 0);
    end();
    end_home(home);
}

static void test_nothing_is_timed_while_a_graph_is_captured(void **state)
{
    static const unsigned later[] = {10, 5};
    char home[64], file[192];
    cudaGraph_t graph;

    new_home(home, file);
    start_timed(false, CARD);
    fake_cuda_reset(1 << 20);
    assert_int_equal(cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal), 0);
    assert_int_equal(timed_product(3, false, later, 2), 0);
    assert_int_equal(fake_lt.products, 1);
    assert_int_equal(cudaStreamEndCapture(stream.stream, &graph), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    assert_int_equal(cudaStreamDestroy(stream.stream), 0);
    stream.stream = NULL;
    end();
    start_timed(false, CARD);
    assert_int_equal(timed_product(3, false, later, 2), 1);
    end();
    end_home(home);
}

/* Own kernels that take time, too. */
static unsigned own_ns, own_calls;

#define TIMED(function, args)                                                                      \
    static void timed_##function(const struct args *a)                                             \
    {                                                                                              \
        fake_lt.now += own_ns;                                                                     \
        own_calls++;                                                                               \
        pl_kernels_ref(PL_REAL_F32)->function(a);                                                  \
    }
TIMED(unary_forward, pl_unary_args)
TIMED(unary_backward, pl_unary_args)
TIMED(linear_backward, pl_linear_args)

/* A layer with gelu, or the backward of the layer after one, on both sides; add: to dw. Returns the
 * calls of own kernels in the op itself. */
static unsigned layer(bool backward, bool add)
{
    static const uint8_t shift[ARRAYS];

    fill(PL_REAL_F32);
    for (int side = 0; side < 2; side++) {
        const struct pl_kernels *k = side ? &table[PL_REAL_F32] : pl_kernels_ref(PL_REAL_F32);
        struct pl_linear_args s = {.rows = 4,
                                   .in = 8,
                                   .out = 16,
                                   .act = backward ? PL_ACT_NONE : PL_ACT_GELU_TANH,
                                   .x = array(side, 0, PL_REAL_F32, shift),
                                   .w = array(side, 1, PL_REAL_F32, shift),
                                   .b = array(side, 2, PL_REAL_F32, shift),
                                   .y = array(side, 3, PL_REAL_F32, shift),
                                   .pre = array(side, 4, PL_REAL_F32, shift),
                                   .dy = array(side, 5, PL_REAL_F32, shift),
                                   .dz = array(side, 5, PL_REAL_F32, shift),
                                   .dx = array(side, 7, PL_REAL_F32, shift),
                                   .dw = array(side, 8, PL_REAL_F32, shift),
                                   .dw_add = add,
                                   .db = array(side, 9, PL_REAL_F32, shift),
                                   .x_act = PL_ACT_GELU_TANH,
                                   .x_pre = backward ? array(side, 10, PL_REAL_F32, shift) : NULL};

        for (int i = 0; i <= (side || add);
             i++) { /* again when all is chosen; what was tried is not counted */
            own_calls = 0;
            calls = (struct pl_cuda_calls){0};
            if (backward)
                k->linear_backward(&s);
            else
                k->linear_forward(&s);
            if (side)
                assert_int_equal(atomic_load(&calls.library), backward ? 2 : 1);
        }
    }
    compare(PL_REAL_F32, 1e-4, "layer"); /* gelu's last bits */
    return own_calls;
}

static void start_layers(bool tf32, const char *what, unsigned epilogue_ns, unsigned ns)
{
    struct pl_kernels timed = *pl_kernels_ref(PL_REAL_F32);

    start_timed(tf32, what);
    timed.unary_forward = timed_unary_forward;
    timed.unary_backward = timed_unary_backward;
    timed.linear_backward = timed_linear_backward;
    table[PL_REAL_F32] = timed;
    pl_cublaslt_install(&table[PL_REAL_F32]);
    fake_lt.answers = 1;
    fake_lt.ns[0] = 100;
    fake_lt.epilogue_ns = epilogue_ns;
    own_ns = ns;
}

static void test_an_epilogue_is_used_where_it_is_faster(void **state)
{
    char home[64], file[192];

    new_home(home, file);
    start_layers(true, "slow epilogues", 50, 10);
    assert_int_equal(layer(false, false), 1); /* gelu */
    assert_int_equal(layer(true, false), 2);  /* db, and gelu's slope */
    end();
    start_layers(true, "slow epilogues", 0, 500); /* the next process */
    assert_int_equal(layer(false, false), 1);
    assert_int_equal(layer(true, false), 2);
    end();
    start_layers(true, "fast epilogues", 50, 60);
    assert_int_equal(layer(false, false), 0);
    assert_int_equal(layer(true, false), 0);
    end();
    start_layers(true, "hardly slower", 11, 10);
    assert_int_equal(layer(false, false), 0);
    end();
    start_layers(true, NULL, 50, 10);
    assert_int_equal(layer(true, false), 0);
    end();
    start_layers(true, "a cold card", 50, 10);
    fake_lt.cold = 5; /* what is tried first */
    assert_int_equal(layer(false, false), 1);
    end();
    for (int run = 0; run < 2; run++) { /* what adds to dw is not timed, and stays as it was */
        start_layers(true, "slow epilogues that add", 50, 10);
        assert_int_equal(layer(true, true), 1);
        assert_int_equal(layer(true, false), 2);
        assert_int_equal(layer(true, true), 1);
        end();
    }
    end_home(home);
}

/* The bias' gradient alone, in bf16. */
static void own_db(const struct pl_linear_args *a)
{
    for (size_t j = 0; a->db && j < a->out; j++) {
        float sum = a->db_add ? a->db_wide ? ((float *)a->db)[j]
                                           : pl_f32_of_half(PL_HALF_BF16, ((uint16_t *)a->db)[j])
                              : 0;

        for (size_t r = 0; r < a->rows; r++)
            sum += pl_f32_of_half(PL_HALF_BF16, ((const uint16_t *)a->dy)[r * a->out + j]);
        if (a->db_wide)
            ((float *)a->db)[j] = sum;
        else
            ((uint16_t *)a->db)[j] = pl_half_of_f32(PL_HALF_BF16, sum);
    }
}

/* Tries would add to the bias' gradient, also where that of the weights is only written. */
static void test_what_adds_to_a_bias_is_not_tried(void **state)
{
    static _Alignas(256) uint16_t x[4 * 8], dy[4 * 16], db[16];
    static _Alignas(256) float dw[16 * 8], db_wide[16];
    char home[64], file[192];

    new_home(home, file);
    for (unsigned i = 0; i < 8; i++) {
        bool wide = i % 2, narrow_only = i / 2 % 2;
        struct pl_kernels k = {.real = PL_REAL_BF16, .linear_backward = own_db};
        struct pl_linear_args s = {.rows = 4,
                                   .in = 8,
                                   .out = 16,
                                   .dw_wide = true,
                                   .db_add = true,
                                   .db_wide = wide,
                                   .x = x,
                                   .dy = dy,
                                   .dz = dy,
                                   .dw = dw,
                                   .db = wide ? (void *)db_wide : (void *)db};

        start_timed(false, i < 4 ? "adds to db" : "wrote db before");
        pl_cublaslt_install(&k);
        fake_lt.no_wide_bgrad = narrow_only;
        for (size_t j = 0; j < PL_COUNT(x); j++)
            x[j] = pl_half_of_f32(PL_HALF_BF16, 1);
        for (size_t j = 0; j < PL_COUNT(dy); j++)
            dy[j] = pl_half_of_f32(PL_HALF_BF16, 2);
        for (size_t j = 0; j < 16; j++) {
            db[j] = pl_half_of_f32(PL_HALF_BF16, 1);
            db_wide[j] = 1;
        }
        if (i >= 4) {
            s.db_add = false;
            k.linear_backward(&s);
            s.db_add = true;
        }
        k.linear_backward(&s);
        for (size_t j = 0; j < 16; j++) {
            float got = wide ? db_wide[j] : pl_f32_of_half(PL_HALF_BF16, db[j]);

            if (got != (i < 4 ? 1 : 8) + 8)
                fail_msg("case %u: db[%zu] is %g", i, j, (double)got);
        }
        assert_true(dw[0] == 8);
        end();
    }
    end_home(home);
}

/* The slope of gelu at 0 is a half. */
static void half_of(const struct pl_unary_args *a)
{
    for (size_t i = 0; i < a->n; i++)
        ((uint16_t *)a->dx)[i] = pl_half_of_f32(
            PL_HALF_BF16, pl_f32_of_half(PL_HALF_BF16, ((const uint16_t *)a->dy)[i]) / 2);
    fake_lt.now += own_ns;
}

static void own_sums(const struct pl_linear_args *a)
{
    assert_true(!a->dx && !a->dw && a->db);
    own_calls++;
    fake_lt.now += own_ns;
    own_db(a);
}

/* The gradient of the bias of the layer before, whose activation's slope is at the end of dx: in
 * the same pass where that is faster, else by a kernel of our own; by a library that has no such
 * epilogue; added where it is added, which is not tried. */
static void test_the_sums_of_dx(void **state)
{
    static const struct {
        const char *card;
        unsigned own_ns; /* an epilogue takes 50 */
        bool none, add;
        unsigned calls; /* of our own kernels, when all is chosen */
    } rows[] = {{"sums in the product", 60, false, false, 0},
                {"sums in the product", 10, false, true, 0}, /* chosen before */
                {"sums apart", 10, false, false, 1},
                {"sums apart", 60, false, false, 1},
                {"no epilogues", 60, true, false, 1},
                {NULL, 60, false, false, 1}, /* not timed */
                {"sums that add", 60, false, true, 1}};
    static _Alignas(256) uint16_t dz[4 * 16], w[16 * 8], pre[4 * 8], dx[4 * 8];
    static _Alignas(256) float sums[8];
    struct pl_kernels k = {
        .real = PL_REAL_BF16, .linear_backward = own_sums, .unary_backward = half_of};
    char home[64], file[192];

    new_home(home, file);
    for (size_t i = 0; i < PL_COUNT(dz); i++)
        dz[i] = pl_half_of_f32(PL_HALF_BF16, (float)(i % 3));
    for (size_t i = 0; i < PL_COUNT(w); i++)
        w[i] = pl_half_of_f32(PL_HALF_BF16, (float)(i % 2));
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        struct pl_linear_args s = {.rows = 4,
                                   .in = 8,
                                   .out = 16,
                                   .dx_sums_add = rows[i].add,
                                   .x_act = PL_ACT_GELU_TANH,
                                   .x_pre = pre,
                                   .w = w,
                                   .dy = dz,
                                   .dz = dz,
                                   .dx = dx,
                                   .dx_sums = sums};

        start_layers(true, rows[i].card, 50, rows[i].own_ns);
        fake_lt.no_epilogue = rows[i].none;
        k.linear_backward = own_sums; /* not the library's of the last case */
        pl_cublaslt_install(&k);
        for (int run = 0; run < 2; run++) {
            for (size_t j = 0; j < 8; j++)
                sums[j] = 1;
            own_calls = 0;
            calls = (struct pl_cuda_calls){0};
            k.linear_backward(&s);
            assert_int_equal(atomic_load(&calls.library), 1);
            for (size_t j = 0; j < 8; j++) {
                float want = rows[i].add;

                for (size_t r = 0; r < 4; r++)
                    want += pl_f32_of_half(PL_HALF_BF16, dx[r * 8 + j]);
                if (sums[j] != want || (j % 2 && want == rows[i].add))
                    fail_msg("case %zu: sums[%zu] is %g, not %g", i, j, (double)sums[j],
                             (double)want);
            }
        }
        assert_int_equal(own_calls, rows[i].calls);
        end();
    }
    end_home(home);
}

/* The library's gelu is coarser than f32. */
static void test_gelu_of_f32_is_our_own(void **state)
{
    start_layers(false, NULL, 0, 0);
    assert_int_equal(layer(false, false), 1);
    assert_int_equal(layer(true, false), 1); /* the slope */
    end();
}

static unsigned dropped;

static void drop(void *plan)
{
    dropped += *(unsigned *)plan;
}

static void test_plan_cache_keeps_all(void **state)
{
    struct pl_plan_cache cache;
    unsigned sum = 0;

    pl_plan_cache_init(&cache, sizeof(uint32_t[3]), sizeof(unsigned));
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t key[3] = {i % 10, i / 10 % 10, i / 100};
        unsigned *value;

        assert_null(pl_plan_cache_find(&cache, key));
        value = pl_plan_cache_add(&cache, key);
        assert_non_null(value);
        assert_int_equal(*value, 0);
        *value = i;
        sum += i;
    }
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t key[3] = {i % 10, i / 10 % 10, i / 100};
        unsigned *value = pl_plan_cache_find(&cache, key);

        assert_non_null(value);
        assert_int_equal(*value, i);
    }
    assert_int_equal(cache.hits, 1000);
    assert_int_equal(cache.misses, 1000);
    dropped = 0;
    pl_plan_cache_finish(&cache, drop);
    assert_int_equal(dropped, sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_is_refs),
        cmocka_unit_test(test_linear_is_refs),
        cmocka_unit_test(test_what_the_library_cannot_do_is_our_own),
        cmocka_unit_test(test_epilogues_are_fused),
        cmocka_unit_test(test_algorithms_are_asked_for_once_a_shape),
        cmocka_unit_test(test_shared_b_is_one_matrix),
        cmocka_unit_test(test_sixteen_bits),
        cmocka_unit_test(test_wide_gradients),
        cmocka_unit_test(test_a_failed_product_is_reported),
        cmocka_unit_test(test_the_fastest_answer_is_taken_and_kept),
        cmocka_unit_test(test_what_adds_stays_as_it_was),
        cmocka_unit_test(test_choices_of_several_processes_are_kept),
        cmocka_unit_test(test_ranks_take_the_choice_of_the_first),
        cmocka_unit_test(test_damaged_choices_are_timed_again),
        cmocka_unit_test(test_a_refused_choice_is_asked_for_again),
        cmocka_unit_test(test_nothing_is_timed_while_a_graph_is_captured),
        cmocka_unit_test(test_an_epilogue_is_used_where_it_is_faster),
        cmocka_unit_test(test_what_adds_to_a_bias_is_not_tried),
        cmocka_unit_test(test_the_sums_of_dx),
        cmocka_unit_test(test_gelu_of_f32_is_our_own),
        cmocka_unit_test(test_plan_cache_keeps_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
