/* SPDX-License-Identifier: MIT */
/* The loop on a linear model of the digits: the order of hooks, limits, and the end of a run. */
#include "common/proto/rank/place.h"
#include "tests/engine/fit_run.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_hooks_come_in_order(void **state)
{
    struct fit_run *run = fit_new_run();

    fit_hear(run);
    run->options.limit[PLUME_TRAIN] = fit_batches(3);
    run->options.limit[PLUME_VALIDATE] = fit_batches(1);
    run->options.limit[PLUME_TEST] = fit_batches(1);
    run->options.accumulate = 2;
    run->options.sanity_steps = 2;
    fit_go(run, 1, 0);
    fit_assert_good(run);
    /* The dry steps; sanity; two batches for a step, the last one alone. */
    assert_string_equal(
        run->events,
        "step val test fit_start val train_epoch_start "
        "{ step after_backward } { step after_backward before_optimizer_step } "
        "{ step after_backward before_optimizer_step } validation_start val validation_end "
        "train_epoch_end fit_end test_start test test_end ");
    assert_int_equal(run->step, 2);
}

/* Appends the hook that the node daemon would see. */
static void add_place(struct fit_run *run)
{
    struct pl_place place = {.hook = "no page"};
    size_t len = strlen(run->events);

    pl_place_read(getpid(), &place);
    snprintf(run->events + len, sizeof(run->events) - len, "'%s' ", place.hook);
}

static int look_in_hook(struct plume_context *pl)
{
    add_place(fit_current);
    return 0;
}

static const char *train_and_look(struct pl_comm *comm, void *run)
{
    pl_place_open();
    fit_train(comm, run);
    add_place(run);
    return NULL;
}

/* Also after hooks that the module does not have, none runs. */
static void test_the_hook_that_runs_is_told(void **state)
{
    struct fit_run *run = fit_new_run();

    run->module.on_fit_start = run->module.on_train_epoch_end = look_in_hook;
    run->options.max_steps = 1;
    ranks_run(1, 0, train_and_look, run, 0);
    fit_assert_good(run);
    assert_non_null(strstr(run->events, "'on_fit_start' "));
    assert_non_null(strstr(run->events, "'on_train_epoch_end' "));
    assert_non_null(strstr(run->events, " '' "));
}

static void test_limits(void **state)
{
    struct fit_run *run = fit_new_run();

    /* 79 batches of 16 in 1253 samples; a quarter is 19, of which each third is 6. */
    fit_hear(run);
    run->options.limit[PLUME_TRAIN] = fit_share(0.25);
    run->options.val_check = fit_share(0.34);
    run->options.limit[PLUME_VALIDATE] = fit_batches(2);
    run->options.limit[PLUME_TEST] = fit_batches(0);
    snprintf(run->hparams[0], 32, "epochs=3");
    run->options.val_every = 2;
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, 3 * 19);
    assert_int_equal(fit_count(run, "validation_start"), 3); /* after 6, 12 and 18, in one epoch */
    assert_int_equal(fit_count(run, "val"), 1 + 6);
    assert_int_equal(fit_count(run, "test"), 1);

    run = fit_new_run();
    run->options.max_steps = 5;
    fit_go(run, 1, 0);
    assert_int_equal(run->step, 5);

    run = fit_new_run();
    fit_hear(run);
    run->options.fast_dev_run = 2;
    run->options.val_every = 5; /* its one epoch tries the validation, too */
    snprintf(run->hparams[0], 32, "epochs=9");
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, 2);
    assert_int_equal(run->epoch, 1);
    assert_int_equal(fit_count(run, "val"), 1 + 2);

    run = fit_new_run();
    run->options.val_check = fit_batches(80);
    fit_go(run, 1, 0);
    assert_non_null(strstr(run->error, "every 80 batches never comes: an epoch has 79"));

    run = fit_new_run();
    run->options.max_seconds = 0;
    snprintf(run->hparams[0], 32, "epochs=1000000");
    fit_go(run, 3, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, 1);
}

static void test_overfit_takes_the_same_batches(void **state)
{
    struct fit_run *run = fit_new_run(), *other = fit_new_run();

    run->options.overfit = fit_batches(1);
    snprintf(run->hparams[0], 32, "epochs=4");
    other->options.overfit = fit_batches(1);
    other->options.accumulate = 1;
    snprintf(other->hparams[0], 32, "epochs=4");
    other->options.limit[PLUME_TRAIN] = fit_batches(7); /* overfit counts */
    fit_go(run, 1, 0);
    fit_go(other, 1, 0);
    assert_int_equal(run->step, 4);
    assert_string_equal(run->hash, other->hash);
}

static void test_accumulation_is_a_bigger_batch(void **state)
{
    struct fit_run *small = fit_new_run(), *big = fit_new_run();

    snprintf(small->hparams[0], 32, "batch_size=8");
    small->options.accumulate = 4;
    snprintf(big->hparams[0], 32, "batch_size=32");
    small->options.max_steps = big->options.max_steps = 30;
    fit_go(small, 1, 0);
    fit_go(big, 1, 0);
    /* Sums of 32 terms in another order, 30 steps. */
    assert_true(fit_distance(small, big) < 1e-6);
    assert_true(fabsf(big->params[100]) > 0);
}

static int
log_loss(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    int r = fit_training_step(pl, batch, ret_loss);
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

/* Each report has the loss of its step, which the test computes in another way. */
static void check_logged(enum pl_strategy_kind kind, unsigned devices, unsigned ranks)
{
    char dir[40], path[64], line[256];
    struct fit_run *run = fit_new_run();
    double step, loss, epoch, same, twice;
    int lines = 0;
    FILE *f;

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/metrics.csv", dir);
    run->options.strategy = kind;
    run->options.devices = devices;
    run->module.training_step = log_loss;
    run->module.validation_step = NULL;
    run->options.log_dir = dir;
    run->options.log_every = 1;
    run->options.max_steps = 5;
    fit_go(run, ranks, 0);
    fit_assert_good(run);
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

/* train_same of the last step, whose group of batches ends with the short one of 5 rows. */
static double logged_of_short_batch(unsigned devices)
{
    char dir[] = "/tmp/plume-fit-XXXXXX", path[64], line[256] = "";
    struct fit_run *run = fit_new_run();
    double step, loss, same = NAN;
    FILE *f;

    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/metrics.csv", dir);
    run->options.strategy = PL_STRATEGY_DP;
    run->options.devices = devices;
    run->module.training_step = log_loss;
    run->module.validation_step = NULL;
    run->options.log_dir = dir;
    run->options.log_every = 20;
    run->options.accumulate = 4; /* 79 batches: 19 groups of 4, then one of 3 */
    fit_go(run, 1, 0);
    fit_assert_good(run);
    f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        ;
    fclose(f);
    assert_int_equal(sscanf(line, "%lf,%lf,%lf", &step, &loss, &same), 3);
    assert_true(step == 20);
    empty_folder(dir);
    assert_int_equal(rmdir(dir), 0);
    return same;
}

/* The last batch has fewer rows than devices; the others' logged values count all the same. */
static void test_steps_log_all_parts(void **state)
{
    assert_true(fabs(logged_of_short_batch(8) - logged_of_short_batch(1)) < 1e-5);
}

static void test_steps_log(void **state)
{
    check_logged(PL_STRATEGY_AUTO, 1, 1);
    check_logged(PL_STRATEGY_DDP, 1, 2);
    check_logged(PL_STRATEGY_DP, 2, 1);
}

/* Bits by rank; a rank that configures must see that its node's first rank is done. */
static int prepare(struct plume_context *pl)
{
    __atomic_or_fetch(&fit_current->parts, 1u << pl->rank, __ATOMIC_SEQ_CST);
    return fit_current->uneven && pl->rank ? plume_fail(pl, -EIO, "no room for the data") : 0;
}

static int configure_prepared(struct plume_context *pl)
{
    unsigned done = __atomic_load_n(&fit_current->parts, __ATOMIC_SEQ_CST);

    if (done != (pl->world_size == 3 ? 0x5 : 0x1)) /* nodes of two: ranks 0 and 2 */
        return plume_fail(pl, -EINVAL, "not prepared, or by the wrong ranks");
    return fit_configure(pl);
}

static int log_odd(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_tensor *y = fit_forward(pl, batch);
    plume_tensor *loss = plume_cross_entropy(pl, y, batch->field[1]);
    char name[16];

    for (int i = 0; i < 33 && fit_current->few; i++) {
        snprintf(name, sizeof(name), "v%d", i);
        plume_log(pl, name, loss, 1, 1);
    }
    plume_log(pl, fit_current->drop ? "a b" : batch->index ? "late" : "early", loss, 1, 1);
    return 0;
}

static void test_names_that_cannot_be_logged(void **state)
{
    static const struct {
        bool drop, few;
        const char *text;
    } cases[] = {
        {true, false, "log: 'a b' is a bad name: wanted are at most 63 letters"},
        {false, true, "log: 'v32' exceeds the limit of 32 names"},
        {false, false, "log: 'late' was not logged in the first batch"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        run->drop = cases[i].drop;
        run->few = cases[i].few;
        run->module.validation_step = log_odd;
        fit_go(run, 1, 0);
        if (!strstr(run->error, cases[i].text))
            fail_msg("'%s' has no '%s'", run->error, cases[i].text);
    }
}

static void test_data_is_prepared_once_a_node(void **state)
{
    static const unsigned layouts[][2] = {{1, 0}, {2, 0}, {3, 2}};
    struct fit_run *run;

    for (size_t i = 0; i < PL_COUNT(layouts); i++) {
        run = fit_new_run();
        run->module.prepare_data = prepare;
        run->module.configure = configure_prepared;
        run->options.max_steps = 1;
        fit_go(run, layouts[i][0], layouts[i][1]);
        fit_assert_good(run);
        assert_int_equal(run->step, 1);
    }
    run = fit_new_run(); /* the second node fails: all ranks fail */
    run->module.prepare_data = prepare;
    run->uneven = true;
    fit_go(run, 2, 1);
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
    fit_current->parts = 77;
    return 0;
}

static void test_modules_keep_their_own_in_checkpoints(void **state)
{
    char dir[40], path[64];
    struct fit_run *run = fit_new_run();

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/last.ckpt", dir);
    run->options.checkpoint_dir = dir;
    run->options.save_top_k = 0;
    run->options.save_last = true;
    run->options.resume = "last";
    run->module.on_save_checkpoint = save_word;
    run->module.on_load_checkpoint = load_word;
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_int_equal(run->parts, 0); /* no checkpoint exists yet */
    snprintf(run->hparams[0], 32, "epochs=2");
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_int_equal(run->parts, 77);
    assert_int_equal(run->epoch, 2);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* Number of *.ckpt files but last.ckpt, which must exist. */
static int kept_files(const char *dir)
{
    struct dirent *entry;
    int n = 0, last = 0;
    DIR *d = opendir(dir);

    assert_non_null(d);
    while ((entry = readdir(d))) {
        n += strstr(entry->d_name, ".ckpt") != NULL;
        last += strcmp(entry->d_name, "last.ckpt") == 0;
    }
    closedir(d);
    assert_int_equal(last, 1);
    return n - last;
}

/* Validations at 30 and 60 of an epoch's 79 batches. */
static struct fit_run *new_monitored(const char *dir)
{
    struct fit_run *run = fit_new_run();

    run->options.checkpoint_dir = dir;
    run->options.monitor = "val_loss";
    run->options.save_top_k = -1;
    run->options.save_last = true;
    run->options.resume = "last";
    run->options.val_check = fit_batches(30);
    return run;
}

static void test_without_a_new_value_only_last_is_saved(void **state)
{
    char dir[40];
    struct fit_run *run, *whole;

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    run = new_monitored(dir);
    run->options.val_every = 2;
    snprintf(run->hparams[0], 32, "epochs=3");
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_int_equal(run->epoch, 3);
    assert_int_equal(kept_files(dir), 1); /* 40 batches per rank: one validation in epoch 2 */
    assert_int_equal(tmpdir_remove(dir), 0);

    /* A run that continues after the epoch's last validation has none until the next epoch. */
    assert_int_equal(mkdir(dir, 0777), 0);
    run = new_monitored(dir);
    run->options.max_steps = 70;
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(kept_files(dir), 3); /* 30, 60, and at the end */
    run->options.max_steps = UINT64_MAX;
    fit_go(run, 1, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, 79);
    assert_int_equal(kept_files(dir), 3);
    assert_false(isnan(run->val_loss)); /* of the checkpoint */
    whole = fit_new_run();
    fit_go(whole, 1, 0);
    assert_string_equal(run->hash, whole->hash);
    assert_int_equal(tmpdir_remove(dir), 0);
}

static int fail_late(struct plume_context *pl)
{
    return pl->step == 3 ? plume_fail(pl, -EIO, "the disk is full") : 0;
}

/* ---- initial values of the module ---- */

static double given[640];

static int configure_given(struct plume_context *pl)
{
    struct fit_net *net = pl->state;
    double *copy = malloc(sizeof(given));

    if (!copy)
        return -ENOMEM;
    memcpy(copy, given, sizeof(given));
    net->w = plume_param_values(pl, "w", 2, (size_t[]){10, 64}, copy);
    memset(copy, 0xff, sizeof(given));
    free(copy);
    net->b = plume_param_init(pl, "b", PLUME_INIT_NORMAL, 3, 0, 1, (size_t[]){10});
    return 0;
}

static int read_given(struct plume_context *pl)
{
    double w[640], b[10];
    int r = plume_read(pl, "w", PLUME_VALUE, 640, w);

    if (r == 0)
        r = plume_read(pl, "b", PLUME_VALUE, 10, b);
    for (size_t i = 0; i < 640 && r == 0; i++)
        if (w[i] != given[i] || b[i % 10] != 3)
            return plume_fail(pl, -EINVAL, "other values than were given");
    return r;
}

/* Under strategies that read nothing the run's result tells: it is that of ddp. */
static void test_parameters_start_with_given_values(void **state)
{
    char hash[17] = "";

    for (size_t i = 0; i < 640; i++)
        given[i] = (double)((int)(i * 37 % 256) - 128) / 1024;
    for (int shard = 0; shard <= PL_SHARD_PARAM; shard++) {
        struct fit_run *run = fit_new_run();

        run->options.max_steps = 2;
        run->module.configure = configure_given;
        run->module.on_fit_start = shard == PL_SHARD_PARAM ? NULL : read_given;
        if (shard) {
            run->options.strategy = PL_STRATEGY_SHARDED;
            run->options.shard = (enum pl_shard_kind)shard;
        }
        fit_go(run, 2, 0);
        fit_assert_good(run);
        if (shard)
            assert_string_equal(run->hash, hash);
        memcpy(hash, run->hash, sizeof(hash));
    }
}

static void test_given_values_are_finite(void **state)
{
    static const double bad[] = {NAN, INFINITY, 1e300}; /* the last has no float */

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct fit_run *run = fit_new_run();

        given[7] = bad[i];
        run->module.configure = configure_given;
        fit_go(run, 1, 0);
        if (!strstr(run->error, "parameter 'w': initial value 7 is "))
            fail_msg("%s", run->error);
    }
}

/* In one process: a failed run leaves nothing to the next one. */
static void test_a_failed_run_leaves_nothing(void **state)
{
    struct fit_run *run = fit_new_run(), *clean = fit_new_run(), *other = fit_new_run();
    struct pl_comm *comm;

    fit_go(other, 1, 0); /* forks, and therefore comes before this process has threads */
    run->module.on_before_optimizer_step = fail_late;
    assert_int_equal(pl_comm_self_create(0, &comm, NULL), 0);
    for (int i = 0; i < 3; i++) {
        fit_train(comm, run);
        assert_string_equal(run->error, "hook on_before_optimizer_step: the disk is full");
    }
    fit_train(comm, clean);
    pl_comm_destroy(comm);
    assert_string_equal(clean->hash, other->hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_come_in_order),
        cmocka_unit_test(test_the_hook_that_runs_is_told),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_overfit_takes_the_same_batches),
        cmocka_unit_test(test_accumulation_is_a_bigger_batch),
        cmocka_unit_test(test_steps_log),
        cmocka_unit_test(test_steps_log_all_parts),
        cmocka_unit_test(test_names_that_cannot_be_logged),
        cmocka_unit_test(test_data_is_prepared_once_a_node),
        cmocka_unit_test(test_modules_keep_their_own_in_checkpoints),
        cmocka_unit_test(test_without_a_new_value_only_last_is_saved),
        cmocka_unit_test(test_parameters_start_with_given_values),
        cmocka_unit_test(test_given_values_are_finite),
        cmocka_unit_test(test_a_failed_run_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
