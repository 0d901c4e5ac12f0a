/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/timeline.h"
#include "common/base/fs.h"
#include "common/base/tail.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "common/run/rank_state.h"
#include "common/run/run_tasks.h"
#include "launcher/plstat/table.h"
#include "launcher/plstat/words.h"

#include <string.h>

#define LOG_MAX_BYTES ((size_t)256 * 1024 * 1024)
#define LINES_MAX 12

/* The end of a rank. */
struct end {
    double time_s;
    int64_t rank;
    const json_t *event; /* borrowed */
    bool printed;
};

struct ends {
    struct end *list;
    size_t n, cap;
    json_t *events; /* owns the events of the list */
};

static int add_end(struct ends *ends, json_t *event)
{
    const char *type = pl_json_string(event, "type"), *state = pl_json_string(event, "state");
    int64_t rank;

    if (!type || strcmp(type, "rank") != 0 || !state || pl_json_int(event, "rank", &rank) < 0 ||
        pl_rank_state_open(pl_rank_state_parse(state)))
        return 0;
    if (ends->n == ends->cap) {
        size_t cap = ends->cap ? ends->cap * 2 : 64;
        struct end *list = reallocarray(ends->list, cap, sizeof(*list));

        if (!list)
            return -ENOMEM;
        ends->list = list;
        ends->cap = cap;
    }
    if (json_array_append(ends->events, event) < 0)
        return -ENOMEM;
    ends->list[ends->n++] = (struct end){
        .time_s = json_number_value(json_object_get(event, "t")), .rank = rank, .event = event};
    return 0;
}

static int read_ends(const char *path, struct ends *ends)
{
    _cleanup_free_ char *text = NULL;
    char *line, *newline;
    size_t len;
    int r = pl_file_read(path, LOG_MAX_BYTES, &text, &len, NULL);

    if (r < 0)
        return r == -ENOMEM ? r : 0;
    ends->events = json_array();
    if (!ends->events)
        return -ENOMEM;
    for (line = text; (newline = memchr(line, '\n', len - (size_t)(line - text)));
         line = newline + 1) {
        _cleanup_(json_decrefp) json_t *event = NULL;

        if (!memmem(line, (size_t)(newline - line), "\"rank\"", 6))
            continue;
        r = pl_json_parse(line, (size_t)(newline - line), PL_FRAME_MAX, &event, NULL);
        if (r == 0 && add_end(ends, event) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int by_time(const void *va, const void *vb)
{
    const struct end *a = va, *b = vb;

    if (a->time_s != b->time_s)
        return a->time_s < b->time_s ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* The final role of the rank. The root of a cause that names an early end is an echo of that. */
static const char *role_of(const struct pl_trial_status *ts, const struct end *e)
{
    const json_t *rank =
        json_array_get(json_object_get(ts->doc, "ranks"), (size_t)PL_MAX(e->rank, 0));
    const char *role = pl_json_string(rank, "role");

    if (role && strcmp(role, "root") == 0 && json_object_get(ts->cause, "early"))
        return "cascade";
    return role ? role : "";
}

static bool ended_alike(const struct pl_trial_status *ts, const struct end *a, const struct end *b)
{
    static const char *const keys[] = {"state", "exit", "signal"};

    for (size_t i = 0; i < PL_COUNT(keys); i++) {
        const json_t *va = json_object_get(a->event, keys[i]);
        const json_t *vb = json_object_get(b->event, keys[i]);

        if ((va || vb) && !json_equal(va, vb))
            return false;
    }
    return strcmp(role_of(ts, a), role_of(ts, b)) == 0;
}

static int by_rank(const void *va, const void *vb)
{
    const struct end *a = va, *b = vb;

    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Adds the cells "0-3,7" and "n[01-02]" for ends; sorts these by rank. */
static int add_names(struct pl_table *t, enum pl_term_style style, struct end *ends, size_t n)
{
    _cleanup_free_ int64_t *ranks = calloc(n + 1, sizeof(*ranks));
    _cleanup_free_ const char **nodes = calloc(n + 1, sizeof(*nodes));
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r;

    if (!ranks || !nodes)
        return -ENOMEM;
    qsort(ends, n, sizeof(*ends), by_rank);
    for (size_t i = 0; i < n; i++) {
        ranks[i] = ends[i].rank;
        nodes[i] = pl_json_string(ends[i].event, "node");
        nodes[i] = nodes[i] ? nodes[i] : "";
    }
    r = pl_tasks_format(ranks, n, &text);
    if (r < 0)
        return r;
    pl_table_cell(t, style, pl_buf_str(&text));
    pl_buf_consume(&text, text.len);
    r = pl_words_nodes(nodes, n, &text);
    pl_table_cell(t, style, pl_buf_str(&text));
    return r;
}

/* Adds one line for an end and all later ends like it. The rank of the cause has its own line. */
static int add_line(struct pl_table *t,
                    const struct pl_trial_status *ts,
                    struct ends *ends,
                    size_t at,
                    int64_t cause_rank,
                    double zero_s)
{
    const struct end *e = &ends->list[at];
    _cleanup_free_ struct end *same = calloc(ends->n, sizeof(*same));
    enum pl_term_style style = e->rank == cause_rank ? PL_TERM_RED : PL_TERM_PLAIN;
    char status[96];
    size_t n = 0;
    int r;

    if (!same)
        return -ENOMEM;
    for (size_t i = at; i < ends->n; i++) {
        struct end *other = &ends->list[i];

        if (other->printed || (i > at && (e->rank == cause_rank || other->rank == cause_rank ||
                                          !ended_alike(ts, e, other))))
            continue;
        other->printed = true;
        same[n++] = *other;
    }
    pl_words_exit_short(e->event, status, sizeof(status));
    pl_table_cellf(t, style, "%+.3f", e->time_s - zero_s);
    r = add_names(t, style, same, n);
    pl_table_cell(t, style, pl_json_string(e->event, "state"));
    pl_table_cell(t, style, status);
    pl_table_cell(t, style, e->rank == cause_rank ? "<- cause" : role_of(ts, e));
    return r;
}

static int print_ends(struct pl_plstat *ps,
                      const struct pl_trial_status *ts,
                      struct ends *ends,
                      const json_t *cause)
{
    static const char *const titles[] = {"SECONDS", "RANK", "NODE", "STATE", "END", "ROLE"};
    _cleanup_(pl_table_finish) struct pl_table table = {0};
    int64_t cause_rank;
    double zero_s;
    size_t lines = 0;
    int r = 0;

    if (ends->n < 2)
        return 0;
    for (size_t i = 0; i < PL_COUNT(titles); i++)
        pl_table_column(&table, titles[i], i == 0, i == 1 || i == 2 || i == 5);
    if (pl_json_int(json_object_get(cause, "early"), "rank", &cause_rank) < 0 &&
        pl_json_int(cause, "rank", &cause_rank) < 0)
        cause_rank = -1;
    qsort(ends->list, ends->n, sizeof(*ends->list), by_time);
    zero_s = ends->list[0].time_s;
    for (size_t i = 0; i < ends->n; i++)
        if (ends->list[i].rank == cause_rank)
            zero_s = ends->list[i].time_s;
    for (size_t i = 0; r == 0 && i < ends->n && lines < LINES_MAX; i++) {
        if (ends->list[i].printed)
            continue;
        lines++;
        r = add_line(&table, ts, ends, i, cause_rank, zero_s);
    }
    if (r == 0)
        r = pl_table_print(&table, ps->columns, ps->color, &ps->text);
    for (size_t i = 0; r == 0 && i < ends->n; i++)
        if (!ends->list[i].printed)
            return pl_plstat_line(ps, PL_TERM_PLAIN, "more ranks: plstat show %s",
                                  *ts->job ? ts->job : ps->word);
    return r;
}

int pl_timeline_print(struct pl_plstat *ps,
                      const struct pl_run *run,
                      const struct pl_trial_status *ts,
                      const json_t *cause)
{
    _cleanup_free_ char *path = NULL;
    struct ends ends = {0};
    int r;

    if (ts->attempts == 0 || ts->unstarted)
        return 0;
    path = pl_run_attempt_path(run, ts->trial, ts->attempts - 1, "events.jsonl");
    if (!path)
        return -ENOMEM;
    r = read_ends(path, &ends);
    if (r == 0)
        r = print_ends(ps, ts, &ends, cause);
    free(ends.list);
    json_decref(ends.events);
    return r;
}

/* ---- stderr ---- */

char *pl_timeline_stderr(const struct pl_run *run, unsigned trial, unsigned attempt, int64_t rank)
{
    _cleanup_free_ char *name = pl_strf("rank-%lld.err", (long long)rank), *path = NULL,
                        *text = NULL;

    path = name ? pl_run_attempt_path(run, trial, attempt, name) : NULL;
    text = path ? pl_tail_file(path, 0, rank) : NULL;
    return text && *text ? PL_TAKE(text) : NULL;
}
