/* SPDX-License-Identifier: MIT */
/* A progress line of the epoch on a terminal, redrawn in place:
 *
 *     epoch 3/12  45% ━━━━━━━━━━             142/313  loss 0.2134  1.24k samples/s  0:07
 *
 * It writes nothing if the stream is no terminal, or TERM is "dumb". Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_REPORT_PROGRESS_H
#define PL_RUNTIME_ENGINE_REPORT_PROGRESS_H

#include "common/base/macros.h"

#include <stdbool.h>

struct pl_progress_state {
    uint64_t epoch, epochs; /* from 1; epochs 0 = unknown */
    uint64_t done, total;   /* batches of this epoch */
    double loss;            /* NaN: unknown yet */
    double samples;         /* of all ranks, since this epoch began */
    double seconds;         /* since this epoch began */
};

struct pl_progress {
    FILE *out; /* NULL: no output */
    bool utf8, drawn;
    uint64_t drawn_ns; /* time of the last drawing, by pl_now_ns() */
};

/* out is borrowed; may be NULL. `utf8`: the terminal's encoding. */
void pl_progress_init(struct pl_progress *progress, FILE *out, bool utf8);

/* Draws, at most ten times a second unless the epoch is over. */
void pl_progress_show(struct pl_progress *progress, const struct pl_progress_state *state);

/* Clears the line, before other output to the terminal. */
void pl_progress_clear(struct pl_progress *progress);

/* Formats the line for a terminal of `width` columns, at most width - 1 wide (the last column makes
 * some terminals wrap), without line end, always terminated. Parts that do not fit are omitted, the
 * bar first. Returns buf. */
const char *pl_progress_line(
    const struct pl_progress_state *state, unsigned width, bool utf8, char *buf, size_t size);

#endif
