/* SPDX-License-Identifier: MIT */
/* How plstat says things: durations, numbers, states, causes, lists of ranks and nodes. What is
 * foreign in it is not escaped yet; tables and lines do that (common/base/term.h). */
#ifndef PL_LAUNCHER_PLSTAT_WORDS_H
#define PL_LAUNCHER_PLSTAT_WORDS_H

#include "common/base/buf.h"
#include "common/base/term.h"
#include "launcher/plstat/status.h"

#define PL_WORDS_NAME_MAX 512 /* of a sweep's name; longer ones are cut */

/* "0:07", "12:40", "3:02:10", "2d 03:04"; "-" below 0. */
void pl_words_duration(double seconds, char *ret, size_t size);

/* A metric: 4 significant digits; "nan", "inf"; "" for NaN where it means "not known". */
void pl_words_number(double value, char *ret, size_t size);

enum pl_term_style pl_words_style(enum pl_trial_state state);
enum pl_term_style pl_words_sweep_style(enum pl_sweep_state state);

/* "exit 3", "killed by SIGSEGV (11)", "" of a cause or rank. */
void pl_words_status(const json_t *o, char *ret, size_t size);

/* The same in a table's cell: "exit 3", "SIGSEGV". */
void pl_words_end(const json_t *o, char *ret, size_t size);

/* "rank 3 (n04, pid 12): exit 3", "time limit reached", ... with "(inferred)" where it is. Appends;
 * -ENOMEM. */
int pl_words_cause(const json_t *cause, struct pl_buf *ret);

/* What the trial is called by: "lr-x3k2ab/4", or the sweep alone where that is its only one. */
void pl_words_trial(const struct pl_run *run, unsigned trial, char *ret, size_t size);

/* How a trial ended badly: "failed: rank 3 (n04, pid 12): exit 3", "cancelled (inferred)",
 * "lost: ...". Appends; -ENOMEM. */
int pl_words_failure(const struct pl_trial_status *ts, struct pl_buf *ret);

/* "0-3,7" of ascending numbers. -ENOMEM. */
int pl_words_ranks(const int64_t *ranks, size_t n, struct pl_buf *ret);

/* "n[01-03,07],login" of names in order of appearance, each once. -ENOMEM. */
int pl_words_nodes(const char *const *nodes, size_t n, struct pl_buf *ret);

#endif
