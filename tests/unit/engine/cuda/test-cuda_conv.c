/* SPDX-License-Identifier: MIT */
/* Convolutions asked of cuDNN: against ref, and which engines and shapes. */
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "tests/unit/engine/cuda/conv_fixture.h"

#include <cudnn.h>
#include <math.h>

static struct pl_conv2d_args draw_conv(void)
{
    struct pl_conv2d_args a = {
        .batch = 1 + draw(3),
        .in = 1 + draw(3),
        .height = 1 + draw(6),
        .width = 1 + draw(6),
        .out = 1 + draw(4),
        .kernel_h = 1 + draw(3),
        .kernel_w = 1 + draw(3),
        .stride_h = 1 + draw(2),
        .stride_w = 1 + draw(2),
        .pad_h = draw(2),
        .pad_w = draw(2),
        .relu = draw(2),
        .last = draw(2),
        .dx_add = draw(2),
        .dw_add = draw(2),
        .db_add = draw(2),
    };
    return a;
}

static void one(enum pl_real real, struct pl_conv2d_args a, size_t shift)
{
    bool bias = draw(2), dx = draw(4), dw = draw(4), db = draw(2);

    fill(real);
    for (int side = 0; side < 2; side++) {
        const struct pl_kernels *k = side ? &table[real] : pl_kernels_ref(real);

        a.x = array(side, 0, real, shift);
        a.w = array(side, 1, real, shift);
        a.b = bias ? array(side, 2, real, shift) : NULL;
        a.y = array(side, 3, real, shift);
        k->conv2d_forward(&a);
        a.dy = array(side, 4, real, shift);
        a.dx = dx ? array(side, 5, real, shift) : NULL;
        a.dw = dw ? array(side, 6, real, shift) : NULL;
        a.db = db ? array(side, 7, real, shift) : NULL;
        k->conv2d_backward(&a);
    }
    if (memcmp(memory[0], memory[1], sizeof(memory[0])) == 0)
        return;
    for (size_t i = 0; i < ARRAYS; i++)
        for (size_t j = 0; j < MOST; j++)
            if (memory[0][i][j] - memory[1][i][j] != 0)
                fail_msg("seed %llu: array %zu differs near %zu", (unsigned long long)seed, i, j);
}

static void test_convolutions_are_refs(void **state)
{
    for (int fused = 1; fused >= 0; fused--) {
        start(false);
        fake_dnn.no_fusion = !fused;
        fake_dnn.workspace[0] = 4096;
        seed = 5;
        for (unsigned i = 0; i < 300; i++)
            one(i % 2 ? PL_REAL_F64 : PL_REAL_F32, draw_conv(), draw(3) ? 0 : draw(8));
        assert_in_range(fake_dnn.runs, 500, 900);
        assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
        end_dnn();
    }
}

/* Of up to four channels, with their channels last, at every second place: cuDNN sees 16 channels
 * of squares. */
static void test_few_channels_are_done_by_squares(void **state)
{
    start(false);
    seed = 7;
    for (unsigned i = 0; i < 200; i++) {
        struct pl_conv2d_args a = {
            .batch = 1 + draw(2),
            .in = 1 + draw(5),
            .height = 1 + draw(12),
            .width = 1 + draw(12),
            .out = 1 + draw(3),
            .kernel_h = 1 + draw(7),
            .kernel_w = 1 + draw(7),
            .stride_h = 2 - (draw(6) == 0),
            .stride_w = 2 - (draw(6) == 0),
            .pad_h = draw(4),
            .pad_w = draw(4),
            .relu = draw(4) == 0,
            .last = draw(6) != 0,
            .dx_add = draw(2),
            .dw_add = draw(2),
        };
        bool squares = a.last && a.in <= 4 && a.kernel_h > 2 && a.kernel_w > 2 && a.stride_h == 2 &&
                       a.stride_w == 2 && a.height + 2 * a.pad_h >= a.kernel_h &&
                       a.width + 2 * a.pad_w >= a.kernel_w;
        unsigned before = fake_dnn.by_squares;

        one(PL_REAL_F32, a, 0);
        if ((fake_dnn.by_squares > before) != squares)
            fail_msg("case %u: %u convolutions by squares", i, fake_dnn.by_squares - before);
    }
    assert_in_range(fake_dnn.by_squares, 30, 300);
    one(PL_REAL_F32, /* a ResNet's first: 7 x 7 windows in 4 x 4 squares, not more */
        (struct pl_conv2d_args){.batch = 2,
                                .in = 3,
                                .height = 12,
                                .width = 12,
                                .out = 2,
                                .kernel_h = 7,
                                .kernel_w = 7,
                                .stride_h = 2,
                                .stride_w = 2,
                                .pad_h = 3,
                                .pad_w = 3,
                                .last = true},
        0);
    assert_int_equal(fake_dnn.square_taps, 16);
    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    end_dnn();
}

/* Squares have taps beside the windows, by which an infinite element is not multiplied. */
static void test_squares_keep_what_is_not_finite_in_its_windows(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    unsigned finite = 0, others = 0;

    start(false);
    seed = 8;
    for (unsigned i = 0; i < 100; i++) {
        struct pl_conv2d_args a = {.batch = 2,
                                   .in = 1 + draw(4),
                                   .height = 8 + draw(6),
                                   .width = 8 + draw(6),
                                   .out = 1 + draw(3),
                                   .kernel_h = 3 + draw(5),
                                   .kernel_w = 3 + draw(5),
                                   .stride_h = 2,
                                   .stride_w = 2,
                                   .pad_h = draw(4),
                                   .pad_w = draw(4),
                                   .relu = draw(2),
                                   .last = true};
        size_t n = a.batch * a.in * a.height * a.width;

        fill(PL_REAL_F32);
        for (size_t k = draw(4); k-- > 0;) {
            size_t at = draw((uint32_t)n);

            for (int side = 0; side < 2; side++)
                ((float *)memory[side][0])[at] = bad[k];
        }
        for (int side = 0; side < 2; side++) {
            a.x = array(side, 0, PL_REAL_F32, 0);
            a.w = array(side, 1, PL_REAL_F32, 0);
            a.b = i % 2 ? array(side, 2, PL_REAL_F32, 0) : NULL;
            a.y = array(side, 3, PL_REAL_F32, 0);
            (side ? &table[PL_REAL_F32] : pl_kernels_ref(PL_REAL_F32))->conv2d_forward(&a);
        }
        for (size_t k = 0; k < MOST; k++) {
            float want = ((float *)memory[0][3])[k], got = ((float *)memory[1][3])[k];

            finite += isfinite(want) != 0;
            others += !isfinite(want);
            if (!(got == want || (isnan(got) && isnan(want))))
                fail_msg("case %u: y[%zu] is %g, not %g", i, k, (double)got, (double)want);
        }
    }
    assert_in_range(fake_dnn.by_squares, 100, 100);
    if (finite < 1000 || others < 300)
        fail_msg("%u are finite, and %u are not", finite, others);
    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    end_dnn();
}

static void test_without_an_engine_it_is_our_own(void **state)
{
    start(false);
    fake_dnn.engines = 0;
    seed = 6;
    for (unsigned i = 0; i < 60; i++)
        one(i % 2 ? PL_REAL_F64 : PL_REAL_F32, draw_conv(), 0);
    assert_int_equal(fake_dnn.runs, 0);
    end_dnn();
}

static unsigned
engine_taken(enum pl_real real, bool tf32, const int *notes, int64_t first_workspace)
{
    struct pl_conv2d_args a = plain;
    unsigned taken;

    start(tf32);
    fake_dnn.engines = 4;
    memcpy(fake_dnn.note, notes, fake_dnn.engines * sizeof(*notes));
    fake_dnn.workspace[0] = first_workspace;
    a.x = array(1, 0, real, 0);
    a.w = array(1, 1, real, 0);
    a.y = array(1, 3, real, 0);
    table[real].conv2d_forward(&a);
    assert_int_equal(fake_dnn.runs, 1);
    taken = fake_dnn.taken;
    table[real].conv2d_forward(&a);
    assert_int_equal(fake_dnn.runs, 2);
    assert_int_equal(fake_dnn.asked, 1); /* once per shape */
    end_dnn();
    return taken;
}

static void test_engines_are_exact_and_repeatable(void **state)
{
    const int random[] = {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_WINOGRAD, -1,
                          -1};
    const int cores[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                         CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, -1, -1};
    const int none[] = {-1, -1, -1, -1};

    assert_int_equal(engine_taken(PL_REAL_F32, false, random, 0), 1);
    assert_int_equal(engine_taken(PL_REAL_F64, true, &cores[1], 0), 2);
    assert_int_equal(engine_taken(PL_REAL_F32, false, cores, 0), 3);
    assert_int_equal(engine_taken(PL_REAL_F32, true, cores, 0), 0);
    assert_int_equal(engine_taken(PL_REAL_F32, false, none, 0), 0);
    assert_int_equal(engine_taken(PL_REAL_F32, false, none, (int64_t)PL_DNN_WORKSPACE + 1), 1);
}

/* f32 without tensor cores: the first engine that may be is far down. */
static void test_long_lists_are_read_to_their_end(void **state)
{
    struct pl_conv2d_args a = with_arrays();

    start(false);
    fake_dnn.engines = FAKE_DNN_ENGINES;
    for (size_t i = 0; i + 1 < FAKE_DNN_ENGINES; i++)
        fake_dnn.note[i] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_int_equal(fake_dnn.runs, 1);
    assert_int_equal(fake_dnn.taken, FAKE_DNN_ENGINES - 1);
    assert_int_equal(fake_dnn.asked, 1);
    end_dnn();
}

static void test_types_have_cudnns_names(void **state)
{
    struct pl_conv_key key;
    const int want[] = {[PL_REAL_F32] = CUDNN_DATA_FLOAT,
                        [PL_REAL_F64] = CUDNN_DATA_DOUBLE,
                        [PL_REAL_BF16] = CUDNN_DATA_BFLOAT16,
                        [PL_REAL_F16] = CUDNN_DATA_HALF};

    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F16; real++) {
        assert_true(pl_conv_key_of(&plain, PL_CONV_FORWARD, real, true, NULL, &key));
        assert_int_equal(pl_cudnn_type(&key), want[real]);
        assert_int_equal(key.tf32, real == PL_REAL_F32);
    }
}

static void test_empty_and_huge_ones_are_not_asked_for(void **state)
{
    struct pl_conv2d_args a = plain;
    struct pl_conv_key key;

    a.kernel_h = 5; /* longer than the axis */
    assert_false(pl_conv_key_of(&a, PL_CONV_FORWARD, PL_REAL_F32, false, NULL, &key));
    a = plain;
    a.batch = 0;
    assert_false(pl_conv_key_of(&a, PL_CONV_DATA, PL_REAL_F32, false, NULL, &key));
    a.batch = (size_t)1 << 27; /* 2^27 * 2 * 16 elements */
    assert_false(pl_conv_key_of(&a, PL_CONV_DATA, PL_REAL_F32, false, NULL, &key));
    a.batch = (size_t)1 << 25;
    assert_true(pl_conv_key_of(&a, PL_CONV_DATA, PL_REAL_F32, false, NULL, &key));
}

static void test_a_failed_run_is_reported(void **state)
{
    struct pl_conv2d_args a = plain;
    struct pl_error err = {0};

    start(false);
    fake_dnn.broken = true;
    a.x = array(1, 0, PL_REAL_F32, 0);
    a.w = array(1, 1, PL_REAL_F32, 0);
    a.y = array(1, 3, PL_REAL_F32, 0);
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_int_equal(pl_cuda_report(&status, "cuda:0", &err), -EIO);
    assert_string_equal(err.text,
                        "cudnnBackendExecute failed on cuda:0: CUDNN_STATUS_EXECUTION_FAILED");
    end_dnn();
}

/* A captured stream's cuDNN work keeps its plans and memory: neither is made during the capture. */
static void test_nothing_is_made_while_a_stream_is_captured(void **state)
{
    struct pl_conv2d_args a = plain, larger = plain;
    const char *call = NULL, *why = NULL;
    uint64_t moves;

    start(false);
    fake_dnn.workspace[0] = 4096;
    a.x = larger.x = array(1, 0, PL_REAL_F32, 0);
    a.w = larger.w = array(1, 1, PL_REAL_F32, 0);
    a.y = larger.y = array(1, 3, PL_REAL_F32, 0);
    larger.batch = 3;
    table[PL_REAL_F32].conv2d_forward(&a);
    moves = pl_cudnn_moves(libs.dnn);
    assert_true(moves > 0);

    pl_cuda_status_hold(&status);
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_false(pl_cuda_status_release(&status, &call, &why));
    assert_int_equal(fake_dnn.runs, 2);
    pl_cuda_status_hold(&status);
    table[PL_REAL_F32].conv2d_forward(&larger);
    assert_true(pl_cuda_status_release(&status, &call, &why));
    assert_string_equal(call, "cuDNN");
    assert_string_equal(why, "what it needs is not there yet");
    pl_cuda_status_hold(&status);
    assert_null(pl_cudnn_scratch(libs.dnn, 1000));
    assert_true(pl_cuda_status_release(&status, &call, &why));
    assert_int_equal(pl_cudnn_moves(libs.dnn), moves);
    assert_int_equal(fake_dnn.asked, 1);

    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    table[PL_REAL_F32].conv2d_forward(&larger);
    assert_non_null(pl_cudnn_scratch(libs.dnn, 1000));
    assert_int_equal(fake_dnn.asked, 2);
    assert_int_equal(pl_cudnn_moves(libs.dnn), moves + 1);
    end_dnn();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions_are_refs),
        cmocka_unit_test(test_few_channels_are_done_by_squares),
        cmocka_unit_test(test_squares_keep_what_is_not_finite_in_its_windows),
        cmocka_unit_test(test_without_an_engine_it_is_our_own),
        cmocka_unit_test(test_engines_are_exact_and_repeatable),
        cmocka_unit_test(test_long_lists_are_read_to_their_end),
        cmocka_unit_test(test_types_have_cudnns_names),
        cmocka_unit_test(test_empty_and_huge_ones_are_not_asked_for),
        cmocka_unit_test(test_a_failed_run_is_reported),
        cmocka_unit_test(test_nothing_is_made_while_a_stream_is_captured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
