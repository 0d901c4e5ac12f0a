/* SPDX-License-Identifier: MIT */
/* Pipelines of real ranks beside one process, or ddp, on the same samples: the same training
 * wherever the measured times cut the module, and what is refused or lost. */
#include "tests/engine/pipeline_run.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One random module in a random pipeline; $PLUME_TEST_PIPELINES: so many, from a seed. */
static void try_one(uint64_t seed)
{
    struct pl_rng rng;
    struct pipeline_run *one, *pipe;
    unsigned pipes, stages, per_node;

    pl_rng_init(&rng, seed, 11);
    one = pipeline_run_new(seed, 2 + pl_rng_below(&rng, 20));
    one->drops = pl_rng_below(&rng, 2);
    one->branches = pl_rng_below(&rng, 4) == 0;
    one->options.accumulate = 1 + pl_rng_below(&rng, 3);
    one->options.clip = pl_rng_below(&rng, 2) ? 0.3 : 0;
    one->options.optimizer = pl_rng_below(&rng, 2) ? PLUME_ADAM : PLUME_SGD;
    snprintf(one->hparams[0], 32, "batch_size=%u", 1 + (unsigned)pl_rng_below(&rng, 20));
    snprintf(one->hparams[1], 32, "lr=%g", one->options.optimizer == PLUME_ADAM ? 1e-3 : 0.05);
    pipes = 1 + (unsigned)pl_rng_below(&rng, 2);
    stages = 1 + (unsigned)pl_rng_below(&rng, 4);
    pipe = pipeline_run_of(one, stages, pl_rng_below(&rng, 9));
    pipe->options.pipe_order = pl_rng_below(&rng, 2) ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
    pipe->options.balance_every = pl_rng_below(&rng, 3);
    pipeline_run_go(one, pipes, 0);
    per_node = pl_rng_below(&rng, 4) == 0 ? stages : 0;
    pipe->options.recompute = pl_rng_below(&rng, 2);
    pipeline_run_go(pipe, pipes * stages, per_node);
    pipeline_run_alike(pipe, one, one->options.optimizer == PLUME_ADAM ? 1e-7 : 1e-9);
}

static void test_random_modules_are_those_of_one_process(void **state)
{
    const char *soak = getenv("PLUME_TEST_PIPELINES");
    unsigned long n = 8, seed = 0;

    if (soak)
        sscanf(soak, "%lu %lu", &n, &seed);
    else
        try_one(80); /* a last microbatch of one row, which needs fewer copies of views */
    for (unsigned long i = 0; i < n; i++) {
        if (soak)
            print_message("# seed %lu\n", seed + i);
        try_one(seed + i);
    }
}

/* Neither the cut between ops nor the order of microbatches changes a bit. */
static void test_cuts_and_orders_have_the_same_bits(void **state)
{
    struct pipeline_run *like = pipeline_run_new(3, 0), *runs[4];

    like->drops = like->norms = like->joins = true;
    like->options.precision = PL_PRECISION_32;
    for (unsigned i = 0; i < PL_COUNT(runs); i++) {
        runs[i] = pipeline_run_of(like, 1 + i, 3);
        runs[i]->options.pipe_order = i % 2 ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
        pipeline_run_go(runs[i], 1 + i, 0);
        pipeline_run_good(runs[i]);
    }
    for (unsigned i = 1; i < PL_COUNT(runs); i++)
        assert_string_equal(runs[i]->hash, runs[0]->hash);
}

/* A parameter that several ops use has the same gradient wherever the measured cut is, and all of
 * them the same norm. */
static void test_deterministic_cuts_have_the_same_bits(void **state)
{
    struct pipeline_run *like = pipeline_run_new(3, 20), *runs[4];

    like->chain = 2;
    like->options.deterministic = true;
    like->options.clip = 0.01;
    for (unsigned i = 0; i < PL_COUNT(runs); i++) {
        runs[i] = pipeline_run_of(like, 1 + i, 3);
        pipeline_run_go(runs[i], 1 + i, 0);
        pipeline_run_good(runs[i]);
        assert_string_equal(runs[i]->hash, runs[0]->hash);
    }
}

/* A step that leaves a layer out leaves its weights and their momentum alone: what an earlier batch
 * has used does not count, though microbatches of this one are still to come. */
static void test_a_layer_that_is_left_out_stays(void **state)
{
    struct pipeline_run *one = pipeline_run_new(6, 0), *pipe;

    one->skips = true;
    one->options.max_steps = 4;
    one->options.optimizer = PLUME_ADAM;
    snprintf(one->hparams[1], 32, "lr=1e-3");
    pipeline_run_go(one, 1, 0);
    for (unsigned order = 0; order < 2; order++) {
        pipe = pipeline_run_of(one, 2, 3); /* of 6, 6 and 4 samples */
        pipe->options.pipe_order = order ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
        pipeline_run_go(pipe, 2, 0);
        pipeline_run_alike(pipe, one, 1e-7);
    }
}

/* The last batch of an epoch is the first one whose last microbatch is shorter, and the last one of
 * its step: what the others have logged counts once. */
static void test_logged_values_are_those_of_one_process(void **state)
{
    struct pipeline_run *one = pipeline_run_new(7, 0), *pipe;

    one->options.max_steps = 1;
    one->options.accumulate = 3;
    snprintf(one->hparams[0], 32, "batch_size=418"); /* 418, 418 and 417 samples */
    pipeline_run_go(one, 1, 0);
    pipe = pipeline_run_of(one, 2, 2);
    pipeline_run_go(pipe, 2, 0);
    pipeline_run_alike(pipe, one, 1e-9);
    for (unsigned i = 0; i < PL_COUNT(one->logged); i++)
        assert_true(pipeline_run_far(pipe->logged[i], one->logged[i]) <= 1e-9);
    assert_true(one->logged[1] > 1252 && one->logged[1] < 1254);
}

/* A rank has memory for its own parameters only. */
static void test_ranks_have_their_own_parameters(void **state)
{
    struct pipeline_run *run = pipeline_run_of(pipeline_run_new(5, 12), 4, 4);
    size_t all = 0;

    pipeline_run_go(run, 8, 0);
    pipeline_run_good(run);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(run->own[i], run->own[i + 4]);
        assert_true(run->own[i] < PIPELINE_VALUES);
        all += run->own[i];
    }
    assert_true(all >= PIPELINE_VALUES && all < PIPELINE_VALUES + 64); /* with gaps */
}

static void die_at_2(struct plume_context *pl)
{
    if (pl->rank == 2 && pl->step == 1)
        raise(SIGKILL);
}

/* All others end in bounded time, and name it. */
static void test_a_lost_rank_is_named(void **state)
{
    struct pipeline_run *run = pipeline_run_of(pipeline_run_new(1, 9), 4, 4);
    double seconds;

    run->at_step = die_at_2;
    seconds = ranks_run(4, 0, pipeline_run_train, run, 1 << 2);
    assert_true(seconds < 30);
    if (!strstr(run->error, "lost rank 2"))
        fail_msg("%s", run->error);
}

static void assert_refused(struct pipeline_run *run, unsigned ranks, const char *text)
{
    pipeline_run_go(run, ranks, 0);
    if (!strstr(run->error, text))
        fail_msg("not '%s': '%s'", text, run->error);
}

static void test_what_does_not_go_is_told(void **state)
{
    struct pipeline_run *run = pipeline_run_of(pipeline_run_new(1, 0), 8, 4);

    assert_refused(run, 8, "8 stages are more than the training step's 5 ops");
    assert_refused(pipeline_run_of(pipeline_run_new(1, 0), 2, 4), 3,
                   "do not make whole pipelines of 2 stages");
    run = pipeline_run_of(pipeline_run_new(1, 0), 2, 4);
    run->no_loss = true;
    assert_refused(run, 2, "gave no loss");
    run = pipeline_run_of(pipeline_run_new(1, 0), 2, 4);
    run->options.ema = 0.9;
    assert_refused(run, 2, "no moving average");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_modules_are_those_of_one_process),
        cmocka_unit_test(test_cuts_and_orders_have_the_same_bits),
        cmocka_unit_test(test_deterministic_cuts_have_the_same_bits),
        cmocka_unit_test(test_a_layer_that_is_left_out_stays),
        cmocka_unit_test(test_logged_values_are_those_of_one_process),
        cmocka_unit_test(test_ranks_have_their_own_parameters),
        cmocka_unit_test(test_a_lost_rank_is_named),
        cmocka_unit_test(test_what_does_not_go_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
