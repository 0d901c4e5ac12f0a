/* SPDX-License-Identifier: MIT */
/* result.json. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/run/run_folder.h"
#include "common/run/run_state.h"
#include "common/run/run_stopped.h"
#include "runtime/plrund/hub/hub_private.h"

#include <signal.h>
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

/* The signal at which the program says that it has stopped. A SIGTERM from inside the step stops no
 * trial: torchrun sends one to workers that it starts again, and a program to its own helpers.
 * Under the plugin nobody but the ranks gets the step's signals. */
static json_t *find_stopped(const struct pl_hub *hub)
{
    bool outside = hub->got_sigterm || hub->step->plugin;
    json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(hub->doc, "ranks"), i, rank) {
        json_t *v = json_object_get(json_object_get(rank, "facts"), "stopped");
        const char *name = json_string_value(v);

        if (name && (outside || pl_run_stop_signal(name, strlen(name)) != SIGTERM))
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

/* {"facts","metrics"}: lines that the limits kept out of the files. No key if none. */
static void add_left_out(struct pl_hub *hub, json_t *result)
{
    size_t facts = pl_hub_write_left_out(hub);

    if (facts + hub->metrics_left_out)
        json_object_set_new(result, "left_out",
                            json_pack("{s:I, s:I}", "facts", (json_int_t)facts, "metrics",
                                      (json_int_t)hub->metrics_left_out));
}

/* The last work on files, or that of a result that Slurm's SIGKILL may overtake. */
struct pl_hub_end {
    struct pl_disk_job job; /* first */
    struct pl_hub *hub;
    struct pl_buf events, metrics, status; /* lines; status: of the last work only */
    size_t events_lost, metrics_lost;      /* lines that found no room in memory */
    json_int_t seq;                        /* of the last event */
    enum pl_trial_state state;
    json_t *result; /* its own: nothing of it is another's */
    struct pl_error err;
    bool written, last;
    void (*done)(struct pl_hub *hub);
};

/* {"events","metrics","seq","error"}: lines that are missing in the files, and the number of the
 * last event. Both are 0 if the file system took all lines, and lost some of them later. No key if
 * none is missing. */
static void add_unwritten(struct pl_hub_end *end)
{
    const struct pl_log_file *e = &end->hub->events.file, *m = &end->hub->metrics.file;
    size_t events = pl_log_file_missing(e) + end->events_lost;
    size_t metrics = pl_log_file_missing(m) + end->metrics_lost;
    int error = e->error ? e->error : m->error;
    const char *reason = strerror(error ? -error : ENOSPC);

    if (!error && end->events_lost + end->metrics_lost) /* memory was full, not the disk */
        reason = "the file system did not answer";
    if (events + metrics || e->unsure || m->unsure)
        json_object_set_new(end->result, "unwritten",
                            json_pack("{s:I, s:I, s:I, s:s}", "events", (json_int_t)events,
                                      "metrics", (json_int_t)metrics, "seq", end->seq, "error",
                                      reason));
}

/* On a full disk the result is made shorter, until it fits into the room that it has. */
static int write_result(struct pl_hub_end *end)
{
    static const char *const spare[] = {"others", "metrics"};
    const struct pl_hub *hub = end->hub;
    unsigned trial = hub->step->trial;
    int r;

    add_unwritten(end);
    r = pl_run_result_write(hub->run, trial, end->state, end->result, &end->err);
    for (size_t i = 0; i < PL_COUNT(spare) && (r == -ENOSPC || r == -EDQUOT || r == -EFBIG); i++)
        if (json_object_del(end->result, spare[i]) == 0)
            r = pl_run_result_write(hub->run, trial, end->state, end->result, &end->err);
    return r;
}

/* NULL: no memory. */
static char *describe_end(const struct pl_hub *hub, enum pl_trial_state state)
{
    const char *kind = pl_json_string(hub->cause, "kind"), *node;
    int64_t rank;

    if (state == PL_TRIAL_CANCELLED) /* also where the program stopped at a signal */
        kind = pl_cause_name(PL_CAUSE_CANCELLED);
    if (!kind)
        return pl_strf("this attempt is %s", pl_trial_state_name(state));
    node = pl_json_string(hub->cause, "node");
    if (pl_json_int(hub->cause, "rank", &rank) < 0)
        return pl_strf("this attempt is %s, by its cause '%s'", pl_trial_state_name(state), kind);
    return pl_strf("this attempt is %s, by its cause '%s': rank %lld on %s, exit code %d",
                   pl_trial_state_name(state), kind, (long long)rank, node ? node : "?",
                   pl_run_state_exit_code(hub->cause));
}

/* Without a result in the run folder, the step's stderr is the only place that tells the end: the
 * trial's end reads it there (plrun's pl_trial_hub_said()). The plugin may read this daemon no
 * longer: another node's has it, too. */
static void say_result(struct pl_hub *hub, enum pl_trial_state state, const char *why)
{
    _cleanup_free_ char *end = describe_end(hub, state);
    _cleanup_free_ char *line = end ? pl_strf("%s; %s", why, end) : NULL;
    const char *text = pl_json_string(hub->cause, "text");

    pl_log_error("run", "%s", why);
    pl_log_error("run", "%s", end ? end : pl_trial_state_name(state));
    free(hub->unwritten);
    hub->unwritten = line ? pl_buf_dup_text(line) : NULL; /* it travels as JSON */
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

static enum pl_trial_state end_state(const struct pl_hub *hub)
{
    /* Not that of the document, whose last event may have found no memory. */
    return pl_cause_state(pl_cause_parse(pl_json_string(hub->cause, "kind")));
}

/* A new reference; NULL = no memory. */
static json_t *make_result(struct pl_hub *hub, enum pl_trial_state *ret_state)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_(json_decrefp) json_t *result = NULL;
    json_t *others = json_object_get(hub->doc, "others");
    int stopped;

    *ret_state = end_state(hub);
    result = json_pack("{s:i, s:i, s:s, s:s, s:i, s:i, s:f, s:f}", "attempt", (int)s->attempt,
                       "attempts", (int)s->attempt + 1, "job", s->array, "job_id", s->id.job,
                       "world_size", (int)s->ntasks, "exit_code", exit_code(hub), "started",
                       hub->started, "time", pl_hub_wall_s(hub));
    if (!result)
        return NULL;
    if (s->run_dir)
        json_object_set(result, "program", json_object_get(hub->doc, "program"));
    if (hub->cause)
        json_object_set(result, "cause", hub->cause);
    if (hub->cause && json_array_size(others))
        json_object_set(result, "others", others);
    add_objective(hub, result);
    if (find_fact(hub->doc, "finished"))
        json_object_set_new(result, "finished", json_true());
    if (find_stopped(hub))
        json_object_set(result, "stopped", find_stopped(hub));
    /* Of another step nobody asks Slurm, and Slurm has its exit code. */
    stopped = s->run_dir ? pl_run_stopped_at(hub->run, result, *ret_state) : 0;
    if (stopped && pl_run_set_stopped(result, stopped, PL_CAUSE_CANCELLED, PL_CONFIDENCE_INFERRED,
                                      ret_state) < 0)
        return NULL;
    add_numbers(hub, result);
    add_left_out(hub, result);
    return json_deep_copy(result); /* references are not counted for two threads */
}

static void free_end(struct pl_hub_end *end)
{
    pl_buf_finish(&end->events);
    pl_buf_finish(&end->metrics);
    pl_buf_finish(&end->status);
    json_decref(end->result);
    free(end);
}

static void end_work(struct pl_disk_job *job)
{
    struct pl_hub_end *end = (struct pl_hub_end *)job;
    struct pl_hub *hub = end->hub;
    struct pl_log_file *events = &hub->events.file, *metrics = &hub->metrics.file;
    char name[48];

    pl_log_file_put(events, end->events.data, end->events.len);
    pl_log_file_put(metrics, end->metrics.data, end->metrics.len);
    if (hub->metrics_thinned) /* lines taken out of metrics.jsonl again */
        json_object_set_new(end->result, "thinned", json_integer((json_int_t)hub->metrics_thinned));
    end->written = write_result(end) == 0;
    if (!end->last)
        return;
    snprintf(name, sizeof(name), "trial-%04u/status.json", hub->step->trial);
    if (end->status.len)
        pl_run_write_file(hub->run, name, end->status.data, end->status.len, 0666, false, NULL);
    pl_log_file_sync(events);
    pl_log_file_sync(metrics);
    if (end->written && (events->unsure || metrics->unsure))
        end->written = write_result(end) == 0;
}

static void end_done(struct pl_disk_job *job)
{
    struct pl_hub_end *end = (struct pl_hub_end *)job;
    struct pl_hub *hub = end->hub;

    if (!end->written && !hub->end_told) {
        say_result(hub, end->state, pl_error_text(&end->err));
    }
    if (end->last)
        hub->end = NULL;
    if (end->done)
        end->done(hub);
    free_end(end);
}

/* done NULL: not the last one. */
static void begin(struct pl_hub *hub, void (*done)(struct pl_hub *hub))
{
    struct pl_hub_end *end = hub->run && hub->attempt_dir ? calloc(1, sizeof(*end)) : NULL;

    if (end && !(end->result = make_result(hub, &end->state))) {
        free(end);
        end = NULL;
    }
    if (!end) {
        if (hub->run && hub->attempt_dir)
            say_result(hub, end_state(hub), "out of memory: this attempt has no result.json");
        if (done)
            done(hub);
        return;
    }
    end->hub = hub;
    end->last = done != NULL;
    end->done = done;
    end->events = pl_log_queue_take(&hub->events);
    end->metrics = pl_log_queue_take(&hub->metrics);
    end->events_lost = hub->events.n_lost;
    end->metrics_lost = hub->metrics.n_lost;
    end->seq = (json_int_t)hub->seq;
    if (end->last && !pl_hub_status_text(hub, &end->status))
        end->status.len = 0;
    if (end->last)
        hub->end = end;
    end->job.work = end_work;
    end->job.done = end_done;
    pl_disk_add(hub->disk, &end->job);
}

void pl_hub_write_result(struct pl_hub *hub)
{
    begin(hub, NULL);
    pl_hub_await_disk(hub); /* before anybody is told, as far as the disk is healthy */
}

void pl_hub_write_end(struct pl_hub *hub, void (*written)(struct pl_hub *hub))
{
    begin(hub, written);
}

void pl_hub_give_up_end(struct pl_hub *hub)
{
    _cleanup_free_ char *why = NULL;
    size_t lines = pl_log_queue_waiting(&hub->events) + pl_log_queue_waiting(&hub->metrics);

    if (hub->end)
        lines += pl_log_queue_count(&hub->end->events) + pl_log_queue_count(&hub->end->metrics);
    why = pl_strf("the run folder '%s' does not answer: result.json and up to %zu lines of its "
                  "log are not written",
                  pl_run_dir(hub->run), lines);
    say_result(hub, hub->end ? hub->end->state : end_state(hub),
               why ? why : "the run folder does not answer");
}
