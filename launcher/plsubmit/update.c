/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/update.h"
#include "common/base/fs.h"
#include "launcher/plsubmit/change.h"

int pl_update_parallel(struct pl_run *run, const char *k, char ***ret, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **jobs = calloc(1, sizeof(*jobs));
    int r =
        jobs ? pl_run_set_option(run, "max-parallel", k, "command line", err) : pl_error_nomem(err);

    for (size_t i = 0; i < pl_run_n_submissions(run) && r == 0; i++) {
        const char *job = pl_run_submission(run, i).job;
        _cleanup_free_ char *id = pl_strf("JobId=%s", job);
        _cleanup_free_ char *throttle = pl_strf("ArrayTaskThrottle=%s", k);
        const char *argv[] = {"scontrol", "update", id, throttle, NULL};
        bool ended;

        r = id && throttle ? pl_change_command(argv, &ended, err) : pl_error_nomem(err);
        if (r == 0 && !ended && pl_strv_append(&jobs, job) < 0)
            r = pl_error_nomem(err);
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(jobs);
    return 0;
}
