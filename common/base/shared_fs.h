/* SPDX-License-Identifier: MIT */
/* Folders that several hosts share. The client of a network file system answers from its cache: for
 * up to a minute it does not see a file that another host has made, if it has looked for that
 * before. It asks the server when a folder is opened, and when a file is opened or locked. */
#ifndef PL_COMMON_BASE_SHARED_FS_H
#define PL_COMMON_BASE_SHARED_FS_H

#include <stdbool.h>

/* Call before looking for files by their paths: they are then seen as they are on the server. False
 * if the folder cannot be opened. */
bool pl_dir_renew(const char *dir);

/* The same for the folder of a path. */
bool pl_dir_renew_of(const char *path);

/* access(2) with F_OK, which asks the server where the cache has no such file. 0 or -errno. */
int pl_file_look(const char *path);

/* Locks a file that is open for writing, until it is closed, against processes of all hosts: its
 * size and contents are then those on the server. Waits for limit_ms at most.
 * Returns 0, -ETIMEDOUT (another process has the lock), or -errno where there are no locks. */
int pl_file_lock(int fd, unsigned limit_ms);

#endif
