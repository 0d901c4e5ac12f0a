/* SPDX-License-Identifier: MIT */
/* Ranks that agree become one line, those that differ stand alone (the rule of NCCL's RAS): the
 * largest group is always folded, another one only where it has more than PL_FOLD_ALONE_MAX
 * members or a quarter of all. Ranks agree when state, exit or signal, role and, but for a step of
 * slack, the step are the same. */
#ifndef PL_LAUNCHER_PLSTAT_FOLD_H
#define PL_LAUNCHER_PLSTAT_FOLD_H

#include "common/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define PL_FOLD_ALONE_MAX 10

struct pl_fold_group {
    const json_t **ranks; /* borrowed from the document, ascending; at least one */
    size_t n;
};

struct pl_fold {
    struct pl_fold_group *groups; /* by their first rank */
    size_t n;
};
void pl_fold_finish(struct pl_fold *fold);

/* Folds ranks[] of a run-state document. all: every rank on its own. -ENOMEM. */
int pl_fold_ranks(const json_t *doc, bool all, struct pl_fold *ret, struct pl_error *err);

#endif
