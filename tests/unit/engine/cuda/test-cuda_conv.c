/* SPDX-License-Identifier: MIT */
/* Convolutions asked of cuDNN: against ref, through a fake that runs the graphs. All numbers are
 * small integers, so that every order of summing gives the same bits. */
#include "common/base/macros.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "tests/unit/engine/cuda/conv_cases.h"
#include "tests/unit/engine/cuda/cudnn_fixture.h"
#include "tests/unit/engine/cuda/said.h"

#include <cudnn.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST 8192 /* elements of an array */
#define ARRAYS 8

static struct pl_kernels table[2];                   /* by enum pl_real: f32 and f64 over ref */
static _Alignas(256) double memory[2][ARRAYS][MOST]; /* ref's and ours */

static uint64_t fake_now(void)
{
    return fake_dnn.now;
}

/* what: NULL, or the kind of card on which engines are timed. */
static void start_timed(bool tf32, const char *what)
{
    const struct pl_timing timing = {.what = what, .now_ns = fake_now};

    start_dnn(&(struct pl_device_options){.tf32 = tf32}, what ? &timing : NULL);
    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F64; real++) {
        table[real] = *pl_kernels_ref(real);
        pl_cudnn_install(&table[real]);
    }
}

static void start(bool tf32)
{
    start_timed(tf32, NULL);
}

static void *array(int side, int which, enum pl_real real, size_t shift)
{
    return (char *)memory[side][which] + shift * pl_real_size(real);
}

static void fill(enum pl_real real)
{
    for (size_t i = 0; i < ARRAYS; i++) {
        for (size_t j = 0; j < MOST; j++) {
            double x = (double)draw(5) - 2;

            if (real == PL_REAL_F64)
                memory[0][i][j] = x;
            else
                ((float *)memory[0][i])[j] = (float)x;
        }
    }
    memcpy(memory[1], memory[0], sizeof(memory[0]));
}

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

/* Counts of the library and of own kernels: those that gpu-libraries asserts on a card. */
static void test_cases_are_counted_as_the_librarys(void **state)
{
    for (unsigned i = 0; i < 4 * PL_COUNT(conv_cases); i++) {
        const struct conv_case *c = &conv_cases[i / 4];
        enum pl_real real = i % 2 ? PL_REAL_F64 : PL_REAL_F32;
        struct pl_conv2d_args a = conv_case_args(c);
        void *of[CONV_ARRAYS];

        start(false);
        fake_dnn.no_fusion = i / 2 % 2;
        fill(real);
        for (int side = 0; side < 2; side++) {
            const struct pl_kernels *k = side ? &table[real] : pl_kernels_ref(real);

            for (int which = 0; which < CONV_ARRAYS; which++) {
                assert_in_range(conv_case_count(c, (enum conv_array)which), 1, MOST);
                of[which] = array(side, which, real, 0);
            }
            conv_case_set(&a, c, of);
            k->conv2d_forward(&a);
            if (side)
                assert_int_equal(atomic_load(&calls.library), CONV_FORWARD_CALLS);
            k->conv2d_backward(&a);
        }
        assert_memory_equal(memory[0], memory[1], sizeof(memory[0]));
        assert_int_equal(atomic_load(&calls.library), CONV_FORWARD_CALLS + CONV_BACKWARD_CALLS);
        assert_int_equal(atomic_load(&calls.own), 0);
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

static const struct pl_conv2d_args plain = {.batch = 2,
                                            .in = 2,
                                            .height = 4,
                                            .width = 4,
                                            .out = 3,
                                            .kernel_h = 3,
                                            .kernel_w = 3,
                                            .stride_h = 1,
                                            .stride_w = 1};

static unsigned engine_taken(bool tf32, const int *notes, int64_t first_workspace)
{
    struct pl_conv2d_args a = plain;
    unsigned taken;

    start(tf32);
    fake_dnn.engines = 4;
    memcpy(fake_dnn.note, notes, fake_dnn.engines * sizeof(*notes));
    fake_dnn.workspace[0] = first_workspace;
    a.x = array(1, 0, PL_REAL_F32, 0);
    a.w = array(1, 1, PL_REAL_F32, 0);
    a.y = array(1, 3, PL_REAL_F32, 0);
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_int_equal(fake_dnn.runs, 1);
    taken = fake_dnn.taken;
    table[PL_REAL_F32].conv2d_forward(&a);
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
                         CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, -1};
    const int none[] = {-1, -1, -1, -1};

    assert_int_equal(engine_taken(false, random, 0), 1);
    assert_int_equal(engine_taken(false, cores, 0), 3);
    assert_int_equal(engine_taken(true, cores, 0), 0);
    assert_int_equal(engine_taken(false, none, 0), 0);
    assert_int_equal(engine_taken(false, none, (int64_t)PL_DNN_WORKSPACE + 1), 1);
}

static struct pl_conv2d_args with_arrays(void)
{
    struct pl_conv2d_args a = plain;

    a.x = array(1, 0, PL_REAL_F32, 0);
    a.w = array(1, 1, PL_REAL_F32, 0);
    a.y = array(1, 3, PL_REAL_F32, 0);
    return a;
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

static void test_a_refusal_is_told_once_in_cudnns_words(void **state)
{
    struct pl_conv2d_args a = with_arrays();

    start(false);
    fake_dnn.engines = 3;
    fake_dnn.note[0] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    fake_dnn.workspace[2] = (int64_t)PL_DNN_WORKSPACE + 1;
    fake_dnn.unmade = 2;
    listen_to_stderr();
    table[PL_REAL_F32].conv2d_forward(&a);
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_string_equal(
        what_was_said(),
        "plume: warning: cuDNN does not do this, our own kernels do: f32 convolution, x 2x2x4x4, w "
        "3x2x3x3, stride 1x1, padding 0x0: of its 6 engines 2 round or order sums in a way that is "
        "not allowed, 2 want too much memory, 2 could not be made: cudnnBackendFinalize: "
        "CUDNN_STATUS_NOT_SUPPORTED: no NVRTC\n");
    assert_int_equal(fake_dnn.runs, 0);
    assert_int_equal(atomic_load(&calls.own), 2);
    assert_int_equal(atomic_load(&calls.library), 0);
    end_dnn();
}

/* An engine that cuDNN does not recommend may be slow. */
static void test_a_fallback_is_told_once(void **state)
{
    struct pl_conv2d_args a = with_arrays();

    start(false);
    fake_dnn.engines = 2;
    fake_dnn.note[0] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    fake_dnn.fallbacks = true;
    listen_to_stderr();
    table[PL_REAL_F32].conv2d_forward(&a);
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_string_equal(what_was_said(),
                        "plume: warning: cuDNN does this by one of its fallbacks, which may be "
                        "slow: f32 convolution, x 2x2x4x4, w 3x2x3x3, stride 1x1, padding 0x0: it "
                        "recommends no engine\n");
    assert_int_equal(fake_dnn.runs, 2);
    assert_int_equal(fake_dnn.taken, 1);
    assert_int_equal(atomic_load(&calls.library), 2);
    end_dnn();
    start(false); /* nothing to tell */
    listen_to_stderr();
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_string_equal(what_was_said(), "");
    end_dnn();
}

/* Another way by cuDNN is left: nothing that a user must know. */
static void test_what_is_only_split_is_no_warning(void **state)
{
    struct pl_conv2d_args a = with_arrays();

    start(false);
    fake_dnn.no_fusion = true;
    a.relu = true;
    listen_to_stderr();
    table[PL_REAL_F32].conv2d_forward(&a);
    assert_string_equal(what_was_said(), "");
    assert_int_equal(atomic_load(&calls.own), 0);
    assert_int_equal(atomic_load(&calls.library), 1);
    end_dnn();
}

/* A convolution that can be done in squares, and its gradient of w. */
static void one_by_squares(size_t batch)
{
    struct pl_conv2d_args a = {.batch = batch,
                               .in = 3,
                               .height = 8,
                               .width = 8,
                               .out = 3,
                               .kernel_h = 3,
                               .kernel_w = 3,
                               .stride_h = 2,
                               .stride_w = 2,
                               .last = true};

    fill(PL_REAL_F32);
    for (int side = 0; side < 2; side++) {
        const struct pl_kernels *k = side ? &table[PL_REAL_F32] : pl_kernels_ref(PL_REAL_F32);

        a.x = array(side, 0, PL_REAL_F32, 0);
        a.w = array(side, 1, PL_REAL_F32, 0);
        a.y = array(side, 3, PL_REAL_F32, 0);
        a.dy = array(side, 4, PL_REAL_F32, 0);
        a.dw = array(side, 6, PL_REAL_F32, 0);
        k->conv2d_forward(&a);
        k->conv2d_backward(&a);
    }
    assert_memory_equal(memory[0], memory[1], sizeof(memory[0]));
}

/* Squares are one way of two: without an engine, or memory, for them cuDNN does the convolution as
 * it is, and no warning says that our own kernels do. */
static void test_what_is_not_done_in_squares_is_no_warning(void **state)
{
    const char *said;

    start(false);
    fake_dnn.no_squares = true;
    listen_to_stderr();
    one_by_squares(2);
    assert_string_equal(what_was_said(), "");
    assert_int_equal(fake_dnn.by_squares, 0);
    assert_int_equal(atomic_load(&calls.own), 0);
    assert_int_equal(atomic_load(&calls.library), 2);
    fake_dnn.no_squares = false;
    fake_dnn.engines = 0; /* in no way: the user's shape is named, once for each pass */
    listen_to_stderr();
    one_by_squares(1);
    one_by_squares(1);
    assert_string_equal(
        what_was_said(),
        "plume: warning: cuDNN does not do this, our own kernels do: f32 convolution, channels "
        "last, x 1x3x8x8, w 3x3x3x3, stride 2x2, padding 0x0: it has no engine\n"
        "plume: warning: cuDNN does not do this, our own kernels do: f32 convolution, gradient of "
        "w, channels last, x 1x3x8x8, w 3x3x3x3, stride 2x2, padding 0x0: it has no engine\n");
    assert_int_equal(atomic_load(&calls.own), 4);
    end_dnn();
    start(false);
    fake_cuda.fails = "cudaMalloc";
    fake_cuda.code = 2; /* cudaErrorMemoryAllocation */
    listen_to_stderr();
    one_by_squares(2);
    said = what_was_said();
    fake_cuda.fails = NULL;
    if (strstr(said, "plume: warning: an op is done in a slower way: out of memory on cuda:0: ") !=
            said ||
        strchr(said, '\n')[1])
        fail_msg("%s", said);
    assert_int_equal(atomic_load(&calls.library), 2);
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

static void do_nothing(const struct pl_conv2d_args *a) {}

static void test_a_huge_one_is_told_of_once(void **state)
{
    struct pl_kernels ours = *pl_kernels_ref(PL_REAL_F32);
    struct pl_conv2d_args a = with_arrays();

    start(false);
    ours.conv2d_forward = ours.conv2d_backward = do_nothing;
    pl_cudnn_install(&ours);
    a.batch = (size_t)1 << 27;
    a.dx = (void *)(uintptr_t)a.x;
    a.dy = a.y;
    listen_to_stderr();
    for (int again = 0; again < 2; again++) {
        ours.conv2d_forward(&a);
        ours.conv2d_backward(&a);
    }
    a.batch = 0;
    ours.conv2d_forward(&a);
    assert_string_equal(
        what_was_said(),
        "plume: warning: cuDNN does not do this, our own kernels do: f32 convolution, x "
        "134217728x2x4x4, w 3x2x3x3, stride 1x1, padding 0x0: an array has more than 2147483647 "
        "numbers\n"
        "plume: warning: cuDNN does not do this, our own kernels do: f32 convolution, gradient of "
        "x, x 134217728x2x4x4, w 3x2x3x3, stride 1x1, padding 0x0: an array has more than "
        "2147483647 numbers\n");
    assert_int_equal(atomic_load(&calls.own), 5);
    end_dnn();
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

#define CARD "card 1"

/* Has engines with these times do a convolution of `batch` images, forward or its gradient of x.
 * The result must be ref's. The engine that has done it. */
static unsigned
timed_conv(size_t batch, enum pl_conv_pass pass, bool add, const unsigned *ns, unsigned engines)
{
    struct pl_conv2d_args a = plain;

    a.batch = batch;
    a.dx_add = add;
    fake_dnn.engines = engines;
    memset(fake_dnn.ns, 0, sizeof(fake_dnn.ns));
    memcpy(fake_dnn.ns, ns, engines * sizeof(*ns));
    fill(PL_REAL_F32);
    for (int side = 0; side < 2; side++) {
        const struct pl_kernels *k = side ? &table[PL_REAL_F32] : pl_kernels_ref(PL_REAL_F32);

        a.x = array(side, 0, PL_REAL_F32, 0);
        a.w = array(side, 1, PL_REAL_F32, 0);
        a.y = array(side, 3, PL_REAL_F32, 0);
        a.dy = array(side, 4, PL_REAL_F32, 0);
        a.dx = array(side, 5, PL_REAL_F32, 0);
        if (pass == PL_CONV_FORWARD)
            k->conv2d_forward(&a);
        else
            k->conv2d_backward(&a);
    }
    assert_memory_equal(memory[0], memory[1], sizeof(memory[0]));
    return fake_dnn.last;
}

/* A run that is not timed, one that is, and two rounds of four, of each candidate. The first has no
 * best time to be compared with after its first run; the convolution itself runs once. */
#define RUNS(candidates) (10 * (candidates))

static const unsigned third[] = {100, 99, 70, 80, 90, 90, 90, 90, 1};

/* The choices go into a home of their own. */
static void new_home(char home[64])
{
    snprintf(home, 64, "/tmp/plume-test-XXXXXX");
    assert_non_null(mkdtemp(home));
    assert_int_equal(setenv("PLUME_HOME", home, 1), 0);
}

static void end_home(const char *home)
{
    char text[128];
    glob_t found;

    snprintf(text, sizeof(text), "%s/gpu-convolutions/*", home);
    assert_int_equal(glob(text, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        assert_int_equal(unlink(found.gl_pathv[i]), 0);
    globfree(&found);
    snprintf(text, sizeof(text), "%s/gpu-convolutions", home);
    assert_int_equal(rmdir(text), 0);
    assert_int_equal(rmdir(home), 0);
}

static void test_the_fastest_engine_is_taken_and_kept(void **state)
{
    static const unsigned hardly[] = {100, 98, 100}, later[] = {9, 8, 7}, slow[] = {100, 160, 90};
    char home[64];

    new_home(home);
    start_timed(false, CARD);
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, third, 9), 2); /* 8 are tried */
    assert_int_equal(fake_dnn.runs, RUNS(8));
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, later, 3), 2);
    assert_int_equal(fake_dnn.runs, RUNS(8) + 1);
    assert_int_equal(timed_conv(1, PL_CONV_FORWARD, false, hardly, 3), 0);
    fake_dnn.runs = 0;
    assert_int_equal(timed_conv(3, PL_CONV_FORWARD, false, slow, 3), 2);
    assert_int_equal(fake_dnn.runs, RUNS(2) + 2); /* what is far behind runs twice */
    fake_dnn.fails[1] = true;
    assert_int_equal(timed_conv(3, PL_CONV_DATA, false, (unsigned[]){100, 1, 90}, 3), 2);
    fake_dnn.fails[1] = false;
    assert_int_equal(pl_cuda_report(&status, "cuda:0", NULL), 0);
    end_dnn();

    start_timed(false, CARD); /* the next process: nothing is timed, whatever is faster by now */
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, later, 3), 2);
    assert_int_equal(timed_conv(1, PL_CONV_FORWARD, false, later, 3), 0);
    assert_int_equal(timed_conv(3, PL_CONV_DATA, false, later, 3), 2);
    assert_int_equal(fake_dnn.runs, 3);
    end_dnn();
    start_timed(false, "card 2");
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, hardly, 3), 0);
    assert_int_equal(fake_dnn.runs, RUNS(3));
    end_dnn();
    start(false); /* --deterministic */
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, third, 9), 0);
    assert_int_equal(fake_dnn.runs, 1);
    end_dnn();
    end_home(home);
}

/* Of a rank that has timed the same convolution a little earlier. */
static void test_ranks_take_the_choice_of_the_first(void **state)
{
    static const unsigned second[] = {100, 50, 60};
    char home[64], folder[96], other[96];

    new_home(home);
    snprintf(folder, sizeof(folder), "%s/gpu-convolutions", home);
    snprintf(other, sizeof(other), "%s/later", home);
    start_timed(false, CARD);
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, third, 9), 2);
    end_dnn();
    assert_int_equal(rename(folder, other), 0);
    start_timed(false, CARD); /* it has begun before */
    assert_int_equal(rename(other, folder), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, second, 3), 2);
    assert_int_equal(fake_dnn.runs, RUNS(3) + 1);
    end_dnn();
    start_timed(false, CARD);
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, second, 3), 2);
    assert_int_equal(fake_dnn.runs, 1);
    end_dnn();
    end_home(home);
}

/* A gradient that is added to is added once, however often the plans have run. */
static void test_what_adds_is_timed_on_other_memory(void **state)
{
    struct pl_cuda_alloc_stats before, after;
    char home[64];

    new_home(home);
    start_timed(false, CARD);
    pl_cuda_alloc_stats(alloc, &before);
    assert_int_equal(timed_conv(2, PL_CONV_DATA, true, third, 9), 2);
    pl_cuda_alloc_stats(alloc, &after);
    assert_int_equal(after.in_use_bytes, before.in_use_bytes);
    end_dnn();
    end_home(home);
}

/* A fast candidate with much more memory is not worth it; a little more is. */
static void test_a_candidate_wants_little_memory(void **state)
{
    static const unsigned faster[] = {100, 10, 50};
    char home[64];

    new_home(home);
    start_timed(false, CARD);
    fake_dnn.workspace[1] = 17 * (int64_t)MIB;
    fake_dnn.workspace[2] = 16 * (int64_t)MIB;
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, faster, 3), 2);
    fake_dnn.workspace[0] = 17 * (int64_t)MIB;
    assert_int_equal(timed_conv(3, PL_CONV_FORWARD, false, faster, 3), 1);
    end_dnn();
    end_home(home);
}

/* The file is of another cuDNN, or damaged: its engine is not at this place, or there is none. */
static void test_a_choice_that_is_not_there_is_made_anew(void **state)
{
    static const unsigned two[] = {100, 50, 60};
    char home[64];

    new_home(home);
    start_timed(false, CARD);
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, third, 9), 2);
    end_dnn();
    start_timed(false, CARD);
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, two, 2), 1);
    end_dnn();
    start_timed(false, CARD);
    fake_dnn.first_engine = 1000;
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, two, 3), 1);
    assert_int_equal(fake_dnn.runs, RUNS(3));
    end_dnn();
    start_timed(false, CARD); /* and is kept */
    fake_dnn.first_engine = 1000;
    assert_int_equal(timed_conv(2, PL_CONV_FORWARD, false, third, 9), 1);
    assert_int_equal(fake_dnn.runs, 1);
    end_dnn();
    end_home(home);
}

/* Without memory to try what is added to, the first engine does it, now and in the next run. */
static void test_a_choice_without_memory_is_kept(void **state)
{
    char home[64];

    new_home(home);
    start_timed(false, CARD);
    fake_cuda.fails = "cudaMalloc";
    fake_cuda.code = 2; /* cudaErrorMemoryAllocation */
    assert_int_equal(timed_conv(2, PL_CONV_DATA, true, third, 9), 0);
    fake_cuda.fails = NULL;
    assert_int_equal(fake_dnn.runs, 1);
    end_dnn();
    start_timed(false, CARD);
    assert_int_equal(timed_conv(2, PL_CONV_DATA, true, third, 9), 0);
    assert_int_equal(fake_dnn.runs, 1);
    end_dnn();
    end_home(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions_are_refs),
        cmocka_unit_test(test_cases_are_counted_as_the_librarys),
        cmocka_unit_test(test_few_channels_are_done_by_squares),
        cmocka_unit_test(test_squares_keep_what_is_not_finite_in_its_windows),
        cmocka_unit_test(test_without_an_engine_it_is_our_own),
        cmocka_unit_test(test_engines_are_exact_and_repeatable),
        cmocka_unit_test(test_long_lists_are_read_to_their_end),
        cmocka_unit_test(test_a_refusal_is_told_once_in_cudnns_words),
        cmocka_unit_test(test_a_fallback_is_told_once),
        cmocka_unit_test(test_what_is_only_split_is_no_warning),
        cmocka_unit_test(test_what_is_not_done_in_squares_is_no_warning),
        cmocka_unit_test(test_types_have_cudnns_names),
        cmocka_unit_test(test_empty_and_huge_ones_are_not_asked_for),
        cmocka_unit_test(test_a_huge_one_is_told_of_once),
        cmocka_unit_test(test_a_failed_run_is_reported),
        cmocka_unit_test(test_nothing_is_made_while_a_stream_is_captured),
        cmocka_unit_test(test_the_fastest_engine_is_taken_and_kept),
        cmocka_unit_test(test_ranks_take_the_choice_of_the_first),
        cmocka_unit_test(test_what_adds_is_timed_on_other_memory),
        cmocka_unit_test(test_a_candidate_wants_little_memory),
        cmocka_unit_test(test_a_choice_that_is_not_there_is_made_anew),
        cmocka_unit_test(test_a_choice_without_memory_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
