/* SPDX-License-Identifier: MIT */
/* The ranks whose output Slurm's file gets, too (PLUME_OUTPUT_RANKS): "all", or "0,4-7". */
#ifndef PL_COMMON_RUN_OUTPUT_RANKS_H
#define PL_COMMON_RUN_OUTPUT_RANKS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define PL_OUTPUT_RANKS_ALL "all"
#define PL_OUTPUT_RANKS_OF_TRIAL "0" /* the default of a trial; a step of another kind: all */

/* Checks such a text for a step of n ranks; n 0: their number is not known. 0, -EINVAL. */
int pl_output_ranks_check(const char *text, int64_t n, struct pl_error *err);

/* True if a text that was checked has this rank. */
bool pl_output_ranks_contain(const char *text, unsigned rank);

#endif
