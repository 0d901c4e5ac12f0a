/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/requeue.h"
#include "common/base/child.h"
#include "common/base/env.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define LIMIT_MS 20000 /* a controller that does not answer must not hold a saved run up */

int pl_requeue(struct pl_error *err)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *array = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID);
    const char *task = pl_env(PL_ENV_SLURM_ARRAY_TASK_ID);
    char id[64];
    const char *const argv[] = {"scontrol", "requeue", id, NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    int r;

    if (!job || !*job || pl_env_text(PL_ENV_PLUME_REQUEUE_ON))
        return 0;
    if (array && task)
        snprintf(id, sizeof(id), "%s_%s", array, task);
    else
        snprintf(id, sizeof(id), "%s", job);
    r = pl_child_run(argv, NULL, LIMIT_MS, &child, err);
    if (r < 0)
        return pl_error_wrap(err, r, "'scontrol requeue %s'", id);
    if (!WIFEXITED(child.status) || WEXITSTATUS(child.status) != 0) {
        const char *why = child.err.len ? pl_buf_str(&child.err) : "no message";

        return pl_error_set(err, -EIO, "'scontrol requeue %s' failed: %.*s", id,
                            (int)PL_MIN(strcspn(why, "\n"), (size_t)200), why);
    }
    return 1;
}
