/* SPDX-License-Identifier: MIT */
/* A job of pl_disk for a rank's file. It opens the file, writes to it, sends it to its server or
 * closes it. Each of these may block, so a thread does them. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_FILE_WORK_H
#define PL_RUNTIME_PLRUND_DAEMON_FILE_WORK_H

#include "common/base/buf.h"
#include "runtime/node/disk.h"

#include <stdbool.h>
#include <stddef.h>

/* The loop fills it and adds its job, and leaves it alone until the job is done. */
struct pl_file_work {
    struct pl_disk_job job;
    struct pl_disk *disk;
    int fd;           /* -EBADF: not open */
    char *dir, *name; /* owned */
    bool open, close, send;
    bool nfs;
    size_t skipped; /* bytes that the file lacks before the data */
    struct pl_buf data;
    size_t missing; /* bytes that the file does not have, at its end */
    size_t lost;    /* bytes at the end of the data that it did not take */
    int result;     /* of open */
    int error;      /* of the last write that it did not take whole */
    bool removed;
};

/* The job's work. A failure to open or close it is logged; `result`, `lost` and `error` say
 * what it means. */
void pl_file_work(struct pl_disk_job *job);

/* Frees what it owns but the descriptor, which `close` closes. */
void pl_file_work_finish(struct pl_file_work *w);

#endif
