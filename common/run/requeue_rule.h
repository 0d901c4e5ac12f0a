/* SPDX-License-Identifier: MIT */
/* --requeue-on CAUSE[:N],...: after which ends a trial starts again, and how often. */
#ifndef PL_COMMON_RUN_REQUEUE_RULE_H
#define PL_COMMON_RUN_REQUEUE_RULE_H

#include "common/run/run_folder.h"

#define PL_REQUEUE_TOTAL 20 /* of all causes together, without --max-requeues */

enum pl_requeue_cause {
    PL_REQUEUE_PREEMPT,
    PL_REQUEUE_TIMEOUT,
    PL_REQUEUE_NODE_FAIL,
    PL_REQUEUE_ERROR,
    PL_REQUEUE_HANG,
    PL_REQUEUE_N_CAUSES,
};

struct pl_requeue_rule {
    unsigned most[PL_REQUEUE_N_CAUSES]; /* requeues after this cause; 0: none */
    unsigned total;
};

/* "preempt", "timeout", "node-fail", "error", "hang". */
const char *pl_requeue_cause_name(enum pl_requeue_cause cause);

/* The cause that a trial's end counts as; PL_REQUEUE_N_CAUSES: it is no reason to start again.
 * result: of the attempt, which tells a hang from another error; NULL = none. */
enum pl_requeue_cause pl_requeue_cause_of(enum pl_trial_state state, const json_t *result);

/* Parses "timeout:5,preempt". Without ":N" it is 3 times, after an error once. -EINVAL. */
int pl_requeue_parse(const char *text, struct pl_requeue_rule *ret, struct pl_error *err);

/* The rule of a run: --requeue-on, and a hang with --on-hang requeue. A rule with error and without
 * hang has as many for both. false: it has none. */
bool pl_requeue_of_run(const struct pl_run *run, struct pl_requeue_rule *ret);

#endif
