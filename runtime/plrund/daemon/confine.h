/* SPDX-License-Identifier: MIT */
/* The confinement of the node daemon, which reads bytes of strangers: whoever gets control of it
 * finds a process that writes to the run folder and the folder of its socket only, runs scontrol
 * only, traces no other process and opens no unusual kind of socket. By landlock(7), from
 * Linux 5.13 on, and by a filter of system calls (seccomp(2)). What must be done outside goes to a
 * helper that was started before (helper.h). Reading and connecting are free. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_CONFINE_H
#define PL_RUNTIME_PLRUND_DAEMON_CONFINE_H

#include "common/base/error.h"

#include <stdbool.h>

#define PL_CONFINE_MAX 8

struct pl_confine {
    const char *folders[PL_CONFINE_MAX]; /* writes below these; NULL where there are fewer */
    const char *file;                    /* writes this file, which exists; NULL: none */
    /* Runs these files. If one is a script, it runs all: a script's commands are not known. */
    const char *programs[PL_CONFINE_MAX];
};

/* Confines this thread, and all that it starts from now on, for ever. Call before other threads
 * run. Other failures than -EOPNOTSUPP (the kernel has no landlock, or has it off) leave the
 * process as it was, or confined in part: -ENOENT and others for a folder that cannot be opened. A
 * program that cannot be opened cannot be run. */
int pl_confine_apply(const struct pl_confine *what, struct pl_error *err);

/* PLUME_CONFINE: -EINVAL unless it is auto, off or require; not set is auto. */
int pl_confine_read(bool *ret_off, bool *ret_require, struct pl_error *err);

/* The file that execvp(3) would run; caller frees. NULL if there is none. */
char *pl_confine_find(const char *program);

#endif
