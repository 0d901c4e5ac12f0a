/* SPDX-License-Identifier: MIT */
/* Folds equal ranks into one line (the rule of NCCL's RAS). The largest group is always folded;
 * another group only if it has more than PL_FOLD_ALONE_MAX ranks or more than a quarter of all
 * ranks. Ranks are equal if state, exit or signal, role and step are equal. Steps within one of the
 * median count as equal. */
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

/* Folds ranks[] of a run-state document. all: each rank is a group. -ENOMEM. */
int pl_fold_ranks(const json_t *doc, bool all, struct pl_fold *ret, struct pl_error *err);

#endif
