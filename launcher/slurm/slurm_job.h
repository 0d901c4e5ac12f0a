/* SPDX-License-Identifier: MIT */
/* One job, asked of the controller at once and without a cache: for decisions that cannot be taken
 * back. */
#ifndef PL_LAUNCHER_SLURM_SLURM_JOB_H
#define PL_LAUNCHER_SLURM_SLURM_JOB_H

#include "common/base/error.h"

#include <stdint.h>

enum pl_slurm_job_life {
    PL_SLURM_JOB_ALIVE, /* it waits, runs, or its end is not complete */
    PL_SLURM_JOB_ENDED, /* Slurm says so, or does not know its number any more */
};

struct pl_slurm_job_now {
    enum pl_slurm_job_life life;
    char state[32];    /* Slurm's word, "RUNNING"; "" where it does not know the job */
    unsigned n_nodes;  /* 0: not known */
    unsigned n_others; /* other tasks of the array whose number it is, too; known while it is */
};

/* Finds Slurm's own number of a job "123" or of a task of an array, "123_4", which srun(1) needs.
 * -ETIMEDOUT, -EHOSTUNREACH, -ENOENT (the task has not begun, has ended or never was; no squeue).
 */
int pl_slurm_job_number(const char *task, int64_t *ret, struct pl_error *err);

/* Asks squeue(1) about a job by Slurm's own number (a task of an array has one, too).
 * conf  the slurm.conf to use; NULL: the caller's. Slurm loads plugins as this file says: use only
 *       one that the caller's own user chose.
 * -ETIMEDOUT, -EHOSTUNREACH, -ENOENT (no squeue): nothing is known. */
int pl_slurm_job_ask(int64_t job,
                     const char *conf,
                     struct pl_slurm_job_now *ret,
                     struct pl_error *err);

/* Reads squeue's answer of lines "NUMBER STATE NODES": its wait status and both outputs. Public for
 * its test. */
int pl_slurm_job_parse(int64_t job,
                       int status,
                       const char *out,
                       const char *said,
                       struct pl_slurm_job_now *ret,
                       struct pl_error *err);

#endif
