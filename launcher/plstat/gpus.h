/* SPDX-License-Identifier: MIT */
/* Shows GPUs from nodes[].gpus and nodes[].gpu_events of a run-state document (run_state.h), if a
 * node has any. -ENOMEM is the only error. */
#ifndef PL_LAUNCHER_PLSTAT_GPUS_H
#define PL_LAUNCHER_PLSTAT_GPUS_H

#include "launcher/plstat/fold.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/table.h"

/* True if a rank uses a GPU: the table of ranks then has columns for GPUs. */
bool pl_gpus_known(const json_t *doc);
void pl_gpus_columns(struct pl_table *t);
void pl_gpus_cells(struct pl_table *t, const json_t *doc, const struct pl_fold_group *g);

/* The numbers on its node of the GPUs that a rank uses; a new reference, NULL: none. */
json_t *pl_gpus_of_rank(const json_t *doc, int64_t rank);

/* Prints a line for each error of a GPU, and, while the trial runs, for each GPU with reduced
 * clocks. end_s: errors show their time before this end (seconds since 1970); <= 0: no times. */
int pl_gpus_print(struct pl_plstat *ps, const json_t *doc, bool running, double end_s);

/* Prints the GPU error of a cause, if it has one. */
int pl_gpus_print_cause(struct pl_plstat *ps, const json_t *cause);

#endif
