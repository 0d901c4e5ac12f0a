/* SPDX-License-Identifier: MIT */
/* The state of one attempt of a trial, or of one step: a JSON document that events change.
 *
 * The hub makes events, applies them here, appends them to events.jsonl (metrics to metrics.jsonl)
 * and sends them to watchers. plstat asks the hub for the document, or builds the same one from the
 * files: replay(log) == snapshot, which a property test checks.
 *
 * The document:
 *   job, step, attempt (restart count), array ("123_4"), sweep, trial, world_size, started, ended
 *   nodes      [{"node","addr","state","gpus":[{}],"gpu_events":[{}]}]   by node id
 *   ranks
 * [{"rank","node","pid","state","step","exit"|"signal","signal_name","role","phase","slow","stack",
 *                "metrics":{},"facts":{}}]                               by rank
 *   state      running | done | failed | preempted | timed-out | node-failed | cancelled
 *   cause      {"kind","rank","node","exit"|"signal","signal_name","process","text","confidence",
 *               "inferred"}
 *   others     [..] the other failures, in the form of cause
 *   program    the file that runs as the program of a trial
 *   stall      {"state","since","ranks","all","node","doing","step","for_s","limit_s","confidence",
 *               "text"}; state: suspected | stopped | hint | over
 *   objective  the objective that the program states, "max:NAME"
 * An unknown value has no key. Only this file and the makers of events write these keys.
 * rank_state.h has the states of a rank, cause.h the kinds of causes. */
#ifndef PL_COMMON_RUN_RUN_STATE_H
#define PL_COMMON_RUN_RUN_STATE_H

#include "common/base/error.h"
#include "common/run/cause.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

/* A new, empty document. NULL when out of memory. */
json_t *pl_run_state_new(void);

/* Applies an event, an object with "type":
 *   attempt  sets its other keys in the document; world_size creates the ranks
 *   node     {"node_id", ...}: sets its other keys in nodes[node_id]
 *   rank     {"rank", ...}: sets its other keys in ranks[rank]
 *   metrics  {"rank","step","metrics":{}}: sets the last values
 *   fact     {"rank","key","value"}
 *   gpus     {"node_id","gpus":[..]}: the latest state of a node's GPUs
 *   gpu      {"node_id", ...}: appends a GPU's error, with "t", to nodes[node_id].gpu_events, which
 *            keeps the newest 16
 *   stall    its keys become "stall", with "t" as "since"
 *   cause    {"cause":{},"others":[]}
 *   state    {"state"[,"ended"]}
 * "t" (seconds since 1970) and "seq" are not part of the document. Skips events of other types.
 * -EINVAL for a malformed event (for instance a rank out of range), -ENOMEM. */
int pl_run_state_apply(json_t *state, json_t *event, struct pl_error *err);

/* Applies each line of a file of events. Skips a last line without a newline, which is being
 * written. 0, -ENOENT, or the error of the first bad line. */
int pl_run_state_replay(json_t *state, const char *path, struct pl_error *err);

/* Builds the document of an attempt folder from events.jsonl and metrics.jsonl. -ENOENT without
 * events.jsonl. */
int pl_run_state_load(const char *attempt_dir, json_t **ret, struct pl_error *err);

/* The metric of the lowest rank that has it, borrowed; NULL: none has. */
json_t *pl_run_state_metric(const json_t *state, const char *name);

/* ranks[rank], borrowed; NULL: none. */
json_t *pl_run_state_rank(json_t *state, size_t rank);

/* Sets exit, or signal and signal_name, of an object from a wait status. -ENOMEM. */
int pl_run_state_set_status(json_t *object, int wait_status);

/* Sets a cause's "confidence", and "inferred" with an inferred one. NULL is fine. -ENOMEM. */
int pl_run_state_set_confidence(json_t *cause, enum pl_confidence confidence);

/* Copies exit, signal and signal_name if they exist. -ENOMEM. */
int pl_run_state_copy_status(json_t *to, json_t *from);

/* The exit code of a cause or rank object as in a shell: exit, or 128 + signal, else 1. */
int pl_run_state_exit_code(json_t *object);

/* Parses a metric's value: a number, "nan", "inf" or "-inf". -EINVAL for others. */
int pl_run_state_number(json_t *value, double *ret);

#endif
