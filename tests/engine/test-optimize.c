/* SPDX-License-Identifier: MIT */
/* Changes of a real run's parameters between two steps: groups of parameters,
 * their moving average, averages over ranks, and what modules read of them. */
#include "common/base/fs.h"
#include "tests/engine/fit_run.h"
#include "tests/lib/tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define STEPS 30 /* of one epoch of 79 */
#define CUT 11

static void remove_folder(const char *dir)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/last.ckpt", dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* A run of STEPS, and one that stops after CUT steps and resumes, end with the same bits. */
static void resume_is_exact(void (*prepare)(struct fit_run *run), unsigned ranks)
{
    struct fit_run *whole = fit_new_run(), *part = fit_new_run();
    char dir[40];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    whole->options.max_steps = STEPS;
    prepare(whole);
    prepare(part);
    fit_go(whole, ranks, 0);
    fit_assert_good(whole);
    part->options.max_steps = STEPS;
    fit_go_cut(part, ranks, dir, CUT);
    assert_int_equal(part->step, STEPS);
    assert_string_equal(part->hash, whole->hash);
    assert_true(part->val_loss == whole->val_loss);
    remove_folder(dir);
}

static int use_groups(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_group *group;

    ret->kind = PLUME_RMSPROP;
    ret->lr = 0.01;
    ret->weight_decay = 0.1;
    ret->momentum = 0.5;
    ret->centered = 1;
    ret->schedule = (struct plume_schedule){.kind = PLUME_ONE_CYCLE, .per_step = 1, .t_max = STEPS};
    ret->schedule_more.cycle_momentum = 1;
    group = plume_add_group(pl, ret, "b");
    if (!group)
        return -1;
    if (group->lr != 0.01 || group->weight_decay != 0.1)
        return plume_fail(pl, -EINVAL, "a group is not preset from its optimizer");
    group->lr = 0.002;
    group->weight_decay = 0;
    return 0;
}

static void prepare_groups(struct fit_run *run)
{
    run->module.configure_optimizers = use_groups;
}

static void test_groups_resume(void **state)
{
    resume_is_exact(prepare_groups, 1);
    resume_is_exact(prepare_groups, 2);
}

/* Ranks that share the state out have their part of each group. */
static void test_groups_are_sharded(void **state)
{
    struct fit_run *ddp = fit_new_run(), *sharded = fit_new_run();

    ddp->options.max_steps = sharded->options.max_steps = STEPS;
    ddp->options.ema = sharded->options.ema = 0.9;
    sharded->options.strategy = PL_STRATEGY_SHARDED;
    prepare_groups(ddp);
    prepare_groups(sharded);
    fit_go(ddp, 3, 0);
    fit_go(sharded, 3, 0);
    assert_true(fit_distance(ddp, sharded) < 2e-6);
    assert_true(fabs(ddp->val_loss - sharded->val_loss) < 1e-6);
}

/* A rate of 0 for one parameter holds it, and nothing else. */
static int hold_bias(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_group *group = plume_add_group(pl, ret, "[b]");

    if (group)
        group->lr = 0;
    return 0;
}

static void test_a_group_has_its_own_rate(void **state)
{
    struct fit_run *run = fit_new_run(), *plain = fit_new_run();

    run->options.max_steps = plain->options.max_steps = 3;
    run->module.configure_optimizers = hold_bias;
    fit_go(run, 1, 0);
    fit_go(plain, 1, 0);
    fit_assert_good(run);
    fit_assert_good(plain);
    for (size_t i = 640; i < 650; i++) {
        assert_true(run->params[i] == 0);
        assert_true(plain->params[i] != 0);
    }
    assert_true(run->params[5] != 0);
}

static int group_of_another(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_optimizer own = *ret;

    plume_add_group(pl, &own, "b");
    return 0;
}

static int group_late(struct plume_context *pl)
{
    struct plume_optimizer own = {.lr = 1};

    plume_add_group(pl, &own, "b");
    return 0;
}

static void test_groups_belong_to_an_optimizer(void **state)
{
    struct fit_run *run = fit_new_run();

    run->module.configure_optimizers = group_of_another;
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "a group's optimizer is neither the hook's argument"));
    run = fit_new_run();
    run->module.on_fit_start = group_late;
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "a group is added outside configure_optimizers"));
}

/* A checkpoint of a run without groups is refused, and the other way round. */
static void test_groups_of_a_checkpoint_must_fit(void **state)
{
    char dir[40];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    for (int i = 0; i < 2; i++) {
        struct fit_run *run = fit_new_run();

        run->options.checkpoint_dir = dir;
        run->options.save_top_k = 0;
        run->options.save_last = true;
        run->options.max_steps = 2;
        if (i == 1)
            run->module.configure_optimizers = hold_bias;
        fit_go(run, 1, 0);
        fit_assert_good(run);
        run->options.resume = "last";
        run->options.max_steps = 4;
        run->module.configure_optimizers = i == 1 ? NULL : hold_bias;
        fit_go(run, 1, 0);
        if (!strstr(run->error, "group"))
            fail_msg("'%s'", run->error);
        remove_folder(dir);
        assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void prepare_ema(struct fit_run *run)
{
    run->options.ema = 0.9;
    run->module.configure_optimizers = use_groups;
}

static void test_ema_resumes(void **state)
{
    resume_is_exact(prepare_ema, 1);
    resume_is_exact(prepare_ema, 2);
}

/* The state of a run, as its last checkpoint has it. */
static void last_of(struct fit_run *run, const char *dir, struct pl_checkpoint *ret)
{
    _cleanup_free_ char *path = pl_path_join(dir, "last.ckpt");

    run->options.checkpoint_dir = dir;
    run->options.save_top_k = 0;
    run->options.save_last = true;
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_non_null(path);
    assert_int_equal(pl_checkpoint_read(path, ret, NULL), 0);
}

/* A step after another by hand: average = decay average + (1 - decay) parameters. The validation
 * sees the average, the training does not. */
static void test_ema_is_the_moving_average(void **state)
{
    enum { LAST = 5 };
    double want[FIT_COUNT] = {0};
    char dir[40];

    for (int step = 1; step <= LAST; step++) {
        struct fit_run *run = fit_new_run(), *plain = fit_new_run();
        const struct pl_checkpoint_tensor *w, *average;
        struct pl_checkpoint c;

        assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
        run->options.max_steps = plain->options.max_steps = (uint64_t)step;
        run->options.ema = 0.75;
        run->options.sanity_steps = 2;
        last_of(run, dir, &c);
        fit_go(plain, 1, 0);
        assert_true(fit_distance(run, plain) == 0);
        w = pl_checkpoint_find(&c, "w");
        average = pl_checkpoint_find(&c, "plume.ema/w");
        assert_non_null(w);
        assert_non_null(average);
        for (size_t i = 0; i < 640; i++) {
            double value = (double)((const float *)w->data)[i];

            want[i] = step == 1 ? value : 0.75 * want[i] + 0.25 * value;
            assert_true(fabs((double)((const float *)average->data)[i] - want[i]) < 1e-7);
        }
        assert_true((run->val_loss == plain->val_loss) == (step == 1));
        pl_checkpoint_finish(&c);
        if (step == LAST) { /* the average as weights gives the validation's value once more */
            _cleanup_free_ char *path = pl_path_join(dir, "last.ckpt");
            struct fit_run *again = fit_new_run();

            again->options.weights = path;
            again->options.max_steps = 0;
            again->options.run = PL_RUN_VALIDATE;
            fit_go(again, 1, 0);
            fit_assert_good(again);
            assert_true(again->val_loss == run->val_loss);
            again->options.plain_weights = true;
            fit_go(again, 1, 0);
            fit_assert_good(again);
            assert_true(again->val_loss == plain->val_loss);
        }
        remove_folder(dir);
    }
}

/* ---- modules that look ---- */

static double before[640], grad[640];

static int look_before(struct plume_context *pl)
{
    double all[2], mine;
    int r = plume_read(pl, "w", PLUME_VALUE, 640, before);

    if (r == 0)
        r = plume_read(pl, "w", PLUME_GRADIENT, 640, grad);
    mine = grad[333];
    if (r == 0)
        r = plume_all_gather(pl, &mine, sizeof(mine), all);
    if (r == 0 && pl->world_size == 2 && (all[0] != all[1] || mine == 0))
        return plume_fail(pl, -EINVAL, "the gradients are not reduced");
    return r;
}

/* The step of SGD. */
static int look_after(struct plume_context *pl, const struct plume_batch *batch)
{
    double after[640], mean[8];
    int r = plume_read(pl, "w", PLUME_VALUE, 640, after);

    if (r == 0)
        r = plume_read(pl, "bn.mean", PLUME_VALUE, 8, mean);
    for (size_t i = 0; i < 640 && r == 0; i++)
        if (fabs(after[i] - (before[i] - 0.1 * grad[i])) > 1e-7)
            return plume_fail(pl, -EINVAL, "the step is another one");
    return r == 0 && mean[0] == 0 ? plume_fail(pl, -EINVAL, "the mean did not move") : r;
}

static void test_modules_read_values_and_gradients(void **state)
{
    for (unsigned ranks = 1; ranks <= 2; ranks++) {
        struct fit_run *run = fit_new_run();

        run->options.max_steps = 5;
        run->norm = true;
        run->module.on_before_optimizer_step = look_before;
        run->module.on_train_batch_end = look_after;
        fit_go(run, ranks, 0);
        fit_assert_good(run);
        assert_int_equal(run->step, 5);
    }
}

static int read_other(struct plume_context *pl)
{
    return plume_read(pl, "other", PLUME_VALUE, 10, before);
}

static int read_few(struct plume_context *pl)
{
    return plume_read(pl, "b", PLUME_VALUE, 9, before);
}

static int read_gradient(struct plume_context *pl)
{
    return plume_read(pl, "b", PLUME_GRADIENT, 10, before);
}

static int read_early(struct plume_context *pl)
{
    int r = fit_configure(pl);

    return r < 0 ? r : plume_read(pl, "b", PLUME_VALUE, 10, before);
}

static void test_reads_are_checked(void **state)
{
    static const struct {
        int (*hook)(struct plume_context *pl);
        bool configures, shards;
        const char *text;
    } cases[] = {
        {read_other, false, false, "read 'other': there is no such parameter or buffer"},
        {read_few, false, false, "read 'b': it has 10 numbers, not 9"},
        {read_gradient, false, true, "no rank has whole gradients"},
        {read_gradient, false, false, NULL},
        {read_early, true, false, "not in configure and steps"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        run->options.max_steps = 1;
        if (cases[i].shards)
            run->options.strategy = PL_STRATEGY_SHARDED;
        if (cases[i].configures)
            run->module.configure = cases[i].hook;
        else
            run->module.on_before_optimizer_step = cases[i].hook;
        fit_go(run, 2, 0);
        if (cases[i].text ? !strstr(run->error, cases[i].text) : run->error[0] != 0)
            fail_msg("'%s' has no '%s'", run->error, cases[i].text ? cases[i].text : "");
    }
}

/* ---- a schedule that watches a value ---- */

static int watch(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->schedule.kind = PLUME_PLATEAU;
    ret->schedule.monitor = fit_current->drop ? "val_los" : fit_current->few ? "train_loss" : NULL;
    return 0;
}

static int no_epoch(struct plume_context *pl)
{
    return plume_fail(pl, -EINVAL, "an epoch has begun");
}

static void test_schedules_watch_what_is_logged(void **state)
{
    static const struct {
        bool unknown, train_loss, off;
        uint64_t every, steps, accumulate; /* 0: 1, no limit, 1 */
        const char *text;
    } cases[] = {
        {.unknown = true,
         .text = "the learning-rate schedule watches 'val_los', which nothing logs"},
        {.every = 2, .text = "an epoch has begun"},
        {.off = true, .text = "'val_loss' is watched, but option '--limit-val-batches 0'"},
        {.text = "an epoch has begun"},
        {.train_loss = true, .off = true, .every = 2, .text = "an epoch has begun"},
        /* Of 79 batches: whoever stops before the last one sees no end of an epoch. */
        {.unknown = true, .steps = 78, .text = "an epoch has begun"},
        {.off = true, .steps = 78, .text = "an epoch has begun"},
        {.off = true, .steps = 79, .text = "'val_loss' is watched, but option '--limit-val-"},
        {.off = true, .steps = 39, .accumulate = 2, .text = "an epoch has begun"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        run->drop = cases[i].unknown;
        run->few = cases[i].train_loss;
        run->options.val_every = PL_MAX(cases[i].every, (uint64_t)1);
        if (cases[i].steps)
            run->options.max_steps = cases[i].steps;
        run->options.accumulate = PL_MAX(cases[i].accumulate, (uint64_t)1);
        if (cases[i].off)
            run->options.limit[PLUME_VALIDATE] = fit_batches(0);
        run->module.configure_optimizers = watch;
        run->module.on_train_epoch_start = no_epoch;
        fit_go(run, 1, 0);
        if (!strstr(run->error, cases[i].text))
            fail_msg("'%s' has no '%s'", run->error, cases[i].text);
    }
}

static bool stays, by_step;

/* The loss falls, and only a rise counts: each check but the first cuts the rate. */
static int watch_for_a_rise(struct plume_context *pl, struct plume_optimizer *ret)
{
    if (stays)
        return 0;
    ret->schedule = (struct plume_schedule){
        .kind = PLUME_PLATEAU, .maximize = 1, .patience = -1, .per_step = by_step};
    return 0;
}

/* The validations of epochs 2 and 4 are two checks; before the first one steps make none. */
static void test_a_plateau_counts_each_value_once(void **state)
{
    for (int per_step = 0; per_step < 2; per_step++) {
        struct fit_run *run[2];

        for (int i = 0; i < 2; i++) {
            run[i] = fit_new_run();
            run[i]->options.val_every = 2;
            snprintf(run[i]->hparams[0], 32, "epochs=%d", per_step ? 2 : 4);
            run[i]->options.limit[PLUME_TRAIN] = fit_batches(3);
            stays = i == 1;
            by_step = per_step;
            run[i]->module.configure_optimizers = watch_for_a_rise;
            fit_go(run[i], 1, 0);
        }
        assert_true(fit_distance(run[0], run[1]) == 0);
    }
}

/* Of 10 batches, 4 and 8 have a validation; a cut has one of its own, which no schedule counts. */
static void test_a_cut_changes_no_plateau(void **state)
{
    for (unsigned cut = 3; cut < 10; cut++) {
        struct fit_run *whole = fit_new_run(), *part = fit_new_run();
        char dir[40];

        assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
        stays = false;
        by_step = true;
        for (int i = 0; i < 2; i++) {
            struct fit_run *run = i ? part : whole;

            run->options.limit[PLUME_TRAIN] = fit_batches(10);
            run->options.limit[PLUME_VALIDATE] = fit_batches(2);
            run->options.val_check = fit_batches(4);
            run->module.configure_optimizers = watch_for_a_rise;
            snprintf(run->hparams[0], 32, "epochs=2");
        }
        fit_go(whole, 1, 0);
        fit_assert_good(whole);
        fit_go_cut(part, 1, dir, cut);
        if (strcmp(part->hash, whole->hash) != 0)
            fail_msg("a cut after %u steps changes the parameters", cut);
        remove_folder(dir);
    }
}

/* ---- ranks that step alone ---- */

static int (*plain_data)(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret);
static size_t order[FIT_TRAIN_SAMPLES], order_n, order_from, order_by;

/* The training samples from order_from on, each order_by-th, without shuffling. */
static int ordered_data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    int r = plain_data(pl, stage, ret);

    if (r < 0 || stage != PLUME_TRAIN)
        return r;
    order_n = 0;
    for (size_t i = order_from; i < FIT_TRAIN_SAMPLES / 2 * 2; i += order_by)
        order[order_n++] = i;
    ret->order = order;
    ret->n_order = order_n;
    return 0;
}

/* Trains on the samples of all ranks (from 0, by 1), or of one. */
static struct fit_run *alone(size_t from, size_t by, unsigned ranks, uint64_t every, uint64_t steps)
{
    struct fit_run *run = fit_new_run();

    plain_data = run->module.data;
    run->module.data = ordered_data;
    order_from = from;
    order_by = by;
    run->options.average_every = every;
    run->options.max_steps = steps;
    fit_go(run, ranks, 0);
    fit_assert_good(run);
    return run;
}

/* P steps, then the mean: of what one process makes of the samples of each rank. */
static void test_averages_are_the_mean_of_lone_ranks(void **state)
{
    const struct fit_run *first = alone(0, 2, 1, 0, 4), *second = alone(1, 2, 1, 0, 4);
    const struct fit_run *both = alone(0, 1, 2, 4, 4), *never = alone(0, 1, 2, 1000, 4);
    const struct fit_run *more = alone(0, 1, 2, 2, 4);

    for (size_t i = 0; i < FIT_COUNT; i++) {
        double mean = ((double)first->params[i] + (double)second->params[i]) / 2;

        assert_true(fabs((double)both->params[i] - mean) < 1e-7);
    }
    assert_true(fit_distance(both, never) == 0); /* the end of the run averages, too */
    assert_true(fit_distance(both, more) > 1e-5);
    assert_true(fit_distance(first, second) > 1e-3);
}

static int use_adam(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->kind = PLUME_ADAM;
    ret->lr = 0.01;
    return 0;
}

static int use_momentum(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->momentum = 0.9;
    return 0;
}

/* Plain SGD is linear in the gradients, and its momentum with an averaged state too: P = 1 is ddp.
 * Sums in another order differ by a few roundings of parameters around 1. */
static void test_averages_of_each_step_are_ddp(void **state)
{
    for (unsigned ranks = 1; ranks <= 3; ranks++)
        for (int momentum = 0; momentum < 2; momentum++) {
            struct fit_run *ddp = fit_new_run(), *run = fit_new_run();

            run->options.average_every = 1;
            run->options.accumulate = ddp->options.accumulate = 2;
            if (momentum)
                run->module.configure_optimizers = ddp->module.configure_optimizers = use_momentum;
            fit_go(ddp, ranks, 0);
            fit_go(run, ranks, 0);
            assert_int_equal(run->step, ddp->step);
            assert_true(fit_distance(run, ddp) < 2e-6);
            assert_true((strcmp(run->hash, ddp->hash) == 0) == (ranks == 1));
        }
}

/* A validation and the checkpoint after it have the averages, also of a run that goes on. */
static void test_averages_resume(void **state)
{
    struct fit_run *whole = fit_new_run(), *part = fit_new_run();
    char dir[40];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    whole->module.configure_optimizers = part->module.configure_optimizers = use_adam;
    whole->options.average_every = part->options.average_every = 7; /* an epoch has 40 steps */
    snprintf(whole->hparams[0], sizeof(whole->hparams[0]), "epochs=2");
    fit_go(whole, 2, 0);
    fit_assert_good(whole);
    part->options.checkpoint_dir = dir;
    part->options.save_top_k = 0;
    part->options.save_last = true;
    part->options.resume = "last";
    fit_go(part, 2, 0);
    fit_assert_good(part);
    assert_int_equal(part->epoch, 1);
    snprintf(part->hparams[0], sizeof(part->hparams[0]), "epochs=2");
    fit_go(part, 2, 0);
    fit_assert_good(part);
    assert_int_equal(part->epoch, 2);
    assert_string_equal(part->hash, whole->hash);
    remove_folder(dir);
}

static void test_averages_exclude(void **state)
{
    static const struct {
        enum pl_strategy_kind strategy;
        enum pl_precision precision;
        double ema;
        const char *text;
    } cases[] = {
        {PL_STRATEGY_HOROVOD, PL_PRECISION_32, 0, "is for strategy ddp, not horovod"},
        {PL_STRATEGY_DDP2, PL_PRECISION_32, 0, "is for strategy ddp, not ddp2"},
        {PL_STRATEGY_DDP, PL_PRECISION_16, 0, "loss scale of --precision 16"},
        {PL_STRATEGY_DDP, PL_PRECISION_32, 0.9, "--ema"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        run->options.average_every = 2;
        run->options.strategy = cases[i].strategy;
        run->options.precision = cases[i].precision;
        run->options.ema = cases[i].ema;
        fit_go(run, 2, 1);
        if (!strstr(run->error, cases[i].text))
            fail_msg("'%s' has no '%s'", run->error, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_resume),
        cmocka_unit_test(test_groups_are_sharded),
        cmocka_unit_test(test_a_group_has_its_own_rate),
        cmocka_unit_test(test_groups_belong_to_an_optimizer),
        cmocka_unit_test(test_groups_of_a_checkpoint_must_fit),
        cmocka_unit_test(test_ema_resumes),
        cmocka_unit_test(test_ema_is_the_moving_average),
        cmocka_unit_test(test_modules_read_values_and_gradients),
        cmocka_unit_test(test_reads_are_checked),
        cmocka_unit_test(test_schedules_watch_what_is_logged),
        cmocka_unit_test(test_a_plateau_counts_each_value_once),
        cmocka_unit_test(test_a_cut_changes_no_plateau),
        cmocka_unit_test(test_averages_are_the_mean_of_lone_ranks),
        cmocka_unit_test(test_averages_of_each_step_are_ddp),
        cmocka_unit_test(test_averages_resume),
        cmocka_unit_test(test_averages_exclude),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
