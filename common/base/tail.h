/* SPDX-License-Identifier: MIT */
/* The part of a rank's stderr that a cause shows: at most PL_TAIL_LINES lines and PL_TAIL_BYTES
 * bytes, without the line ends after them, as valid UTF-8 (pl_buf_add_text()).
 *
 * Of a line, only the text after its last carriage return counts (progress bars). Of a run of
 * native stack frames, two are kept. The first traceback of each worker of torchrun is kept apart,
 * and shown instead of the last lines where torchrun's summary names that worker. */
#ifndef PL_COMMON_BASE_TAIL_H
#define PL_COMMON_BASE_TAIL_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

#define PL_TAIL_BYTES 4096
#define PL_TAIL_LINES 20
#define PL_TAIL_TRACEBACKS 16

/* The first Python traceback after a prefix such as "[rank2]: ". */
struct pl_traceback {
    char prefix[32];
    size_t prefix_len;
    struct pl_buf text; /* the lines after "Traceback", up to about PL_TAIL_BYTES */
    unsigned round;     /* of torchrun's restarts */
    unsigned message;   /* lines since the exception's name; 0 = that is to come */
    bool cut, closed;   /* older lines were dropped; the traceback is complete */
};

/* Zeroed memory is an empty tail. */
struct pl_tail {
    struct pl_buf lines; /* whole lines, up to twice PL_TAIL_BYTES */
    struct pl_buf line;  /* the line that has not ended */
    bool returned;       /* its last byte was a carriage return */
    unsigned frames;     /* native stack frames in a row */
    unsigned round;      /* failures that torchrun has reported */
    struct pl_traceback tracebacks[PL_TAIL_TRACEBACKS];
    size_t n_tracebacks;
};

/* Adds a part of the stream. Without memory the part is lost. */
void pl_tail_add(struct pl_tail *t, const char *data, size_t len);

/* The text to show. rank: whose stream it is; torchrun's agent, if torchrun wrote it. The caller
 * frees; NULL when out of memory. */
char *pl_tail_text(const struct pl_tail *t, int64_t rank);

void pl_tail_finish(struct pl_tail *t);

/* The text of a regular file, from its last MiB.
 * from  bytes at its begin that do not count; a shorter file counts from its begin
 * The caller frees; NULL for other files, on read errors and when out of memory. Never blocks. */
char *pl_tail_file(const char *path, int64_t from, int64_t rank);

#endif
