/* SPDX-License-Identifier: MIT */
/* File systems that do not answer, as one that is frozen or whose server has stopped. A process
 * that writes there waits, and not even SIGKILL ends it. */
#ifndef PL_COMMON_BASE_SLOW_FS_H
#define PL_COMMON_BASE_SLOW_FS_H

/* Waits for limit_ms at most until the file system of a folder takes a change; of a folder that
 * does not exist, that of the nearest one above it. Nothing is changed, and nothing stays behind
 * but, where the file system does not answer, a child that waits for it and then ends. Returns 0 or
 * -ETIMEDOUT; 0 also where it refuses changes: whoever makes one is told why. */
int pl_slow_fs_try(const char *folder, unsigned limit_ms);

#endif
