/* SPDX-License-Identifier: MIT */
/* Work on files, off the loop: a shared file system may not answer for minutes, and the loop must.
 * One thread does the work in its order. Where there can be no thread (the user's limit of
 * processes) the loop does it. */
#ifndef PL_RUNTIME_NODE_DISK_H
#define PL_RUNTIME_NODE_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct pl_disk;

/* A piece of work; the caller's, and the thread's until done(). */
struct pl_disk_job {
    struct pl_disk_job *next;
    /* In the thread: it may block, and touches nothing that the loop uses meanwhile. */
    void (*work)(struct pl_disk_job *job);
    /* In the loop, after work(), in the jobs' order; may free the job, or add it again. */
    void (*done)(struct pl_disk_job *job);
};

/* Starts the thread. -ENOMEM and errors of uv_async_init(). */
int pl_disk_create(uv_loop_t *loop, struct pl_disk **ret);

/* d NULL: the loop does the work, and has done it when this returns. */
void pl_disk_add(struct pl_disk *d, struct pl_disk_job *job);

/* False: the loop itself does the work, so it must not wait for long. */
bool pl_disk_has_thread(const struct pl_disk *d);

/* Waits in the loop until no work is left, for at most ms. Returns false if there is some. done()
 * is called later, from the loop. */
bool pl_disk_wait(struct pl_disk *d, unsigned ms);

/* Calls done() in the loop for all that is finished: a caller that has waited need not return to
 * the loop before it adds more. */
void pl_disk_tell(struct pl_disk *d);

/* Milliseconds since the job under way has begun, or since pl_disk_answered(); 0: none is. */
uint64_t pl_disk_busy_ms(struct pl_disk *d);

/* In work() that calls the file system often: it has answered, however slowly. */
void pl_disk_answered(struct pl_disk *d);

/* Waits for the work for a second at most, calls done() for all that is finished, and frees. A
 * thread that is held up longer is left behind (thread.h), and what it works on with it. NULL is
 * fine. */
void pl_disk_close(struct pl_disk *d);

#endif
