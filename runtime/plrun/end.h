/* SPDX-License-Identifier: MIT */
#ifndef PL_RUNTIME_PLRUN_END_H
#define PL_RUNTIME_PLRUN_END_H

#include "common/base/error.h"

/* Runs the command of --on-end of the sweep in PLUME_RUN_DIR, once for all callers with the same
 * number of arrays, in bash and with PLUME_SWEEP, PLUME_SWEEP_TRIALS, PLUME_SWEEP_DONE and
 * PLUME_SWEEP_FAILED. Does nothing if the sweep has got more arrays meanwhile: their end is the
 * sweep's. Returns the command's exit code, 0 if there was nothing to do; -errno. */
int pl_end_run(unsigned arrays, struct pl_error *err);

#endif
