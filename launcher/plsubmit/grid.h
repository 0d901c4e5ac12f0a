/* SPDX-License-Identifier: MIT */
/* The axes of a sweep and their cartesian product. Trial 0 has each axis' first value; the last
 * axis moves fastest. */
#ifndef PL_LAUNCHER_PLSUBMIT_GRID_H
#define PL_LAUNCHER_PLSUBMIT_GRID_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>

/* Linux refuses a longer string in an argument vector or environment (MAX_ARG_STRLEN); all values
 * of a trial stand in PLUME_PARAMS together. */
#define PL_GRID_PARAMS_MAX (120u * 1024)

struct pl_axis {
    char *name;
    char **values; /* as given, without their quoting; n_values, no NULL behind */
    size_t n_values;
};

/* Zeroed memory is an empty grid, which has one trial without parameters. */
struct pl_grid {
    struct pl_axis *axes;
    size_t n_axes;
};

void pl_grid_finish(struct pl_grid *grid);

/* Adds an axis "NAME=V1,V2,...".
 *   NAME   [A-Za-z_][A-Za-z0-9_.-]*
 *   value  quoted if its first byte is `"`: then as in CSV (RFC 4180, `""` stands for one `"`) up
 *          to the closing quote, behind which only `,` or the end may come. Otherwise all bytes up
 *          to the next `,`, of which none is special. `""` is the empty value, a bare empty one is
 *          an error. Valid UTF-8 only.
 * Returns 0, -EINVAL (with what is wrong), -E2BIG (more than PL_RUN_TRIAL_LIMIT trials, or values
 * past PL_GRID_PARAMS_MAX), -ENOMEM; on failure the grid is as before. */
int pl_grid_add(struct pl_grid *grid, const char *text, struct pl_error *err);

/* Product of the axes' numbers of values. */
unsigned pl_grid_n_trials(const struct pl_grid *grid);

/* The value of an axis in a trial; borrowed. */
const char *pl_grid_value(const struct pl_grid *grid, unsigned trial, size_t axis);

/* Appends the axis in the form that pl_grid_add() reads, quoted only where needed. -ENOMEM. */
int pl_grid_format(const struct pl_axis *axis, struct pl_buf *out);

#endif
