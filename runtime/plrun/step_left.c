/* SPDX-License-Identifier: MIT */
/* Ends the step of a trial whose srun was killed. Both processes of srun must be gone: Slurm then
 * lets the step run on. */
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/run/run_state.h"
#include "runtime/plrun/trial_private.h"

#include <string.h>

#define ASK_MS 5000

/* Runs one of Slurm's commands. True if it has ended with 0, and has printed `want`; NULL:
 * anything.
 */
static bool slurm_says(const char *const *argv, const char *want)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    return pl_child_run(argv, NULL, ASK_MS, &child, NULL) == 0 && child.status == 0 &&
           (!want || strstr(pl_buf_str(&child.out), want));
}

bool pl_trial_end_left_step(const char *attempt_dir)
{
    _cleanup_(json_decrefp) json_t *doc = NULL;
    _cleanup_free_ char *id = NULL;
    const char *job, *step;

    if (pl_run_state_load(attempt_dir, &doc, NULL) < 0)
        return false;
    job = pl_json_string(doc, "job");
    step = pl_json_string(doc, "step");
    id = job && step ? pl_strf("%s.%s", job, step) : NULL;
    if (!id || !slurm_says((const char *[]){"scontrol", "-o", "show", "step", id, NULL},
                           " State=RUNNING "))
        return false;
    pl_log_error("run", "srun was killed, and step %s runs on: ending it", id);
    return slurm_says((const char *[]){"scancel", id, NULL}, NULL);
}
