/* SPDX-License-Identifier: MIT */
/* What is known about the trials of a run, joined from all that can be reached: result.json, the
 * hub, status.json, the attempt's log, and Slurm, in this order of trust for what each can know.
 *
 * A trial:
 *   result of the newest attempt ............ its state; Slurm corrects what was only inferred
 *   no result, the hub answers .............. what the hub says
 *   no result, Slurm has the task waiting ... waiting
 *   no result, Slurm has it running ......... running; ranks from status.json, its age shown
 *   no result, Slurm has it ended ........... what Slurm says
 *   no result, submitted, Slurm answered and does not know it ... lost
 *   no result, Slurm cannot be asked ........ as status.json or the claim says; partial */
#ifndef PL_LAUNCHER_PLSTAT_STATUS_H
#define PL_LAUNCHER_PLSTAT_STATUS_H

#include "common/run/run_folder.h"
#include "launcher/plstat/hub_query.h"
#include "launcher/plstat/notes.h"
#include "launcher/slurm/slurm_jobs.h"

/* Sweep:
 *   waiting --a trial starts--> running --none active--> done | failed | cancelled
 *   done       every trial is done (or pruned)
 *   failed     a trial ended in another way than done, pruned or cancelled
 *   cancelled  those that are not done were cancelled */
enum pl_sweep_state {
    PL_SWEEP_WAITING,
    PL_SWEEP_RUNNING,
    PL_SWEEP_DONE,
    PL_SWEEP_FAILED,
    PL_SWEEP_CANCELLED,
};
const char *pl_sweep_state_name(enum pl_sweep_state state);

/* Where a trial's ranks come from. */
enum pl_source {
    PL_SOURCE_NONE,
    PL_SOURCE_HUB,
    PL_SOURCE_STATUS,
    PL_SOURCE_LOG,
    PL_SOURCE_SLURM,
};
const char *pl_source_name(enum pl_source source);

struct pl_trial_status {
    unsigned trial;
    enum pl_trial_state state;
    enum pl_source source;
    char job[48];        /* "123_4" or "123"; "" not submitted */
    int64_t array, task; /* the same for Slurm; -1 none */
    unsigned attempts;   /* that have started */
    double age_s;        /* of what is shown, where source is STATUS */
    json_t *params;      /* NULL where trials.jsonl is damaged */
    json_t *result;      /* NULL while there is none for the newest attempt */
    json_t *doc;         /* run-state document, NULL while there is none (or not asked for) */
    json_t *cause;       /* NULL: none */
    json_t *others;      /* array or NULL */
    const struct pl_slurm_job *slurm; /* lives in the pl_slurm_view */
    int64_t step;                     /* -1 not known */
    double objective;                 /* NaN: not known */
    double started_s, ended_s;        /* 0 not known */
    /* between reading and settling */
    struct pl_hub_query *query;
    json_t *live; /* "state" of status.json */
    double live_s;
    bool claimed, submitted;
    bool resubmitted; /* a newer array than the one that claimed it has it */
    double claim_s;
};

/* Slurm's view, asked for the first time when somebody needs it. */
struct pl_slurm_view {
    bool asked, never; /* never: for tests */
    uid_t uid;         /* whose jobs, once asked */
    struct pl_slurm_jobs *jobs;
    struct pl_error err; /* why jobs is NULL */
};
void pl_slurm_view_finish(struct pl_slurm_view *view);
/* A user's jobs or NULL (then view->err). One view has the jobs of one user: -EPERM for others. */
const struct pl_slurm_jobs *pl_slurm_view_get(struct pl_slurm_view *view, uid_t uid);
/* Why Slurm could not be asked: where there are no jobs, or stale ones. */
const char *pl_slurm_view_why(const struct pl_slurm_view *view);
/* As pl_slurm_view_get() for ourselves, but from Slurm's answer of now: waits, for at most
 * PL_SLURM_JOBS_AGE_S seconds, until it may be asked again. For what was not found in an older
 * answer. */
const struct pl_slurm_jobs *pl_slurm_view_renew(struct pl_slurm_view *view);

struct pl_run_status {
    struct pl_run *run; /* borrowed */
    enum pl_sweep_state state;
    struct pl_trial_status *trials; /* all, or the one asked for */
    size_t n_trials;
    char *objective; /* name of the metric, NULL none */
    bool maximize;
    int64_t best; /* index in trials, -1 none */
    double best_value;
};
void pl_run_status_destroy(struct pl_run_status *status);
PL_DEFINE_CLEANUP(struct pl_run_status *, pl_run_status_destroy)

/* Collects.
 * trial   the one to look at, -1 all
 * detail  ranks too: build the document from the log where nothing lives
 * Returns 0, -ENOMEM. What cannot be reached becomes a note. */
int pl_run_status_collect(struct pl_run *run,
                          int64_t trial,
                          bool detail,
                          struct pl_slurm_view *slurm,
                          struct pl_run_status **ret,
                          struct pl_notes *notes,
                          struct pl_error *err);

/* True for states that --check takes for a failure: ended, but neither done nor pruned. */
bool pl_trial_state_bad(enum pl_trial_state state);

#endif
