/* SPDX-License-Identifier: MIT */
/* result.json. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/run/run_folder.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/hub_private.h"

#include <string.h>

static json_t *find_fact(json_t *doc, const char *key)
{
    json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(doc, "ranks"), i, rank) {
        json_t *v = json_object_get(json_object_get(rank, "facts"), key);

        if (v)
            return v;
    }
    return NULL;
}

/* The sweep's objective, else what the program names: "max:NAME" or "min:NAME". */
static void add_objective(struct pl_hub *hub, json_t *result)
{
    const char *name = NULL, *direction = "max", *fact;
    enum pl_objective o = pl_run_objective(hub->run, &name);
    double value;
    json_t *v;

    if (o == PL_OBJECTIVE_MIN)
        direction = "min";
    if (o == PL_OBJECTIVE_NONE) {
        fact = json_string_value(find_fact(hub->doc, "objective"));
        if (!fact || (strncmp(fact, "max:", 4) != 0 && strncmp(fact, "min:", 4) != 0))
            return;
        direction = fact[1] == 'i' ? "min" : "max";
        name = fact + 4;
    }
    json_object_set_new(result, "objective_name", json_string(name));
    json_object_set_new(result, "objective_direction", json_string(direction));
    v = pl_run_state_metric(hub->doc, name);
    if (v && json_is_number(v) && pl_run_state_number(v, &value) == 0)
        json_object_set_new(result, "objective", json_real(value));
}

/* Each metric's last value, and whether the ranks ended with equal parameters. */
static void add_numbers(struct pl_hub *hub, json_t *result)
{
    json_t *metrics = json_object(), *rank, *value, *hash = NULL;
    size_t i, n_hashes = 0;
    int64_t step, last = -1;
    const char *key;
    bool equal = true;

    json_array_foreach (json_object_get(hub->doc, "ranks"), i, rank) {
        json_t *h = json_object_get(json_object_get(rank, "facts"), "param_hash");

        json_object_foreach (json_object_get(rank, "metrics"), key, value)
            if (!json_object_get(metrics, key))
                json_object_set(metrics, key, value);
        if (pl_json_int(rank, "step", &step) == 0 && step > last)
            last = step;
        if (!h)
            continue;
        n_hashes++;
        equal = equal && (!hash || json_equal(hash, h));
        hash = hash ? hash : h;
    }
    json_object_set_new(result, "metrics", metrics);
    if (last >= 0)
        json_object_set_new(result, "step", json_integer(last));
    if (hash) {
        json_object_set(result, "param_hash", hash);
        json_object_set_new(result, "params_equal",
                            json_boolean(equal && n_hashes == hub->step->ntasks));
    }
}

/* {"facts","metrics"}: lines that the limits kept out of the files; "thinned": lines taken out of
 * metrics.jsonl again. No key if none. */
static void add_left_out(struct pl_hub *hub, json_t *result)
{
    size_t facts = pl_hub_write_left_out(hub);

    if (hub->metrics_thinned)
        json_object_set_new(result, "thinned", json_integer((json_int_t)hub->metrics_thinned));
    if (facts + hub->metrics_left_out)
        json_object_set_new(result, "left_out",
                            json_pack("{s:I, s:I}", "facts", (json_int_t)facts, "metrics",
                                      (json_int_t)hub->metrics_left_out));
}

/* {"events","metrics","seq","error"}: lines that are missing in the files, and the number of the
 * last event. Both are 0 if the file system took all lines, and lost some of them later. No key if
 * none is missing. */
static void add_unwritten(struct pl_hub *hub, json_t *result)
{
    size_t events = pl_log_file_missing(&hub->events), metrics = pl_log_file_missing(&hub->metrics);
    int error = hub->events.error ? hub->events.error : hub->metrics.error;

    if (events + metrics || hub->events.unsure || hub->metrics.unsure)
        json_object_set_new(result, "unwritten",
                            json_pack("{s:I, s:I, s:I, s:s}", "events", (json_int_t)events,
                                      "metrics", (json_int_t)metrics, "seq", (json_int_t)hub->seq,
                                      "error", strerror(error ? -error : ENOSPC)));
}

/* On a full disk the result is made shorter, until it fits into the room that it has. */
static int
write_result(struct pl_hub *hub, enum pl_trial_state state, json_t *result, struct pl_error *err)
{
    static const char *const spare[] = {"others", "metrics"};
    int r = pl_run_result_write(hub->run, hub->step->trial, state, result, err);

    for (size_t i = 0; i < PL_COUNT(spare) && (r == -ENOSPC || r == -EDQUOT || r == -EFBIG); i++)
        if (json_object_del(result, spare[i]) == 0)
            r = pl_run_result_write(hub->run, hub->step->trial, state, result, err);
    return r;
}

/* Without a result in the run folder, the step's stderr is the only place that tells the end. */
static void say_result(const struct pl_hub *hub, enum pl_trial_state state)
{
    const char *kind = pl_json_string(hub->cause, "kind"), *node, *text;
    int64_t rank;

    if (!kind) {
        pl_log_error("run", "this attempt is %s", pl_trial_state_name(state));
        return;
    }
    node = pl_json_string(hub->cause, "node");
    text = pl_json_string(hub->cause, "text");
    if (pl_json_int(hub->cause, "rank", &rank) < 0)
        pl_log_error("run", "this attempt is %s, by its cause '%s'", pl_trial_state_name(state),
                     kind);
    else
        pl_log_error("run", "this attempt is %s, by its cause '%s': rank %lld on %s, exit code %d",
                     pl_trial_state_name(state), kind, (long long)rank, node ? node : "?",
                     pl_run_state_exit_code(hub->cause));
    if (text && *text)
        pl_log_error("run", "last lines of the cause:");
    for (size_t len; text && *text; text += len + (text[len] == '\n')) {
        len = strcspn(text, "\n");
        pl_log_error("run", "  %.*s", (int)len, text);
    }
}

static int exit_code(const struct pl_hub *hub)
{
    int code = pl_decide_outer_code(pl_cause_parse(pl_json_string(hub->cause, "kind")),
                                    hub->failures, hub->n_failures, hub->terminated);

    return code || !hub->cause ? code : pl_run_state_exit_code(hub->cause);
}

bool pl_hub_write_result(struct pl_hub *hub)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_(json_decrefp) json_t *result = NULL;
    /* Not that of the document, whose last event may have found no memory. */
    enum pl_trial_state state = pl_cause_state(pl_cause_parse(pl_json_string(hub->cause, "kind")));
    json_t *others = json_object_get(hub->doc, "others");
    struct pl_error err = {0};

    if (!hub->run || !hub->attempt_dir)
        return false;
    result = json_pack("{s:i, s:i, s:s, s:s, s:i, s:i, s:f, s:f}", "attempt", (int)s->attempt,
                       "attempts", (int)s->attempt + 1, "job", s->array, "job_id", s->id.job,
                       "world_size", (int)s->ntasks, "exit_code", exit_code(hub), "started",
                       hub->started, "time", pl_wall_s());
    if (!result) {
        pl_log_error("run", "out of memory: this attempt has no result.json");
        say_result(hub, state);
        return false;
    }
    if (s->run_dir)
        json_object_set(result, "program", json_object_get(hub->doc, "program"));
    if (hub->cause)
        json_object_set(result, "cause", hub->cause);
    if (hub->cause && json_array_size(others))
        json_object_set(result, "others", others);
    add_objective(hub, result);
    if (find_fact(hub->doc, "finished"))
        json_object_set_new(result, "finished", json_true());
    if (find_fact(hub->doc, "stopped"))
        json_object_set(result, "stopped", find_fact(hub->doc, "stopped"));
    add_numbers(hub, result);
    add_left_out(hub, result);
    pl_hub_flush_log(hub);
    add_unwritten(hub, result);
    if (write_result(hub, state, result, &err) < 0) {
        pl_log_error("run", "%s", pl_error_text(&err));
        say_result(hub, state);
        return false;
    }
    return true;
}

void pl_hub_write_end(struct pl_hub *hub)
{
    bool written = pl_hub_write_result(hub);

    pl_hub_write_status(hub);
    pl_log_file_sync(&hub->events);
    pl_log_file_sync(&hub->metrics);
    if (written && (hub->events.unsure || hub->metrics.unsure))
        pl_hub_write_result(hub);
}
