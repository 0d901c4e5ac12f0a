/* SPDX-License-Identifier: MIT */
/* Convolutions by cuDNN and by our own kernels: their counts, and the messages about them. */
#include "common/base/macros.h"
#include "tests/unit/engine/cuda/conv_cases.h"
#include "tests/unit/engine/cuda/conv_fixture.h"
#include "tests/unit/engine/cuda/said.h"

#include <cudnn.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_are_counted_as_the_librarys),
        cmocka_unit_test(test_a_refusal_is_told_once_in_cudnns_words),
        cmocka_unit_test(test_a_fallback_is_told_once),
        cmocka_unit_test(test_what_is_only_split_is_no_warning),
        cmocka_unit_test(test_what_is_not_done_in_squares_is_no_warning),
        cmocka_unit_test(test_a_huge_one_is_told_of_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
