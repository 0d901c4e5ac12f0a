/* SPDX-License-Identifier: MIT */
/* The lock of a checkpoint folder: one run writes there at a time. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_FOLDER_LOCK_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_FOLDER_LOCK_H

#include "common/base/error.h"

#include <stdbool.h>

#define PL_FOLDER_LOCK_NAME ".plume-lock" /* names its holder; removed at the end of the run */

struct pl_folder_lock {
    int fd; /* -1: not locked */
    char *path;
};

#define PL_FOLDER_LOCK_INIT                                                                        \
    {                                                                                              \
        .fd = -1                                                                                   \
    }

/* Locks the folder (flock(2), which the kernel releases when the process ends) and removes what a
 * killed run left of unfinished checkpoints. Without locks on the file system it does nothing.
 * A holder with this Slurm job id was killed with its node, and its lock expires: the call waits
 * for that. -EBUSY with the holder's name, -errno. */
int pl_folder_lock(const char *dir, struct pl_folder_lock *ret, struct pl_error *err);

void pl_folder_unlock(struct pl_folder_lock *lock);

#endif
