/* SPDX-License-Identifier: MIT */
/* A file of lines that grows, on a disk that may be full: whole lines only, and lines that find no
 * room wait in memory. Its functions may block. */
#ifndef PL_RUNTIME_PLRUND_HUB_LOG_FILE_H
#define PL_RUNTIME_PLRUND_HUB_LOG_FILE_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

struct pl_log_file {
    int fd;                /* -EBADF: not open */
    const char *name;      /* borrowed */
    off_t size;            /* bytes of the file: whole lines */
    struct pl_buf waiting; /* lines that are not written yet */
    size_t n_lost;         /* lines that found no room in memory either */
    int error;             /* of the last write, -errno; 0 = it went well */
    bool unsure;           /* lines that were written may be lost: sync() failed */
    bool nfs, unsent;      /* unsent: the client of NFS may have lines that its server has not */
};

#define PL_LOG_FILE_INIT                                                                           \
    {                                                                                              \
        .fd = -EBADF                                                                               \
    }

/* Opens or makes this file of an own folder (own.h); name is borrowed for the life of the log. */
int pl_log_file_open(struct pl_log_file *log,
                     int folder_fd,
                     const char *name,
                     struct pl_error *err);
/* The file has been replaced: goes on with the new one. */
int pl_log_file_reopen(struct pl_log_file *log, int folder_fd, struct pl_error *err);
void pl_log_file_finish(struct pl_log_file *log);

/* Appends whole lines, after those that wait. Whatever fails is kept in log->error, and the lines
 * wait for the next call, up to a limit in bytes. A part of a line is truncated away. */
void pl_log_file_append(struct pl_log_file *log, const char *lines, size_t len);
/* As append(), and logs a failure, once until it goes well again. */
void pl_log_file_put(struct pl_log_file *log, const char *lines, size_t len);
/* Tries again to write the lines that wait. */
void pl_log_file_flush(struct pl_log_file *log);

/* Has the lines written to the disk: a network file system may report only then that it cannot.
 * Sets log->error and log->unsure. */
void pl_log_file_sync(struct pl_log_file *log);

/* Has the lines sent to the server of NFS, and does not wait for it: see pl_file_send(). */
void pl_log_file_send(struct pl_log_file *log);

/* Lines that are not in the file. */
size_t pl_log_file_missing(const struct pl_log_file *log);

#endif
