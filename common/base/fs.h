/* SPDX-License-Identifier: MIT */
/* Paths, files and descriptors. Every descriptor is close-on-exec from birth. */
#ifndef PL_COMMON_BASE_FS_H
#define PL_COMMON_BASE_FS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* "dir/name" (or name alone where it is absolute); caller frees. NULL when out of memory. */
char *pl_path_join(const char *dir, const char *name);

/* printf into a new string; caller frees. NULL when out of memory. */
char *pl_strf(const char *fmt, ...) PL_PRINTF(1, 2);

/* mkdir -p; mode for the folders that are made (umask applies). 0, or -errno with its text. */
int pl_mkdir_p(const char *path, mode_t mode, struct pl_error *err);

/* A private folder of ours: makes it 0700 or checks that it is a real folder (no link), owned by
 * the effective user and closed to others. -EPERM where it is somebody else's or open. */
int pl_mkdir_private(const char *path, struct pl_error *err);

/* Reads a regular file of at most max_bytes; *ret ends with a NUL, caller frees. On a network file
 * system it is there as soon as another host has made it. ret_len may be NULL. -EFBIG past the
 * limit. */
int pl_file_read(
    const char *path, size_t max_bytes, char **ret, size_t *ret_len, struct pl_error *err);

/* The same of an open file; path is for messages. */
int pl_fd_read(
    int fd, const char *path, size_t max_bytes, char **ret, size_t *ret_len, struct pl_error *err);

/* "PATH." and 16 random digits, for a temporary file; caller frees. NULL when out of memory. */
char *pl_temp_name(const char *path);

/* Gives a temporary file of the caller's its name, in the folder dir_fd. A server of a network file
 * system may do so and lose its answer: a repeated request then fails, and is no error. -errno. */
int pl_file_place(int dir_fd, const char *temp, const char *path);

/* Writes the file whole or not at all: temporary file beside it, fsync, rename. */
int pl_file_write_atomic(
    const char *path, const void *data, size_t len, mode_t mode, struct pl_error *err);

/* The same without fsync: readers see all of it or nothing, but a loss of power may undo it. */
int pl_file_replace(
    const char *path, const void *data, size_t len, mode_t mode, struct pl_error *err);

/* Either of both, by `sync`, for a path relative to the folder dir_fd. */
int pl_file_write_at(int dir_fd,
                     const char *path,
                     const void *data,
                     size_t len,
                     mode_t mode,
                     bool sync,
                     struct pl_error *err);

/* Has files of a folder, and the folder, written to the disk: together, which takes about as long
 * as one of them. At most 8 names; one that is not there is an error. */
int pl_dir_sync(const char *dir, const char *const *names, size_t n, struct pl_error *err);

/* Appends a line with a single write to an O_APPEND descriptor of its own, under a lock where the
 * file system has locks: on a network file system two hosts would write at the same place. A last
 * line that a full disk has cut off is ended first, so that it takes no other with it: that takes
 * 50 ms. */
int pl_file_append(
    const char *path, const void *data, size_t len, mode_t mode, struct pl_error *err);

/* Reads a secret of exactly len bytes, checked like an ssh key: opened without following a link,
 * regular, owned by the effective user, no bits for group and others, one link.
 * -EPERM where the check fails, -EINVAL for another length; err names the cure. */
int pl_secret_read(const char *path, void *ret, size_t len, struct pl_error *err);

/* Makes such a file if there is none (temporary file and link(2), so that of two makers one wins
 * and both read the same). data is only used by the winner. */
int pl_secret_create(const char *path, const void *data, size_t len, struct pl_error *err);

/* ~/.plume (or $PLUME_HOME), made 0700 on first use; caller frees. NULL with err set. */
char *pl_home_dir(struct pl_error *err);

/* A write below pl_home_dir() has failed with `code`: puts the advice to choose another folder in
 * front of the text in err, where that helps. Returns code. */
int pl_home_hint(struct pl_error *err, int code);

/* The folder of the running program's file; caller frees. NULL when out of memory or unknown. */
char *pl_program_folder(void);

/* Writes all of it, whatever write(2) takes at a time. -errno. */
int pl_write_all(int fd, const void *data, size_t len);

/* fsync(2), again after a signal; some files cannot be synced, and need not be. -errno. */
int pl_fd_sync(int fd);

/* close(2), which reports what a network file system could not write. A signal that interrupts it
 * is no failure: Linux has closed the descriptor. -errno. */
int pl_fd_close(int fd);

/* Sends data with up to 4 descriptors over a UNIX socket (SCM_RIGHTS), in one message. -errno.
 * Waits up to 10 s where the user has more of them on their way than he may have files. */
int pl_send_fds(int sock, const void *data, size_t len, const int *fds, size_t n_fds);

/* Receives into data; descriptors arrive close-on-exec in fds (at most max_fds, more are closed).
 * Returns bytes read (0 at the end) or -errno (-EAGAIN where nothing is there). */
ssize_t pl_recv_fds(int sock, void *data, size_t size, int *fds, size_t max_fds, size_t *ret_n_fds);

/* Closes every descriptor from `first` on but those listed (ascending). Async-signal-safe; used
 * between fork and exec. */
void pl_close_from(int first, const int *keep, size_t n_keep);

/* Opens the descriptors 0, 1 and 2 that the caller of the program has closed: the next file would
 * get one of them, and with it what is printed. They lead to /dev/null, and reading from 0 or
 * writing to 1 and 2 fails as before (as gnulib's stdopen). A program calls it first. */
void pl_std_open(void);

/* CLOCK_MONOTONIC in nanoseconds and CLOCK_REALTIME in seconds. */
uint64_t pl_now_ns(void);
double pl_wall_s(void);

/* Milliseconds until pl_now_ns() is limit_ns, for poll(2): 0 = it is, else at least 1. Of more than
 * 24 days INT_MAX, so look at the limit again after a wait of that length. */
int pl_left_ms(uint64_t limit_ns);

/* The CLOCK_MONOTONIC that pl_now_ns() reads, as a short text without spaces: two processes with
 * the same text read the same clock (this boot's, in the same time namespace; proc(5),
 * time_namespaces(7)). Empty where the kernel does not say. Returns buf. */
#define PL_CLOCK_ID_MAX 128
const char *pl_clock_id(char buf[PL_CLOCK_ID_MAX]);

#endif
