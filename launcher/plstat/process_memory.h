/* SPDX-License-Identifier: MIT */
/* Arguments and environment of a process, which are in its own memory. Linux takes a lock to read
 * them, and the process may hold that lock for ever: its driver hangs, or its user has made a file
 * system that does not answer. So a child of ours reads them. */
#ifndef PL_LAUNCHER_PLSTAT_PROCESS_MEMORY_H
#define PL_LAUNCHER_PLSTAT_PROCESS_MEMORY_H

#include "common/base/buf.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_PROCESS_COMMAND_MAX 256
#define PL_SLUID_SIZE 15 /* of a run of a job, "s" and 13 digits of base 32, with its end */

/* Reads a file of /proc/PID, whose length is not known before: max bytes, and up to 8 KiB more. The
 * process can hold up a look at its "environ" and "cmdline", at no other. 0, -ESRCH, -EACCES, ...
 */
int pl_process_file_read(pid_t pid, const char *name, size_t max, struct pl_buf *ret);

struct pl_process_memory {
    bool seen;                 /* the environment could be read */
    int64_t job;               /* SLURM_JOB_ID; -1: none */
    char sluid[PL_SLUID_SIZE]; /* SLURM_JOB_SLUID, which Slurm 26.05 sets; "": none */
    /* The arguments, joined by blanks; "" where it has none. */
    char command[PL_PROCESS_COMMAND_MAX + 1];
    bool has_run_dir, has_slurm_conf;
    char run_dir[PATH_MAX];    /* PLUME_RUN_DIR, no longer than a path */
    char slurm_conf[PATH_MAX]; /* SLURM_CONF, the same */
};

/* Looks at a thread's process. uid: whose it is; after a third process of a user that does not
 * answer, no other of that user is looked at. Returns 0 (also where it may not be read), -ETIMEDOUT
 * (it does not answer, *ret is empty), -errno (no child can be had). Not for several threads. */
int pl_process_memory_read(pid_t thread, uid_t uid, struct pl_process_memory *ret);

/* True for a child that looks, or that has looked and cannot be ended: it has our environment. */
bool pl_process_memory_is_child(pid_t pid);

/* Ends the child. A later call starts another. */
void pl_process_memory_finish(void);

#endif
