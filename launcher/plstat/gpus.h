/* SPDX-License-Identifier: MIT */
/* What plstat shows of GPUs, from nodes[].gpus and nodes[].gpu_events of a run-state document
 * (run_state.h). Nothing at all where no node has any. -ENOMEM is the only error. */
#ifndef PL_LAUNCHER_PLSTAT_GPUS_H
#define PL_LAUNCHER_PLSTAT_GPUS_H

#include "launcher/plstat/fold.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/table.h"

/* True where some rank is known to use a GPU: then the table of ranks gets columns. */
bool pl_gpus_known(const json_t *doc);
void pl_gpus_columns(struct pl_table *t);
void pl_gpus_cells(struct pl_table *t, const json_t *doc, const struct pl_fold_group *g);

/* The numbers of the GPUs that a rank uses, on its node; a new reference, NULL where none is. */
json_t *pl_gpus_of_rank(const json_t *doc, int64_t rank);

/* A line for each error of a GPU, and while the trial runs for each one whose clocks are held down.
 * end_s: the end that errors are told from (seconds since 1970); not above 0: without times. */
int pl_gpus_print(struct pl_plstat *ps, const json_t *doc, bool running, double end_s);

/* The error that stands beside a cause, if there is one. */
int pl_gpus_print_cause(struct pl_plstat *ps, const json_t *cause);

#endif
