/* SPDX-License-Identifier: MIT */
/* Arguments and environment of sbatch. */
#include "common/base/fs.h"
#include "launcher/plsubmit/submit_private.h"

#include <errno.h>
#include <string.h>

static bool starts_with(const char *s, const char *const *prefixes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(s, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

int pl_submit_env(char *const *env, char ***ret)
{
    static const char *const ours[] = {
        "PLUME_RUN_DIR=", "PLUME_BIN=", "PLUME_TRIAL=", "PLUME_ATTEMPT=", "PLUME_HUB=",
        "PLUME_PROGRAM=", "PLUME_SOCKET=", "PLUME_PARAMS=", "PLUME_PARAM_",
        "PLUME_RUNTIME=", "PLUME_NODE_ADDR=", "PLUME_RETRY=", "PLUME_LAUNCH=", "PLUME_CONTAINER",
        "PLUME_REQUEUE_ON=", "PLUME_SETUP_SIGNAL=", "SBATCH_WAIT=", /* sbatch would wait */
        /* srun would give the ranks a terminal, unrecorded */
        "SLURM_UNBUFFEREDIO="};
    static const char *const of_job[] = {"SLURM_",
                                         "SBATCH_MEM_BIND",
                                         "SBATCH_CPU_BIND",
                                         "MASTER_",
                                         "RANK=",
                                         "WORLD_SIZE=",
                                         "LOCAL_RANK=",
                                         "LOCAL_WORLD_SIZE=",
                                         "NODE_RANK=",
                                         "GROUP_RANK=",
                                         "PET_",
                                         "NCCL_RAS_ADDR=localhost:"};
    _cleanup_(pl_strv_freep) char **list = NULL;
    bool inside = false;
    size_t n = 0;

    while (env[n]) {
        inside |= strncmp(env[n], "SLURM_JOB_ID=", 13) == 0;
        n++;
    }
    list = calloc(n + 1, sizeof(*list));
    if (!list)
        return -ENOMEM;
    n = 0;
    for (; *env; env++) {
        bool keep = strncmp(*env, "SLURM_CONF=", 11) == 0;

        if (starts_with(*env, ours, PL_COUNT(ours)) ||
            (inside && !keep && starts_with(*env, of_job, PL_COUNT(of_job))))
            continue;
        list[n] = strdup(*env);
        if (!list[n++])
            return -ENOMEM;
    }
    *ret = PL_TAKE(list);
    return 0;
}

char *pl_submit_array(const struct pl_chunk *chunk, unsigned max_parallel)
{
    _cleanup_free_ char *all = pl_strf("0-%u", chunk->n - 1);
    const char *tasks = chunk->tasks ? chunk->tasks : all;

    if (!tasks || !max_parallel)
        return tasks ? strdup(tasks) : NULL;
    return pl_strf("%s%%%u", tasks, max_parallel);
}

const char *pl_submit_user_dependency(const char *const *arg)
{
    static const char key[] = "--dependency=";
    const char *found = NULL;

    for (; *arg; arg++)
        if (strncmp(*arg, key, strlen(key)) == 0)
            found = *arg + strlen(key);
    return found;
}

static int add_format(char ***list, char *text)
{
    _cleanup_free_ char *arg = text;

    return arg ? pl_strv_append(list, arg) : -ENOMEM;
}

char *pl_submit_script(const char *run_dir, unsigned first, unsigned retry)
{
    if (retry)
        return pl_strf("%s/job-%u.%u.sh", run_dir, first, retry);
    return first ? pl_strf("%s/job-%u.sh", run_dir, first) : pl_strf("%s/job.sh", run_dir);
}

int pl_submit_argv(const char *run_dir,
                   const char *const *sbatch_args,
                   const struct pl_chunk *chunk,
                   unsigned max_parallel,
                   const char *depends,
                   char ***ret)
{
    _cleanup_free_ char *array = pl_submit_array(chunk, max_parallel);
    _cleanup_(pl_strv_freep) char **list = NULL;
    const char *own = pl_submit_user_dependency(sbatch_args);
    int r = array ? pl_strv_append(&list, "sbatch") : -ENOMEM;

    if (r == 0)
        r = pl_strv_append(&list, "--parsable");
    for (const char *const *arg = sbatch_args; *arg && r == 0; arg++)
        r = pl_strv_append(&list, *arg);
    if (r == 0)
        r = add_format(&list, pl_strf("--array=%s", array));
    if (r == 0 && depends)
        r = add_format(&list,
                       pl_strf("--dependency=%s%s%s", own ? own : "", own ? "," : "", depends));
    if (r == 0 && depends && strstr(depends, "afterok:")) /* or it would wait for ever */
        r = pl_strv_append(&list, "--kill-on-invalid-dep=yes");
    if (r == 0)
        r = add_format(&list, pl_submit_script(run_dir, chunk->first, chunk->retry));
    if (r == 0)
        r = add_format(&list, pl_strf("%u", chunk->first));
    if (r == 0 && chunk->retry)
        r = add_format(&list, pl_strf("%u", chunk->retry));
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}
