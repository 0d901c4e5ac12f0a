/* SPDX-License-Identifier: MIT */
/* The axes of a sweep and their Cartesian product. Trial 0 has the first value of each axis; the
 * last axis varies fastest. */
#ifndef PL_LAUNCHER_PLSUBMIT_GRID_H
#define PL_LAUNCHER_PLSUBMIT_GRID_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>

/* PLUME_PARAMS holds all values of a trial in one string. Linux limits a string of an argument
 * vector or environment to MAX_ARG_STRLEN, 128 KiB. */
#define PL_GRID_PARAMS_MAX (120u * 1024)

struct pl_axis {
    char *name;
    char **values; /* unquoted; n_values, not NULL-terminated */
    size_t n_values;
    size_t leader; /* the axis whose position in the product it has; its own index unless zipped */
    bool zipped;
    bool quoted;       /* a value was written in quotes: it is meant as it stands */
    unsigned char tag; /* for the caller; 0 at first */
};

/* Zeroed memory is an empty grid, which has one trial without parameters. */
struct pl_grid {
    struct pl_axis *axes;
    size_t n_axes;
    unsigned most; /* trials; 0 = all of the product */
    /* The points of the product that are trials (--where); NULL: all. */
    unsigned *kept, n_kept;
};

void pl_grid_finish(struct pl_grid *grid);

/* Adds an axis "NAME=V1,V2,...".
 *   NAME   [A-Za-z_][A-Za-z0-9_.-]*
 *   value  Quoted if its first byte is `"`: as in CSV (RFC 4180), `""` stands for one `"`, and only
 *          `,` or the end may follow the closing quote. Otherwise every byte up to the next `,` is
 *          literal. `""` is the empty value; an unquoted empty value is an error. Valid UTF-8 only.
 * or "NAME=range(LO,HI,N)", "NAME=log(LO,HI,N)" (range.h).
 * Returns 0, -EINVAL, -E2BIG (values longer than PL_GRID_PARAMS_MAX), -ENOMEM. A failure leaves the
 * grid unchanged. */
int pl_grid_add(struct pl_grid *grid, const char *text, struct pl_error *err);

/* Adds an axis NAME with copies of these n values, which may be equal, and the position of axis
 * `leader` in the product (its own index: no other's). -EINVAL (as pl_grid_add()), -E2BIG, -ENOMEM.
 */
int pl_grid_add_values(struct pl_grid *grid,
                       const char *name,
                       char *const *values,
                       size_t n,
                       size_t leader,
                       struct pl_error *err);

/* Zips the axes "A,B,...": they change together, as one axis of the product. -EINVAL (no such axis,
 * zipped before, another number of values, another order than the grid's), -ENOMEM. A grid that was
 * refused is not used any more. */
int pl_grid_zip(struct pl_grid *grid, const char *text, struct pl_error *err);

/* -E2BIG: more than PL_RUN_TRIAL_LIMIT trials. Ask before the next functions, which count no more.
 */
int pl_grid_check(const struct pl_grid *grid, struct pl_error *err);

/* The product of the axes' numbers of values; SIZE_MAX / 2 stands for more than that. */
size_t pl_grid_n_points(const struct pl_grid *grid);

/* The number of trials: the points, or those kept, at most grid->most. */
unsigned pl_grid_n_trials(const struct pl_grid *grid);

/* The value of an axis in a trial; borrowed. */
const char *pl_grid_value(const struct pl_grid *grid, unsigned trial, size_t axis);

/* Appends the axis in the form that pl_grid_add() reads; quotes only values that need it.
 * -ENOMEM. */
int pl_grid_format(const struct pl_axis *axis, struct pl_buf *out);

#endif
