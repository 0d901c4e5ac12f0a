/* SPDX-License-Identifier: MIT */
/* submit.c submits all arrays of a run, submit_chunk.c one of them; submit_argv.c makes the
 * arguments and the environment of sbatch. */
#ifndef PL_LAUNCHER_PLSUBMIT_SUBMIT_PRIVATE_H
#define PL_LAUNCHER_PLSUBMIT_SUBMIT_PRIVATE_H

#include "launcher/plsubmit/submit.h"

/* The dependency among sbatch's arguments that the user gave, to which plsubmit adds its own; it
 * points into `arg`. NULL: none. */
const char *pl_submit_user_dependency(const char *const *arg);

/* Finds a chunk's array in the queue of each cluster that sbatch may have chosen, and sets that of
 * the run.
 * env  of squeue
 * ret  the job id, which the caller frees; NULL if it is not there
 * Returns 0, -EHOSTUNREACH, -ETIMEDOUT, -ENOMEM. */
int pl_submit_find_in_queue(struct pl_run *run,
                            const struct pl_chunk *chunk,
                            char *const *env,
                            char **ret,
                            struct pl_error *err);

/* Runs sbatch for a chunk; without an answer of sbatch it looks into the queue.
 * argv, env  of sbatch
 * ret        the job id, which the caller frees
 * messages   sbatch's stderr is added
 * Returns 0, -EHOSTUNREACH (no answer), -EREMOTEIO (refused, err has sbatch's text), -ENOENT (no
 * sbatch), -ENOMEM. */
int pl_submit_chunk(struct pl_run *run,
                    const struct pl_chunk *chunk,
                    char *const *argv,
                    char *const *env,
                    char **ret,
                    struct pl_buf *messages,
                    struct pl_error *err);

#endif
