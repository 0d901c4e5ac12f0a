/* SPDX-License-Identifier: MIT */
/* A user's jobs in Slurm, queried at most once in PL_SLURM_JOBS_AGE_S seconds per user: all plstat
 * processes of a user share a cache file in ~/.plume/cache and refresh it under its lock. The file
 * also holds failed queries. libslurm runs in a child with a time limit, because it may block or
 * end its process; where it finds no slurm.conf, squeue(1) is asked.
 *
 * Slurm forgets a job minutes after its end (MinJobAge). The file keeps the ends of array tasks for
 * a week: a task that was cancelled while it waited has no other record. */
#ifndef PL_LAUNCHER_SLURM_SLURM_JOBS_H
#define PL_LAUNCHER_SLURM_SLURM_JOBS_H

#include "common/base/error.h"
#include "common/run/run_folder.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_SLURM_JOBS_AGE_S 5

/* The signal of a batch job whose output file slurmstepd could not open ("ExitCode=0:53"): no
 * program of the job has run. */
#define PL_SLURM_SIGNAL_OUTPUT 53

struct pl_slurm_job {
    int64_t id;        /* Slurm's own number */
    int64_t array;     /* 0: no array */
    int64_t task;      /* -1: none, or several tasks, which tasks lists */
    const char *tasks; /* "3-8,10%2"; NULL: see task, or all tasks without a record of their own */
    const char *state; /* "PENDING", "RUNNING", "COMPLETED", ... */
    bool completing;
    bool past;                         /* only the cache file has it, Slurm does not */
    const char *reason, *name, *nodes; /* NULL: none */
    int64_t n_nodes, submitted, started, ended, limit_s;
    int64_t exit, signal; /* -1: none */
    int64_t restarts;
    bool counted; /* the answer had restarts */
};

/* A list sorted by array and task. It owns its records. */
struct pl_slurm_jobs {
    double time_s;     /* slurmctld was asked: all that was before is in its answer; 0: see stale */
    double answered_s; /* its answer came */
    char *stale;       /* error of the query: the list has only ended jobs; NULL: no error */
    struct pl_slurm_job *jobs;
    size_t n_jobs;
    json_t *doc; /* owns the strings */
};
void pl_slurm_jobs_destroy(struct pl_slurm_jobs *jobs);
PL_DEFINE_CLEANUP(struct pl_slurm_jobs *, pl_slurm_jobs_destroy)

/* Returns the user's jobs, from the cache file if it is recent. If Slurm cannot be asked, the list
 * has the jobs that are known to have ended (stale); if there are none, the error is returned:
 * -EHOSTUNREACH, -ETIMEDOUT, -ENOENT (no slurm.conf and no squeue), ... The file also keeps the
 * error, so that other processes do not ask a dead controller again. */
int pl_slurm_jobs_get(uid_t uid, struct pl_slurm_jobs **ret, struct pl_error *err);

/* Call after a change of jobs, or before a decision: the next pl_slurm_jobs_get() asks Slurm,
 * however recent the file is. What the file keeps of ended jobs stays. Does not fail: without a
 * file there is no old answer. */
void pl_slurm_jobs_expire(uid_t uid);

/* Parses the document of the file, {"time":..,"asked":..,"jobs":[..]}. Public for tests. */
int pl_slurm_jobs_parse(json_t *doc, struct pl_slurm_jobs **ret, struct pl_error *err);

/* Finds the record of a task of an array, which may be one for several tasks; with task -1, the
 * record of the job of this number. Also finds a task by its own job number. A job that is no
 * array counts as task 0. NULL: none. */
const struct pl_slurm_job *
pl_slurm_jobs_find(const struct pl_slurm_jobs *jobs, int64_t job, int64_t task);

/* True for the record that stands for all tasks of its array that Slurm does not list apart. None
 * of them has started. */
bool pl_slurm_job_is_rest(const struct pl_slurm_job *job);

/* "123", "123_4" or "123_[5-8]". */
void pl_slurm_job_id(const struct pl_slurm_job *job, char *ret, size_t size);

/* The job's state as a state of a trial. */
enum pl_trial_state pl_slurm_trial_state(const struct pl_slurm_job *job);

/* True for a state that a job does not leave. */
bool pl_slurm_state_final(const char *state);

#endif
