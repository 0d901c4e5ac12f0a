/* SPDX-License-Identifier: MIT */
/* PLUME_TRACE=FILE: what a process does, one JSON object per line, in FILE.PID:
 *
 *   {"t":12.345678901,"pid":42,"program":"plrund","event":"send","name":"join","peer":"hub","n":118}
 *
 * t is CLOCK_MONOTONIC in seconds. A line has names and sizes, never contents: no keys, nonces,
 * arguments or values of variables. */
#ifndef PL_COMMON_BASE_TRACE_H
#define PL_COMMON_BASE_TRACE_H

#include "common/base/macros.h"

#include <stddef.h>
#include <stdint.h>

/* Opens the file (O_NOFOLLOW, O_APPEND, mode 0600) if PLUME_TRACE is set. Call once in main, before
 * threads. The plugin never calls it. A process with the rights of another user (setuid, saved ids)
 * writes no trace: the name is the caller's. Returns 0 or -errno. */
int pl_trace_init(const char *program);

/* True if this process writes a trace. */
int pl_trace_enabled(void);

/* Writes one line with one write(2).
 * event  "send", "receive", "fork", "slurm", "collective"
 * name   the type of a message, the name of a program or of a collective
 * peer   the other side; NULL = none
 * n      bytes, numbers or a process id; -1 = none
 * Thread safe, keeps errno. Not async-signal-safe. */
void pl_trace_write(const char *event, const char *name, const char *peer, int64_t n);

/* The same, with the value of "type" of a JSON line as the name. */
void pl_trace_write_line(const char *event, const char *peer, const char *line, size_t len);

#define pl_trace(...)                                                                              \
    do {                                                                                           \
        if (pl_trace_enabled())                                                                    \
            pl_trace_write(__VA_ARGS__);                                                           \
    } while (0)
#define pl_trace_line(...)                                                                         \
    do {                                                                                           \
        if (pl_trace_enabled())                                                                    \
            pl_trace_write_line(__VA_ARGS__);                                                      \
    } while (0)

#endif
