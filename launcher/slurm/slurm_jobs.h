/* SPDX-License-Identifier: MIT */
/* What Slurm knows about a user's jobs, asked at most once in PL_SLURM_JOBS_AGE_S seconds a user:
 * all plstats of a user share one file under ~/.plume/cache, refreshed under its lock, failures
 * included. libslurm runs in a child with a time limit, as it may block or end its process.
 *
 * Slurm forgets a job minutes after its end (MinJobAge); how array tasks ended stays in the file
 * for a week, so that a task that was cancelled while it waited, and left nothing else, does not
 * become one that nobody knows. */
#ifndef PL_LAUNCHER_SLURM_SLURM_JOBS_H
#define PL_LAUNCHER_SLURM_SLURM_JOBS_H

#include "common/base/error.h"
#include "common/run/run_folder.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_SLURM_JOBS_AGE_S 5

struct pl_slurm_job {
    int64_t id;        /* Slurm's own number */
    int64_t array;     /* 0: no array */
    int64_t task;      /* -1: none, or several that wait (then tasks) */
    const char *tasks; /* "3-8,10%2"; NULL where task is the one */
    const char *state; /* "PENDING", "RUNNING", "COMPLETED", ... */
    bool completing;
    bool past;                         /* Slurm has forgotten it, the file has not */
    const char *reason, *name, *nodes; /* NULL where there is none */
    int64_t n_nodes, submitted, started, ended, limit_s;
    int64_t exit, signal; /* -1: none */
    int64_t restarts;
};

/* A list sorted by array and task. Records live as long as it does. */
struct pl_slurm_jobs {
    double time_s; /* when slurmctld answered; 0: see stale */
    char *stale;   /* why it could not be asked; then only jobs that have ended are known */
    struct pl_slurm_job *jobs;
    size_t n_jobs;
    json_t *doc; /* what the strings belong to */
};
void pl_slurm_jobs_destroy(struct pl_slurm_jobs *jobs);
PL_DEFINE_CLEANUP(struct pl_slurm_jobs *, pl_slurm_jobs_destroy)

/* Gives the user's jobs, from the shared file where that is young enough. Where Slurm cannot be
 * asked, those that are known to have ended are given (stale), and where there are none:
 * -EHOSTUNREACH, -ETIMEDOUT, -ENOENT (no slurm.conf), ... A failure is also kept in the file, so
 * that a dead controller is not asked by everyone. */
int pl_slurm_jobs_get(uid_t uid, struct pl_slurm_jobs **ret, struct pl_error *err);

/* From the document of the file, {"time":..,"jobs":[..]}; for tests. */
int pl_slurm_jobs_parse(json_t *doc, struct pl_slurm_jobs **ret, struct pl_error *err);

/* The record of task K of an array (it may stand for several tasks that wait), or with task -1 of
 * the job of this number. A number of Slurm's own for a task ("raw id") also finds it. A job that
 * is no array counts as its own task 0. NULL. */
const struct pl_slurm_job *
pl_slurm_jobs_find(const struct pl_slurm_jobs *jobs, int64_t job, int64_t task);

/* True where Slurm's list of tasks ("3-8,10:2%4") has this one. */
bool pl_slurm_tasks_contain(const char *tasks, int64_t task);

/* "123", "123_4" or "123_[5-8]". */
void pl_slurm_job_id(const struct pl_slurm_job *job, char *ret, size_t size);

/* Its state in the words of trials. */
enum pl_trial_state pl_slurm_trial_state(const struct pl_slurm_job *job);

/* True where the state is one that a job stays in. */
bool pl_slurm_state_final(const char *state);

#endif
