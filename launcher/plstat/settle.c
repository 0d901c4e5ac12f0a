/* SPDX-License-Identifier: MIT */
/* A trial that failed may start again: Slurm requeues a job after it has written its result. */
#include "common/base/fs.h"
#include "common/run/run_local.h"
#include "launcher/plstat/status_private.h"
#include "launcher/slurm/slurm_cluster.h"

#include <string.h>
#include <sys/stat.h>

#define JUST_S 60.0    /* a job is requeued soon after its end */
#define UNSURE_S 600.0 /* unless Slurm does not answer, or its own end takes long */

static bool is_open(const struct pl_trial_status *ts)
{
    double passed_s = pl_wall_s() - pl_trial_result_end(ts->result);

    if (!ts->result || !pl_trial_state_is_failure(ts->state))
        return false;
    return passed_s < JUST_S || (passed_s < UNSURE_S && pl_trial_status_needs_slurm(ts));
}

/* True if the Slurm that is here has the sweep's jobs, and shows them to us. */
static bool may_ask(const struct pl_run *run, uid_t *ret_uid)
{
    const char *theirs = pl_run_cluster(run);
    _cleanup_free_ char *here = theirs ? pl_slurm_cluster() : NULL;
    struct stat st;

    if ((here && strcmp(here, theirs) != 0) || stat(pl_run_dir(run), &st) < 0)
        return false;
    *ret_uid = st.st_uid;
    return st.st_uid == geteuid() || geteuid() == 0;
}

/* True unless an answer from after the trial's end shows that its job has ended, too. jobs: NULL if
 * there is none, as on another cluster. */
static bool is_unsettled(const struct pl_trial_status *ts, const struct pl_slurm_jobs *jobs)
{
    const struct pl_slurm_job *job = pl_slurm_jobs_find(jobs, ts->array, ts->task);

    if (!jobs || jobs->stale || jobs->time_s <= pl_trial_result_end(ts->result))
        return true;
    if (!job || job->past || pl_slurm_job_is_rest(job))
        return false;
    return job->completing || !pl_slurm_state_final(job->state);
}

void pl_run_status_settle(struct pl_run_status *s, struct pl_slurm_view *slurm)
{
    const struct pl_slurm_jobs *jobs = NULL;
    bool any = false;
    uid_t uid;

    for (size_t i = 0; i < s->n_trials; i++)
        any |= is_open(&s->trials[i]);
    if (!any || pl_run_is_local(s->run))
        return;
    if (may_ask(s->run, &uid))
        jobs = pl_slurm_view_get(slurm, uid);
    for (size_t i = 0; i < s->n_trials; i++)
        if (is_open(&s->trials[i]))
            s->trials[i].unsettled = is_unsettled(&s->trials[i], jobs);
}
