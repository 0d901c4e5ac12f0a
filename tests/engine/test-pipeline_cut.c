/* SPDX-License-Identifier: MIT */
/* The cut of a pipeline on emulated devices: it moves away from a slow one with all that belongs to
 * the ops, and keeps to each one's memory. */
#include "tests/engine/pipeline_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A device that becomes slow gives ops away, and what belongs to them goes along: the parameters
 * and Adam's state are those of one process. */
static void test_the_cut_moves_with_its_state(void **state)
{
    struct pipeline_run *one = pipeline_run_new(4, 0), *pipe;

    one->chain = 12;
    one->options.max_steps = 8;
    one->options.optimizer = PLUME_ADAM;
    one->options.clip = 0.5;
    snprintf(one->hparams[0], 32, "batch_size=8");
    snprintf(one->hparams[1], 32, "lr=1e-3");
    pipeline_run_go(one, 1, 0);
    pipe = pipeline_run_of(one, 3, 2);
    pipe->emulated = true;
    pipe->nap_ns = 400000;
    pipe->slower = 10;
    pipe->slow_rank = 1;
    pipe->options.balance_every = 1;
    pipeline_run_go(pipe, 3, 0);
    pipeline_run_alike(pipe, one, 1e-7);
    assert_true(pipe->moves >= 1);
    assert_true(pipe->own[1] < pipe->own[0] && pipe->own[1] < pipe->own[2]);
}

/* The running averages of a batch norm move with their layer: validation reads them. */
static void test_the_cut_moves_with_its_buffers(void **state)
{
    struct pipeline_run *stays = pipeline_run_of(pipeline_run_new(4, 0), 3, 2), *moves;

    stays->chain = 12;
    stays->norms = true;
    stays->options.max_steps = 8;
    snprintf(stays->hparams[0], 32, "batch_size=8");
    stays->emulated = true;
    stays->nap_ns = 400000;
    moves = pipeline_run_of(stays, 3, 2);
    moves->slower = 10;
    moves->slow_rank = 1;
    moves->options.balance_every = 1;
    pipeline_run_go(stays, 3, 0);
    pipeline_run_good(stays);
    pipeline_run_go(moves, 3, 0);
    pipeline_run_alike(moves, stays, 1e-12);
    assert_true(stays->moves == 0 && moves->moves >= 1);
}

/* The cut keeps to each device's memory, whatever the times are. */
static void test_devices_may_differ_in_memory(void **state)
{
    struct pipeline_run *one = pipeline_run_new(4, 0), *pipe;

    one->chain = 12;
    one->options.optimizer = PLUME_ADAM;
    pipeline_run_go(one, 1, 0);
    pipe = pipeline_run_of(one, 3, 2);
    pipe->emulated = true;
    pipe->small_rank = 1;
    /* A third of the node's: values, gradients and Adam's state of three layers. */
    pipe->small_bytes = (uint64_t)3 * 3 * 4 * PIPELINE_WIDTH * PIPELINE_WIDTH * sizeof(double);
    pipeline_run_go(pipe, 3, 0);
    pipeline_run_alike(pipe, one, 1e-7);
    assert_true(pipe->own[1] > 0 && pipe->own[1] <= 3 * PIPELINE_WIDTH * PIPELINE_WIDTH);
    pipe->small_bytes = 300;
    pipeline_run_go(pipe, 3, 0);
    if (!strstr(pipe->error, "no cut of the step's ops into 3 stages fits the devices' memory"))
        fail_msg("%s", pipe->error);
}

/* A stage does not keep what it computes again: so a cut fits that would not fit otherwise. */
static void test_recomputation_makes_a_cut_fit(void **state)
{
    const uint64_t tensor = 256 * PIPELINE_WIDTH * sizeof(double); /* of a microbatch */
    struct pipeline_run *one = pipeline_run_new(4, 0), *pipe;

    one->chain = 12;
    snprintf(one->hparams[0], 32, "batch_size=512");
    one->options.optimizer = PLUME_ADAM;
    pipeline_run_go(one, 1, 0);
    pipe = pipeline_run_of(one, 3, 2);
    pipe->emulated = true;
    pipe->small_rank = 0;
    /* Half a tensor less than the first layer's weights, which are as large as a tensor, with their
     * gradient and Adam's state, and its output of two microbatches. */
    pipe->small_bytes = 3 * (2 * tensor + tensor / 2);
    pipeline_run_go(pipe, 3, 0);
    if (!strstr(pipe->error, "fits the devices' memory"))
        fail_msg("%s", pipe->error);
    pipe = pipeline_run_of(pipe, 3, 2);
    pipe->error[0] = '\0';
    pipe->options.recompute = true;
    pipeline_run_go(pipe, 3, 0);
    pipeline_run_alike(pipe, one, 1e-7);
}

/* All others end as well, and say which rank it was. */
static void test_a_stage_without_memory_is_named(void **state)
{
    struct pipeline_run *run = pipeline_run_of(pipeline_run_new(4, 0), 3, 2);

    run->emulated = true;
    run->small_rank = 1;
    assert_true(ranks_run(3, 0, pipeline_run_train, run, 0) < 30);
    if (!strstr(run->error, "rank 1 gave up: out of memory for"))
        fail_msg("%s", run->error);
}

/* ---- bench/pipeline.py: four emulated devices; $PLUME_BENCH_PIPELINE: microseconds of a nap ----
 */

#define BENCH_STEPS 9
#define BENCH_LAST 2 /* steps that count */
#define BENCH_STAGES 4
#define BENCH_MICROBATCHES 64 /* so that one slow stage counts, and not the fill */
#define BENCH_BUBBLES (PL_PIPE_MICROBATCHES * BENCH_STAGES) /* as many as a run has by itself */

/* Seconds of a step. slow: the rank at half speed, or -1. */
static double
bench_run(int slow, uint64_t balance_every, unsigned microbatches, long naps, double *ret_busy)
{
    struct pipeline_run *run = pipeline_run_new(1, 0);
    double busy = 0;

    run->chain = PIPELINE_CHAIN_MAX; /* with the first and last layer: 7 each */
    run->options.max_steps = BENCH_STEPS;
    run->options.limit[PLUME_VALIDATE] = (struct pl_limit){.value = 0};
    run->options.sanity_steps = 0;
    snprintf(run->hparams[0], 32, "batch_size=%u", microbatches);
    run = pipeline_run_of(run, BENCH_STAGES, microbatches);
    run->emulated = true;
    run->nap_ns = strtol(getenv("PLUME_BENCH_PIPELINE"), NULL, 10) * 1000 * naps;
    run->slower = 2;
    run->slow_rank = slow;
    run->options.balance_every = balance_every;
    pipeline_run_go(run, BENCH_STAGES, 0);
    pipeline_run_good(run);
    for (unsigned i = 0; i < BENCH_STAGES; i++)
        busy = PL_MAX(busy, run->busy_s[i]);
    if (ret_busy)
        *ret_busy = busy / BENCH_STEPS;
    return (double)(run->began[BENCH_STEPS - 1] - run->began[BENCH_STEPS - 1 - BENCH_LAST]) * 1e-9 /
           BENCH_LAST;
}

static void bench(void **state)
{
    double busy, even = bench_run(-1, 0, BENCH_BUBBLES, 2, &busy);
    double equal = bench_run(1, 0, BENCH_MICROBATCHES, 1, NULL);
    double balanced = bench_run(1, 2, BENCH_MICROBATCHES, 1, NULL);

    print_message("{\"equal_s\":%.4f,\"balanced_s\":%.4f,\"bubble\":%.4f,\"formula\":%.4f}\n",
                  equal, balanced, 1 - busy / even,
                  (BENCH_STAGES - 1.0) / (BENCH_BUBBLES + BENCH_STAGES - 1));
}

int main(void)
{
    const struct CMUnitTest benches[] = {cmocka_unit_test(bench)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cut_moves_with_its_state),
        cmocka_unit_test(test_the_cut_moves_with_its_buffers),
        cmocka_unit_test(test_devices_may_differ_in_memory),
        cmocka_unit_test(test_recomputation_makes_a_cut_fit),
        cmocka_unit_test(test_a_stage_without_memory_is_named),
    };

    if (getenv("PLUME_BENCH_PIPELINE"))
        return cmocka_run_group_tests(benches, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
