/* SPDX-License-Identifier: MIT */
/* The loop: which hooks come when, what limits and ends it, and what strategies mean, on a linear
 * classifier of digits that lives in this program. */
#include "runtime/engine/module.h"
#include "runtime/engine/trainer.h"
#include "tests/engine/ranks.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT (10 * 64 + 10)
#define TRAIN_SAMPLES 1253

/* One run: what it is asked, and what came of it (rank 0's parameters). */
struct run {
    struct pl_train_options options;
    char hparams[4][32];
    bool norm;   /* the rows of the images are normalised as channels */
    bool uneven; /* rank 1 has the validation data only */
    bool drop;   /* the loss depends on what dropout drops, and on nothing else */
    struct plume_module module;
    char error[256];
    char hash[17];
    char events[4096];
    float params[COUNT];
    uint64_t step, epoch;
    double world_sum;
    unsigned parts;
    double val_loss;
};

struct net {
    plume_tensor *w, *b;
    plume_tensor *bn[4]; /* weight, bias, mean, variance */
};

static struct run *current; /* in a rank: its run */

static void event(const char *word)
{
    size_t len = strlen(current->events);

    if (current->module.on_fit_start)
        snprintf(current->events + len, sizeof(current->events) - len, "%s ", word);
}

static const struct plume_hparam hparams[] = {{"lr", "0.1", 0, 1e6, 0, NULL},
                                              {"epochs", "1", 0, 1e6, 1, NULL},
                                              {"batch_size", "16", 1, 65536, 1, NULL},
                                              {0}};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;

    net->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){10, 64});
    net->b = plume_param(pl, "b", PLUME_INIT_ZERO, 1, (size_t[]){10});
    if (current->norm) {
        net->bn[0] = plume_param(pl, "bn.w", PLUME_INIT_ONE, 1, (size_t[]){8});
        net->bn[1] = plume_param(pl, "bn.b", PLUME_INIT_ZERO, 1, (size_t[]){8});
        net->bn[2] = plume_buffer(pl, "bn.mean", PLUME_INIT_ZERO, 1, (size_t[]){8});
        net->bn[3] = plume_buffer(pl, "bn.var", PLUME_INIT_ONE, 1, (size_t[]){8});
    }
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    bool train = stage == PLUME_TRAIN && !(current->uneven && pl->rank == 1);

    ret->n_fields = 2;
    ret->field[0].array =
        plume_open_npy(pl, train ? "digits/train-images.npy" : "digits/val-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16;
    ret->field[1].array =
        plume_open_npy(pl, train ? "digits/train-labels.npy" : "digits/val-labels.npy");
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static plume_tensor *forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;
    plume_tensor *x = batch->field[0];

    if (current->norm)
        x = plume_batchnorm(pl, x, net->bn[0], net->bn[1], net->bn[2], net->bn[3], 0, 0,
                            PLUME_IDENTITY);
    return plume_linear(pl, x, net->w, net->b, PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    event("step");
    if (current->drop) {
        struct net *net = pl->state;
        plume_tensor *ones = plume_scale(pl, batch->field[0], 0, 1);

        *ret_loss = plume_linear(pl, plume_dropout(pl, ones, 0.5), net->w, net->b, PLUME_IDENTITY);
        *ret_loss = plume_mean(pl, *ret_loss, 0, 2);
        return 0;
    }
    *ret_loss = plume_cross_entropy(pl, forward(pl, batch), batch->field[1]);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    event("val");
    plume_log(pl, "loss", plume_cross_entropy(pl, forward(pl, batch), batch->field[1]),
              (double)batch->rows, (double)batch->rows);
    return 0;
}

static int test_step(struct plume_context *pl, const struct plume_batch *batch)
{
    event("test");
    return 0;
}

#define ON(name)                                                                                   \
    static int on_##name(struct plume_context *pl)                                                 \
    {                                                                                              \
        event(#name);                                                                              \
        return 0;                                                                                  \
    }

ON(fit_start)
ON(fit_end)
ON(train_epoch_start)
ON(train_epoch_end)
ON(after_backward)
ON(before_optimizer_step)
ON(validation_start)
ON(validation_end)
ON(test_start)
ON(test_end)

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    event("{");
    return 0;
}

static int on_batch_end(struct plume_context *pl, const struct plume_batch *batch)
{
    event("}");
    return 0;
}

/* The loss of the whole batch, made of what its parts gave. */
static int
give_outputs(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    plume_output(pl, "logits", forward(pl, batch));
    plume_output(pl, "labels", batch->field[1]);
    return 0;
}

static int
take_outputs(struct plume_context *pl, const struct plume_outputs *outputs, plume_tensor **ret_loss)
{
    current->parts = plume_parts(pl, outputs);
    *ret_loss = plume_cross_entropy(pl, plume_whole(pl, outputs, "logits"),
                                    plume_whole(pl, outputs, "labels"));
    return 0;
}

static int give_val_outputs(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_output(pl, "logits", forward(pl, batch));
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
        plume_output(pl, "logits", forward(pl, batch));
    *ret_loss = plume_cross_entropy(pl, forward(pl, batch), batch->field[1]);
    return 0;
}

static struct run *new_run(void)
{
    struct run *run = ranks_shared(sizeof(*run));

    run->options = pl_train_options_default();
    run->options.seed = 7;
    run->module = (struct plume_module){
        .struct_size = sizeof(struct plume_module),
        .abi = PLUME_MODULE_ABI,
        .name = "linear",
        .hparams = hparams,
        .state_size = sizeof(struct net),
        .configure = configure,
        .data = data,
        .training_step = training_step,
        .validation_step = validation_step,
        .test_step = test_step,
    };
    return run;
}

/* Failures are kept where they belong to the test: in run->error. */
static const char *train(struct pl_comm *comm, void *shared)
{
    struct pl_report report = {.link = PL_RANK_LINK_INIT};
    struct run *run = shared;
    struct pl_trainer trainer;
    struct pl_hparams h;
    struct pl_error err = {0};
    int r;

    current = run;
    r = pl_hparams_init(&h, run->module.hparams, &err);
    for (size_t i = 0; r == 0 && i < PL_COUNT(run->hparams); i++)
        if (run->hparams[i][0])
            r = pl_hparams_set(&h, run->hparams[i], &err);
    if (r == 0)
        r = pl_trainer_init(&trainer, &run->module, &h, &run->options, comm, &report, &err);
    if (r == 0) {
        r = pl_trainer_fit(&trainer, &err);
        if (comm->rank == 0 && r == 0) {
            memcpy(run->hash, trainer.param_hash, sizeof(run->hash));
            memcpy(run->params, trainer.ctx.params.list[0]->tensor->data, 640 * sizeof(float));
            memcpy(run->params + 640, trainer.ctx.params.list[1]->tensor->data, 10 * sizeof(float));
            run->step = trainer.step;
            run->epoch = trainer.epoch;
            run->val_loss = pl_metrics_get(&trainer.metrics, "val_loss");
        }
        pl_trainer_finish(&trainer);
    }
    if (r < 0 && comm->rank == 0)
        snprintf(run->error, sizeof(run->error), "%s", pl_error_text(&err));
    pl_hparams_finish(&h);
    return NULL;
}

static void go(struct run *run, unsigned ranks, unsigned per_node)
{
    ranks_run(ranks, per_node, train, run, 0);
}

static void assert_good(const struct run *run)
{
    if (run->error[0])
        fail_msg("%s", run->error);
}

static double distance(const struct run *a, const struct run *b)
{
    double far = 0;

    assert_good(a);
    assert_good(b);
    for (size_t i = 0; i < COUNT; i++)
        far = fmax(far, fabs(a->params[i] - b->params[i]));
    return far;
}

static void hear(struct run *run)
{
    run->module.on_fit_start = on_fit_start;
    run->module.on_fit_end = on_fit_end;
    run->module.on_train_epoch_start = on_train_epoch_start;
    run->module.on_train_epoch_end = on_train_epoch_end;
    run->module.on_train_batch_start = on_batch_start;
    run->module.on_train_batch_end = on_batch_end;
    run->module.on_after_backward = on_after_backward;
    run->module.on_before_optimizer_step = on_before_optimizer_step;
    run->module.on_validation_start = on_validation_start;
    run->module.on_validation_end = on_validation_end;
    run->module.on_test_start = on_test_start;
    run->module.on_test_end = on_test_end;
}

static struct pl_limit batches(double n)
{
    return (struct pl_limit){.value = n};
}

static struct pl_limit share(double x)
{
    return (struct pl_limit){.is_share = true, .value = x};
}

/* Where `word` stands in the events, counted. */
static int count(const struct run *run, const char *word)
{
    char text[64];
    int n = 0;

    snprintf(text, sizeof(text), " %s ", word);
    for (const char *p = run->events; (p = strstr(p, text)); p++)
        n++;
    return n;
}

static void test_hooks_come_in_order(void **state)
{
    struct run *run = new_run();

    hear(run);
    run->options.limit[PLUME_TRAIN] = batches(3);
    run->options.limit[PLUME_VALIDATE] = batches(1);
    run->options.limit[PLUME_TEST] = batches(1);
    run->options.accumulate = 2;
    run->options.sanity_steps = 2;
    go(run, 1, 0);
    assert_good(run);
    /* The dry steps; sanity; two batches for a step, the last one alone. */
    assert_string_equal(
        run->events,
        "step val test fit_start val train_epoch_start "
        "{ step after_backward } { step after_backward before_optimizer_step } "
        "{ step after_backward before_optimizer_step } validation_start val validation_end "
        "train_epoch_end fit_end test_start test test_end ");
    assert_int_equal(run->step, 2);
}

static void test_limits(void **state)
{
    struct run *run = new_run();

    /* 79 batches of 16 in 1253 samples; a quarter is 19, of which each third is 6. */
    hear(run);
    run->options.limit[PLUME_TRAIN] = share(0.25);
    run->options.val_check = share(0.34);
    run->options.limit[PLUME_VALIDATE] = batches(2);
    run->options.limit[PLUME_TEST] = batches(0);
    snprintf(run->hparams[0], 32, "epochs=3");
    run->options.val_every = 2;
    go(run, 1, 0);
    assert_good(run);
    assert_int_equal(run->step, 3 * 19);
    assert_int_equal(count(run, "validation_start"), 3); /* after 6, 12 and 18, in one epoch */
    assert_int_equal(count(run, "val"), 1 + 6);
    assert_int_equal(count(run, "test"), 1);

    run = new_run();
    run->options.max_steps = 5;
    go(run, 1, 0);
    assert_int_equal(run->step, 5);

    run = new_run();
    hear(run);
    run->options.fast_dev_run = 2;
    snprintf(run->hparams[0], 32, "epochs=9");
    go(run, 1, 0);
    assert_good(run);
    assert_int_equal(run->step, 2);
    assert_int_equal(run->epoch, 1);
    assert_int_equal(count(run, "val"), 1 + 2);

    run = new_run();
    run->options.val_check = batches(80);
    go(run, 1, 0);
    assert_non_null(strstr(run->error, "every 80 batches never comes: an epoch has 79"));

    run = new_run();
    run->options.max_seconds = 0;
    snprintf(run->hparams[0], 32, "epochs=1000000");
    go(run, 3, 0);
    assert_good(run);
    assert_int_equal(run->step, 1);
}

static void test_overfit_takes_the_same_batches(void **state)
{
    struct run *run = new_run(), *other = new_run();

    run->options.overfit = batches(1);
    snprintf(run->hparams[0], 32, "epochs=4");
    other->options.overfit = batches(1);
    other->options.accumulate = 1;
    snprintf(other->hparams[0], 32, "epochs=4");
    other->options.limit[PLUME_TRAIN] = batches(7); /* overfit counts */
    go(run, 1, 0);
    go(other, 1, 0);
    assert_int_equal(run->step, 4);
    assert_string_equal(run->hash, other->hash);
}

static void test_early_stopping(void **state)
{
    struct run *run = new_run();

    run->options.stop =
        (struct pl_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 3};
    snprintf(run->hparams[0], 32, "epochs=50");
    go(run, 2, 0);
    assert_good(run);
    assert_int_equal(run->epoch, 4); /* the first is the best */

    run = new_run();
    run->options.stop =
        (struct pl_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 3};
    run->options.min_epochs = 6;
    snprintf(run->hparams[0], 32, "epochs=50");
    go(run, 1, 0);
    assert_good(run);
    assert_int_equal(run->epoch, 6);

    run = new_run();
    run->options.stop = (struct pl_stop_rule){.monitor = "val_los"};
    go(run, 1, 0);
    assert_non_null(strstr(run->error, "watches 'val_los', which nothing has logged"));
}

static void test_accumulation_is_a_bigger_batch(void **state)
{
    struct run *small = new_run(), *big = new_run();

    snprintf(small->hparams[0], 32, "batch_size=8");
    small->options.accumulate = 4;
    snprintf(big->hparams[0], 32, "batch_size=32");
    small->options.max_steps = big->options.max_steps = 30;
    go(small, 1, 0);
    go(big, 1, 0);
    /* Sums of 32 terms in another order, 30 steps. */
    assert_true(distance(small, big) < 1e-6);
    assert_true(fabsf(big->params[100]) > 0);
}

/* One optimizer step of a loss that only dropout changes. */
static struct run *dropping(uint64_t seed, uint64_t accumulate, unsigned ranks, unsigned devices)
{
    struct run *run = new_run();

    run->drop = true;
    run->options.seed = seed;
    run->options.accumulate = accumulate;
    run->options.max_steps = 1;
    run->options.devices = devices;
    if (devices > 1)
        run->options.strategy = ranks > 1 ? PL_STRATEGY_DDP2 : PL_STRATEGY_DP;
    snprintf(run->hparams[0], 32, "batch_size=%u", 4 * devices);
    go(run, ranks, 1);
    assert_good(run);
    return run;
}

/* Every batch of a step, every rank and every device drops other elements: means over four of them
 * would be the first one's if they did not. A run repeats. */
static void test_dropout_never_repeats(void **state)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct run *one = dropping(seed, 1, 1, 1), *two = dropping(seed, 2, 1, 1);
        struct run *ranks = dropping(seed, 1, 2, 1), *devices = dropping(seed, 1, 1, 2);
        struct run *both = dropping(seed, 1, 2, 2), *again = dropping(seed, 1, 2, 2);

        assert_true(distance(one, two) > 1e-5);
        assert_true(distance(one, ranks) > 1e-5);
        assert_true(distance(one, devices) > 1e-5);
        assert_true(distance(devices, both) > 1e-5);
        assert_true(distance(ranks, two) > 1e-5);
        assert_string_equal(both->hash, again->hash);
    }
}

static void test_horovod_is_ddp_with_a_larger_rate(void **state)
{
    struct run *horovod = new_run(), *ddp = new_run();

    horovod->options.strategy = PL_STRATEGY_HOROVOD;
    snprintf(horovod->hparams[0], 32, "lr=0.05");
    snprintf(ddp->hparams[0], 32, "lr=0.2");
    go(horovod, 4, 0);
    go(ddp, 4, 0);
    assert_true(distance(horovod, ddp) < 1e-6); /* f32(4 * 0.05) and f32(0.2) */
    horovod = new_run();
    horovod->options.strategy = PL_STRATEGY_HOROVOD;
    snprintf(horovod->hparams[0], 32, "lr=0.05");
    go(horovod, 4, 2);
    assert_true(distance(horovod, ddp) < 1e-6);
}

static void test_ranks_that_run_out_join(void **state)
{
    struct run *run = new_run();

    run->uneven = true;
    go(run, 2, 0);
    assert_non_null(strstr(run->error, "strategy horovod lets ranks run out"));

    run = new_run();
    run->uneven = true;
    run->options.strategy = PL_STRATEGY_HOROVOD;
    go(run, 2, 0);
    assert_good(run);
    assert_int_equal(run->step, (TRAIN_SAMPLES / 2 + 1 + 15) / 16);
}

static struct run *strategy_run(enum pl_strategy_kind kind, unsigned devices, bool ends)
{
    struct run *run = new_run();

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
    struct run *single = strategy_run(PL_STRATEGY_AUTO, 1, false), *ends, *dp;

    /* 1253 = 78 * 16 + 5: with the whole batch's loss the last one is right, too. */
    ends = strategy_run(PL_STRATEGY_AUTO, 1, true);
    go(single, 1, 0);
    go(ends, 1, 0);
    assert_string_equal(single->hash, ends->hash);
    assert_int_equal(ends->parts, 1);
    for (size_t i = 0; i < PL_COUNT(devices); i++) {
        dp = strategy_run(PL_STRATEGY_DP, devices[i], true);
        go(dp, 1, 0);
        /* Sums of 16 terms in another order, 79 steps. */
        assert_true(distance(dp, single) < 2e-6);
        assert_true(fabs(dp->val_loss - single->val_loss) < 1e-5);
        /* Of 5 rows: chunks of 3 and 2; of 2, 2 and 1; of 1. */
        assert_int_equal(dp->parts, devices[i] == 1 ? 1 : devices[i] == 5 ? 5 : devices[i]);
    }
    dp = strategy_run(PL_STRATEGY_DP, 7, true); /* 16 rows: chunks of 3, six of them */
    dp->options.max_steps = 1;
    go(dp, 1, 0);
    assert_good(dp);
    assert_int_equal(dp->parts, 6);
}

/* Without training_step_end the means of the parts are averaged, whatever their sizes. */
static void test_dp_averages_means(void **state)
{
    struct run *single = strategy_run(PL_STRATEGY_AUTO, 1, false), *dp, *odd;

    single->options.max_steps = 78; /* whole batches */
    dp = strategy_run(PL_STRATEGY_DP, 4, false);
    dp->options.max_steps = 78;
    odd = strategy_run(PL_STRATEGY_DP, 3, false); /* 6, 6 and 4 rows */
    odd->options.max_steps = 78;
    go(single, 1, 0);
    go(dp, 1, 0);
    go(odd, 1, 0);
    assert_true(distance(dp, single) < 2e-6);
    assert_true(distance(odd, single) > 1e-5);
    assert_true(distance(odd, single) < 0.1);
}

static void test_dp_accumulates(void **state)
{
    struct run *single = strategy_run(PL_STRATEGY_AUTO, 1, true);
    struct run *dp = strategy_run(PL_STRATEGY_DP, 2, true);

    single->options.accumulate = dp->options.accumulate = 3;
    go(single, 1, 0);
    go(dp, 1, 0);
    assert_true(distance(dp, single) < 2e-6);
}

static void test_dp_repeats_bitwise(void **state)
{
    struct run *a = strategy_run(PL_STRATEGY_DP, 3, true), *b;

    b = strategy_run(PL_STRATEGY_DP, 3, true);
    go(a, 1, 0);
    go(b, 1, 0);
    assert_good(a);
    assert_string_equal(a->hash, b->hash);
}

/* Two nodes of two devices, a batch of 16 a node, against two ranks with it. */
static void test_ddp2_is_ddp_of_nodes(void **state)
{
    struct run *ddp2 = strategy_run(PL_STRATEGY_DDP2, 2, true);
    struct run *ddp = strategy_run(PL_STRATEGY_DDP, 1, true), *fine;

    go(ddp2, 2, 1);
    go(ddp, 2, 1);
    assert_true(distance(ddp2, ddp) < 2e-6);
    assert_int_equal(ddp2->parts, 2);
    /* And four ranks with half of it have the same mean, but other samples. */
    fine = strategy_run(PL_STRATEGY_DDP, 1, true);
    snprintf(fine->hparams[0], 32, "batch_size=8");
    go(fine, 4, 2);
    assert_good(fine);
    assert_true(distance(ddp2, fine) > 1e-5);
}

static struct run *norm_run(enum pl_strategy_kind kind, const char *batch, bool sync)
{
    struct run *run = strategy_run(kind, kind == PL_STRATEGY_DP ? 2 : 1, false);

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
    struct run *whole = norm_run(PL_STRATEGY_AUTO, "32", false);
    struct run *sync = norm_run(PL_STRATEGY_DDP, "16", true);
    struct run *own = norm_run(PL_STRATEGY_DDP, "16", false);
    struct run *dp = norm_run(PL_STRATEGY_DP, "32", false), *again;

    again = norm_run(PL_STRATEGY_DP, "32", false);
    go(whole, 1, 0);
    go(sync, 2, 0);
    go(own, 2, 1);
    go(dp, 1, 0);
    go(again, 1, 0);
    assert_true(distance(sync, whole) < 1e-5);
    assert_true(fabs(sync->val_loss - whole->val_loss) < 1e-4);
    assert_true(distance(own, whole) > 1e-4);
    assert_true(distance(dp, whole) > 1e-4);
    assert_true(distance(dp, whole) < 0.2);
    assert_string_equal(dp->hash, again->hash);
    dp = norm_run(PL_STRATEGY_DP, "32", true);
    go(dp, 1, 0);
    assert_non_null(strstr(dp->error, "between ranks, not between the devices"));
}

static void test_outputs_are_checked(void **state)
{
    struct run *run = strategy_run(PL_STRATEGY_DP, 2, true);

    run->module.training_step = forget_one;
    run->module.training_step_end = NULL;
    snprintf(run->hparams[0], 32, "batch_size=3");
    go(run, 1, 0);
    assert_non_null(strstr(run->error, "part 1 of the batch gave no output 'logits'"));
    run = strategy_run(PL_STRATEGY_DP, 2, true);
    run->module.training_step = training_step;
    go(run, 1, 0);
    assert_non_null(strstr(run->error, "is asked for, but the step did not give it"));
}

static int own_reduce(struct plume_context *pl, const struct plume_bucket *bucket)
{
    current->world_sum += (double)bucket->count;
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
    struct run *own = new_run(), *ours = new_run();

    own->module.configure_ddp = configure_ddp;
    own->options.max_steps = ours->options.max_steps = 5;
    go(own, 3, 0);
    go(ours, 3, 0);
    assert_good(own);
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
    struct run *run = new_run();

    run->module.on_fit_end = gather_places;
    run->options.max_steps = 1;
    go(run, 3, 2);
    assert_good(run);
}

static int
log_loss(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    int r = training_step(pl, batch, ret_loss);
    double n = (double)batch->rows;

    plume_log(pl, "same", *ret_loss, n, n);
    plume_log(pl, "twice", *ret_loss, 2 * n, n);
    return r;
}

static void empty_folder(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)))
        unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

/* Each report has the loss of its step, by other ways. */
static void check_logged(enum pl_strategy_kind kind, unsigned devices, unsigned ranks)
{
    char dir[] = "/tmp/plume-fit-XXXXXX", path[64], line[256];
    struct run *run = strategy_run(kind, devices, false);
    double step, loss, epoch, same, twice;
    int lines = 0;
    FILE *f;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/metrics.csv", dir);
    run->module.training_step = log_loss;
    run->module.validation_step = NULL;
    run->module.test_step = NULL;
    run->options.log_dir = dir;
    run->options.log_every = 1;
    run->options.max_steps = 5;
    go(run, ranks, 0);
    assert_good(run);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    assert_string_equal(line, "step,loss,train_same,train_twice,epoch\n");
    while (fgets(line, sizeof(line), f)) {
        assert_int_equal(sscanf(line, "%lf,%lf,%lf,%lf,%lf", &step, &loss, &same, &twice, &epoch),
                         5);
        assert_true(step == ++lines && epoch == 1);
        assert_true(fabs(same - loss) < 1e-6 && fabs(twice - 2 * loss) < 1e-6 && loss > 0.1);
    }
    fclose(f);
    assert_int_equal(lines, 5);
    empty_folder(dir);
    assert_int_equal(rmdir(dir), 0);
}

static void test_steps_log(void **state)
{
    check_logged(PL_STRATEGY_AUTO, 1, 1);
    check_logged(PL_STRATEGY_DDP, 1, 2);
    check_logged(PL_STRATEGY_DP, 2, 1);
}

/* Bit by rank; those that configure see the node's first rank done. */
static int prepare(struct plume_context *pl)
{
    __atomic_or_fetch(&current->parts, 1u << pl->rank, __ATOMIC_SEQ_CST);
    return current->uneven && pl->rank ? plume_fail(pl, -EIO, "no room for the data") : 0;
}

static int configure_prepared(struct plume_context *pl)
{
    unsigned done = __atomic_load_n(&current->parts, __ATOMIC_SEQ_CST);

    if (done != (pl->world_size == 3 ? 0x5 : 0x1)) /* nodes of two: ranks 0 and 2 */
        return plume_fail(pl, -EINVAL, "not prepared, or by the wrong ranks");
    return configure(pl);
}

static void test_data_is_prepared_once_a_node(void **state)
{
    static const unsigned layouts[][2] = {{1, 0}, {2, 0}, {3, 2}};
    struct run *run;

    for (size_t i = 0; i < PL_COUNT(layouts); i++) {
        run = new_run();
        run->module.prepare_data = prepare;
        run->module.configure = configure_prepared;
        run->options.max_steps = 1;
        go(run, layouts[i][0], layouts[i][1]);
        assert_good(run);
        assert_int_equal(run->step, 1);
    }
    run = new_run(); /* the second node fails: all hear of it */
    run->module.prepare_data = prepare;
    run->uneven = true;
    go(run, 2, 1);
    assert_non_null(strstr(run->error, "no room for the data"));
}

static int save_word(struct plume_context *pl)
{
    return plume_save(pl, "word", "plume", 6);
}

static int load_word(struct plume_context *pl)
{
    size_t n = 0;
    const char *word = plume_load(pl, "word", &n);

    if (plume_load(pl, "other", &n))
        return plume_fail(pl, -EINVAL, "something that nobody saved");
    if (!word || n != 6 || memcmp(word, "plume", 6) != 0)
        return plume_fail(pl, -EINVAL, "not the word that was saved");
    current->parts = 77;
    return 0;
}

static void test_modules_keep_their_own_in_checkpoints(void **state)
{
    char dir[] = "/tmp/plume-fit-XXXXXX", path[64];
    struct run *run = new_run();

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/last.ckpt", dir);
    run->options.checkpoint_dir = dir;
    run->options.save_top_k = 0;
    run->options.save_last = true;
    run->options.resume = "last";
    run->module.on_save_checkpoint = save_word;
    run->module.on_load_checkpoint = load_word;
    go(run, 2, 0);
    assert_good(run);
    assert_int_equal(run->parts, 0); /* there was nothing yet */
    snprintf(run->hparams[0], 32, "epochs=2");
    go(run, 2, 0);
    assert_good(run);
    assert_int_equal(run->parts, 77);
    assert_int_equal(run->epoch, 2);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static int fail_late(struct plume_context *pl)
{
    return pl->step == 3 ? plume_fail(pl, -EIO, "the disk is full") : 0;
}

/* In one process: nothing of a failed run is left for the next one. */
static void test_a_failed_run_leaves_nothing(void **state)
{
    struct run *run = new_run(), *clean = new_run();
    struct pl_comm *comm;

    run->module.on_before_optimizer_step = fail_late;
    assert_int_equal(pl_comm_self_create(0, &comm, NULL), 0);
    for (int i = 0; i < 3; i++) {
        train(comm, run);
        assert_string_equal(run->error, "hook on_before_optimizer_step: the disk is full");
    }
    train(comm, clean);
    pl_comm_destroy(comm);
    go(run = new_run(), 1, 0);
    assert_string_equal(run->hash, clean->hash);
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
    choose(PL_STRATEGY_DDP, 2, 1, 1, 0, "one device a rank, not 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_come_in_order),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_overfit_takes_the_same_batches),
        cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_accumulation_is_a_bigger_batch),
        cmocka_unit_test(test_dropout_never_repeats),
        cmocka_unit_test(test_horovod_is_ddp_with_a_larger_rate),
        cmocka_unit_test(test_ranks_that_run_out_join),
        cmocka_unit_test(test_dp_is_single),
        cmocka_unit_test(test_dp_averages_means),
        cmocka_unit_test(test_dp_accumulates),
        cmocka_unit_test(test_dp_repeats_bitwise),
        cmocka_unit_test(test_ddp2_is_ddp_of_nodes),
        cmocka_unit_test(test_batch_norm_over_ranks),
        cmocka_unit_test(test_outputs_are_checked),
        cmocka_unit_test(test_own_reduction),
        cmocka_unit_test(test_modules_have_collectives),
        cmocka_unit_test(test_steps_log),
        cmocka_unit_test(test_data_is_prepared_once_a_node),
        cmocka_unit_test(test_modules_keep_their_own_in_checkpoints),
        cmocka_unit_test(test_a_failed_run_leaves_nothing),
        cmocka_unit_test(test_strategies_are_chosen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
