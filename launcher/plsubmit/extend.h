/* SPDX-License-Identifier: MIT */
/* --extend SWEEP: more trials for a sweep, with the program and options that it has. */
#ifndef PL_LAUNCHER_PLSUBMIT_EXTEND_H
#define PL_LAUNCHER_PLSUBMIT_EXTEND_H

#include "common/run/run_folder.h"
#include "launcher/plsubmit/spec.h"

/* Adds those trials of the grid that the sweep does not have, with the next numbers.
 * ret_new    number of them; 0: the folder is unchanged
 * ret_known  trials of the grid that the sweep has already
 * Returns 0, -EINVAL (the grid has other axes than the sweep), -E2BIG, -ENOMEM, ... */
int pl_extend_run(struct pl_run *run,
                  const struct pl_grid *grid,
                  unsigned *ret_new,
                  unsigned *ret_known,
                  struct pl_error *err);

/* Adds a warning for each axis that gets a number which the sweep has in another spelling. -ENOMEM,
 * or an error of reading the trials. */
int pl_extend_hints(struct pl_run *run, struct pl_spec *spec, struct pl_error *err);

/* --expand: appends the lines that trials.jsonl would get. Errors as above. */
int pl_extend_lines(struct pl_run *run,
                    const struct pl_grid *grid,
                    struct pl_buf *ret_lines,
                    unsigned *ret_new,
                    unsigned *ret_known,
                    struct pl_error *err);

#endif
