/* SPDX-License-Identifier: MIT */
/* NAME=REGEX of --metric: one check for all who take one, before regcomp() sees it. */
#ifndef PL_COMMON_BASE_METRIC_RULE_H
#define PL_COMMON_BASE_METRIC_RULE_H

#include "common/base/error.h"

#include <regex.h>
#include <stdbool.h>

/* Bytes of a rule, and parts of its expression with the repetitions written out: a{3}b has five,
 * one of them the repetition. */
#define PL_METRIC_RULE_MAX 1024
/* Groups inside one another: regcomp() calls itself for each. */
#define PL_METRIC_DEPTH_MAX 64

/* The value is group 1, or the whole match if there is no group. */
struct pl_metric_rule {
    char *name;
    regex_t regex;    /* POSIX extended */
    bool comma_after; /* the expression has a comma directly after group 1, as of CSV */
};

/* Compiles "NAME=REGEX". -EINVAL (form, expression), -E2BIG (limits), -ENOMEM, with the reason.
 * pl_metric_rule_finish() frees. */
int pl_metric_rule_init(struct pl_metric_rule *rule, const char *spec, struct pl_error *err);
void pl_metric_rule_finish(struct pl_metric_rule *rule);

/* The same errors, and nothing kept. */
int pl_metric_rule_check(const char *spec, struct pl_error *err);

/* True if the line has a number where the rule looks; *ret is undefined else. */
bool pl_metric_rule_find(const struct pl_metric_rule *rule, const char *line, double *ret);

#endif
