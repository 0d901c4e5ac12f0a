/* SPDX-License-Identifier: MIT */
/* The nodes to which Slurm gives no new jobs, and why: those that are drained, down or failing.
 * Asked of sinfo(1) at most once in PL_SLURM_NODES_AGE_S seconds by all plstat processes of a user
 * (slurm_cache.h). */
#ifndef PL_LAUNCHER_SLURM_SLURM_NODES_H
#define PL_LAUNCHER_SLURM_SLURM_NODES_H

#include "common/base/error.h"

#include <jansson.h>
#include <stdint.h>

#define PL_SLURM_NODES_AGE_S 15
#define PL_SLURM_NODES_MS 3000 /* sinfo tries for long where no controller answers */

/* Returns {"NODE": {"state", "reason", "by", "since"}, ..}: Slurm's word for the state in lower
 * case
 * ("draining", "down*"), its text, the user who set it and when. What Slurm does not say has no
 * key. A new reference. -ENOENT (no slurm.conf, no sinfo), -EHOSTUNREACH, -ETIMEDOUT, -ENOMEM. */
int pl_slurm_nodes_get(json_t **ret, struct pl_error *err);

#define PL_SLURM_REASON_MAX 1024 /* bytes of a reason that are kept */

/* Reads sinfo's records, "MARK|NODE|STATE|USER|TIME|REASON" and a line break. A reason may have
 * line breaks and anything else: a record begins where a line begins with the mark, which nobody
 * can know who writes a reason. Public for its test. -ENOMEM. */
int pl_slurm_nodes_parse(const char *text, const char *mark, json_t **ret);

#endif
