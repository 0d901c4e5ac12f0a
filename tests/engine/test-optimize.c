/* SPDX-License-Identifier: MIT */
/* What is done to the parameters of a real run between two steps: groups of parameters, and
 * their moving average. */
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
    part->options.checkpoint_dir = dir;
    part->options.save_top_k = 0;
    part->options.save_last = true;
    part->options.resume = "last";
    part->options.max_steps = CUT;
    fit_go(part, ranks, 0);
    fit_assert_good(part);
    assert_int_equal(part->step, CUT);
    part->options.max_steps = STEPS;
    fit_go(part, ranks, 0);
    fit_assert_good(part);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_resume),
        cmocka_unit_test(test_a_group_has_its_own_rate),
        cmocka_unit_test(test_groups_belong_to_an_optimizer),
        cmocka_unit_test(test_groups_of_a_checkpoint_must_fit),
        cmocka_unit_test(test_ema_resumes),
        cmocka_unit_test(test_ema_is_the_moving_average),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
