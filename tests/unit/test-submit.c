/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/slurm/slurm_limits.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char top[64];

static int no_values(void *ctx, unsigned trial, const char **ret)
{
    return 0;
}

static struct pl_run *make(const char *name, unsigned n_trials)
{
    static const char *const argv[] = {"p", NULL}, *const axes[] = {NULL};
    _cleanup_(json_decrefp) json_t *options = json_object();
    _cleanup_free_ char *dir = pl_path_join(top, name);
    struct pl_run *run = NULL;
    struct pl_error err = {0};
    struct pl_run_desc desc = {.sweep = name,
                               .name = name,
                               .n_trials = n_trials,
                               .argv = argv,
                               .axes = axes,
                               .options = options,
                               .values = no_values};

    assert_int_equal(pl_run_create(dir, &desc, &err), 0);
    assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
    return run;
}

static void plan_is(const struct pl_run *run, unsigned max, const unsigned (*expected)[2], size_t n)
{
    _cleanup_free_ struct pl_chunk *chunks = NULL;
    size_t n_chunks;

    assert_int_equal(pl_submit_plan(run, max, &chunks, &n_chunks), 0);
    assert_int_equal(n_chunks, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(chunks[i].first, expected[i][0]);
        assert_int_equal(chunks[i].n, expected[i][1]);
    }
}

static void test_plan(void **state)
{
    _cleanup_(pl_run_closep) struct pl_run *run = make("plan", 10);
    struct pl_error err = {0};

    plan_is(run, 10, (const unsigned[][2]){{0, 10}}, 1);
    plan_is(run, UINT32_MAX, (const unsigned[][2]){{0, 10}}, 1);
    plan_is(run, 9, (const unsigned[][2]){{0, 9}, {9, 1}}, 2);
    plan_is(run, 4, (const unsigned[][2]){{0, 4}, {4, 4}, {8, 2}}, 3);
    assert_int_equal(pl_run_add_submission(run, "1", 4, 3, &err), 0);
    plan_is(run, 100, (const unsigned[][2]){{0, 4}, {7, 3}}, 2);
    plan_is(run, 3, (const unsigned[][2]){{0, 3}, {3, 1}, {7, 3}}, 3);
    assert_int_equal(pl_run_add_submission(run, "2", 0, 4, &err), 0);
    assert_int_equal(pl_run_add_submission(run, "3", 7, 3, &err), 0);
    plan_is(run, 100, NULL, 0);
}

static void env_is(char *const *env, const char *const *expected)
{
    _cleanup_(pl_strv_freep) char **list = NULL;
    size_t i;

    assert_int_equal(pl_submit_env(env, &list), 0);
    for (i = 0; expected[i]; i++)
        assert_string_equal(list[i], expected[i]);
    assert_null(list[i]);
}

static void test_env(void **state)
{
    char *outside[] = {"SLURM_CONF=/c",
                       "SLURM_CLUSTERS=x",
                       "MASTER_PORT=1",
                       "RANK=0",
                       "PLUME_TRIAL=3",
                       "PLUME_LOG=debug",
                       "PLUME_PARAM_lr=1",
                       "SBATCH_WAIT=1",
                       "SBATCH_QOS=high",
                       "SLURM_UNBUFFEREDIO=1",
                       NULL};
    static const char *const outside_left[] = {"SLURM_CONF=/c",
                                               "SLURM_CLUSTERS=x",
                                               "MASTER_PORT=1",
                                               "RANK=0",
                                               "PLUME_LOG=debug",
                                               "SBATCH_QOS=high",
                                               NULL};
    char *inside[] = {"HOME=/h",
                      "SLURM_JOB_ID=1",
                      "SLURM_CONF=/c",
                      "SLURM_NTASKS=9",
                      "SBATCH_MEM_BIND=x",
                      "SBATCH_MEM_BIND_LIST=x",
                      "SBATCH_CPU_BIND=",
                      "SBATCH_PARTITION=p",
                      "MASTER_ADDR=a",
                      "RANK=0",
                      "RANKING=1",
                      "WORLD_SIZE=2",
                      "LOCAL_RANK=0",
                      "LOCAL_WORLD_SIZE=1",
                      "NODE_RANK=0",
                      "PLUME_HUB=a:1",
                      "PLUME_KEY_FILE=/key",
                      "PLUME_RUNTIME=plugin",
                      "PLUME_NODE_ADDR=a",
                      "NCCL_RAS_ADDR=localhost:9",
                      NULL};
    static const char *const inside_left[] = {
        "HOME=/h", "SLURM_CONF=/c", "SBATCH_PARTITION=p", "RANKING=1", "PLUME_KEY_FILE=/key", NULL};

    env_is(outside, outside_left);
    env_is(inside, inside_left);
}

static void test_argv(void **state)
{
    static const char *const args[] = {"--nodes=2", "--dependency=after:1", NULL};
    static const char *const expected[] = {"sbatch",
                                           "--parsable",
                                           "--nodes=2",
                                           "--dependency=after:1",
                                           "--array=0-4%2",
                                           "--dependency=after:1,afterany:7",
                                           "/r/job-10.sh",
                                           "10",
                                           NULL};
    struct pl_chunk chunk = {.first = 10, .n = 5};
    struct pl_chunk again = {.first = 3, .n = 6, .tasks = "0,2-5", .retry = 2};
    _cleanup_(pl_strv_freep) char **argv = NULL, **retry = NULL;
    size_t i;

    assert_int_equal(pl_submit_argv("/r", args, &chunk, 2, "afterany:7", &argv), 0);
    for (i = 0; expected[i]; i++)
        assert_string_equal(argv[i], expected[i]);
    assert_null(argv[i]);
    assert_int_equal(pl_submit_argv("/r", args, &again, 2, NULL, &retry), 0);
    assert_string_equal(retry[4], "--array=0,2-5%2");
    assert_string_equal(retry[5], "/r/job-3.2.sh");
    assert_string_equal(retry[6], "3");
    assert_string_equal(retry[7], "2");
    assert_null(retry[8]);
}

static void find_retry_is(
    const char *lines, const char *dir, unsigned first, unsigned retry, const char *expected)
{
    _cleanup_free_ char *job = pl_submit_find(lines, dir, first, retry);

    if (expected)
        assert_string_equal(job, expected);
    else
        assert_null(job);
}

static void find_is(const char *lines, const char *dir, unsigned first, const char *expected)
{
    find_retry_is(lines, dir, first, 0, expected);
}

static void test_find(void **state)
{
    static const char lines[] = "11 FAILED /r/a/job.sh 0|BadConstraints\n"
                                "12 PENDING /r/a/job.sh 0|Resources\n"
                                "13 RUNNING /r/a/job-1000.sh 1000|None\n\nx /r/b/job.sh 0\n"
                                "14 RUNNING sleep 5|None\n16 /r/b/job.sh 0\n17\n18 \n"
                                "19 FAILED /r/e/job.sh 0|NonZeroExitCode\n"
                                "15 PENDING /r/c d/job.sh 0|Dependency";

    find_is(lines, "/r/a", 0, "12");
    find_is(lines, "/r/a", 1000, "13");
    find_is(lines, "/r/a", 100, NULL);
    find_is(lines, "/r/a", 1, NULL);
    find_is(lines, "/r/b", 0, NULL);
    find_is(lines, "/r/c d", 0, "15");
    find_is(lines, "/r", 0, NULL);
    find_is(lines, "/r/e", 0, "19");
    find_is("", "/r/a", 0, NULL);
    find_retry_is("20 PENDING /r/a/job-0.2.sh 0 2|None\n", "/r/a", 0, 2, "20");
    find_retry_is("20 PENDING /r/a/job-0.2.sh 0 2|None\n", "/r/a", 0, 1, NULL);
    find_is("20 PENDING /r/a/job-0.2.sh 0 2|None\n", "/r/a", 0, NULL);
    find_is("21 PENDING /r/a/job.sh 0|ReqNodeNotAvail, UnavailableNodes:n[1-3]", "/r/a", 0, "21");
    find_is("21 PENDING /r/a/job.sh 0 0|None\n", "/r/a", 0, NULL);
}

/* Slurm 24.11's squeue shows no arguments of a batch script. */
static void test_find_without_arguments(void **state)
{
    static const char lines[] = "11 FAILED /r/a/job.sh|BadConstraints\n"
                                "12 PENDING /r/a/job.sh|Resources\n"
                                "13 RUNNING /r/a/job-1000.sh|None\n"
                                "14 RUNNING /r/a/job-0.2.sh|None\n"
                                "15 RUNNING /r/b/job.sh 7|None\n";

    find_is(lines, "/r/a", 0, "12");
    find_is(lines, "/r/a", 1000, "13");
    find_is(lines, "/r/a", 100, NULL);
    find_is(lines, "/r/b", 0, NULL);
    find_retry_is(lines, "/r/a", 0, 2, "14");
    find_retry_is(lines, "/r/a", 0, 1, NULL);
}

static void test_limits_parse(void **state)
{
    struct pl_slurm_limits limits;

    assert_int_equal(pl_slurm_limits_parse("Configuration data as of 2026\n"
                                           "MaxArraySize            = 1001\n"
                                           "SchedulerParameters     = (null)\n",
                                           &limits),
                     0);
    assert_int_equal(limits.max_array_size, 1001);
    assert_int_equal(limits.max_array_tasks, 0);
    assert_int_equal(pl_slurm_limits_parse("SchedulerParameters = defer,max_array_tasks=50\n"
                                           "MaxArraySize = 4000001",
                                           &limits),
                     0);
    assert_int_equal(limits.max_array_size, 4000001);
    assert_int_equal(limits.max_array_tasks, 50);
    assert_int_equal(pl_slurm_limits_parse("slurm_load_ctl_conf error", &limits), -EINVAL);
    assert_int_equal(pl_slurm_limits_parse("", &limits), -EINVAL);
    assert_int_equal(pl_slurm_max_array_tasks("xmax_array_tasks=5"), 0);
    assert_int_equal(pl_slurm_max_array_tasks("a,b,max_array_tasks=5,c"), 5);
    assert_int_equal(pl_slurm_max_array_tasks(NULL), 0);
}

static int make_top(void **state)
{
    return tmpdir_make(top, sizeof(top));
}

static int remove_top(void **state)
{
    return tmpdir_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_env),
        cmocka_unit_test(test_argv),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_find_without_arguments),
        cmocka_unit_test(test_limits_parse),
    };

    return cmocka_run_group_tests(tests, make_top, remove_top);
}
