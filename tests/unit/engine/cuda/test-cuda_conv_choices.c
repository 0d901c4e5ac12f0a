/* SPDX-License-Identifier: MIT */
/* The engines of convolutions, timed: the fastest is taken and kept for the next process. */
#include "tests/unit/engine/cuda/conv_fixture.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
    size_t bytes;
    char home[64];

    new_home(home);
    start_timed(false, CARD);
    pl_cuda_alloc_stats(alloc, &before);
    assert_int_equal(timed_conv(16, PL_CONV_DATA, true, third, 9), 2);
    pl_cuda_alloc_stats(alloc, &after);
    assert_int_equal(after.in_use_bytes, before.in_use_bytes);
    bytes = 16 * plain.in * plain.height * plain.width * sizeof(float); /* of dx */
    assert_true(after.in_use_peak_bytes >= before.in_use_bytes + bytes);
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
        cmocka_unit_test(test_the_fastest_engine_is_taken_and_kept),
        cmocka_unit_test(test_ranks_take_the_choice_of_the_first),
        cmocka_unit_test(test_what_adds_is_timed_on_other_memory),
        cmocka_unit_test(test_a_candidate_wants_little_memory),
        cmocka_unit_test(test_a_choice_that_is_not_there_is_made_anew),
        cmocka_unit_test(test_a_choice_without_memory_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
