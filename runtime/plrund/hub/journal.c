/* SPDX-License-Identifier: MIT */
/* The attempt's files: events.jsonl and metrics.jsonl (appended), status.json and result.json. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "common/run/run_folder.h"
#include "common/run/run_index.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/hub_private.h"

#include <fcntl.h>
#include <sodium.h>
#include <string.h>

#define METRICS_MAX ((size_t)64 * 1024 * 1024)

static int step_values(void *ctx, unsigned trial, const char **values)
{
    return 0;
}

/* A step outside any sweep gets a run folder of its own below ~/.plume/steps. */
static int make_step_run(struct pl_hub *hub, char **ret_dir, struct pl_error *err)
{
    const struct pl_slurm_step *s = hub->step;
    static const char *const argv[] = {"step", NULL}, *const axes[] = {NULL};
    _cleanup_free_ char *home = pl_home_dir(err), *steps = NULL, *id = NULL, *dir = NULL,
                        *key = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf name = {0}; /* Slurm takes any bytes for a job's name */
    struct pl_run_desc desc = {.n_trials = 1, .argv = argv, .axes = axes, .values = step_values};
    _cleanup_(json_decrefp) json_t *options = json_object();
    int r;

    if (!home)
        return err->code;
    if (!options || pl_buf_add_text(&name, s->job_name ? s->job_name : "step",
                                    s->job_name ? strlen(s->job_name) : 4) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    desc.name = pl_buf_str(&name);
    desc.options = options;
    steps = pl_path_join(home, "steps");
    if (!steps)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_mkdir_p(steps, 0700, err);
    if (r < 0)
        return r;
    r = -EEXIST;
    for (unsigned n = 0; r == -EEXIST && n < 10000; n++) { /* Slurm reuses job numbers */
        free(id);
        free(dir);
        id = n ? pl_strf("%s.%s~%u", s->id.job, s->id.step, n)
               : pl_strf("%s.%s", s->id.job, s->id.step);
        dir = pl_path_join(steps, id);
        if (!id || !dir)
            return pl_error_set(err, -ENOMEM, "out of memory");
        desc.sweep = id;
        r = pl_run_create(dir, &desc, err);
    }
    if (r < 0)
        return r;
    key = pl_path_join(dir, "key"); /* the step's secret, at the same place as any run's */
    if (!key)
        return pl_error_set(err, -ENOMEM, "out of memory");
    unlink(key);
    r = pl_secret_create(key, hub->secret, PL_KEY_SIZE, err);
    if (r == 0)
        *ret_dir = PL_TAKE(dir);
    return r;
}

static int open_append(int dir_fd, const char *name, int *ret, struct pl_error *err)
{
    return pl_own_file_open(dir_fd, name, O_WRONLY | O_CREAT | O_APPEND, pl_own_mode(dir_fd, 0666),
                            ret, err);
}

/* A path may hold any bytes, and JSON only UTF-8. */
static json_t *program_json(const struct pl_hub *hub)
{
    const char *path = pl_run_program_file(hub->run);
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    return pl_buf_add_text(&text, path, strlen(path)) < 0 ? NULL : json_string(pl_buf_str(&text));
}

static json_t *attempt_event(struct pl_hub *hub)
{
    const struct pl_slurm_step *s = hub->step;

    json_t *event = json_pack(
        "{s:s, s:s, s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:s, s:f}", "type", "attempt", "job",
        s->id.job, "step", s->id.step, "restart", (int)s->id.attempt, "array", s->array, "sweep",
        pl_run_sweep(hub->run), "trial", (int)s->trial, "attempt", (int)s->attempt, "world_size",
        (int)s->ntasks, "state", "waiting", "started", hub->started);

    if (event && s->run_dir) /* a step outside a sweep may start any program */
        json_object_set_new(event, "program", program_json(hub));
    return event;
}

int pl_hub_open_log(struct pl_hub *hub, struct pl_error *err)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_free_ char *step_dir = NULL;
    _cleanup_close_ int attempt_fd = -EBADF;
    unsigned char epoch[8];
    int r = 0;

    hub->doc = pl_run_state_new();
    randombytes_buf(epoch, sizeof(epoch));
    sodium_bin2hex(hub->epoch, sizeof(hub->epoch), epoch, sizeof(epoch));
    if (!s->run_dir)
        r = make_step_run(hub, &step_dir, err);
    if (r == 0)
        r = pl_run_open_own(s->run_dir ? s->run_dir : step_dir, &hub->run, err);
    if (r < 0)
        return r;
    hub->attempt_dir = pl_run_attempt_path(hub->run, s->trial, s->attempt, NULL);
    if (!hub->doc || !hub->attempt_dir)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (!pl_utf8_valid(hub->attempt_dir, strlen(hub->attempt_dir))) /* it travels as JSON */
        return pl_error_set(err, -EILSEQ, "the run folder's path is not UTF-8: '%s'",
                            pl_run_dir(hub->run));
    r = pl_run_make_attempt(hub->run, s->trial, s->attempt, &attempt_fd, err);
    if (r == 0)
        r = open_append(attempt_fd, "events.jsonl", &hub->events_fd, err);
    if (r == 0)
        r = open_append(attempt_fd, "metrics.jsonl", &hub->metrics_fd, err);
    if (r < 0)
        return r;
    pl_hub_event(hub, attempt_event(hub));
    pl_hub_write_status(hub);
    if (step_dir && (pl_run_add_submission(hub->run, s->id.job, 0, 1, err) < 0 ||
                     pl_run_index_add(hub->run, err) < 0))
        pl_log_warn("run", "plstat will not find this step by its job: %s", pl_error_text(err));
    return 0;
}

bool pl_hub_log_is_open(const struct pl_hub *hub)
{
    return hub->metrics_fd >= 0;
}

void pl_hub_close_log(struct pl_hub *hub)
{
    if (hub->events_fd >= 0)
        close(hub->events_fd);
    if (hub->metrics_fd >= 0)
        close(hub->metrics_fd);
    pl_run_close(hub->run);
    json_decref(hub->doc);
    free(hub->attempt_dir);
}

static void append(struct pl_hub *hub, json_t *event, bool metrics)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int fd = metrics ? hub->metrics_fd : hub->events_fd, r;

    if (fd < 0 || pl_json_dump_line(event, &line) < 0)
        return;
    if (metrics && hub->metrics_bytes + line.len > METRICS_MAX)
        return; /* the newest values stay in status.json and result.json */
    r = pl_write_all(fd, line.data, line.len);
    if (metrics)
        hub->metrics_bytes += line.len;
    if (r < 0 && !hub->log_failed) {
        pl_log_warn("run", "cannot write the event log: %s; the run goes on", strerror(-r));
        hub->log_failed = true;
    } else if (r == 0) {
        hub->log_failed = false;
    }
}

void pl_hub_event(struct pl_hub *hub, json_t *event)
{
    const char *type = pl_json_string(event, "type");
    struct pl_error err = {0};

    if (event && type && hub->doc) {
        json_object_set_new(event, "seq", json_integer(++hub->seq));
        json_object_set_new(event, "t", json_real(pl_wall_s()));
        if (pl_run_state_apply(hub->doc, event, &err) < 0)
            pl_log_warn("run", "%s", pl_error_text(&err));
        append(hub, event, strcmp(type, "metrics") == 0 || strcmp(type, "gpus") == 0);
        pl_hub_to_watchers(hub, event);
    }
    json_decref(event);
}

/* Temporary file and rename, without fsync: the next one follows in two seconds. */
void pl_hub_write_status(struct pl_hub *hub)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = NULL;
    char name[48];

    if (!hub->doc || !hub->run)
        return;
    o = json_pack("{s:s, s:f, s:O}", "schema", "plume-status/1", "time", pl_wall_s(), "state",
                  hub->doc);
    if (o && hub->state != PL_HUB_FINISHED)
        json_object_set_new(o, "hub",
                            json_pack("{s:s, s:i, s:s, s:s, s:i, s:s}", "host",
                                      hub->master_addr[0] ? hub->master_addr : "127.0.0.1", "port",
                                      (int)hub->port, "job", s->id.job, "step", s->id.step,
                                      "attempt", (int)s->id.attempt, "epoch", hub->epoch));
    if (!o || pl_json_dump_line(o, &text) < 0)
        return;
    snprintf(name, sizeof(name), "trial-%04u/status.json", s->trial);
    pl_run_write_file(hub->run, name, text.data, text.len, 0666, false, NULL);
}

/* ---- result.json ---- */

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

void pl_hub_write_result(struct pl_hub *hub)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_(json_decrefp) json_t *result = NULL;
    enum pl_trial_state state = PL_TRIAL_FAILED;
    json_t *others = json_object_get(hub->doc, "others");
    struct pl_error err = {0};

    if (!hub->run || !hub->attempt_dir)
        return;
    if (hub->state == PL_HUB_FINISHED)
        pl_trial_state_parse(pl_json_string(hub->doc, "state"), &state);
    else
        state = pl_cause_state(pl_cause_parse(pl_json_string(hub->cause, "kind")));
    result = json_pack("{s:i, s:i, s:s, s:s, s:i, s:i, s:f, s:f}", "attempt", (int)s->attempt,
                       "attempts", (int)s->attempt + 1, "job", s->array, "job_id", s->id.job,
                       "world_size", (int)s->ntasks, "exit_code",
                       hub->cause ? pl_run_state_exit_code(hub->cause) : 0, "started", hub->started,
                       "time", pl_wall_s());
    if (!result)
        return;
    if (s->run_dir)
        json_object_set(result, "program", json_object_get(hub->doc, "program"));
    if (hub->cause)
        json_object_set(result, "cause", hub->cause);
    if (hub->cause && json_array_size(others))
        json_object_set(result, "others", others);
    add_objective(hub, result);
    add_numbers(hub, result);
    if (pl_run_result_write(hub->run, s->trial, state, result, &err) < 0)
        pl_log_error("run", "%s", pl_error_text(&err));
}
