/* SPDX-License-Identifier: MIT */
/* Submits each trial of a run folder to Slurm once. It runs sbatch, so that a site's policies and
 * SPANK options apply.
 *
 * Submission is idempotent: the path of an array's script is unique to the run folder, the array's
 * first trial and the retry, and squeue shows it. If an answer of sbatch is lost, and before
 * --resume submits, plsubmit searches the queue for it. */
#ifndef PL_LAUNCHER_PLSUBMIT_SUBMIT_H
#define PL_LAUNCHER_PLSUBMIT_SUBMIT_H

#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/run/run_folder.h"

#define PL_SUBMIT_SBATCH_MS 60000
#define PL_SUBMIT_PATIENCE_MS 2000 /* then check that a controller answers */
#define PL_SUBMIT_NOTICE_MS 10000  /* then say what is waited for */
#define PL_SUBMIT_SQUEUE_MS 20000
#define PL_SUBMIT_WRITE_MS 5000 /* then say what is waited for */
#define PL_SUBMIT_WAITS "the file system of '%s' does not answer: waiting for it"
#define PL_SUBMIT_ARRAY_SIZE 1001 /* Slurm's default of MaxArraySize */

/* Trials [first, first + n) as one array. */
struct pl_chunk {
    unsigned first, n;
    const char *tasks; /* of a retry: the trials minus first, "0,3-8"; NULL: all */
    unsigned retry;    /* number of the retry; 0: the first submission */
};

/* Splits the trials that are not submitted yet into arrays of at most `max` tasks. The caller frees
 * *ret. -ENOMEM. */
int pl_submit_plan(const struct pl_run *run, unsigned max, struct pl_chunk **ret, size_t *ret_n);

/* The environment for sbatch: env without Plume's variables of a trial, and inside a job also
 * without SLURM_* (but SLURM_CONF), SBATCH_MEM_BIND*, SBATCH_CPU_BIND* and the variables of a rank,
 * which would apply to the new job. Free *ret with pl_strv_free(). -ENOMEM. */
int pl_submit_env(char *const *env, char ***ret);

/* sbatch's arguments for a chunk; free *ret with pl_strv_free(). -ENOMEM.
 * run_dir, sbatch_args  of the run
 * depends               dependencies besides the user's own, "afterany:7", or NULL. Slurm cancels
 *                       an array that waits for "afterok" of a job that failed. */
int pl_submit_argv(const char *run_dir,
                   const char *const *sbatch_args,
                   const struct pl_chunk *chunk,
                   unsigned max_parallel,
                   const char *depends,
                   char ***ret);

/* "0-8%2" for the chunk's tasks; max_parallel 0: no limit. The caller frees it; NULL when out of
 * memory. */
char *pl_submit_array(const struct pl_chunk *chunk, unsigned max_parallel);

/* Asks the controller how many tasks one array may have. -EHOSTUNREACH, -EREMOTEIO (none). */
int pl_submit_ask_limit(unsigned *ret, struct pl_error *err);

/* Submits the trials that are not submitted yet, and the arrays of a planned retry, and records
 * them in the run folder and the index.
 * depends   dependencies of the trials, but not of a retry; NULL: none
 * resumed   the folder may have been submitted before: search the queue before the first sbatch
 * messages  stderr of sbatch, in lines; the caller finishes it
 * Returns
 *   0
 *   -EHOSTUNREACH, -ETIMEDOUT  no controller: --resume submits the arrays that are not recorded
 *   -EREMOTEIO                 sbatch refused, err has its text; arrays of this call are cancelled
 *   -ENOENT                    no sbatch on this machine */
int pl_submit_run(struct pl_run *run,
                  const char *depends,
                  bool resumed,
                  struct pl_buf *messages,
                  struct pl_error *err);

/* Cancels the arrays of the run from number `from` on, which this call submitted, so that no part
 * of a sweep stays submitted; err tells. */
void pl_submit_cancel(const struct pl_run *run, size_t from, struct pl_error *err);

/* Runs sbatch as long as a controller answers. 0: it has ended; -ENOENT, -EHOSTUNREACH, -ETIMEDOUT.
 */
int pl_submit_sbatch(char *const *argv,
                     char *const *env,
                     struct pl_child *ret,
                     struct pl_error *err);

/* Joins sbatch's lines, without their prefixes, with "; ". -ENOMEM. */
int pl_submit_join(const char *text, struct pl_buf *out);

/* The job in the output of sbatch --parsable; NULL: none. The caller frees it. */
char *pl_submit_job_id(const struct pl_buf *out);

/* True if sbatch's messages report a missing answer of the controller, not a refusal. */
bool pl_submit_is_no_answer(const char *messages);

/* The path by which an array's script is submitted: RUN/job.sh, or a link to it: RUN/job-FIRST.sh
 * from another trial than 0 on, RUN/job-FIRST.RETRY.sh for a retry. The caller frees it; NULL when
 * out of memory. */
char *pl_submit_script(const char *run_dir, unsigned first, unsigned retry);

/* Finds an array by its script in lines "JOBID STATE COMMAND|REASON" of squeue. COMMAND is the
 * path, before Slurm 24.11 followed by the arguments FIRST [RETRY]; REASON may have blanks. Returns
 * the job id, which the caller frees, or NULL if it is not there. Skips Slurm's record of a refused
 * submission. */
char *pl_submit_find(const char *lines, const char *run_dir, unsigned first, unsigned retry);

#endif
