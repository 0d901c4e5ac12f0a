/* SPDX-License-Identifier: MIT */
/* One output stream of a rank: copies a pipe to the rank's own file and to the stream's first
 * target (srun, or Slurm's output file), keeps its last lines, and finds metrics in it.
 *
 * Back-pressure: if srun or the file is slow, reading stops, so the rank waits as it would without
 * us. A file system that does not answer for seconds holds up nobody: the file says where it lacks
 * output. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_CAPTURE_H
#define PL_RUNTIME_PLRUND_DAEMON_CAPTURE_H

#include "common/base/metric_rule.h"
#include "runtime/node/disk.h"

#include <stdbool.h>
#include <uv.h>

struct pl_capture;

struct pl_capture_ops {
    /* A line holds a metric. */
    void (*metric)(void *ctx, const char *name, double value);
    /* The stream ended, and everything is copied. */
    void (*done)(void *ctx);
};

/* Takes both descriptors, also on failure. disk (NULL: none) and rules are borrowed for the
 * capture's life. */
int pl_capture_create(uv_loop_t *loop,
                      struct pl_disk *disk,
                      int read_fd,
                      int real_fd,
                      const struct pl_metric_rule *rules,
                      size_t n_rules,
                      const struct pl_capture_ops *ops,
                      void *ctx,
                      struct pl_capture **ret);

/* Has the rank's own file `name` created, or emptied, in `dir`, which must be the caller's alone
 * (common/base/own.h), with missing folders. A failure is logged, and without a file the stream is
 * still copied to its target. Call once, before the stream is read. */
void pl_capture_open_file(struct pl_capture *c, const char *dir, const char *name);

/* The error of opening it, once it is known; else 0. */
int pl_capture_file_error(const struct pl_capture *c);

/* True while the file has not got all that was read. */
bool pl_capture_file_waits(const struct pl_capture *c);

/* Bytes that it has not got, or will not get. 0 without a capture. */
size_t pl_capture_unwritten(const struct pl_capture *c);

/* Bytes that its file, *ret_name, could not take, as on a full disk; *ret_error: the errno. 0:
 * none, also without a capture. */
size_t pl_capture_cut(const struct pl_capture *c, const char **ret_name, int *ret_error);

/* Bytes that Slurm's file, if the stream goes to one, could not take; as pl_capture_cut(). */
size_t pl_capture_real_cut(const struct pl_capture *c, int *ret_error);

/* Call each second: goes on without the file if its file system does not answer. send: other hosts
 * are to see what the file has got; that takes a request to the server of NFS. NULL is fine. */
void pl_capture_tick(struct pl_capture *c, bool send);

/* If the stream has a file, its target gets no more than the file could not take, and what
 * pl_capture_let_go() says. Call before the rank writes. */
void pl_capture_mute(struct pl_capture *c);

/* The target of a muted stream stays open until this call, which every muted stream needs once. It
 * gets the text (NULL: none) unless it has had the output itself. Nothing for others, or NULL. */
void pl_capture_let_go(struct pl_capture *c, const char *text);

/* Adds a line of ours to the target at once, not to the file. False without a capture, or where the
 * target is closed. */
bool pl_capture_say(struct pl_capture *c, const char *fmt, ...) PL_PRINTF(2, 3);

/* Reads everything that is in the pipe now: the last lines of a rank that has ended. */
void pl_capture_drain(struct pl_capture *c);

/* Reads at most what a pipe holds from now on, as soon as there is room for it, and then ends as if
 * the stream had ended: a process that the rank left behind may write for ever. NULL is fine. */
void pl_capture_end(struct pl_capture *c);

/* The last lines of this rank's stream, see pl_tail_text(). */
char *pl_capture_tail(const struct pl_capture *c, unsigned rank);

/* Time of the last bytes, pl_now_ns(); 0 without a capture. */
uint64_t pl_capture_heard_ns(const struct pl_capture *c);

bool pl_capture_is_done(const struct pl_capture *c);

/* Stops, closes the descriptors and frees. NULL is fine. */
void pl_capture_close(struct pl_capture *c);

#endif
