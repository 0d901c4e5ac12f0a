/* SPDX-License-Identifier: MIT */
#include "common/run/run_index.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/json.h"

#include <string.h>
#include <sys/stat.h>

#define INDEX_FILE "runs.jsonl"
#define INDEX_MAX (256u << 20)
#define LINE_MAX_BYTES (1u << 20)
#define TRY_MS 10000

void pl_run_ref_finish(struct pl_run_ref *ref)
{
    free(ref->folder);
    *ref = (struct pl_run_ref){.trial = -1};
}

static int index_path(char **ret, struct pl_error *err)
{
    struct pl_error why = {0};
    _cleanup_free_ char *home = pl_home_dir(&why);

    if (!home)
        return pl_error_set(err, why.code, "%s", why.text);
    *ret = pl_path_join(home, INDEX_FILE);
    return *ret ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
}

int pl_run_index_add(const struct pl_run *run, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *line = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_free_ char *path = NULL;
    json_t *jobs = json_array();
    int r;

    for (size_t i = 0; jobs && i < pl_run_n_submissions(run); i++)
        json_array_append_new(jobs, json_string(pl_run_submission(run, i).job));
    line = json_pack("{ss ss so sI}", "sweep", pl_run_sweep(run), "folder", pl_run_dir(run), "jobs",
                     jobs, "time", (json_int_t)pl_wall_s());
    if (line && pl_run_cluster(run) &&
        json_object_set_new(line, "cluster", json_string(pl_run_cluster(run))) < 0)
        return pl_error_nomem(err);
    if (!line || pl_json_dump_line(line, &text) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = index_path(&path, err);
    if (r < 0)
        return r;
    return pl_file_append(path, pl_buf_str(&text), text.len, 0600, err);
}

static int add_in_child(void *ctx, int answer)
{
    struct pl_error err = {0};

    pl_close_from(STDERR_FILENO + 1, &answer, 1); /* locks must not outlive the caller */
    if (pl_run_index_add(ctx, &err) == 0)
        return PL_EXIT_OK;
    pl_write_all(answer, &err, sizeof(err));
    return PL_EXIT_FAILED;
}

int pl_run_index_try(const struct pl_run *run, struct pl_error *err)
{
    struct pl_child child = {0};
    struct pl_error why = {0};
    int r = pl_child_call(add_in_child, (void *)(uintptr_t)run, TRY_MS, &child, err);

    if (r == -ETIMEDOUT)
        pl_error_set(err, r, "its file system does not answer");
    else if (r == 0 && child.status != 0) {
        if (child.out.len == sizeof(why))
            memcpy(&why, child.out.data, sizeof(why));
        r = pl_error_set(err, why.code < 0 ? why.code : -EIO, "%s", why.text);
    }
    pl_child_finish(&child);
    return r;
}

static int find_jobs(void *ctx, const char *sweep, const char *folder, json_t *line)
{
    const struct pl_run *run = ctx;

    if (strcmp(folder, pl_run_dir(run)) != 0 || strcmp(sweep, pl_run_sweep(run)) != 0)
        return 0;
    return json_array_size(json_object_get(line, "jobs")) == pl_run_n_submissions(run) ? 1 : 2;
}

bool pl_run_index_lacks(const struct pl_run *run)
{
    int r = pl_run_index_each(find_jobs, (void *)(uintptr_t)run, NULL);

    return r == 0 || r == 2;
}

/* Reads the whole index; *ret is "" if there is none yet. */
static int read_index(char **ret, size_t *ret_len, struct pl_error *err)
{
    _cleanup_free_ char *path = NULL;
    int r = index_path(&path, err);

    if (r < 0)
        return r;
    r = pl_file_read(path, INDEX_MAX, ret, ret_len, err);
    if (r != -ENOENT)
        return r;
    *ret = strdup("");
    *ret_len = 0;
    return *ret ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
}

/* Removes the last line from text[0..*len) and returns it; skips invalid lines. NULL: no more. */
static json_t *take_line(const char *text, size_t *len)
{
    while (*len > 0) {
        const char *before;
        size_t end = *len, start;
        json_t *line;

        if (text[end - 1] == '\n')
            end--;
        before = memrchr(text, '\n', end);
        start = before ? (size_t)(before - text) + 1 : 0;
        *len = start;
        if (pl_json_parse(text + start, end - start, LINE_MAX_BYTES, &line, NULL) < 0)
            continue;
        if (pl_json_string(line, "sweep") && pl_json_string(line, "folder") &&
            json_is_array(json_object_get(line, "jobs")))
            return line;
        json_decref(line);
    }
    return NULL;
}

int pl_run_index_each(int (*each)(void *ctx, const char *sweep, const char *folder, json_t *line),
                      void *ctx,
                      struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *seen = json_object();
    _cleanup_free_ char *text = NULL;
    size_t len;
    int r;

    if (!seen)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = read_index(&text, &len, err);
    while (r == 0) {
        _cleanup_(json_decrefp) json_t *line = take_line(text, &len);
        const char *folder = pl_json_string(line, "folder");

        if (!line)
            break;
        if (json_object_get(seen, folder))
            continue;
        if (json_object_set_new(seen, folder, json_true()) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
        r = each(ctx, pl_json_string(line, "sweep"), folder, line);
    }
    return r;
}

/* ---- finding ---- */

/* The best one counts: a number is one of this host's cluster, if that has given it. */
enum match {
    NONE,
    OF_OTHER,
    LATER_STEP, /* "123.0~1" for "123.0"; a step for "last" */
    EXACT,
};

struct query {
    char *head;    /* the word without its trial */
    int64_t trial; /* -1: none */
    char *job;     /* the number before '_'; NULL: the word is not a job id */
    int64_t index; /* the number after '_'; -1: none */
    bool want_job; /* this pass compares job ids, not sweeps */
    const char *cluster;
    enum match found;
    char *folder; /* the result */
};

/* True for "123.0", the name of a step's run; where Slurm's numbers begin anew, and where two
 * clusters share a home, the next one is "123.0~1". */
static bool is_step(const char *name)
{
    size_t digits = strspn(name, "0123456789");

    return digits > 0 && name[digits] == '.';
}

static enum match match(const struct query *q, const char *sweep, const json_t *line)
{
    bool number = q->want_job || is_step(q->head);
    const char *cluster = number && q->cluster ? pl_json_string(line, "cluster") : NULL;
    bool other = cluster && strcmp(cluster, q->cluster) != 0;
    size_t i, len = strlen(q->head);
    const json_t *job;

    if (!q->want_job) {
        if (strcmp(q->head, PL_RUN_INDEX_LAST) == 0)
            return is_step(sweep) ? LATER_STEP : EXACT;
        if (strcmp(sweep, q->head) == 0)
            return other ? OF_OTHER : EXACT;
        return number && cluster && !other && strncmp(sweep, q->head, len) == 0 && sweep[len] == '~'
                   ? LATER_STEP
                   : NONE;
    }
    json_array_foreach (json_object_get(line, "jobs"), i, job)
        if (json_is_string(job) && strcmp(json_string_value(job), q->job) == 0)
            return other ? OF_OTHER : EXACT;
    return NONE;
}

static int match_line(void *ctx, const char *sweep, const char *folder, json_t *line)
{
    struct query *q = ctx;
    enum match found = match(q, sweep, line);

    /* The first line is that of the newest run. */
    if (found <= q->found)
        return 0;
    q->found = found;
    free(q->folder);
    q->folder = strdup(folder);
    return !q->folder ? -ENOMEM : found == EXACT;
}

/* Parses "123" or "123_4". */
static int parse_job(const char *word, struct query *q)
{
    size_t digits = strspn(word, "0123456789");

    q->index = -1;
    if (digits == 0 || (word[digits] && word[digits] != '_'))
        return 0;
    if (word[digits] == '_' &&
        pl_parse_int(word + digits + 1, 0, PL_RUN_TRIAL_LIMIT, &q->index, NULL) < 0)
        return 0;
    q->job = strndup(word, digits);
    return q->job ? 0 : -ENOMEM;
}

/* Splits the word into a head and the trial number after its last '/'. */
static int parse_trial(const char *word, struct query *q)
{
    const char *slash = strrchr(word, '/');

    q->trial = -1;
    if (slash && slash != word &&
        pl_parse_int(slash + 1, 0, PL_RUN_TRIAL_LIMIT, &q->trial, NULL) == 0)
        q->head = strndup(word, (size_t)(slash - word));
    else
        q->head = strdup(word);
    return q->head ? 0 : -ENOMEM;
}

static bool is_run_folder(const char *path)
{
    _cleanup_free_ char *sweep = pl_path_join(path, "sweep.json");

    return sweep && access(sweep, F_OK) == 0;
}

/* Finds a run folder FOLDER or FOLDER/TRIAL. */
static int find_folder(const char *word, struct query *q)
{
    if (is_run_folder(word)) {
        q->trial = -1;
        q->folder = realpath(word, NULL);
    } else if (q->trial >= 0 && is_run_folder(q->head)) {
        q->folder = realpath(q->head, NULL);
    } else {
        return 0;
    }
    return q->folder ? 0 : -errno;
}

/* Finds the trial of an array index: a sweep may have several arrays. */
static int find_array_index(struct query *q, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    unsigned trial;
    int r;

    if (q->index < 0)
        return 0;
    r = pl_run_open(q->folder, &run, err);
    if (r < 0)
        return r;
    r = pl_run_find_trial(run, q->job, (unsigned)q->index, &trial);
    if (r < 0)
        return pl_error_set(err, r, "array '%s' has no index %u", q->job, (unsigned)q->index);
    q->trial = trial;
    return 0;
}

static int find_run(const char *word, struct query *q, struct pl_error *err)
{
    int r = parse_trial(word, q);

    if (r == 0)
        r = parse_job(word, q);
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    r = pl_run_index_each(match_line, q, err);
    if (r == 0 && q->job) {
        q->want_job = true;
        r = pl_run_index_each(match_line, q, err);
        if (r >= 0 && q->folder)
            return find_array_index(q, err);
    }
    if (r == 0 && !q->folder) {
        r = find_folder(word, q);
        if (r < 0)
            return pl_error_errno(err, r, "cannot open run folder '%s'", word);
    }
    return r < 0 ? r : 0;
}

int pl_run_index_find(const char *word,
                      const char *cluster,
                      struct pl_run_ref *ret,
                      struct pl_error *err)
{
    struct query q = {.trial = -1, .index = -1, .cluster = cluster};
    int r = find_run(word, &q, err);

    if (r == 0 && !q.folder)
        r = pl_error_set(err, -ENOENT,
                         "no sweep, job or run folder has the name '%s': plstat --all lists them",
                         word);
    if (r == 0)
        *ret = (struct pl_run_ref){.folder = PL_TAKE(q.folder), .trial = q.trial};
    free(q.folder);
    free(q.head);
    free(q.job);
    return r;
}
