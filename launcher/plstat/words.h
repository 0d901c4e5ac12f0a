/* SPDX-License-Identifier: MIT */
/* Formats durations, numbers, states, causes, and lists of ranks and nodes as text. Foreign text in
 * it is not escaped; tables and lines escape it when they print (common/base/term.h). */
#ifndef PL_LAUNCHER_PLSTAT_WORDS_H
#define PL_LAUNCHER_PLSTAT_WORDS_H

#include "common/base/buf.h"
#include "common/base/term.h"
#include "launcher/plstat/status.h"

#define PL_WORDS_NAME_MAX 512 /* bytes of a trial's name; longer ones are cut */

/* "0:07", "12:40", "3:02:10", "2d 03:04"; "-" below 0. */
void pl_words_duration(double seconds, char *ret, size_t size);

/* A metric with 4 significant digits; "nan", "inf", "-inf". */
void pl_words_number(double value, char *ret, size_t size);

enum pl_term_style pl_words_trial_style(enum pl_trial_state state);
enum pl_term_style pl_words_sweep_style(enum pl_sweep_state state);

/* The exit of a cause or rank: "exit 3", "killed by SIGSEGV (signal 11)", "". */
void pl_words_exit(const json_t *o, char *ret, size_t size);

/* The same for a cell of a table: "exit 3", "SIGSEGV". */
void pl_words_exit_short(const json_t *o, char *ret, size_t size);

/* Appends "rank 3 (n04, pid 12): exit 3", "the time limit was reached", ... and "(inferred)" for an
 * inferred cause. -ENOMEM. */
int pl_words_cause(const json_t *cause, struct pl_buf *ret);

/* Appends "n04 is draining: bad GPU (root, 2026-11-26 12:03)" for one of a trial's node_reasons.
 * -ENOMEM.
 */
int pl_words_node_reason(const json_t *reason, struct pl_buf *ret);

/* The trial's name: "lr-x3k2ab/4", or the sweep if it has one trial. */
void pl_words_trial(const struct pl_run *run, unsigned trial, char *ret, size_t size);

/* Appends "attempt 2", or "before attempt 2" for a trial whose newest start has no attempt yet;
 * nothing where none has begun. -ENOMEM. */
int pl_words_attempt(const struct pl_trial_status *ts, struct pl_buf *ret);

/* Appends "attempt 1 (job 12_0) failed: rank 0 (n01): exit 3", the attempt before such a start;
 * nothing for another trial. -ENOMEM. */
int pl_words_earlier(const struct pl_trial_status *ts, struct pl_buf *ret);

/* Appends the failure of a trial: "failed: rank 3 (n04, pid 12): exit 3", "cancelled (inferred)",
 * "lost: ...". -ENOMEM. */
int pl_words_failure(const struct pl_trial_status *ts, struct pl_buf *ret);

/* Appends "n[01-03,07],login" for names in order of appearance, each once. -ENOMEM. */
int pl_words_nodes(const char *const *nodes, size_t n, struct pl_buf *ret);

#endif
