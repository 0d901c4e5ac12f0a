/* SPDX-License-Identifier: MIT */
/* Folders and files that are the caller's alone: the effective user owns them and nobody else may
 * write to them. Their contents may run as the caller, and the caller may write there. Linux shows
 * an ACL as the group's bits; a file system's own lists of rights are not seen. */
#ifndef PL_COMMON_BASE_OWN_H
#define PL_COMMON_BASE_OWN_H

#include "common/base/error.h"

#include <sys/types.h>

/* Bits that no new folder or file has, whatever the umask is. */
#define PL_OWN_MASK 022

/* Opens such a folder to work in it. dir_fd: the folder that `path` is in, or AT_FDCWD. The last
 * part of the path must not be a link.
 * -EPERM with the folder, its owner and its mode in err; -ENOENT, -ENOTDIR, -ELOOP, ... */
int pl_own_folder_open(int dir_fd, const char *path, int *ret_fd, struct pl_error *err);

/* The same, but makes the folder with `mode` if it does not exist. */
int pl_own_folder_make(
    int dir_fd, const char *path, mode_t mode, int *ret_fd, struct pl_error *err);

/* Mode of a new folder in such a folder, or with 0666 as `bits` of a new file: who may read the
 * folder may read what is in it. */
mode_t pl_own_mode(int folder_fd, mode_t bits);

/* Opens a regular file of such a folder: flags as for open(2), without following a link. The file
 * is checked before O_TRUNC empties it. -EPERM with the file, its owner and its mode in err. */
int pl_own_file_open(
    int folder_fd, const char *name, int flags, mode_t mode, int *ret_fd, struct pl_error *err);

/* Reads such a file; the rest as pl_file_read(). */
int pl_own_file_read(int folder_fd,
                     const char *name,
                     size_t max_bytes,
                     char **ret,
                     size_t *ret_len,
                     struct pl_error *err);

#endif
