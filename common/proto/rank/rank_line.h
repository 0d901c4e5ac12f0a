/* SPDX-License-Identifier: MIT */
/* The messages that are written without jansson (plume-protocol(7)): those of a rank's program,
 * plrun and the plugin to the node daemon, and a starter's answers. Each function appends one JSON
 * object without a newline and returns 0 or -ENOMEM. libc only. Daemons read them, and write
 * theirs, by common/proto/messages.h. */
#ifndef PL_COMMON_PROTO_RANK_RANK_LINE_H
#define PL_COMMON_PROTO_RANK_RANK_LINE_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_PROTO_MAJOR 1
#define PL_PROTO_MINOR 3

#define PL_RANK_EXCHANGE_MAX 1024 /* bytes of an exchange's name, and of a value */

/* The sender of a hello. */
enum pl_rank_role {
    PL_RANK_ROLE_STARTER, /* plrun or the plugin: starts the rank, waits for the world */
    PL_RANK_ROLE_PROGRAM, /* the rank's program: reports and exchanges */
};

int pl_rank_line_hello(struct pl_buf *out,
                       enum pl_rank_role role,
                       unsigned rank,
                       unsigned local_rank,
                       pid_t pid,
                       bool guarded);
/* own_us: of a step, without waiting for other ranks; -1 = not known. */
int pl_rank_line_metrics(struct pl_buf *out,
                         int64_t step,
                         int64_t own_us,
                         const char *const *names,
                         const double *values,
                         size_t n);
/* phase  the pause before the next step, "checkpoint" or "validation"; "" ends it */
int pl_rank_line_phase(struct pl_buf *out, const char *phase);
int pl_rank_line_fact(struct pl_buf *out, const char *key, const char *value);
int pl_rank_line_exchange(struct pl_buf *out, const char *name, const char *value);

/* rank: -1 on a rank's own connection; the plugin's control socket serves all ranks. */
int pl_rank_line_spawned(struct pl_buf *out, int64_t rank, pid_t pid);
/* sender: 0 = not known */
int pl_rank_line_signalled(struct pl_buf *out, int signal, pid_t sender);
/* status as from wait(2); at_ns on CLOCK_MONOTONIC, 0 = not known; term_default: 1 = SIGTERM had
 * its default action in the program, as far as its starter has looked; 0 = it had another one; -1 =
 * not known. */
int pl_rank_line_exited(
    struct pl_buf *out, int64_t rank, int status, uint64_t at_ns, int term_default);

/* To the daemon's owner, once: it listens, or why it does not. */
int pl_rank_line_ready(struct pl_buf *out, pid_t pid, const char *socket);
int pl_rank_line_failed(struct pl_buf *out, const char *text);

#endif
