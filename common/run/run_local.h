/* SPDX-License-Identifier: MIT */
/* Sweeps of --local, which run on one machine without Slurm. One process, the local executor,
 * starts the trials; it holds a lock on RUN/local.lock, {"host":"h1","pid":123}, for its whole
 * life. */
#ifndef PL_COMMON_RUN_RUN_LOCAL_H
#define PL_COMMON_RUN_RUN_LOCAL_H

#include "common/run/run_folder.h"

#include <sys/types.h>

/* Their arrays have numbers of their own, above all job numbers of Slurm (MaxJobId < 2^26). */
#define PL_RUN_LOCAL_JOB 1000000000u

/* True if the sweep runs without Slurm. */
bool pl_run_is_local(const struct pl_run *run);

/* A number of its options.local, "value", "gpus" or "cpus"; 0: none. */
unsigned pl_run_local_number(const struct pl_run *run, const char *key);

/* Takes the lock, which lasts until every copy of *ret is closed. -EBUSY: an executor runs. */
int pl_run_local_lock(const struct pl_run *run, int *ret, struct pl_error *err);

/* Writes this process into the locked file. */
int pl_run_local_note(int lock, struct pl_error *err);

enum pl_local_state {
    PL_LOCAL_ENDED,
    PL_LOCAL_RUNS,
    PL_LOCAL_ELSEWHERE, /* on another host, from which a lock may not be seen */
};

/* ret_pid  of an executor that runs; may be NULL. ret_host as well; the caller frees it. */
enum pl_local_state pl_run_local_state(const struct pl_run *run, pid_t *ret_pid, char **ret_host);

#endif
