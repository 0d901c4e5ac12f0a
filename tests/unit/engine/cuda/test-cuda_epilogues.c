/* SPDX-License-Identifier: MIT */
/* Work that goes with a product: at its end or by a kernel of our own, whichever is faster. */
#include "tests/unit/engine/cuda/cublaslt_choices.h"

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

/* Products are the library's, also where a way is only tried: one of our own may add to dx. */
static void timed_sums(const struct pl_linear_args *a)
{
    assert_true(!a->dx && !a->dw);
    timed_linear_backward(a);
}

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
    timed.linear_backward = timed_sums;
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
                {"slope and sums", 30, false, false, 0},     /* each by itself is faster */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_epilogue_is_used_where_it_is_faster),
        cmocka_unit_test(test_what_adds_to_a_bias_is_not_tried),
        cmocka_unit_test(test_the_sums_of_dx),
        cmocka_unit_test(test_gelu_of_f32_is_our_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
