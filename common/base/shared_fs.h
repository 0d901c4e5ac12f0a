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

/* True if the file lies on NFS: of what is written there, and neither closed nor synced, other
 * hosts see nothing for up to half a minute. Asks the server. */
bool pl_file_is_on_nfs(int fd);

/* For a file on NFS: starts to send what was written to it, and does not wait for the server.
 * write(2) waits for that if it meets a page that is on its way: so call this only in a thread that
 * may block. Errors are left to fsync(2) and close(2). */
void pl_file_send(int fd);

#endif
