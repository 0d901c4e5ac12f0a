/* SPDX-License-Identifier: MIT */
/* Parts of ending.c, which carries out decisions. Each is also used by those above it. */
#ifndef PL_RUNTIME_PLRUND_HUB_ENDING_PRIVATE_H
#define PL_RUNTIME_PLRUND_HUB_ENDING_PRIVATE_H

#include "runtime/plrund/hub/hub_private.h"

/* ---- launch_failed.c ---- */

/* All nodes have left, so there is no rank to end: records why the launch failed. unstarted: the
 * lowest rank that never started. */
void pl_hub_record_launch_failure(struct pl_hub *hub, int64_t unstarted);

/* Not all nodes have come, and no other will: refuses the launch. */
void pl_hub_launch_failed(struct pl_hub *hub);

/* The node cannot serve the step, as `text` says: refuses the launch. */
void pl_hub_refuse_by_node(struct pl_hub *hub, unsigned node_id, const char *text);

/* ---- end_ranks.c ---- */

/* Tells the nodes to end their ranks, unless Slurm does: then ranks may use the time that it gives
 * them. */
void pl_hub_end_ranks(struct pl_hub *hub, bool slurm_ends);

/* From SIGTERM to SIGKILL for ranks that are ended. Those that run a command to save at Slurm's
 * signal have the time for that. */
unsigned pl_hub_end_grace_ms(const struct pl_hub *hub);

/* Limits the time that nodes have to say bye: grace_ms, and some seconds for SIGKILL to act. */
void pl_hub_limit_end(struct pl_hub *hub, unsigned grace_ms);

/* ---- cause_record.c ---- */

/* The cause that is this failure; the caller owns it. NULL when out of memory. */
json_t *pl_hub_cause_of(struct pl_hub *hub, const struct pl_failure *f);

/* Adds to the cause the first rank that left with exit code 0 before the failure f, if all failures
 * are echoes of a lost peer: it may be that peer. */
void pl_hub_cause_add_early_end(struct pl_hub *hub, const struct pl_failure *f, json_t *cause);

/* Records the cause (consumed; NULL: the spare one) and the other failures. root: index of the
 * failure, or -1 for a cause outside the ranks. */
void pl_hub_record_cause(struct pl_hub *hub, json_t *cause, int64_t root);

/* Records the part of a rank in the failure: "root", "cascade" or "collateral". */
void pl_hub_set_role(struct pl_hub *hub, unsigned rank, const char *role);

#endif
