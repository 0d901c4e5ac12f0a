/* SPDX-License-Identifier: MIT */
/* Logging to stderr. Libraries log at debug only; the program that handles an error logs it once.
 *
 * PLUME_LOG=LEVEL[:SUBSYS,...] with LEVEL error|warn|info|debug (default warn; a list of
 * subsystems limits debug to them). PLUME_LOG_FORMAT=json writes one JSON object a line. */
#ifndef PL_COMMON_BASE_LOG_H
#define PL_COMMON_BASE_LOG_H

#include "common/base/macros.h"

#include <stdbool.h>
#include <stdint.h>

enum pl_log_level {
    PL_LOG_ERROR,
    PL_LOG_WARN,
    PL_LOG_INFO,
    PL_LOG_DEBUG,
};

/* Reads PLUME_LOG and PLUME_LOG_FORMAT; `program` (borrowed for ever) is the prefix of each line.
 * Call once in main, before threads. Without it the prefix is "plume" and the level warn. */
void pl_log_init(const char *program);

/* True where a message of this level and subsystem would be written. */
int pl_log_enabled(enum pl_log_level level, const char *subsys);

/* Writes one line with one write(2). Foreign bytes below 0x20 and 0x7f are shown as \xNN.
 * Thread safe, keeps errno, not async-signal-safe. */
void pl_log_write(enum pl_log_level level, const char *subsys, const char *fmt, ...)
    PL_PRINTF(3, 4);

/* The limit of a message that strangers can cause: five in a minute. Zeroed before its first use.
 */
struct pl_log_limit {
    uint64_t start_ns; /* of this minute */
    unsigned n;        /* messages in it, written or not */
};

/* Counts a message and returns true if it may be written. *ret_left_out: how many of the minute
 * before were not; name them, as they are reported once. now_ns: pl_now_ns(). */
bool pl_log_limit_pass(struct pl_log_limit *limit, uint64_t now_ns, unsigned *ret_left_out);

#define pl_log_error(subsys, ...) pl_log_write(PL_LOG_ERROR, subsys, __VA_ARGS__)
#define pl_log_warn(subsys, ...) pl_log_write(PL_LOG_WARN, subsys, __VA_ARGS__)
#define pl_log_info(subsys, ...) pl_log_write(PL_LOG_INFO, subsys, __VA_ARGS__)
#define pl_log_debug(subsys, ...)                                                                  \
    do {                                                                                           \
        if (pl_log_enabled(PL_LOG_DEBUG, subsys))                                                  \
            pl_log_write(PL_LOG_DEBUG, subsys, __VA_ARGS__);                                       \
    } while (0)

#endif
