/* SPDX-License-Identifier: MIT */
/* Changes of a submitted sweep: retry, cancel, hold, release. plstat --json tells the states of the
 * trials, so that both tools agree. */
#ifndef PL_LAUNCHER_PLSUBMIT_CHANGE_H
#define PL_LAUNCHER_PLSUBMIT_CHANGE_H

#include "launcher/plsubmit/spec.h"

/* The trials that a command line SWEEP[/TRIALS] names. */
struct pl_change {
    struct pl_run *run;
    char *trials; /* "3-8,10"; NULL: all */
    int locks[2]; /* pl_change_lock(); negative: none */
    bool slow;    /* the folder's file system did not answer */
};
#define PL_CHANGE_UNLOCKED ((struct pl_change){.locks = {-EBADF, -EBADF}})
void pl_change_finish(struct pl_change *change);

/* Locks a run folder against another plsubmit until both of ret are closed; the second is negative
 * where the folder has no key. -EBUSY: another plsubmit has locked it. */
int pl_change_lock(const char *dir, int ret[2], struct pl_error *err);

/* Gives the lock up early: who only waits for the trials changes nothing. */
void pl_change_unlock(struct pl_change *change);

/* True for the changes of SWEEP[/TRIALS], false for those of a whole sweep. */
bool pl_change_takes_trials(enum pl_change_kind kind);

/* Finds the sweep as plstat does and locks its folder. -ENOENT, -EINVAL, -EBUSY, ... */
int pl_change_open(enum pl_change_kind kind,
                   const char *word,
                   struct pl_change *ret,
                   struct pl_error *err);

/* Asks plstat for a sweep's trials: its document, a new reference. -ENOENT (no plstat),
 * -EIO. */
int pl_change_ask(const char *bin_dir, const char *dir, json_t **ret, struct pl_error *err);

/* The states of all trials of a sweep, as pl_change_ask(), for who changes them.
 * bin_dir  folder of plstat
 * dir      run folder
 * Returns 0, -EAGAIN (Slurm cannot be asked), -ENOENT (no plstat), -EIO. */
int pl_change_states(const char *bin_dir, const char *dir, json_t **ret, struct pl_error *err);

/* Before a retry: waits until the named trials that plsubmit has cancelled have ended, and renews
 * *states meanwhile. -EAGAIN: some have not, and errors of pl_change_states(). */
int pl_change_await_ends(const struct pl_run *run,
                         const char *bin_dir,
                         const char *trials,
                         json_t **states,
                         struct pl_error *err);

/* The trials among those named that the change concerns, ascending; the caller frees *ret.
 *   retry           ended, but neither done nor pruned
 *   cancel          waiting or running in Slurm
 *   hold, release   waiting in Slurm */
int pl_change_select(enum pl_change_kind kind,
                     const json_t *states,
                     const char *trials,
                     int64_t **ret,
                     size_t *ret_n,
                     struct pl_error *err);

/* The jobs of these trials as Slurm's commands take them, "123_[0-3,7]", one per array; free *ret
 * with pl_strv_free(). -ENOMEM. */
int pl_change_jobs(const json_t *states, const int64_t *trials, size_t n, char ***ret);

/* Records that these trials are to be submitted again; pl_submit_run() submits them.
 * max  tasks of an array */
int pl_change_plan_retry(
    struct pl_run *run, const int64_t *trials, size_t n, unsigned max, struct pl_error *err);

/* Cancels, holds or releases the jobs. -EREMOTEIO: Slurm refused some; err has its first text. */
int pl_change_apply(enum pl_change_kind kind, char *const *jobs, struct pl_error *err);

/* Runs one of Slurm's commands. *ret_ended: it failed only because the jobs have ended meanwhile.
 * -EREMOTEIO: Slurm refused; err has its text. */
int pl_change_command(const char *const *argv, bool *ret_ended, struct pl_error *err);

/* "2 done, 1 running": the named trials by state. The caller frees it; NULL when out of memory. */
char *pl_change_counts(const json_t *states, const char *trials);

#endif
