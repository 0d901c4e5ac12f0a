/* SPDX-License-Identifier: MIT */
/* Why Slurm gives the nodes of a trial no new jobs: an administrator, a prolog or a health check
 * may drain a node while its jobs go on. */
#ifndef PL_LAUNCHER_PLSTAT_NODE_REASONS_H
#define PL_LAUNCHER_PLSTAT_NODE_REASONS_H

#include "launcher/plstat/status.h"

/* Adds node_reasons to the trials whose nodes are drained or down. It looks at trials that run, and
 * at trials that have failed lately if Slurm's reason is from their time. It asks Slurm only where
 * there is such a trial. 0, -ENOMEM. */
int pl_node_reasons_add(struct pl_run_status *s,
                        const struct pl_slurm_view *slurm,
                        struct pl_notes *notes);

/* Adds those of one trial. reasons: of pl_slurm_nodes_get(). Public for its test. -ENOMEM. */
int pl_node_reasons_choose(struct pl_trial_status *ts, const json_t *reasons);

#endif
