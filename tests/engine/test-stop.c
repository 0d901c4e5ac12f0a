/* SPDX-License-Identifier: MIT */
/* Rules that end a training, and data that it cannot begin with. */
#include "tests/engine/fit_run.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_early_stopping(void **state)
{
    struct fit_run *run = fit_new_run();

    run->options.stop =
        (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 3};
    snprintf(run->hparams[0], 32, "epochs=50");
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_int_equal(run->epoch, 4); /* the first is the best */

    run = fit_new_run();
    run->options.stop =
        (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 3};
    run->options.min_epochs = 6;
    snprintf(run->hparams[0], 32, "epochs=50");
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->epoch, 6);

    /* The mean of each whole epoch counts once, whatever is validated. */
    for (int i = 0; i < 4; i++) {
        run = fit_new_run();
        run->options.stop =
            (struct pl_early_stop_rule){.monitor = "train_loss", .maximize = true, .patience = 2};
        if (i == 1)
            run->options.val_check = fit_share(0.25);
        if (i == 2)
            run->options.limit[PLUME_VALIDATE] = fit_batches(0);
        if (i == 3)
            run->options.val_every = 4;
        snprintf(run->hparams[0], 32, "epochs=9");
        fit_go(run, 1 + (unsigned)i % 2, 0);
        fit_assert_good(run);
        assert_int_equal(run->epoch, 3);
    }

    run = fit_new_run();
    run->options.stop = (struct pl_early_stop_rule){.monitor = "val_los"};
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "watches 'val_los', which nothing logs"));
}

/* A validation inside an epoch that ends the training is the last one. */
static void test_a_validation_that_stops_is_the_last(void **state)
{
    struct fit_run *run = fit_new_run();

    run->options.stop =
        (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 1};
    run->options.val_check = fit_batches(2);
    run->options.limit[PLUME_VALIDATE] = fit_batches(1);
    fit_hear(run);
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, 4);
    assert_int_equal(fit_count(run, "validation_start"), 2);
}

/* A run that --max-steps cuts inside an epoch validates there, off schedule. The same run, resumed,
 * ends where it does without the cut, wherever that is and at whatever validations. */
static void test_a_cut_changes_no_early_stop(void **state)
{
    const struct pl_early_stop_rule rule = {.monitor = "val_loss", .maximize = true, .patience = 2};

    for (int i = 0; i < 4; i++) {
        struct fit_run *whole = fit_new_run(), *part = fit_new_run();
        char dir[40], path[64];

        assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
        for (int k = 0; k < 2; k++) {
            struct fit_run *run = k ? part : whole;

            run->options.stop = rule;
            run->options.limit[PLUME_TRAIN] = fit_batches(10);
            run->options.limit[PLUME_VALIDATE] = fit_batches(2);
            if (i > 1)
                run->options.val_check = fit_batches(4);
            snprintf(run->hparams[0], 32, "epochs=9");
        }
        fit_go(whole, 1, 0);
        fit_assert_good(whole);
        fit_go_cut(part, 1, dir, i % 2 ? 8 : 9); /* 8: a validation is due there, where i = 3 */
        assert_true(whole->step > 9);
        assert_int_equal(part->step, whole->step);
        assert_string_equal(part->hash, whole->hash);
        snprintf(path, sizeof(path), "%s/last.ckpt", dir);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(dir), 0);
    }
}

static volatile sig_atomic_t heard; /* a signal */
static int number = SIGTERM;        /* that comes */
static uint64_t cut;                /* step in which it comes; UINT64_MAX: it does not */

static int hear_a_signal(struct plume_context *pl, const struct plume_batch *batch)
{
    if (pl->step + 1 == cut)
        heard = number;
    return 0;
}

void __wrap_pl_rank_report_fact(struct pl_rank_report *r, const char *key, const char *value);

void __wrap_pl_rank_report_fact(struct pl_rank_report *r, const char *key, const char *value)
{
    if (strcmp(key, "stopped") == 0)
        snprintf(fit_current->stopped, sizeof(fit_current->stopped), "%s", value);
}

/* Slurm may send SIGTERM and SIGUSR1 to stop a trial: the program names them. Ctrl-C is nobody's
 * order to go on later. */
static void test_who_stops_says_so(void **state)
{
    static const struct {
        int number;
        const char *stopped;
    } cases[] = {{SIGTERM, "TERM"}, {SIGUSR1, "USR1"}, {SIGINT, ""}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        run->options.limit[PLUME_TRAIN] = fit_batches(4);
        run->options.limit[PLUME_VALIDATE] = fit_batches(0);
        run->options.interrupt = &heard;
        run->module.on_train_batch_start = hear_a_signal;
        number = cases[i].number;
        cut = 2;
        fit_go(run, 1, 0);
        assert_non_null(strstr(run->error, "interrupted at step "));
        assert_string_equal(run->stopped, cases[i].stopped);
    }
    number = SIGTERM;
}

/* A signal that comes in the step after which a validation inside the epoch is due. The run that
 * goes on has that validation first. */
static void test_a_signal_takes_no_validation(void **state)
{
    static const struct {
        unsigned ranks;
        uint64_t cut, accumulate;
        double every;
    } cases[] = {
        {1, 8, 1, 4},  {1, 3, 1, 1}, {2, 8, 1, 4}, {1, 7, 1, 4}, /* none is due */
        {1, 10, 1, 5},                                           /* it is that at the epoch's end */
        {1, 2, 2, 3}, /* due in the midst of a group, which ends first: after 4 batches, */
        {1, 5, 2, 3}, /* and after all 10 */
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *whole = fit_new_run(), *part = fit_new_run();
        char dir[40];

        assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
        for (int k = 0; k < 2; k++) {
            struct fit_run *run = k ? part : whole;

            run->options.stop =
                (struct pl_early_stop_rule){.monitor = "val_loss", .maximize = true, .patience = 4};
            run->options.limit[PLUME_TRAIN] = fit_batches(10);
            run->options.limit[PLUME_VALIDATE] = fit_batches(2);
            run->options.val_check = fit_batches(cases[i].every);
            run->options.accumulate = cases[i].accumulate;
            run->options.interrupt = &heard;
            snprintf(run->hparams[0], 32, "epochs=4");
            fit_hear(run);
            run->module.on_train_batch_start = hear_a_signal;
        }
        cut = UINT64_MAX;
        fit_go(whole, cases[i].ranks, 0);
        fit_assert_good(whole);
        part->options.checkpoint_dir = dir;
        part->options.save_top_k = 0;
        cut = cases[i].cut;
        fit_go(part, cases[i].ranks, 0);
        assert_non_null(strstr(part->error, "interrupted at step "));
        part->error[0] = '\0';
        cut = UINT64_MAX;
        fit_go(part, cases[i].ranks, 0);
        fit_assert_good(part);
        assert_int_equal(tmpdir_remove(dir), 0);
        /* Two ranks write their events over each other's. */
        if ((cases[i].ranks == 1 &&
             fit_count(part, "validation_start") != fit_count(whole, "validation_start")) ||
            part->step != whole->step || strcmp(part->hash, whole->hash) != 0)
            fail_msg("case %zu: %d validations and %llu steps, without a signal %d and %llu", i,
                     fit_count(part, "validation_start"), (unsigned long long)part->step,
                     fit_count(whole, "validation_start"), (unsigned long long)whole->step);
    }
}

static int (*all_data)(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret);

static int whole_batches(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    ret->drop_last = 1;
    return all_data(pl, stage, ret);
}

/* With drop_last there may be no batch: such a run would seem to train. */
static void test_data_below_a_batch_is_refused(void **state)
{
    static const struct {
        unsigned ranks;
        int batch;
        double limit; /* of the validation */
        enum pl_run_kind kind;
        const char *text; /* NULL: the run is good */
    } cases[] = {
        {1, FIT_TRAIN_SAMPLES, 0, PL_RUN_TRAIN, NULL},
        {1, FIT_TRAIN_SAMPLES + 1, 0, PL_RUN_TRAIN,
         "the training data has 1253 samples, and the module drops a batch of fewer than 1254"},
        {2, 627, 0, PL_RUN_TRAIN, NULL},
        {2, 628, 0, PL_RUN_TRAIN, "has 627 samples for a rank, and the module drops a batch"},
        {2, 93, 1, PL_RUN_TRAIN, NULL}, /* one rank has 93 of 185 samples, the other none */
        {2, 94, 1, PL_RUN_TRAIN, "the validation data has 93 samples for a rank"},
        {2, 94, 0, PL_RUN_TRAIN, NULL},
        {1, 186, 1, PL_RUN_VALIDATE, "the validation data has 185 samples, and"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        all_data = run->module.data;
        run->module.data = whole_batches;
        run->options.run = cases[i].kind;
        run->options.limit[PLUME_VALIDATE] = fit_batches(cases[i].limit);
        run->options.limit[PLUME_TEST] = fit_batches(0);
        snprintf(run->hparams[0], 32, "batch_size=%d", cases[i].batch);
        fit_go(run, cases[i].ranks, 0);
        if (cases[i].text ? !strstr(run->error, cases[i].text) : run->error[0] != 0)
            fail_msg("case %zu: '%s'", i, run->error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_a_validation_that_stops_is_the_last),
        cmocka_unit_test(test_a_cut_changes_no_early_stop),
        cmocka_unit_test(test_who_stops_says_so),
        cmocka_unit_test(test_a_signal_takes_no_validation),
        cmocka_unit_test(test_data_below_a_batch_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
