/* SPDX-License-Identifier: MIT */
/* The lines of a log on their way to its file: the hub adds them in the loop, and the disk's thread
 * writes them (disk.h). While the file system does not answer they wait in memory, in their order
 * and up to a limit. */
#ifndef PL_RUNTIME_PLRUND_HUB_LOG_QUEUE_H
#define PL_RUNTIME_PLRUND_HUB_LOG_QUEUE_H

#include "runtime/node/disk.h"
#include "runtime/plrund/hub/log_file.h"

struct pl_log_queue {
    struct pl_disk_job job; /* first: the job is the queue */
    struct pl_disk *disk;
    struct pl_log_file file; /* of the work only, once the queue is open */
    size_t size_written;     /* of the file and what it has not taken yet, after the last work */
    bool open, under_way;
    bool send;           /* the next work has other hosts see the lines */
    struct pl_buf text;  /* under way */
    struct pl_buf lines; /* not handed over yet */
    size_t max;          /* bytes of both */
    size_t size;         /* bytes of the file once all is written */
    size_t n_lost;       /* lines that found no room */
};

#define PL_LOG_QUEUE_INIT                                                                          \
    {                                                                                              \
        .file = PL_LOG_FILE_INIT                                                                   \
    }

/* As pl_log_file_open(). max: bytes of lines that wait in memory. */
int pl_log_queue_open(struct pl_log_queue *q,
                      struct pl_disk *disk,
                      size_t max,
                      int folder_fd,
                      const char *name,
                      struct pl_error *err);
/* After the disk is closed. */
void pl_log_queue_finish(struct pl_log_queue *q);

/* Adds a line, newline included. */
void pl_log_queue_put(struct pl_log_queue *q, const char *line, size_t len);

/* Hands over the lines, unless others are under way: these follow by themselves. False: there is
 * nothing to hand over now. */
bool pl_log_queue_send(struct pl_log_queue *q);

/* The same, and what the file did not take before is tried again. Call at times: on NFS other hosts
 * see the lines then. */
void pl_log_queue_flush(struct pl_log_queue *q);

/* Takes the lines that are not handed over: the caller's next job writes them. */
struct pl_buf pl_log_queue_take(struct pl_log_queue *q);

/* In the loop, after a job has replaced the file: bytes of the new one. */
void pl_log_queue_replaced(struct pl_log_queue *q, size_t size);

/* Lines of this text. */
size_t pl_log_queue_count(const struct pl_buf *text);

/* Lines that are in memory, beside those that were taken. */
size_t pl_log_queue_waiting(const struct pl_log_queue *q);

#endif
