/* SPDX-License-Identifier: MIT */
/* What is known about one attempt of a trial (or one step): a JSON document that events change.
 *
 * The hub makes events, applies them here, appends them to events.jsonl (or, for metrics, to
 * metrics.jsonl) and sends them to watchers. plstat asks the hub for the document, or builds the
 * same one by applying the files: replay(log) == snapshot, which a property test holds.
 *
 * The document:
 *   job, step, attempt (restart count), array ("123_4"), sweep, trial, world_size, started, ended
 *   nodes   [{"node","addr","state","gpus":[{}],"gpu_events":[{}]}]   by node id
 *   ranks   [{"rank","node","pid","state","step","exit"|"signal","signal_name","role",
 *             "metrics":{},"facts":{}}]                               by rank
 *   state   running | done | failed | preempted | timed-out | node-failed | cancelled
 *   cause   {"kind","rank","node","exit"|"signal","signal_name","text","inferred"}    others [..]
 *   program    the file that is run, for a trial
 *   objective  what the program says its objective is, "max:NAME"
 * A key that is absent is not known. This file and event makers are the only ones that write them.
 *
 * Rank:  starting -> running -> done | failed | killed | lost      (killed: ended by the runtime)
 *        any of the first two -> lost (its node's daemon is gone) */
#ifndef PL_COMMON_RUN_RUN_STATE_H
#define PL_COMMON_RUN_RUN_STATE_H

#include "common/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

/* A new, empty document. NULL when out of memory. */
json_t *pl_run_state_new(void);

/* Applies an event (an object with "type"):
 *   attempt  its other keys are set at the top; world_size makes the ranks
 *   node     {"node_id", ...}: its other keys are set in nodes[node_id]
 *   rank     {"rank", ...}: its other keys are set in ranks[rank]
 *   metrics  {"rank","step","metrics":{}}: last value wins; marked by nothing else
 *   fact     {"rank","key","value"}
 *   gpus     {"node_id","gpus":[..]}: a node's GPUs as they were last seen
 *   gpu      {"node_id", ...}: an error of a GPU, put behind those in nodes[node_id].gpu_events,
 * with "t"; the newest 16 are kept cause    {"cause":{},"others":[]} state    {"state"[,"ended"]}
 * "t" (seconds since 1970) and "seq" are not part of the document. Events of other types are
 * skipped. -EINVAL for an event of no such form (rank out of range), -ENOMEM. */
int pl_run_state_apply(json_t *state, json_t *event, struct pl_error *err);

/* Applies each line of a file of events. A last line without its newline (being written) is left
 * out. 0, -ENOENT, or the first bad line's error. */
int pl_run_state_replay(json_t *state, const char *path, struct pl_error *err);

/* An attempt folder's document from its events.jsonl and metrics.jsonl; -ENOENT without the former.
 */
int pl_run_state_load(const char *attempt_dir, json_t **ret, struct pl_error *err);

/* ranks[rank], borrowed; NULL where there is none. */
json_t *pl_run_state_rank(json_t *state, size_t rank);

/* Sets exit, or signal and signal_name, from a wait status in an object. -ENOMEM. */
int pl_run_state_set_status(json_t *object, int wait_status);

/* Copies exit, signal and signal_name where they are. -ENOMEM. */
int pl_run_state_copy_status(json_t *to, json_t *from);

/* The exit code a shell would show for a cause or rank object: its exit, or 128 + signal; for other
 * causes 1. */
int pl_run_state_exit_code(json_t *object);

/* A metric's value: a number, or "nan", "inf", "-inf". -EINVAL for others. */
int pl_run_state_number(json_t *value, double *ret);

#endif
