/* SPDX-License-Identifier: MIT */
#include "common/run/requeue_rule.h"
#include "common/base/near.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/on_hang.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned usual;
} causes[] = {
    [PL_REQUEUE_PREEMPT] = {"preempt", 3},
    [PL_REQUEUE_TIMEOUT] = {"timeout", 3},
    [PL_REQUEUE_NODE_FAIL] = {"node-fail", 3},
    [PL_REQUEUE_ERROR] = {"error", 1},
    [PL_REQUEUE_HANG] = {"hang", PL_ON_HANG_REQUEUES},
};

const char *pl_requeue_cause_name(enum pl_requeue_cause cause)
{
    return causes[cause].name;
}

enum pl_requeue_cause pl_requeue_cause_of(enum pl_trial_state state, const json_t *result)
{
    const char *kind = pl_json_string(json_object_get(result, "cause"), "kind");

    switch (state) {
    case PL_TRIAL_PREEMPTED:
        return PL_REQUEUE_PREEMPT;
    case PL_TRIAL_TIMED_OUT:
        return PL_REQUEUE_TIMEOUT;
    case PL_TRIAL_NODE_FAILED:
        return PL_REQUEUE_NODE_FAIL;
    case PL_TRIAL_FAILED:
        return pl_cause_parse(kind) == PL_CAUSE_HANG ? PL_REQUEUE_HANG : PL_REQUEUE_ERROR;
    default:
        return PL_REQUEUE_N_CAUSES;
    }
}

static int parse_item(const char *item, struct pl_requeue_rule *rule, struct pl_error *err)
{
    const char *colon = strchr(item, ':');
    _cleanup_free_ char *name = strndup(item, colon ? (size_t)(colon - item) : strlen(item));
    struct pl_near near = {.word = name};
    int64_t n;
    int r = 0;

    if (!name)
        return pl_error_nomem(err);
    for (size_t i = 0; i < PL_COUNT(causes); i++) {
        pl_near_offer(&near, causes[i].name);
        if (strcmp(name, causes[i].name) != 0)
            continue;
        if (rule->most[i])
            return pl_error_set(err, -EINVAL, "'%s' is given twice", name);
        n = causes[i].usual;
        if (colon)
            r = pl_parse_int(colon + 1, 1, 1000, &n, err);
        rule->most[i] = (unsigned)n;
        return r;
    }
    if (near.best)
        return pl_error_set(err, -EINVAL, "'%s' is not a cause: did you mean %s?", name, near.best);
    return pl_error_set(err, -EINVAL,
                        "'%s' is not a cause: these are preempt, timeout, node-fail, error "
                        "and hang",
                        name);
}

int pl_requeue_parse(const char *text, struct pl_requeue_rule *ret, struct pl_error *err)
{
    struct pl_requeue_rule rule = {.total = PL_REQUEUE_TOTAL};
    const char *item = text;

    for (;;) {
        size_t len = strcspn(item, ",");
        _cleanup_free_ char *word = strndup(item, len);
        int r = word ? parse_item(word, &rule, err) : pl_error_nomem(err);

        if (r < 0)
            return r;
        if (!item[len])
            break;
        item += len + 1;
    }
    *ret = rule;
    return 0;
}

bool pl_requeue_of_run(const struct pl_run *run, struct pl_requeue_rule *ret)
{
    const json_t *options = pl_run_options(run);
    const char *text = pl_json_string(json_object_get(options, "requeue-on"), "value");
    const char *most = pl_json_string(json_object_get(options, "max-requeues"), "value");
    const char *hang = pl_json_string(json_object_get(options, "on-hang"), "value");
    enum pl_on_hang policy = PL_ON_HANG_WARN;
    int64_t n;

    if (hang && pl_on_hang_parse(hang, &policy, NULL) < 0)
        policy = PL_ON_HANG_WARN;
    if (!text && policy != PL_ON_HANG_REQUEUE)
        return false;
    *ret = (struct pl_requeue_rule){.total = PL_REQUEUE_TOTAL};
    if (text && pl_requeue_parse(text, ret, NULL) < 0)
        return false;
    if (policy == PL_ON_HANG_REQUEUE && !ret->most[PL_REQUEUE_HANG])
        ret->most[PL_REQUEUE_HANG] = PL_ON_HANG_REQUEUES;
    if (!ret->most[PL_REQUEUE_HANG])
        ret->most[PL_REQUEUE_HANG] = ret->most[PL_REQUEUE_ERROR];
    if (most && pl_parse_int(most, 0, 1000000, &n, NULL) == 0)
        ret->total = (unsigned)n;
    return true;
}
