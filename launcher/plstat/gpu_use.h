/* SPDX-License-Identifier: MIT */
/* GPUs that a run has and hardly uses: says so, and what to raise. */
#ifndef PL_LAUNCHER_PLSTAT_GPU_USE_H
#define PL_LAUNCHER_PLSTAT_GPU_USE_H

#include "launcher/plstat/plstat.h"

/* Prints at most two lines for each kind of waste, from util_mean and mem_most of nodes[].gpus,
 * which are about the last minute that was sampled. -ENOMEM is the only error. */
int pl_gpu_use_print(struct pl_plstat *ps, const json_t *doc);

#endif
