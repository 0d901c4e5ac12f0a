/* SPDX-License-Identifier: MIT */
#include "common/run/run_state.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "common/run/rank_state.h"

#include <math.h>
#include <string.h>
#include <sys/wait.h>

#define LOG_MAX_BYTES ((size_t)256 * 1024 * 1024)
#define WORLD_MAX 1000000
#define GPU_EVENTS_MAX 16

json_t *pl_run_state_new(void)
{
    return json_pack("{s:[], s:[]}", "nodes", "ranks");
}

json_t *pl_run_state_rank(json_t *state, size_t rank)
{
    return json_array_get(json_object_get(state, "ranks"), rank);
}

json_t *pl_run_state_metric(const json_t *state, const char *name)
{
    json_t *rank, *value;
    size_t i;

    json_array_foreach (json_object_get(state, "ranks"), i, rank) {
        value = json_object_get(json_object_get(rank, "metrics"), name);
        if (value)
            return value;
    }
    return NULL;
}

/* True for keys that only this file sets: an event that set them would break the document. */
static bool reserved(const char *key)
{
    static const char *const keys[] = {"nodes",      "ranks", "metrics", "facts",
                                       "gpu_events", "gpus",  "stall"};

    for (size_t i = 0; i < PL_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Copies the keys of an event to `to`, except those of the event itself and `skip`. */
static int set_keys(json_t *to, json_t *event, const char *skip)
{
    const char *key;
    json_t *value;

    json_object_foreach (event, key, value) {
        if (reserved(key))
            continue;
        if (strcmp(key, "type") == 0 || strcmp(key, "t") == 0 || strcmp(key, "seq") == 0 ||
            strcmp(key, skip) == 0)
            continue;
        if (json_object_set(to, key, value) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Extends the list to `count` objects; a new one is {key: its index}, or {} without a key. */
static int extend_list(json_t *list, size_t count, const char *key)
{
    while (json_array_size(list) < count) {
        json_t *o = json_object();

        if (key)
            json_object_set_new(o, key, json_integer((json_int_t)json_array_size(list)));
        if (!o || json_array_append_new(list, o) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int apply_attempt(json_t *state, json_t *event, struct pl_error *err)
{
    json_int_t world = json_integer_value(json_object_get(event, "world_size"));
    json_t *ranks = json_object_get(state, "ranks");
    int r;

    if (world < 0 || world > WORLD_MAX)
        return pl_error_set(err, -EINVAL, "world size %lld is out of range", (long long)world);
    r = set_keys(state, event, "");
    if (r == 0)
        r = extend_list(ranks, (size_t)world, "rank");
    for (size_t i = 0; r == 0 && i < json_array_size(ranks); i++)
        if (!json_object_get(json_array_get(ranks, i), "state"))
            r = json_object_set_new(json_array_get(ranks, i), "state",
                                    json_string(pl_rank_state_name(PL_RANK_STARTING)));
    return r < 0 ? pl_error_set(err, -ENOMEM, "out of memory") : 0;
}

static int apply_rank(json_t *rank, const char *type, json_t *event)
{
    json_t *o, *value;
    const char *key;

    if (strcmp(type, "rank") == 0)
        return set_keys(rank, event, "rank");
    o = json_object_get(rank, strcmp(type, "fact") == 0 ? "facts" : "metrics");
    if (!o) {
        o = json_object();
        if (!o || json_object_set_new(rank, strcmp(type, "fact") == 0 ? "facts" : "metrics", o) < 0)
            return -ENOMEM;
    }
    if (strcmp(type, "fact") == 0) {
        key = pl_json_string(event, "key");
        if (!key || !json_is_string(json_object_get(event, "value")))
            return -EINVAL;
        return json_object_set(o, key, json_object_get(event, "value")) < 0 ? -ENOMEM : 0;
    }
    if (json_is_integer(json_object_get(event, "step")) &&
        json_object_set(rank, "step", json_object_get(event, "step")) < 0)
        return -ENOMEM;
    if (json_is_string(json_object_get(event, "phase")) &&
        json_object_set(rank, "phase", json_object_get(event, "phase")) < 0)
        return -ENOMEM;
    json_object_foreach (json_object_get(event, "metrics"), key, value)
        if (json_object_set(o, key, value) < 0)
            return -ENOMEM;
    return 0;
}

static int apply_node(json_t *state, const char *type, json_t *event, struct pl_error *err)
{
    static const char *const kept[] = {"ranks", "t"}; /* set_keys() skips them */
    json_t *nodes = json_object_get(state, "nodes"), *node, *list, *error;
    int64_t index;
    int r;

    if (pl_json_int(event, "node_id", &index) < 0 || index < 0 || index > WORLD_MAX ||
        (strcmp(type, "gpus") == 0 && !json_is_array(json_object_get(event, "gpus"))))
        return pl_error_set(err, -EINVAL, "an event of type '%s' without its node or list", type);
    r = extend_list(nodes, (size_t)index + 1, NULL);
    if (r < 0)
        return r;
    node = json_array_get(nodes, (size_t)index);
    if (strcmp(type, "node") == 0)
        return set_keys(node, event, "node_id");
    if (strcmp(type, "gpus") == 0)
        return json_object_set(node, "gpus", json_object_get(event, "gpus")) < 0 ? -ENOMEM : 0;
    list = json_object_get(node, "gpu_events");
    if (!list) {
        list = json_array();
        if (json_object_set_new(node, "gpu_events", list) < 0)
            return -ENOMEM;
    }
    error = json_object();
    if (!error || json_array_append_new(list, error) < 0)
        return -ENOMEM;
    r = set_keys(error, event, "node_id");
    json_object_del(error, "node");
    for (size_t i = 0; r == 0 && i < PL_COUNT(kept); i++)
        if (json_object_get(event, kept[i]) &&
            json_object_set(error, kept[i], json_object_get(event, kept[i])) < 0)
            r = -ENOMEM;
    if (json_array_size(list) > GPU_EVENTS_MAX)
        json_array_remove(list, 0);
    return r;
}

/* The last word about progress replaces the one before. */
static int apply_stall(json_t *state, json_t *event)
{
    json_t *o = json_object(), *t = json_object_get(event, "t");
    json_t *ranks = json_object_get(event, "ranks"); /* set_keys() skips them */

    if (!o || json_object_set_new(state, "stall", o) < 0 ||
        (t && json_object_set(o, "since", t) < 0) ||
        (ranks && json_object_set(o, "ranks", ranks) < 0))
        return -ENOMEM;
    return set_keys(o, event, "");
}

int pl_run_state_apply(json_t *state, json_t *event, struct pl_error *err)
{
    const char *type = pl_json_string(event, "type");
    int64_t index;
    json_t *rank;
    int r = 0;

    if (!type)
        return pl_error_set(err, -EINVAL, "an event without a type");
    if (strcmp(type, "attempt") == 0)
        return apply_attempt(state, event, err);
    if (strcmp(type, "rank") == 0 || strcmp(type, "metrics") == 0 || strcmp(type, "fact") == 0) {
        if (pl_json_int(event, "rank", &index) < 0 || index < 0 ||
            !(rank = pl_run_state_rank(state, (size_t)index)))
            return pl_error_set(err, -EINVAL, "an event of type '%s' without a rank", type);
        r = apply_rank(rank, type, event);
    } else if (strcmp(type, "node") == 0 || strcmp(type, "gpus") == 0 || strcmp(type, "gpu") == 0) {
        r = apply_node(state, type, event, err);
    } else if (strcmp(type, "stall") == 0) {
        r = apply_stall(state, event);
    } else if (strcmp(type, "cause") == 0 || strcmp(type, "state") == 0 ||
               strcmp(type, "objective") == 0) {
        r = set_keys(state, event, "");
    }
    return r < 0 ? pl_error_set(err, r, "cannot apply an event of type '%s'", type) : 0;
}

int pl_run_state_replay(json_t *state, const char *path, struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    char *line, *newline;
    size_t len, number = 0;
    int r = pl_file_read(path, LOG_MAX_BYTES, &text, &len, err);

    if (r < 0)
        return r;
    for (line = text; (newline = memchr(line, '\n', len - (size_t)(line - text)));
         line = newline + 1) {
        _cleanup_(json_decrefp) json_t *event = NULL;

        number++;
        r = pl_json_parse(line, (size_t)(newline - line), PL_FRAME_MAX, &event, err);
        if (r == 0)
            r = pl_run_state_apply(state, event, err);
        if (r < 0)
            return pl_error_wrap(err, r, "'%s' line %zu", path, number);
    }
    return 0;
}

int pl_run_state_load(const char *attempt_dir, json_t **ret, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *state = pl_run_state_new();
    _cleanup_free_ char *events = pl_path_join(attempt_dir, "events.jsonl");
    _cleanup_free_ char *metrics = pl_path_join(attempt_dir, "metrics.jsonl");
    int r;

    if (!state || !events || !metrics)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_run_state_replay(state, events, err);
    if (r == 0) {
        r = pl_run_state_replay(state, metrics, err);
        if (r == -ENOENT)
            r = 0;
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(state);
    return 0;
}

int pl_run_state_set_confidence(json_t *cause, enum pl_confidence confidence)
{
    const char *name = pl_confidence_name(confidence);

    if (!cause)
        return 0;
    if (json_object_set_new(cause, "confidence", json_string(name)) < 0 ||
        (confidence == PL_CONFIDENCE_INFERRED &&
         json_object_set_new(cause, "inferred", json_true()) < 0))
        return -ENOMEM;
    return 0;
}

int pl_run_state_set_status(json_t *object, int wait_status)
{
    char name[32];

    if (!WIFSIGNALED(wait_status))
        return json_object_set_new(object, "exit", json_integer(WEXITSTATUS(wait_status))) < 0
                   ? -ENOMEM
                   : 0;
    snprintf(name, sizeof(name), "SIG%s",
             sigabbrev_np(WTERMSIG(wait_status)) ? sigabbrev_np(WTERMSIG(wait_status)) : "?");
    if (json_object_set_new(object, "signal", json_integer(WTERMSIG(wait_status))) < 0 ||
        json_object_set_new(object, "signal_name", json_string(name)) < 0)
        return -ENOMEM;
    return 0;
}

int pl_run_state_copy_status(json_t *to, json_t *from)
{
    static const char *const keys[] = {"exit", "signal", "signal_name"};

    for (size_t i = 0; i < PL_COUNT(keys); i++)
        if (json_object_get(from, keys[i]) &&
            json_object_set(to, keys[i], json_object_get(from, keys[i])) < 0)
            return -ENOMEM;
    return 0;
}

int pl_run_state_exit_code(json_t *object)
{
    int64_t v;

    if (pl_json_int(object, "exit", &v) == 0 && v >= 0 && v <= 255)
        return (int)v;
    if (pl_json_int(object, "signal", &v) == 0 && v > 0 && v < 128)
        return 128 + (int)v;
    return PL_EXIT_FAILED;
}

int pl_run_state_number(json_t *value, double *ret)
{
    const char *s = json_string_value(value);

    if (json_is_number(value))
        *ret = json_number_value(value);
    else if (s && strcmp(s, "nan") == 0)
        *ret = NAN;
    else if (s && strcmp(s, "inf") == 0)
        *ret = INFINITY;
    else if (s && strcmp(s, "-inf") == 0)
        *ret = -INFINITY;
    else
        return -EINVAL;
    return 0;
}
