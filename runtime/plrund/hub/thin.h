/* SPDX-License-Identifier: MIT */
/* Thins metrics.jsonl when it is too large. Of each rank's records stay, for each metric, those
 * with its first, last, lowest and highest value and its first one that is not finite; of the
 * others one per cell of a grid in time, which becomes coarser until the rest is small enough. A
 * replay of the rest ends in the same state. A node's GPUs are thinned by the grid, and the last
 * record stays.
 *
 * Pure: no descriptors, no clock; a thread of its own may call it. */
#ifndef PL_RUNTIME_PLRUND_HUB_THIN_H
#define PL_RUNTIME_PLRUND_HUB_THIN_H

#include "common/base/buf.h"

struct pl_thinned {
    struct pl_buf text; /* whole lines, in their order */
    size_t n_left_out;  /* lines */
    double grid_s;      /* width of a cell; for the next time */
};

/* lines       whole lines; one that is no record of metrics.jsonl stays
 * target      bytes that should stay; if the first, lowest and highest values need more, only last
 *             ones stay, and of these all
 * grid_s      least width of a cell: that of the last time; 0 = the first time
 * ret         set on success; the caller finishes ret->text
 * Returns 0 or -ENOMEM. */
int pl_thin(const char *lines, size_t len, size_t target, double grid_s, struct pl_thinned *ret);

#endif
