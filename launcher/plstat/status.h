/* SPDX-License-Identifier: MIT */
/* The status of a run's trials, from every source that can be reached. In the order of precedence:
 * result.json, the hub, status.json, the attempt's log, Slurm.
 *
 * The state of a trial:
 *   result of the newest attempt ................ the result's; Slurm corrects an inferred one
 *   no result, the hub answers .................. the hub's
 *   no result, Slurm: the task is pending ....... waiting
 *   no result, Slurm: the task is running ....... running; ranks and their age from status.json
 *   no result, Slurm: the task has ended ........ Slurm's
 *   no result, Slurm does not know the task ..... lost
 *   no result, Slurm cannot be asked ............ that of status.json or the claim; partial
 * A result counts as none where a retry or a requeue followed it that has no attempt yet. */
#ifndef PL_LAUNCHER_PLSTAT_STATUS_H
#define PL_LAUNCHER_PLSTAT_STATUS_H

#include "common/run/run_folder.h"
#include "launcher/plstat/hub_query.h"
#include "launcher/plstat/notes.h"
#include "launcher/slurm/slurm_jobs.h"

/* Sweep:
 *   waiting --a trial starts--> running --none active--> done | failed | cancelled
 *   done       every trial is done or pruned
 *   failed     a trial has ended and is neither done, pruned nor cancelled
 *   cancelled  every trial is done, pruned or cancelled, at least one cancelled */
enum pl_sweep_state {
    PL_SWEEP_WAITING,
    PL_SWEEP_RUNNING,
    PL_SWEEP_DONE,
    PL_SWEEP_FAILED,
    PL_SWEEP_CANCELLED,
};
const char *pl_sweep_state_name(enum pl_sweep_state state);

/* The source of a trial's ranks. */
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
    char job[48];                     /* "123_4" or "123"; "": not submitted */
    int64_t array, task;              /* the same as numbers; -1: none */
    unsigned attempts;                /* attempts that have started */
    double age_s;                     /* age of doc if source is STATUS */
    json_t *params;                   /* NULL: trials.jsonl is damaged */
    json_t *result;                   /* of the newest attempt; NULL: none */
    json_t *doc;                      /* run-state document; NULL: none, or not collected */
    json_t *cause;                    /* NULL: none */
    json_t *others;                   /* array or NULL */
    json_t *node_reasons;             /* node_reasons.h; NULL: none, or not collected */
    const struct pl_slurm_job *slurm; /* lives in the pl_slurm_view */
    int64_t step;                     /* -1: not known */
    double objective;                 /* NaN: not known */
    double started_s, ended_s;        /* 0: not known */
    /* set by pl_trial_status_read() for pl_trial_status_resolve() */
    struct pl_hub_query *query;
    json_t *live;     /* "state" of status.json, while the trial has no result */
    double live_s;    /* by the clock of the attempt's start; for durations */
    double written_s; /* the same moment, by the clock as it was set then; for its age */
    bool claimed, submitted;
    bool cancelled;  /* plsubmit --cancel or --max-fail took it from its array */
    unsigned retry;  /* number of the retry that submitted the array; 0: none */
    bool unstarted;  /* a retry or a requeue has no attempt yet: the state is that of its job */
    bool to_requeue; /* and its result says that Slurm starts it again */
    json_t *earlier; /* then the result of the attempt before; NULL: none */
    bool unreadable; /* it has a result, which cannot be read */
    bool undecided;  /* --requeue-on may start it again after its result */
    int64_t restart; /* of the job, when it claimed the trial */
    double claim_s;  /* an older answer of Slurm says nothing about the newest start */
    bool unsettled;  /* pl_run_status_settle(): Slurm may start it again after this end */
};

/* Until when it has run: its end, or its newest stamp. Minus started_s that is its time. */
double pl_trial_status_until(const struct pl_trial_status *ts);

/* Slurm's view, queried on the first use. */
struct pl_slurm_view {
    bool asked, never; /* never: do not ask Slurm, for tests */
    uid_t uid;         /* the user, once asked */
    struct pl_slurm_jobs *jobs;
    struct pl_error err; /* why jobs is NULL */
};
void pl_slurm_view_finish(struct pl_slurm_view *view);
/* A user's jobs; NULL: see view->err. One view has the jobs of one user: -EPERM for others. */
const struct pl_slurm_jobs *pl_slurm_view_get(struct pl_slurm_view *view, uid_t uid);
/* The reason why jobs are missing or stale. */
const char *pl_slurm_view_why(const struct pl_slurm_view *view);
/* As pl_slurm_view_get() for the present user, but with a new answer: waits at most
 * PL_SLURM_JOBS_AGE_S seconds until Slurm may be asked again. Call it if an older answer does not
 * have the job. */
const struct pl_slurm_jobs *pl_slurm_view_renew(struct pl_slurm_view *view);

struct pl_run_status {
    struct pl_run *run; /* borrowed */
    enum pl_sweep_state state;
    struct pl_trial_status *trials; /* all, or the one asked for */
    size_t n_trials;
    char *objective; /* name of the metric; NULL: none */
    bool maximize;
    int64_t best; /* index in trials; -1: none */
    double best_value;
    char *missing;    /* no trial reported the objective, and what they reported; NULL: one did */
    json_t *reported; /* an object whose keys are the metrics that trials reported; NULL: none */
};
void pl_run_status_destroy(struct pl_run_status *status);
PL_DEFINE_CLEANUP(struct pl_run_status *, pl_run_status_destroy)

/* Collects the status of a run.
 * trial  number of one trial; -1: all
 * ranks  also read ranks from the log if the trial has no live state, and what Slurm says of nodes
 * Returns 0, -ENOMEM. A source that cannot be reached becomes a note. */
int pl_run_status_collect(struct pl_run *run,
                          int64_t trial,
                          bool ranks,
                          struct pl_slurm_view *slurm,
                          struct pl_run_status **ret,
                          struct pl_notes *notes,
                          struct pl_error *err);

/* Looks for trials that have ended just now, or so that a requeue is probable, and whose job Slurm
 * still has: it may put such a job back into its queue. Asks Slurm if there is a trial that has
 * failed in the last minute. */
void pl_run_status_settle(struct pl_run_status *s, struct pl_slurm_view *slurm);

/* True for the states that --check reports: ended, but neither done nor pruned. */
bool pl_trial_state_is_failure(enum pl_trial_state state);

#endif
