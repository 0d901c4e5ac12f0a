/* SPDX-License-Identifier: MIT */
/* Handing a run folder's trials to Slurm, once each. sbatch does the submitting, called with an
 * argument vector, so that a site's policies and SPANK options apply.
 *
 * What makes it idempotent: an array's command, "RUN/job.sh FIRST", is unique to the run folder and
 * the array's first trial, and squeue shows it. Where an answer of sbatch is lost, and before
 * anything is submitted for a folder a second time, the queue is looked through for it. */
#ifndef PL_LAUNCHER_PLSUBMIT_SUBMIT_H
#define PL_LAUNCHER_PLSUBMIT_SUBMIT_H

#include "common/base/buf.h"
#include "common/run/run_folder.h"

#define PL_SUBMIT_SBATCH_MS 60000
#define PL_SUBMIT_PATIENCE_MS 2000 /* then: is there a controller at all? */
#define PL_SUBMIT_SQUEUE_MS 20000

/* Trials [first, first + n) as one array. */
struct pl_chunk {
    unsigned first, n;
};

/* The trials that no submission has yet, in arrays of at most `max` tasks. *ret is freed by the
 * caller. -ENOMEM. */
int pl_submit_plan(const struct pl_run *run, unsigned max, struct pl_chunk **ret, size_t *ret_n);

/* The environment for sbatch: ours without what would confuse a job. Inside a job that is SLURM_*
 * (but SLURM_CONF), SBATCH_MEM_BIND*, SBATCH_CPU_BIND* and the variables of a rank; outside only
 * Plume's own of a trial. Freed with pl_strv_free(). -ENOMEM. */
int pl_submit_env(char *const *env, char ***ret);

/* sbatch's arguments for a chunk; freed with pl_strv_free(). -ENOMEM.
 * run_dir, sbatch_args  of the run
 * after  job that must end first (with a limit of parallel trials and several arrays); or NULL */
int pl_submit_argv(const char *run_dir,
                   const char *const *sbatch_args,
                   const struct pl_chunk *chunk,
                   unsigned max_parallel,
                   const char *after,
                   char ***ret);

/* "0-8%2" for n tasks; max_parallel 0: no limit. Caller frees; NULL when out of memory. */
char *pl_submit_array(unsigned n, unsigned max_parallel);

/* Submits what is not submitted yet, records it in the run folder and the index.
 *   resumed  the folder may have been submitted from before: look before the first sbatch
 *   words    what sbatch had to say beside its answer (lines); to be finished by the caller
 * Returns 0,
 *   -EHOSTUNREACH, -ETIMEDOUT  no controller: what is submitted is recorded, the rest can be
 * resumed -EREMOTEIO                 refused, err has sbatch's own words; arrays of this call are
 * cancelled -ENOENT                    no sbatch or no plrun here */
int pl_submit_run(struct pl_run *run, bool resumed, struct pl_buf *words, struct pl_error *err);

/* Finds "RUN/job.sh FIRST" in lines "JOBID STATE:REASON COMMAND" of squeue: the job id, caller
 * frees; NULL where it is not there. A record that Slurm keeps of a refused submission does not
 * count. */
char *pl_submit_find(const char *lines, const char *run_dir, unsigned first);

#endif
