/* SPDX-License-Identifier: MIT */
#include "runtime/node/slurm_step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The environment of rank 3 of 8, the second task of the second node. */
static const char *const slurm[][2] = {
    {"SLURM_JOB_ID", "4711"},
    {"SLURM_STEP_ID", "2"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_NUM_NODES", "3"},
    {"SLURM_STEP_NUM_TASKS", "8"},
    {"SLURM_STEP_TASKS_PER_NODE", "2,3(x2)"},
    {"SLURM_PROCID", "3"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_STEP_NODELIST", "n[1-3]"},
    {"SLURMD_NODENAME", "n2"},
};

/* Removes what Slurm and Plume set; the test runner's own variables stay. */
static void clear_env(void)
{
    for (char **e = environ; *e;) {
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "SLURM", 5) == 0 || strncmp(name, "PLUME", 5) == 0)
            unsetenv(name); /* moves the rest up */
        else
            e++;
    }
}

static int set_env(void **state)
{
    clear_env();
    for (size_t i = 0; i < PL_COUNT(slurm); i++)
        setenv(slurm[i][0], slurm[i][1], 1);
    return 0;
}

static void test_from_env_task(void **state)
{
    struct pl_error err = {0};
    struct pl_slurm_step s;

    assert_int_equal(pl_slurm_step_from_env(&s, true, &err), 0);
    assert_string_equal(s.id.job, "4711");
    assert_string_equal(s.id.step, "2");
    assert_string_equal(s.array, "4711");
    assert_string_equal(s.node, "n2");
    assert_int_equal(s.id.attempt, 0);
    assert_int_equal(s.node_id, 1);
    assert_int_equal(s.nnodes, 3);
    assert_int_equal(s.ntasks, 8);
    assert_int_equal(s.local_ntasks, 3);
    assert_int_equal(s.rank, 3);
    assert_int_equal(s.local_rank, 1);
    assert_null(s.run_dir);
    assert_false(s.plugin);
}

static void test_from_env_array_and_requeue(void **state)
{
    struct pl_slurm_step s;

    setenv("SLURM_ARRAY_JOB_ID", "4700", 1);
    setenv("SLURM_ARRAY_TASK_ID", "11", 1);
    setenv("SLURM_RESTART_COUNT", "2", 1);
    setenv("PLUME_RUN_DIR", "/r", 1);
    setenv("PLUME_TRIAL", "11", 1);
    setenv("PLUME_ATTEMPT", "1", 1);
    assert_int_equal(pl_slurm_step_from_env(&s, false, NULL), 0);
    assert_string_equal(s.array, "4700_11");
    assert_string_equal(s.id.job, "4711"); /* the session's is never the array form */
    assert_int_equal(s.id.attempt, 2);
    assert_int_equal(s.trial, 11);
    assert_int_equal(s.attempt, 1);
}

/* The plugin's variables for its daemon take precedence over Slurm's for a task. */
static void test_from_env_plugin(void **state)
{
    struct pl_slurm_step s;

    setenv("PLUME_JOB_ID", "5", 1);
    setenv("PLUME_NODE_ID", "0", 1);
    setenv("PLUME_NNODES", "1", 1);
    setenv("PLUME_NTASKS", "4", 1);
    setenv("PLUME_LOCAL_NTASKS", "4", 1);
    setenv("PLUME_PLUGIN", "1", 1);
    assert_int_equal(pl_slurm_step_from_env(&s, false, NULL), 0);
    assert_string_equal(s.id.job, "5");
    assert_int_equal(s.node_id, 0);
    assert_int_equal(s.local_ntasks, 4);
    assert_true(s.plugin);
}

static void test_from_env_missing(void **state)
{
    static const char *const needed[] = {
        "SLURM_JOB_ID",         "SLURM_STEP_ID",        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_PROCID",         "SLURM_LOCALID",        "SLURM_STEP_NODELIST"};

    for (size_t i = 0; i < PL_COUNT(needed); i++) {
        struct pl_error err = {0};
        struct pl_slurm_step s;

        set_env(NULL);
        unsetenv(needed[i]);
        assert_int_equal(pl_slurm_step_from_env(&s, true, &err), -ENOENT);
        assert_non_null(strstr(err.text, needed[i]));
    }
}

static void test_from_env_nonsense(void **state)
{
    static const char *const bad[][2] = {
        {"SLURM_JOB_ID", "x"},
        {"SLURM_JOB_ID", "-1"},
        {"SLURM_JOB_ID", "9999999999"},
        {"SLURM_NODEID", "3"},
        {"SLURM_PROCID", "8"},
        {"SLURM_LOCALID", "3"},
        {"SLURM_STEP_NUM_TASKS", "0"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_STEP_NUM_NODES", "1"},
        {"SLURM_STEP_TASKS_PER_NODE", "2"},
        {"SLURM_STEP_TASKS_PER_NODE", "2,0,4"},
        {"SLURM_STEP_TASKS_PER_NODE", "2(y3)"},
        {"SLURM_RESTART_COUNT", "1.5"},
        {"PLUME_LOCAL_NTASKS", "many"},
    };

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_error err = {0};
        struct pl_slurm_step s = {.trial = 77};

        set_env(NULL);
        setenv(bad[i][0], bad[i][1], 1);
        if (pl_slurm_step_from_env(&s, true, &err) >= 0)
            fail_msg("%s=%s", bad[i][0], bad[i][1]);
        assert_int_not_equal(err.text[0], '\0');
        assert_int_equal(s.trial, 77); /* written on success only */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_from_env_task, set_env),
        cmocka_unit_test_setup(test_from_env_array_and_requeue, set_env),
        cmocka_unit_test_setup(test_from_env_plugin, set_env),
        cmocka_unit_test(test_from_env_missing),
        cmocka_unit_test(test_from_env_nonsense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
