/* SPDX-License-Identifier: MIT */
/* Lines of several streams on one output: whole, escaped, and with the rank in front. */
#ifndef PL_LAUNCHER_PLSTAT_LINES_H
#define PL_LAUNCHER_PLSTAT_LINES_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define PL_LINES_MAX 65536 /* bytes of a line that are kept back until it is whole */

/* A stream. Zeroed memory is one that has given nothing; pl_buf_finish() its text. */
struct pl_line {
    unsigned rank;
    struct pl_buf text; /* has no end yet */
    bool shown;         /* a part of the line was written */
    bool returned;      /* its last byte ended a line, and was a carriage return */
    uint64_t time_ns;   /* its last bytes came */
};

/* The output. pl_buf_finish() its text. */
struct pl_lines {
    /* Takes a part of the output. -errno. */
    int (*write)(void *ctx, const char *data, size_t len, struct pl_error *err);
    void *ctx;
    bool label;
    const struct pl_line *open; /* the output ends with a part of its line */
    struct pl_buf text;         /* is not written yet */
};

/* Adds bytes of a stream, and writes its lines. A line ends with a newline or a carriage return
 * (progress bars), and is escaped (common/base/term.h), except its tabs. One that is longer than
 * PL_LINES_MAX is written in parts, which lines of other streams may break. All return 0, -ENOMEM,
 * or the error of write. */
int pl_lines_add(
    struct pl_lines *out, struct pl_line *line, const char *data, size_t len, struct pl_error *err);

/* Writes what the stream has of a line without an end: a part of it, or, as no more will come, all.
 */
int pl_lines_show_part(struct pl_lines *out, struct pl_line *line, struct pl_error *err);
int pl_lines_end(struct pl_lines *out, struct pl_line *line, struct pl_error *err);

/* Hands over what was written. */
int pl_lines_flush(struct pl_lines *out, struct pl_error *err);

#endif
