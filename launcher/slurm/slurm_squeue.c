/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_squeue.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/strv.h"
#include "common/base/utf8.h"
#include "launcher/slurm/slurm_limits.h"

#include <string.h>

enum field {
    F_ID,
    F_ARRAY,
    F_TASKS,
    F_STATE,
    F_N_NODES,
    F_SUBMITTED,
    F_STARTED,
    F_ENDED,
    F_LIMIT,
    F_REASON,
    F_NODES,
    F_NAME, /* the last: it may have a '|' */
    N_FIELDS,
};

static const char format[] = "--format=%A|%F|%K|%T|%D|%V|%S|%e|%l|%r|%N|%j";

/* ---- one line ---- */

/* Splits a line in place. -EINVAL: it has too few fields. */
static int split(char *line, char *fields[N_FIELDS])
{
    for (int i = 0; i < N_FIELDS; i++) {
        char *bar = i + 1 < N_FIELDS ? strchr(line, '|') : NULL;

        fields[i] = line;
        if (!bar)
            return i + 1 == N_FIELDS ? 0 : -EINVAL;
        *bar = '\0';
        line = bar + 1;
    }
    return 0;
}

static int set_int(json_t *o, const char *key, int64_t value)
{
    return json_object_set_new(o, key, json_integer(value));
}

/* Sets a number; "N/A" and the like are none. */
static int set_number(json_t *o, const char *key, const char *text)
{
    int64_t n;

    return pl_parse_int(text, 0, INT64_MAX, &n, NULL) == 0 ? set_int(o, key, n) : 0;
}

static int set_text(json_t *o, const char *key, char *text)
{
    for (char *p = text; *p && !pl_utf8_valid(text, strlen(text)); p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    return *text ? json_object_set_new(o, key, json_string(text)) : 0;
}

/* libslurm's view of squeue's state: a job that is completing has still another one. */
static int set_state(json_t *o, char *state)
{
    static const struct {
        const char *shown, *base;
    } others[] = {
        {"COMPLETING", "RUNNING"},   {"CONFIGURING", "RUNNING"},   {"RESIZING", "RUNNING"},
        {"SIGNALING", "RUNNING"},    {"STAGE_OUT", "RUNNING"},     {"STOPPED", "SUSPENDED"},
        {"REQUEUED", "PENDING"},     {"REQUEUE_FED", "PENDING"},   {"REQUEUE_HOLD", "PENDING"},
        {"SPECIAL_EXIT", "PENDING"}, {"RESV_DEL_HOLD", "PENDING"}, {"EXPEDITING", "PENDING"}};

    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (strcmp(state, others[i].shown) == 0)
            return json_object_set_new(o, "state", json_string(others[i].base)) |
                   (i == 0 ? json_object_set_new(o, "completing", json_true()) : 0);
    return set_text(o, "state", state);
}

/* "N/A" of an array's record, which stands for its tasks without one, looks as that of a job that
 * is no array does. All of ours are arrays. */
static int set_place(json_t *o, char *fields[N_FIELDS])
{
    char *tasks = fields[F_TASKS];
    int r = set_number(o, "id", fields[F_ID]) | set_number(o, "array", fields[F_ARRAY]);

    if (strcmp(tasks, "N/A") == 0 || !*tasks)
        return r;
    if (!tasks[strspn(tasks, "0123456789")])
        return r | set_number(o, "task", tasks);
    return r | set_text(o, "tasks", tasks);
}

static json_t *job_of(char *fields[N_FIELDS])
{
    json_t *o = json_object();
    uint64_t limit_s;
    int r = set_place(o, fields);

    r |= set_state(o, fields[F_STATE]);
    r |= set_number(o, "n_nodes", fields[F_N_NODES]);
    r |= set_number(o, "submitted", fields[F_SUBMITTED]);
    r |= set_number(o, "started", fields[F_STARTED]);
    r |= set_number(o, "ended", fields[F_ENDED]);
    if (pl_parse_slurm_time(fields[F_LIMIT], &limit_s, NULL) == 0 && limit_s < INT32_MAX)
        r |= set_int(o, "limit_s", (int64_t)limit_s);
    if (strcmp(fields[F_REASON], "None") != 0)
        r |= set_text(o, "reason", fields[F_REASON]);
    r |= set_text(o, "nodes", fields[F_NODES]);
    r |= set_text(o, "name", fields[F_NAME]);
    if (r == 0)
        return o;
    json_decref(o);
    return NULL;
}

/* ---- all ---- */

int pl_slurm_squeue_parse(const char *text, json_t **ret)
{
    _cleanup_(json_decrefp) json_t *list = json_array();

    if (!list)
        return -ENOMEM;
    while (*text) {
        size_t len = strcspn(text, "\n");
        _cleanup_free_ char *line = strndup(text, len);
        char *fields[N_FIELDS];
        int64_t id;

        if (!line)
            return -ENOMEM;
        if (split(line, fields) == 0 && *fields[F_STATE] &&
            pl_parse_int(fields[F_ID], 1, UINT32_MAX, &id, NULL) == 0 &&
            json_array_append_new(list, job_of(fields)) < 0)
            return -ENOMEM;
        text += len + (text[len] == '\n');
    }
    *ret = PL_TAKE(list);
    return 0;
}

/* Our environment without what changes squeue's answer. */
static char **environment(void)
{
    char **list = NULL;
    int r = pl_strv_append(&list, "SLURM_BITSTR_LEN=0"); /* full lists of tasks, not "1-9,..." */

    if (r == 0)
        r = pl_strv_append(&list, "SLURM_TIME_FORMAT=%s"); /* seconds since 1970 */
    for (char **p = environ; *p && r == 0; p++)
        if (strncmp(*p, "SQUEUE_", 7) != 0 && strncmp(*p, "SLURM_BITSTR_LEN=", 17) != 0 &&
            strncmp(*p, "SLURM_TIME_FORMAT=", 18) != 0)
            r = pl_strv_append(&list, *p);
    if (r < 0)
        pl_strv_free(PL_TAKE(list));
    return list;
}

int pl_slurm_squeue_jobs(uid_t uid, unsigned limit_ms, json_t **ret, struct pl_error *err)
{
    char user[24];
    const char *const argv[] = {"squeue", "--noheader", "--all", "--states=all",
                                "--user", user,         format,  NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_strv_freep) char **env = environment();
    const char *said;
    int r;

    if (!env)
        return pl_error_nomem(err);
    r = pl_slurm_limits_ping(err); /* without a controller squeue retries for long */
    if (r < 0)
        return r;
    snprintf(user, sizeof(user), "%u", (unsigned)uid);
    r = pl_child_run(argv, env, limit_ms, &child, err);
    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "the Slurm controller does not answer");
    if (r == -ENOENT)
        return pl_error_set(err, r,
                            "cannot read a slurm.conf (set SLURM_CONF), and there is no squeue in "
                            "PATH");
    if (r < 0)
        return r;
    said = pl_buf_str(&child.err);
    if (child.status != 0)
        return pl_error_set(err, -EHOSTUNREACH, "%.*s", *said ? (int)strcspn(said, "\n") : 13,
                            *said ? said : "squeue failed");
    return pl_slurm_squeue_parse(pl_buf_str(&child.out), ret) < 0 ? pl_error_nomem(err) : 0;
}
