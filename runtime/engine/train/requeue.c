/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/requeue.h"
#include "common/base/env.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

int pl_requeue(struct pl_error *err)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *array = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID);
    const char *task = pl_env(PL_ENV_SLURM_ARRAY_TASK_ID);
    char id[64], *argv[] = {"scontrol", "requeue", id, NULL};
    int status, r;
    pid_t pid;

    if (!job || !*job)
        return 0;
    if (array && task)
        snprintf(id, sizeof(id), "%s_%s", array, task);
    else
        snprintf(id, sizeof(id), "%s", job);
    r = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
    if (r != 0)
        return pl_error_errno(err, r, "cannot run scontrol");
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return pl_error_errno(err, errno, "cannot wait for scontrol");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return pl_error_set(err, -EIO, "'scontrol requeue %s' failed", id);
    return 1;
}
