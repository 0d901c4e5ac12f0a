/* SPDX-License-Identifier: MIT */
/* Strategies whose runs must give the same numbers, on a linear model of the digits. */
#include "tests/engine/fit_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The loss of the whole batch, from the outputs of its parts. */
static int
give_outputs(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    plume_output(pl, "logits", fit_forward(pl, batch));
    plume_output(pl, "labels", batch->field[1]);
    return 0;
}

static int
take_outputs(struct plume_context *pl, const struct plume_outputs *outputs, plume_tensor **ret_loss)
{
    fit_current->parts = plume_parts(pl, outputs);
    *ret_loss = plume_cross_entropy(pl, plume_whole(pl, outputs, "logits"),
                                    plume_whole(pl, outputs, "labels"));
    return 0;
}

static int give_val_outputs(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_output(pl, "logits", fit_forward(pl, batch));
    plume_output(pl, "labels", batch->field[1]);
    return 0;
}

static int take_val_outputs(struct plume_context *pl, const struct plume_outputs *outputs)
{
    size_t shape[PLUME_RANK_MAX] = {0};
    plume_tensor *logits = plume_whole(pl, outputs, "logits");

    plume_shape(pl, logits, shape);
    plume_log(pl, "loss", plume_cross_entropy(pl, logits, plume_whole(pl, outputs, "labels")),
              (double)shape[0], (double)shape[0]);
    return 0;
}

static int
forget_one(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    if (batch->rows == 2)
        plume_output(pl, "logits", fit_forward(pl, batch));
    *ret_loss = plume_cross_entropy(pl, fit_forward(pl, batch), batch->field[1]);
    return 0;
}

/* One optimizer step of a loss that only dropout changes. */
static struct fit_run *
dropping(uint64_t seed, uint64_t accumulate, unsigned ranks, unsigned devices)
{
    struct fit_run *run = fit_new_run();

    run->drop = true;
    run->options.seed = seed;
    run->options.accumulate = accumulate;
    run->options.max_steps = 1;
    run->options.devices = devices;
    if (devices > 1)
        run->options.strategy = ranks > 1 ? PL_STRATEGY_DDP2 : PL_STRATEGY_DP;
    snprintf(run->hparams[0], 32, "batch_size=%u", 4 * devices);
    fit_go(run, ranks, 1);
    fit_assert_good(run);
    return run;
}

/* Every batch of a step, every rank and every device drops other elements: means over four of them
 * would be the first one's if they did not. A run repeats. */
static void test_dropout_never_repeats(void **state)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct fit_run *one = dropping(seed, 1, 1, 1), *two = dropping(seed, 2, 1, 1);
        struct fit_run *ranks = dropping(seed, 1, 2, 1), *devices = dropping(seed, 1, 1, 2);
        struct fit_run *both = dropping(seed, 1, 2, 2), *again = dropping(seed, 1, 2, 2);

        assert_true(fit_distance(one, two) > 1e-5);
        assert_true(fit_distance(one, ranks) > 1e-5);
        assert_true(fit_distance(one, devices) > 1e-5);
        assert_true(fit_distance(devices, both) > 1e-5);
        assert_true(fit_distance(ranks, two) > 1e-5);
        assert_string_equal(both->hash, again->hash);
    }
}

static void test_horovod_is_ddp_with_a_larger_rate(void **state)
{
    struct fit_run *horovod = fit_new_run(), *ddp = fit_new_run();

    horovod->options.strategy = PL_STRATEGY_HOROVOD;
    snprintf(horovod->hparams[0], 32, "lr=0.05");
    snprintf(ddp->hparams[0], 32, "lr=0.2");
    fit_go(horovod, 4, 0);
    fit_go(ddp, 4, 0);
    assert_true(fit_distance(horovod, ddp) < 1e-6); /* f32(4 * 0.05) and f32(0.2) */
    horovod = fit_new_run();
    horovod->options.strategy = PL_STRATEGY_HOROVOD;
    snprintf(horovod->hparams[0], 32, "lr=0.05");
    fit_go(horovod, 4, 2);
    assert_true(fit_distance(horovod, ddp) < 1e-6);
}

static void test_ranks_that_run_out_join(void **state)
{
    struct fit_run *run = fit_new_run();

    run->uneven = true;
    fit_go(run, 2, 0);
    assert_non_null(strstr(run->error, "rank 1 has 185 samples of training data where rank 0 has"));

    run = fit_new_run();
    run->uneven = true;
    run->options.strategy = PL_STRATEGY_HOROVOD;
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, (FIT_TRAIN_SAMPLES / 2 + 1 + 15) / 16);
}

/* Ranks that have no sample of the validation take part in it, also in that before training. */
static void test_validation_has_fewer_samples_than_ranks(void **state)
{
    struct fit_run *one = fit_new_run(), *ranks = fit_new_run();

    one->few = ranks->few = true;
    one->options.max_steps = ranks->options.max_steps = 1;
    one->options.sanity_steps = ranks->options.sanity_steps = 2;
    snprintf(one->hparams[0], 32, "batch_size=48");
    fit_go(one, 1, 0);
    fit_go(ranks, 3, 0);
    assert_true(fit_distance(one, ranks) < 1e-6);
    assert_true(isfinite(one->val_loss) && fabs(one->val_loss - ranks->val_loss) < 1e-6);
}

static struct fit_run *strategy_run(enum pl_strategy_kind kind, unsigned devices, bool ends)
{
    struct fit_run *run = fit_new_run();

    run->options.strategy = kind;
    run->options.devices = devices;
    if (ends) {
        run->module.training_step = give_outputs;
        run->module.training_step_end = take_outputs;
        run->module.validation_step = give_val_outputs;
        run->module.validation_step_end = take_val_outputs;
    }
    return run;
}

static void test_dp_is_single(void **state)
{
    static const unsigned devices[] = {1, 2, 3, 5};
    struct fit_run *single = strategy_run(PL_STRATEGY_AUTO, 1, false), *ends, *dp;

    /* 1253 = 78 * 16 + 5: with the whole batch's loss the last one is right, too. */
    ends = strategy_run(PL_STRATEGY_AUTO, 1, true);
    fit_go(single, 1, 0);
    fit_go(ends, 1, 0);
    assert_string_equal(single->hash, ends->hash);
    assert_int_equal(ends->parts, 1);
    for (size_t i = 0; i < PL_COUNT(devices); i++) {
        dp = strategy_run(PL_STRATEGY_DP, devices[i], true);
        fit_go(dp, 1, 0);
        /* Sums of 16 terms in another order, 79 steps. */
        assert_true(fit_distance(dp, single) < 2e-6);
        assert_true(fabs(dp->val_loss - single->val_loss) < 1e-5);
        /* Of 5 rows: chunks of 3 and 2; of 2, 2 and 1; of 1. */
        assert_int_equal(dp->parts, devices[i] == 1 ? 1 : devices[i] == 5 ? 5 : devices[i]);
    }
    dp = strategy_run(PL_STRATEGY_DP, 7, true); /* 16 rows: chunks of 3, six of them */
    dp->options.max_steps = 1;
    fit_go(dp, 1, 0);
    fit_assert_good(dp);
    assert_int_equal(dp->parts, 6);
}

/* Without training_step_end the means of the parts are averaged, regardless of their sizes. */
static void test_dp_averages_means(void **state)
{
    struct fit_run *single = strategy_run(PL_STRATEGY_AUTO, 1, false), *dp, *odd;

    single->options.max_steps = 78; /* whole batches */
    dp = strategy_run(PL_STRATEGY_DP, 4, false);
    dp->options.max_steps = 78;
    odd = strategy_run(PL_STRATEGY_DP, 3, false); /* 6, 6 and 4 rows */
    odd->options.max_steps = 78;
    fit_go(single, 1, 0);
    fit_go(dp, 1, 0);
    fit_go(odd, 1, 0);
    assert_true(fit_distance(dp, single) < 2e-6);
    assert_true(fit_distance(odd, single) > 1e-5);
    assert_true(fit_distance(odd, single) < 0.1);
}

static void test_dp_accumulates(void **state)
{
    struct fit_run *single = strategy_run(PL_STRATEGY_AUTO, 1, true);
    struct fit_run *dp = strategy_run(PL_STRATEGY_DP, 2, true);

    single->options.accumulate = dp->options.accumulate = 3;
    fit_go(single, 1, 0);
    fit_go(dp, 1, 0);
    assert_true(fit_distance(dp, single) < 2e-6);
}

static void test_dp_repeats_bitwise(void **state)
{
    struct fit_run *a = strategy_run(PL_STRATEGY_DP, 3, true), *b;

    b = strategy_run(PL_STRATEGY_DP, 3, true);
    fit_go(a, 1, 0);
    fit_go(b, 1, 0);
    fit_assert_good(a);
    assert_string_equal(a->hash, b->hash);
}

/* A parameter may be an output, too: the mean over parts of its squares' mean is one part's. */
static int
give_weights(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    plume_output(pl, "w", ((struct fit_net *)pl->state)->w);
    return give_outputs(pl, batch, ret_loss);
}

static int
take_weights(struct plume_context *pl, const struct plume_outputs *outputs, plume_tensor **ret_loss)
{
    unsigned n = plume_parts(pl, outputs);
    int r = take_outputs(pl, outputs, ret_loss);

    for (unsigned i = 0; i < n; i++) {
        plume_tensor *w = plume_part(pl, outputs, "w", i);
        plume_tensor *decay = plume_mean(pl, plume_mul(pl, w, w), 0, 2);

        *ret_loss = plume_add(pl, *ret_loss, plume_scale(pl, decay, 50.0 / n, 0));
    }
    return r;
}

static void test_dp_gives_parameters(void **state)
{
    for (uint64_t accumulate = 1; accumulate <= 2; accumulate++) {
        struct fit_run *run[] = {strategy_run(PL_STRATEGY_AUTO, 1, true),
                                 strategy_run(PL_STRATEGY_DP, 3, true),
                                 strategy_run(PL_STRATEGY_AUTO, 1, true)};

        for (size_t i = 0; i < PL_COUNT(run); i++) {
            run[i]->options.accumulate = accumulate;
            if (i < 2) {
                run[i]->module.training_step = give_weights;
                run[i]->module.training_step_end = take_weights;
            }
            fit_go(run[i], 1, 0);
        }
        assert_true(fit_distance(run[0], run[1]) < 2e-6);
        assert_true(fit_distance(run[0], run[2]) > 1e-3); /* the runs do differ */
    }
}

/* Two nodes of two devices, a batch of 16 a node, against two ranks with it. */
static void test_ddp2_is_ddp_of_nodes(void **state)
{
    struct fit_run *ddp2 = strategy_run(PL_STRATEGY_DDP2, 2, true);
    struct fit_run *ddp = strategy_run(PL_STRATEGY_DDP, 1, true), *fine;

    fit_go(ddp2, 2, 1);
    fit_go(ddp, 2, 1);
    assert_true(fit_distance(ddp2, ddp) < 2e-6);
    assert_int_equal(ddp2->parts, 2);
    /* And four ranks with half of it have the same mean, but other samples. */
    fine = strategy_run(PL_STRATEGY_DDP, 1, true);
    snprintf(fine->hparams[0], 32, "batch_size=8");
    fit_go(fine, 4, 2);
    fit_assert_good(fine);
    assert_true(fit_distance(ddp2, fine) > 1e-5);
}

static struct fit_run *norm_run(enum pl_strategy_kind kind, const char *batch, bool sync)
{
    struct fit_run *run = strategy_run(kind, kind == PL_STRATEGY_DP ? 2 : 1, false);

    run->norm = true;
    run->options.sync_batchnorm = sync;
    run->options.max_steps = 39; /* whole batches of 32 */
    snprintf(run->hparams[0], 32, "batch_size=%s", batch);
    return run;
}

/* Two ranks that share statistics are one with the whole batch, averages for validation included;
 * without that they are not. Devices of dp have their own, and the first one's averages count. */
static void test_batch_norm_over_ranks(void **state)
{
    struct fit_run *whole = norm_run(PL_STRATEGY_AUTO, "32", false);
    struct fit_run *sync = norm_run(PL_STRATEGY_DDP, "16", true);
    struct fit_run *own = norm_run(PL_STRATEGY_DDP, "16", false);
    struct fit_run *dp = norm_run(PL_STRATEGY_DP, "32", false), *again;

    again = norm_run(PL_STRATEGY_DP, "32", false);
    fit_go(whole, 1, 0);
    fit_go(sync, 2, 0);
    fit_go(own, 2, 1);
    fit_go(dp, 1, 0);
    fit_go(again, 1, 0);
    assert_true(fit_distance(sync, whole) < 1e-5);
    assert_true(fabs(sync->val_loss - whole->val_loss) < 1e-4);
    assert_true(fit_distance(own, whole) > 1e-4);
    assert_true(fit_distance(dp, whole) > 1e-4);
    assert_true(fit_distance(dp, whole) < 0.2);
    assert_string_equal(dp->hash, again->hash);
    dp = norm_run(PL_STRATEGY_DP, "32", true);
    fit_go(dp, 1, 0);
    assert_non_null(strstr(dp->error, "between ranks, not between the devices"));
}

/* Sums of such squares lose the variance also in f64. One GPU alone still loses it. */
static void test_batch_norm_over_ranks_far_from_0(void **state)
{
    bool gpu = getenv("PLUME_TEST_GPU");

    for (unsigned ranks = gpu ? 4 : 2; ranks <= 4; ranks += 2) {
        struct fit_run *whole =
            gpu ? norm_run(PL_STRATEGY_DDP, "16", true) : norm_run(PL_STRATEGY_AUTO, "32", false);
        struct fit_run *sync = norm_run(PL_STRATEGY_DDP, ranks == 2 ? "16" : "8", true);

        whole->far = sync->far = true;
        fit_go(whole, gpu ? 2 : 1, 0);
        fit_go(sync, ranks, ranks / 2);
        fit_assert_good(sync);
        assert_true(fit_distance(sync, whole) < 1e-5);
    }
}

/* Rank 1 has a loss for every other batch only. */
static int
skip_some(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    static unsigned n;

    if (pl->rank == 1 && n++ % 2)
        return 0;
    return fit_training_step(pl, batch, ret_loss);
}

/* Fewer parameters than a block: the first rank has all of them. */
static void test_sharded_is_ddp(void **state)
{
    static const enum plume_optimizer_kind kinds[] = {PLUME_SGD, PLUME_ADAM, PLUME_ADAMW};

    for (unsigned i = 0; i < PL_COUNT(kinds); i++) {
        struct fit_run *run[3];

        for (unsigned k = 0; k < PL_COUNT(run); k++) {
            run[k] = strategy_run(k ? PL_STRATEGY_SHARDED : PL_STRATEGY_DDP, 1, false);
            run[k]->options.shard = k == 2 ? PL_SHARD_GRAD : PL_SHARD_NONE;
            run[k]->options.optimizer = kinds[i];
            run[k]->options.deterministic = true;
            run[k]->options.clip = 0.5;
            run[k]->options.max_steps = 5;
            fit_go(run[k], i + 1, 1);
            fit_assert_good(run[k]);
        }
        assert_string_equal(run[0]->hash, run[1]->hash);
        assert_string_equal(run[0]->hash, run[2]->hash);
    }
}

/* Each rank adds up the sums of its shard, ddp the batches first. Ranks that skip a batch, too. */
static void test_sharded_gradients_accumulate(void **state)
{
    struct fit_run *run[2];

    for (unsigned k = 0; k < 2; k++) {
        run[k] = strategy_run(k ? PL_STRATEGY_SHARDED : PL_STRATEGY_DDP, 1, false);
        run[k]->options.shard = k ? PL_SHARD_GRAD : PL_SHARD_NONE;
        run[k]->options.accumulate = 3;
        run[k]->options.precision = PL_PRECISION_64;
        run[k]->module.training_step = skip_some;
        fit_go(run[k], 3, 2);
        fit_assert_good(run[k]);
    }
    /* Parameters of about 1 in f64, rounded to f32 by fit_train(). */
    assert_true(fit_distance(run[0], run[1]) < 1e-6);
    assert_string_not_equal(run[0]->hash, run[1]->hash); /* it did something else */
}

static void test_outputs_are_checked(void **state)
{
    struct fit_run *run = strategy_run(PL_STRATEGY_DP, 2, true);

    run->module.training_step = forget_one;
    run->module.training_step_end = NULL;
    snprintf(run->hparams[0], 32, "batch_size=3");
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "part 1 of the batch gave no output 'logits'"));
    run = strategy_run(PL_STRATEGY_DP, 2, true);
    run->module.training_step = fit_training_step;
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "is requested, but the step did not give it"));
}

static int own_reduce(struct plume_context *pl, const struct plume_bucket *bucket)
{
    fit_current->world_sum += (double)bucket->count;
    return plume_allreduce(pl, bucket->grads, bucket->count, bucket->real_bytes, bucket->scale);
}

static int configure_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    ret->bucket_bytes = 256;
    ret->reduce = own_reduce;
    return 0;
}

static void test_own_reduction(void **state)
{
    struct fit_run *own = fit_new_run(), *ours = fit_new_run();

    own->module.configure_ddp = configure_ddp;
    own->options.max_steps = ours->options.max_steps = 5;
    fit_go(own, 3, 0);
    fit_go(ours, 3, 0);
    fit_assert_good(own);
    assert_string_equal(own->hash, ours->hash);
    assert_true(own->world_sum > 0);
}

static int gather_places(struct plume_context *pl)
{
    unsigned mine = pl->rank + 1, all[RANKS_MAX] = {0};
    int r = plume_all_gather(pl, &mine, sizeof(mine), all);

    for (unsigned i = 0; r == 0 && i < pl->world_size; i++)
        if (all[i] != i + 1)
            return plume_fail(pl, -EINVAL, "gathered wrong");
    mine = 77 + pl->rank;
    r = r == 0 ? plume_broadcast(pl, &mine, sizeof(mine)) : r;
    return r == 0 && mine != 77 ? plume_fail(pl, -EINVAL, "broadcast wrong") : r;
}

static void test_modules_have_collectives(void **state)
{
    struct fit_run *run = fit_new_run();

    run->module.on_fit_end = gather_places;
    run->options.max_steps = 1;
    fit_go(run, 3, 2);
    fit_assert_good(run);
}

static void choose(enum pl_strategy_kind kind,
                   unsigned devices,
                   unsigned nodes,
                   unsigned per_node,
                   enum pl_strategy_kind want,
                   const char *words)
{
    struct pl_train_options options = pl_train_options_default();
    struct pl_world place = {.n_nodes = nodes, .local_size = per_node};
    struct pl_strategy s = {0};
    struct pl_error err = {0};
    int r;

    options.strategy = kind;
    options.devices = devices;
    r = pl_strategy_choose(&options, &place, nodes * per_node, &s, &err);
    if (words) {
        assert_int_equal(r, -EINVAL);
        assert_non_null(strstr(err.text, words));
        return;
    }
    assert_int_equal(r, 0);
    assert_int_equal(s.kind, want);
}

static void test_strategies_are_chosen(void **state)
{
    choose(PL_STRATEGY_AUTO, 1, 1, 1, PL_STRATEGY_SINGLE, NULL);
    choose(PL_STRATEGY_AUTO, 1, 1, 2, PL_STRATEGY_DDP, NULL);
    choose(PL_STRATEGY_AUTO, 1, 4, 1, PL_STRATEGY_DDP, NULL);
    choose(PL_STRATEGY_DP, 4, 1, 1, PL_STRATEGY_DP, NULL);
    choose(PL_STRATEGY_DDP2, 2, 4, 1, PL_STRATEGY_DDP2, NULL);
    choose(PL_STRATEGY_HOROVOD, 1, 4, 2, PL_STRATEGY_HOROVOD, NULL);
    choose(PL_STRATEGY_DP, 2, 4, 1, 0, "dp is one process on one node, but there are 4 nodes");
    choose(PL_STRATEGY_DP, 2, 1, 2, 0, "dp is one process, but 2 ranks");
    choose(PL_STRATEGY_DDP2, 2, 2, 2, 0, "ddp2 has one process a node, but 2 ranks");
    choose(PL_STRATEGY_SINGLE, 1, 1, 2, 0, "single has one rank, but 2");
    choose(PL_STRATEGY_DDP, 2, 1, 1, 0, "one device per rank, not 2");
    choose(PL_STRATEGY_SHARDED, 2, 1, 1, 0, "one device per rank, not 2");
    choose(PL_STRATEGY_SHARDED, 1, 1, 1, PL_STRATEGY_SHARDED, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout_never_repeats),
        cmocka_unit_test(test_horovod_is_ddp_with_a_larger_rate),
        cmocka_unit_test(test_ranks_that_run_out_join),
        cmocka_unit_test(test_validation_has_fewer_samples_than_ranks),
        cmocka_unit_test(test_dp_is_single),
        cmocka_unit_test(test_dp_averages_means),
        cmocka_unit_test(test_dp_accumulates),
        cmocka_unit_test(test_dp_gives_parameters),
        cmocka_unit_test(test_dp_repeats_bitwise),
        cmocka_unit_test(test_ddp2_is_ddp_of_nodes),
        cmocka_unit_test(test_batch_norm_over_ranks),
        cmocka_unit_test(test_batch_norm_over_ranks_far_from_0),
        cmocka_unit_test(test_sharded_is_ddp),
        cmocka_unit_test(test_sharded_gradients_accumulate),
        cmocka_unit_test(test_outputs_are_checked),
        cmocka_unit_test(test_own_reduction),
        cmocka_unit_test(test_modules_have_collectives),
        cmocka_unit_test(test_strategies_are_chosen),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
