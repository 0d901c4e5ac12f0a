/* SPDX-License-Identifier: MIT */
/* Products asked of cublasLt: against ref. */
#include "runtime/engine/cuda/util/plan_cache.h"
#include "tests/unit/engine/cuda/cublaslt_fixture.h"
#include "tests/unit/engine/cuda/said.h"

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

/* In f64 cublasLt has no epilogues. A bias, or relu, costs a pass of its own then, and not the
 * library. */
static void test_without_epilogues_products_are_the_librarys(void **state)
{
    static const uint8_t shift[ARRAYS];

    for (unsigned i = 0; i < 12; i++) {
        enum pl_real real = i % 2 ? PL_REAL_F64 : PL_REAL_F32;
        bool bias = i / 2 % 2;
        struct pl_linear_args s = {
            .rows = 4,
            .in = 6,
            .out = 16,
            .act = (enum pl_activation[]){PL_ACT_NONE, PL_ACT_RELU, PL_ACT_GELU}[i / 4]};

        start(false);
        fake_lt.no_epilogue = true;
        fill(real);
        listen_to_stderr();
        for (int side = 0; side < 2; side++) {
            s.x = array(side, 0, real, shift);
            s.w = array(side, 1, real, shift);
            s.b = bias ? array(side, 2, real, shift) : NULL;
            s.y = array(side, 3, real, shift);
            s.pre = array(side, 4, real, shift);
            if (s.act != PL_ACT_GELU)
                s.pre = NULL;
            (side ? &table[real] : pl_kernels_ref(real))->linear_forward(&s);
        }
        assert_string_equal(what_was_said(), "");
        compare(real, s.act == PL_ACT_GELU ? 2e-4 : 0, "a layer in passes");
        assert_int_equal(atomic_load(&calls.library), 1);
        assert_int_equal(atomic_load(&calls.own), 0);
        end();
    }
}

static unsigned nothings;

static void linear_nothing(const struct pl_linear_args *a)
{
    nothings++;
}

static void matmul_nothing(const struct pl_matmul_args *a)
{
    nothings++;
}

/* No key has such an op, which is done many times slower all the same. */
static void test_what_is_not_asked_for_is_told_once(void **state)
{
    static _Alignas(256) uint16_t memory16[64];
    struct pl_kernels k = {
        .real = PL_REAL_BF16, .linear_forward = linear_nothing, .matmul = matmul_nothing};
    struct pl_linear_args layer = {.rows = 2,
                                   .in = 3,
                                   .out = 8,
                                   .x = memory16,
                                   .w = memory16,
                                   .b = memory16 + 1,
                                   .y = memory16};
    struct pl_matmul_args huge = {.batch = 1,
                                  .m = (size_t)1 << 31,
                                  .n = 1,
                                  .k = 1,
                                  .a_row = 1,
                                  .b_row = 1,
                                  .c_row = 1,
                                  .a = memory16,
                                  .b = memory16,
                                  .c = memory16};

    struct pl_linear_args long_layer = layer;

    long_layer.rows = (size_t)1 << 31;
    long_layer.b = memory16;
    start(false);
    pl_cublaslt_install(&k);
    nothings = 0;
    listen_to_stderr();
    for (int again = 0; again < 2; again++) {
        k.linear_forward(&layer);
        k.matmul(&huge);
        k.linear_forward(&long_layer);
    }
    layer.rows = 0;
    k.linear_forward(&layer);
    assert_string_equal(
        what_was_said(),
        "plume: warning: cublasLt does not do this, our own kernels do: bf16 layer, [2, 3] [3, 8]: "
        "it does not add the bias, or that does not begin at a multiple of 16 bytes\n"
        "plume: warning: cublasLt does not do this, our own kernels do: bf16 product, "
        "[2147483648, 1] [1, 1]: a size is above 2147483647\n"
        "plume: warning: cublasLt does not do this, our own kernels do: bf16 product, "
        "[2147483648, 3] [3, 8]: a size is above 2147483647\n");
    assert_int_equal(nothings, 7);
    assert_int_equal(fake_lt.products, 0);
    end();
}

/* As by a library that is older than its headers. */
static void test_what_cannot_be_described_is_told_once(void **state)
{
    static const uint8_t shift[ARRAYS];
    struct pl_matmul_args s = {
        .batch = 1, .m = 3, .n = 5, .k = 6, .a_row = 6, .b_row = 5, .c_row = 5, .scale = 1};

    start(false);
    fill(PL_REAL_F32);
    s.a = array(1, 0, PL_REAL_F32, shift);
    s.b = array(1, 1, PL_REAL_F32, shift);
    s.c = array(1, 2, PL_REAL_F32, shift);
    fake_lt.no_descriptors = true;
    listen_to_stderr();
    table[PL_REAL_F32].matmul(&s);
    table[PL_REAL_F32].matmul(&s);
    assert_string_equal(what_was_said(),
                        "plume: warning: cublasLt does not do this, our own kernels do: f32 "
                        "product, [3, 6] [6, 5], batch 1: other\n");
    assert_int_equal(fake_lt.heuristics, 0);
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
        cmocka_unit_test(test_without_epilogues_products_are_the_librarys),
        cmocka_unit_test(test_what_is_not_asked_for_is_told_once),
        cmocka_unit_test(test_what_cannot_be_described_is_told_once),
        cmocka_unit_test(test_shared_b_is_one_matrix),
        cmocka_unit_test(test_sixteen_bits),
        cmocka_unit_test(test_wide_gradients),
        cmocka_unit_test(test_a_failed_product_is_reported),
        cmocka_unit_test(test_plan_cache_keeps_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
