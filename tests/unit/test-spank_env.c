/* SPDX-License-Identifier: MIT */
/* The daemon that slurmstepd starts: its environment. */
#include "spank_plugin/daemon_env.h"
#include "tests/unit/spank_script.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static void test_env(void **state)
{
    char *job[] = {"SECRET=x",
                   "HOME=/home/u",
                   "PLUME_RUN_DIR=/r=1",
                   "PLUME_NODE_ID=99",
                   "PLUME_PARAM_LR=1",
                   "PLUME_METRIC=a=b\nc=d",
                   "SLURM_STEP_NODELIST=n[1-2]",
                   "SLURM_SRUN_COMM_HOST=10.0.0.1",
                   "HOMEX=1",
                   "SLURM_RESTART_COUNT=2",
                   "SLURM_CPUS_ON_NODE=3",
                   "LD_PRELOAD=x",
                   "SLURM_CONF=/home/u/slurm.conf", /* names plugins that scontrol would load */
                   "PLUME_SCONTROL=/home/u/scontrol",
                   "SLURM_RLIMIT_NOFILE=100",
                   "XDG_RUNTIME_DIR=/run/user/7",
                   NULL};
    struct pl_daemon_facts facts = {.job_id = 7,
                                    .step_id = 1,
                                    .node_id = 2,
                                    .nnodes = 3,
                                    .ntasks = 12,
                                    .local_ntasks = 4,
                                    .cpus = 8,
                                    .node = "n3",
                                    .conf = "/etc/slurm.conf",
                                    .scontrol = "/usr/bin/scontrol",
                                    .metric = "c=d",
                                    .nccl_debug = "INFO"};
    struct pl_error err = {0};
    char **env = NULL;
    size_t n = 0;

    assert_int_equal(pl_daemon_env(&facts, job, &env, &err), 0);
    while (env[n])
        n++;
    assert_int_equal(n, 23);
    assert_string_equal(pl_env_get(env, "PLUME_JOB_ID"), "7");
    assert_string_equal(pl_env_get(env, "PLUME_STEP_ID"), "1");
    assert_string_equal(pl_env_get(env, "PLUME_NODE_ID"), "2");
    assert_string_equal(pl_env_get(env, "PLUME_NNODES"), "3");
    assert_string_equal(pl_env_get(env, "PLUME_NTASKS"), "12");
    assert_string_equal(pl_env_get(env, "PLUME_LOCAL_NTASKS"), "4");
    assert_string_equal(pl_env_get(env, "SLURM_CPUS_ON_NODE"), "8");
    assert_string_equal(pl_env_get(env, "PLUME_RESTART"), "2");
    assert_string_equal(pl_env_get(env, "PLUME_PLUGIN"), "1");
    assert_string_equal(pl_env_get(env, "PLUME_NODELIST"), "n[1-2]");
    assert_string_equal(pl_env_get(env, "PLUME_METRIC"), "a=b\nc=d");
    assert_string_equal(pl_env_get(env, "PLUME_NCCL_DEBUG"), "INFO");
    assert_string_equal(pl_env_get(env, "PLUME_RUN_DIR"), "/r=1");
    assert_string_equal(pl_env_get(env, "HOME"), "/home/u");
    assert_string_equal(pl_env_get(env, "SLURM_STEP_NODELIST"), "n[1-2]");
    assert_string_equal(pl_env_get(env, "SLURM_LAUNCH_NODE_IPADDR"), "10.0.0.1");
    assert_string_equal(pl_env_get(env, "SLURM_CONF"), "/etc/slurm.conf");
    assert_string_equal(pl_env_get(env, "PLUME_SCONTROL"), "/usr/bin/scontrol");
    assert_string_equal(pl_env_get(env, "SLURM_RLIMIT_NOFILE"), "100");
    assert_string_equal(pl_env_get(env, "XDG_RUNTIME_DIR"), "/run/user/7");
    assert_string_equal(pl_env_get(env, "SLURMD_NODENAME"), "n3");
    assert_non_null(pl_env_get(env, "PATH"));
    pl_daemon_env_free(env);
    pl_daemon_env_free(NULL);
}

static void test_umask(void **state)
{
    static const struct {
        const char *entry;
        mode_t mask;
    } cases[] = {{"SLURM_UMASK=0077", 077}, {"SLURM_UMASK=0", 0},       {"SLURM_UMASK=", 022},
                 {"SLURM_UMASK=9", 022},    {"SLURM_UMASK=77777", 022}, {"X=1", 022}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        char entry[32], *env[] = {entry, NULL};

        snprintf(entry, sizeof(entry), "%s", cases[i].entry);
        assert_int_equal(pl_daemon_umask(env), cases[i].mask);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_env),
        cmocka_unit_test(test_umask),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
