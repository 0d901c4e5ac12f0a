/* SPDX-License-Identifier: MIT */
/* The attempt's other files: events.jsonl and metrics.jsonl (appended), and status.json. */
#include "common/base/env.h"
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

/* Bytes of facts in events.jsonl: those of one rank, and of all ranks. The end may add as many for
 * last values. */
#define FACTS_RANK_MAX ((size_t)1024 * 1024)
#define FACTS_MAX ((size_t)16 * 1024 * 1024)
/* Bytes of lines in memory while the run folder does not answer: of a metric the newest values stay
 * in status.json and result.json, whatever happens. */
#define EVENTS_WAITING_MAX ((size_t)16 * 1024 * 1024)
#define METRICS_WAITING_MAX ((size_t)4 * 1024 * 1024)
#define SILENCE_PART 4  /* of PLUME_SILENCE: then the user is told that a write takes long */
#define DISK_WAIT_MS 20 /* for lines to be in their file; a disk that takes longer is slow */
/* Room that result.json gets before the ranks start: values of usual length, of which most are
 * metrics, and per rank its end. A longer result may find a full disk. */
#define RESULT_BYTES 32768
#define RESULT_RANK_BYTES 256

static void free_status(struct pl_hub_status *s);

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
    desc.cluster = pl_env_named("SLURM_CLUSTER_NAME");
    steps = pl_path_join(home, "steps");
    if (!steps)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_mkdir_p(steps, 0700, err);
    if (r < 0)
        return pl_home_hint(err, r);
    r = -EEXIST;
    for (unsigned n = 0; r == -EEXIST && n < 10000; n++) { /* Slurm reuses job numbers */
        free(id);
        free(dir);
        id = n ? pl_strf("%s.%s~%u", s->id.job, s->id.step, n)
               : pl_strf("%s.%s", s->id.job, s->id.step);
        dir = id ? pl_path_join(steps, id) : NULL;
        if (!dir)
            return pl_error_set(err, -ENOMEM, "out of memory");
        desc.sweep = id;
        r = pl_run_create(dir, &desc, err);
    }
    if (r < 0)
        return pl_home_hint(err, r);
    key = pl_path_join(dir, "key"); /* the step's secret, at the same place as any run's */
    if (!key)
        return pl_error_set(err, -ENOMEM, "out of memory");
    unlink(key);
    r = pl_secret_create(key, hub->secret, PL_KEY_SIZE, err);
    if (r == 0)
        *ret_dir = PL_TAKE(dir);
    return r;
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

/* The files of an attempt that another job has claimed are not ours to add to. Without a claim,
 * which somebody has removed, we go on. */
static int check_claim(const struct pl_hub *hub, struct pl_error *err)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_free_ char *path = pl_run_attempt_path(hub->run, s->trial, s->attempt, "claim");
    _cleanup_(json_decrefp) json_t *claim = NULL;
    const char *job;

    if (!path)
        return pl_error_nomem(err);
    if (pl_json_load_file(path, PL_RUN_CLAIM_MAX, &claim, NULL) < 0)
        return 0;
    job = pl_json_string(claim, "job");
    if (!job || strcmp(job, s->id.job) == 0)
        return 0;
    return pl_error_set(
        err, -EEXIST,
        "attempt %u of trial %u belongs to job %s, this is job %s: plsubmit --retry "
        "%s/%u starts the trial again",
        s->attempt, s->trial, job, s->id.job, pl_run_sweep(hub->run), s->trial);
}

int pl_hub_open_log(struct pl_hub *hub, struct pl_error *err)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_free_ char *step_dir = NULL;
    _cleanup_close_ int attempt_fd = -EBADF;
    unsigned char epoch[8];
    int r;

    hub->doc = pl_run_state_new();
    randombytes_buf(epoch, sizeof(epoch));
    sodium_bin2hex(hub->epoch, sizeof(hub->epoch), epoch, sizeof(epoch));
    r = pl_hub_metrics_limit(s, &hub->metrics_max, err);
    if (r == 0)
        r = pl_hub_tidy_limit(hub, err);
    if (r == 0 && !s->run_dir)
        r = make_step_run(hub, &step_dir, err);
    if (r == 0)
        r = pl_run_open_own(s->run_dir ? s->run_dir : step_dir, &hub->run, err);
    if (r == 0)
        r = check_claim(hub, err);
    if (r < 0) { /* without a run nothing writes a result or a status */
        pl_run_close(PL_TAKE(hub->run));
        return r;
    }
    hub->attempt_dir = pl_run_attempt_path(hub->run, s->trial, s->attempt, NULL);
    hub->facts = calloc(PL_MAX(s->ntasks, 1u), sizeof(*hub->facts));
    if (!hub->doc || !hub->attempt_dir || !hub->facts)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (!pl_utf8_valid(hub->attempt_dir, strlen(hub->attempt_dir))) /* it travels as JSON */
        return pl_error_set(err, -EILSEQ, "the run folder's path is not UTF-8: '%s'",
                            pl_run_dir(hub->run));
    r = pl_run_make_attempt(hub->run, s->trial, s->attempt, &attempt_fd, err);
    if (r == 0 && pl_disk_create(hub->loop, &hub->disk) < 0)
        pl_log_debug("run", "no thread for the run folder");
    if (r == 0)
        r = pl_log_queue_open(&hub->events, hub->disk, EVENTS_WAITING_MAX, attempt_fd,
                              "events.jsonl", err);
    if (r == 0)
        r = pl_log_queue_open(&hub->metrics, hub->disk, METRICS_WAITING_MAX, attempt_fd,
                              "metrics.jsonl", err);
    if (r < 0)
        return r;
    if (pl_run_result_reserve(hub->run, s->trial,
                              RESULT_BYTES + (size_t)RESULT_RANK_BYTES * s->ntasks, err) < 0)
        pl_log_warn("run", "%s; the run goes on", pl_error_text(err));
    pl_hub_event(hub, attempt_event(hub));
    pl_hub_write_status(hub);
    if (step_dir && (pl_run_add_submission(hub->run, s->id.job, 0, 1, err) < 0 ||
                     pl_run_index_add(hub->run, err) < 0))
        pl_log_warn("run", "plstat will not find this step by its job: %s", pl_error_text(err));
    return 0;
}

bool pl_hub_log_is_open(const struct pl_hub *hub)
{
    return hub->metrics.open;
}

void pl_hub_close_log(struct pl_hub *hub)
{
    pl_log_queue_finish(&hub->events);
    pl_log_queue_finish(&hub->metrics);
    pl_run_close(hub->run);
    free_status(hub->status);
    pl_buf_finish(&hub->snapshot.line);
    json_decref(hub->doc);
    for (unsigned i = 0; hub->facts && i < hub->step->ntasks; i++)
        json_decref(hub->facts[i].keys);
    free(hub->facts);
    free(hub->attempt_dir);
}

void pl_hub_await_disk(struct pl_hub *hub)
{
    if (!hub->disk_is_slow)
        hub->disk_is_slow = !pl_disk_wait(hub->disk, DISK_WAIT_MS);
    pl_disk_tell(hub->disk);
}

void pl_hub_send_log(struct pl_hub *hub)
{
    if (hub->disk_is_slow)
        hub->disk_is_slow = pl_disk_busy_ms(hub->disk) > 0;
    if (hub->events.lines.len && hub->events.under_way) /* they are next, but not handed over */
        pl_hub_await_disk(hub);
    pl_log_queue_send(&hub->metrics);
    if (pl_log_queue_send(&hub->events))
        pl_hub_await_disk(hub);
}

void pl_hub_tick_log(struct pl_hub *hub)
{
    uint64_t busy_ms = pl_disk_busy_ms(hub->disk);
    bool silent = busy_ms >= pl_env_ms(PL_ENV_PLUME_SILENCE) / SILENCE_PART;

    if (hub->state != PL_HUB_FINISHED) {
        pl_log_queue_flush(&hub->events);
        pl_log_queue_flush(&hub->metrics);
    }
    if (silent && !hub->disk_told)
        pl_log_warn("run",
                    "the run folder '%s' does not answer: a write has begun %u s ago; the run goes "
                    "on, and its log waits in memory",
                    pl_run_dir(hub->run), (unsigned)(busy_ms / 1000));
    else if (hub->disk_told && !silent)
        pl_log_warn("run", "the run folder '%s' answers again", pl_run_dir(hub->run));
    hub->disk_told = silent;
}

/* Events of such a type come all the time, and change values only. */
static bool is_values(const char *type)
{
    return strcmp(type, "metrics") == 0 || strcmp(type, "gpus") == 0;
}

double pl_hub_wall_s(const struct pl_hub *hub)
{
    return hub->started + (double)(pl_now_ns() - hub->started_ns) / 1e9;
}

static void apply(struct pl_hub *hub, json_t *event)
{
    const char *type = pl_json_string(event, "type");
    struct pl_error err = {0};

    if (!type || !is_values(type))
        pl_hub_forget_snapshot(hub);
    json_object_set_new(event, "seq", json_integer(++hub->seq));
    json_object_set_new(event, "t", json_real(pl_hub_wall_s(hub)));
    /* Without a run folder the document has no ranks, and the nodes are told of that. */
    if (pl_run_state_apply(hub->doc, event, &err) < 0 && pl_run_state_rank(hub->doc, 0))
        pl_log_warn("run", "%s", pl_error_text(&err));
}

/* A line in the file and the state's document: how many facts of this rank have no line. */
static void write_left_out(struct pl_hub *hub, int64_t rank)
{
    pl_hub_event(hub, json_pack("{s:s, s:I, s:I}", "type", "rank", "rank", (json_int_t)rank,
                                "facts_left_out", (json_int_t)hub->facts[rank].n_left_out));
}

/* Facts have a limit of their own, so that ends and causes always find room. The count is written
 * whenever it has doubled: a hub that is killed has told about it, too. */
static void append_fact(struct pl_hub *hub, json_t *event, const struct pl_buf *line)
{
    int64_t rank = json_integer_value(json_object_get(event, "rank"));
    const char *key = pl_json_string(event, "key");
    struct pl_hub_facts *f = &hub->facts[rank];

    if (f->bytes + line->len <= FACTS_RANK_MAX && hub->facts_bytes + line->len <= FACTS_MAX) {
        f->bytes += line->len;
        hub->facts_bytes += line->len;
        if (f->keys)
            json_object_del(f->keys, key);
        pl_log_queue_put(&hub->events, line->data, line->len);
        return;
    }
    if (!f->keys)
        f->keys = json_object();
    if (f->keys)
        json_object_set_new(f->keys, key, json_true());
    f->n_left_out++;
    if ((f->n_left_out & (f->n_left_out - 1)) == 0)
        write_left_out(hub, rank);
}

static void
append_event(struct pl_hub *hub, json_t *event, const char *type, const struct pl_buf *line)
{
    if (is_values(type))
        pl_hub_append_metrics(hub, line);
    else if (strcmp(type, "fact") == 0)
        append_fact(hub, event, line);
    else
        pl_log_queue_put(&hub->events, line->data, line->len);
}

/* The verdict does not need it, but the log has a hole. */
static void say_lost(struct pl_hub *hub)
{
    if (!hub->event_lost)
        pl_log_error("run", "out of memory: the log of events is not complete");
    hub->event_lost = true;
}

void pl_hub_event(struct pl_hub *hub, json_t *event)
{
    const char *type = pl_json_string(event, "type");
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if (!event)
        say_lost(hub);
    if (event && type && hub->doc) {
        apply(hub, event);
        pl_hub_to_watchers(hub, event);
        if (pl_hub_log_is_open(hub) && pl_json_dump_line(event, &line) < 0)
            say_lost(hub);
        else if (pl_hub_log_is_open(hub))
            append_event(hub, event, type, &line);
    }
    json_decref(event);
}

/* The last values that have no line yet, as far as the rank's share goes. */
static void write_last_facts(struct pl_hub *hub, int64_t rank)
{
    json_t *facts = json_object_get(pl_run_state_rank(hub->doc, (size_t)rank), "facts"), *value;
    size_t left = FACTS_MAX / hub->step->ntasks;
    struct pl_hub_facts *f = &hub->facts[rank];
    const char *key;
    void *next;

    json_object_foreach_safe(f->keys, next, key, value)
    {
        _cleanup_(pl_buf_finish) struct pl_buf line = {0};
        _cleanup_(json_decrefp) json_t *event =
            json_pack("{s:s, s:I, s:s, s:O}", "type", "fact", "rank", (json_int_t)rank, "key", key,
                      "value", json_object_get(facts, key));

        if (!event)
            continue;
        apply(hub, event);
        pl_hub_to_watchers(hub, event);
        if (pl_json_dump_line(event, &line) < 0 || line.len > left)
            continue;
        pl_log_queue_put(&hub->events, line.data, line.len);
        left -= line.len;
        f->n_left_out--;
        json_object_del(f->keys, key);
    }
}

size_t pl_hub_write_left_out(struct pl_hub *hub)
{
    size_t facts = 0;

    for (unsigned i = 0; hub->facts && i < hub->step->ntasks; i++) {
        if (hub->facts[i].n_left_out) {
            write_last_facts(hub, i);
            write_left_out(hub, i);
        }
        facts += hub->facts[i].n_left_out;
    }
    return facts;
}

/* ---- status.json ---- */

struct pl_hub_status {
    struct pl_disk_job job; /* first */
    struct pl_hub *hub;
    struct pl_buf text;
    struct pl_error err;
    int result;
    bool under_way, failed; /* failed: the one before could not be written */
};

static void free_status(struct pl_hub_status *s)
{
    if (s)
        pl_buf_finish(&s->text);
    free(s);
}

/* Temporary file and rename, without fsync: the next one follows in two seconds. */
static void status_work(struct pl_disk_job *job)
{
    struct pl_hub_status *s = (struct pl_hub_status *)job;
    char name[48];

    snprintf(name, sizeof(name), "trial-%04u/status.json", s->hub->step->trial);
    s->result =
        pl_run_write_file(s->hub->run, name, s->text.data, s->text.len, 0666, false, &s->err);
}

static void status_done(struct pl_disk_job *job)
{
    struct pl_hub_status *s = (struct pl_hub_status *)job;

    if (s->result < 0 && !s->failed)
        pl_log_warn("run", "%s; the run goes on", pl_error_text(&s->err));
    s->failed = s->result < 0;
    s->under_way = false;
}

bool pl_hub_status_text(const struct pl_hub *hub, struct pl_buf *ret)
{
    const struct pl_slurm_step *s = hub->step;
    _cleanup_(json_decrefp) json_t *o =
        json_pack("{s:s, s:f, s:f, s:O}", "schema", "plume-status/1", "time", pl_hub_wall_s(hub),
                  "written", pl_wall_s(), "state", hub->doc);

    if (o && hub->state != PL_HUB_FINISHED)
        json_object_set_new(o, "hub",
                            json_pack("{s:s, s:i, s:s, s:s, s:i, s:s}", "host", hub->own_addr,
                                      "port", (int)hub->port, "job", s->id.job, "step", s->id.step,
                                      "attempt", (int)s->id.attempt, "epoch", hub->epoch));
    return o && pl_json_dump_line(o, ret) == 0;
}

void pl_hub_write_status(struct pl_hub *hub)
{
    struct pl_hub_status *s;

    if (!hub->doc || !hub->run)
        return;
    if (!hub->status)
        hub->status = calloc(1, sizeof(*hub->status));
    s = hub->status;
    if (!s || s->under_way)
        return;
    s->text.len = 0;
    if (!pl_hub_status_text(hub, &s->text))
        return;
    s->hub = hub;
    s->under_way = true;
    s->job.work = status_work;
    s->job.done = status_done;
    pl_disk_add(hub->disk, &s->job);
}
