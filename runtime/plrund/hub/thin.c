/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/thin.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "common/run/run_state.h"

#include <math.h>
#include <string.h>

#define GRID_MIN_S 1.0
#define GRID_MAX_S 1e9
#define INDEX_MAX 1000000 /* ranks, nodes */

/* Why a line stays. */
enum {
    KEEP_LAST = 1, /* the state needs it */
    KEEP_EDGE = 2, /* first, lowest, highest, first that is not finite */
};

struct line {
    size_t at, len; /* newline included */
    double t;
    uint32_t series;
    unsigned keep;
};

/* Lines by their index + 1; 0 = none. */
struct metric {
    char *name;
    size_t first, last, lowest, highest, odd;
    double min, max;
};

/* The metrics of one rank, or of the GPUs of one node. */
struct series {
    struct metric *metrics;
    size_t n_metrics;
    double cell; /* of the last line that the grid kept; NaN = none */
};

struct thinning {
    const char *text;
    struct line *lines;
    size_t n_lines, lines_room;
    struct series *series;
    size_t n_series;
};

static void finish(struct thinning *t)
{
    for (size_t i = 0; i < t->n_series; i++) {
        for (size_t k = 0; k < t->series[i].n_metrics; k++)
            free(t->series[i].metrics[k].name);
        free(t->series[i].metrics);
    }
    free(t->series);
    free(t->lines);
}

static int need_series(struct thinning *t, size_t n)
{
    struct series *more;

    if (n <= t->n_series)
        return 0;
    n = PL_MAX(n, 2 * t->n_series);
    more = realloc(t->series, n * sizeof(*more));
    if (!more)
        return -ENOMEM;
    memset(more + t->n_series, 0, (n - t->n_series) * sizeof(*more));
    t->series = more;
    t->n_series = n;
    return 0;
}

/* NULL: out of memory. */
static struct metric *need_metric(struct series *s, const char *name)
{
    struct metric *more;

    for (size_t i = 0; i < s->n_metrics; i++)
        if (strcmp(s->metrics[i].name, name) == 0)
            return &s->metrics[i];
    more = realloc(s->metrics, (s->n_metrics + 1) * sizeof(*more));
    if (!more)
        return NULL;
    s->metrics = more;
    more += s->n_metrics;
    *more = (struct metric){.name = strdup(name)};
    if (!more->name)
        return NULL;
    s->n_metrics++;
    return more;
}

/* value: NULL = a value without an order. number: the line's index + 1. */
static int note(struct series *s, const char *name, json_t *value, size_t number)
{
    struct metric *m = need_metric(s, name);
    double v;

    if (!m)
        return -ENOMEM;
    m->last = number;
    m->first = m->first ? m->first : number;
    if (!value || pl_run_state_number(value, &v) < 0)
        return 0;
    if (!isfinite(v)) {
        m->odd = m->odd ? m->odd : number;
        return 0;
    }
    if (!m->lowest || v < m->min) {
        m->lowest = number;
        m->min = v;
    }
    if (!m->highest || v > m->max) {
        m->highest = number;
        m->max = v;
    }
    return 0;
}

/* Notes what a record says; -EINVAL: it is none. */
static int read_record(struct thinning *t, json_t *record, struct line *line, size_t number)
{
    const char *type = pl_json_string(record, "type"), *key;
    bool gpus = type && strcmp(type, "gpus") == 0;
    json_t *when = json_object_get(record, "t"), *value;
    int64_t index, step;
    struct series *s;
    int r;

    if (!type || (!gpus && strcmp(type, "metrics") != 0) || !json_is_number(when) ||
        pl_json_int(record, gpus ? "node_id" : "rank", &index) < 0 || index < 0 ||
        index >= INDEX_MAX)
        return -EINVAL;
    r = need_series(t, (size_t)(2 * index + gpus + 1));
    if (r < 0)
        return r;
    line->t = json_number_value(when);
    line->series = (uint32_t)(2 * index + gpus);
    s = &t->series[line->series];
    if (gpus || pl_json_int(record, "step", &step) == 0) /* no metric has an empty name */
        r = note(s, "", NULL, number);
    json_object_foreach (json_object_get(record, "metrics"), key, value)
        if (r == 0)
            r = note(s, key, value, number);
    return r;
}

static int add_line(struct thinning *t, size_t at, size_t len)
{
    _cleanup_(json_decrefp) json_t *record = NULL;
    struct line *line;
    int r;

    if (t->n_lines == t->lines_room) {
        size_t room = PL_MAX(2 * t->lines_room, (size_t)4096);
        struct line *more = realloc(t->lines, room * sizeof(*more));

        if (!more)
            return -ENOMEM;
        t->lines = more;
        t->lines_room = room;
    }
    line = &t->lines[t->n_lines];
    *line = (struct line){.at = at, .len = len, .series = UINT32_MAX};
    r = pl_json_parse(t->text + at, len - 1, PL_FRAME_MAX, &record, NULL);
    if (r == 0)
        r = read_record(t, record, line, t->n_lines + 1);
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        line->keep = KEEP_LAST;
    t->n_lines++;
    return 0;
}

static void keep(struct thinning *t, size_t number, unsigned why)
{
    if (number)
        t->lines[number - 1].keep |= why;
}

static void mark(struct thinning *t)
{
    for (size_t i = 0; i < t->n_series; i++) {
        for (size_t k = 0; k < t->series[i].n_metrics; k++) {
            const struct metric *m = &t->series[i].metrics[k];

            keep(t, m->last, KEEP_LAST);
            keep(t, m->first, KEEP_EDGE);
            keep(t, m->lowest, KEEP_EDGE);
            keep(t, m->highest, KEEP_EDGE);
            keep(t, m->odd, KEEP_EDGE);
        }
    }
}

/* Copies what stays, if ret is not NULL. grid_s: 0 = no grid. */
static size_t select_lines(
    struct thinning *t, unsigned kept, double grid_s, struct pl_buf *ret, size_t *ret_left_out)
{
    size_t size = 0;

    *ret_left_out = 0;
    for (size_t i = 0; i < t->n_series; i++)
        t->series[i].cell = NAN;
    for (size_t i = 0; i < t->n_lines; i++) {
        const struct line *line = &t->lines[i];
        double cell = grid_s > 0 ? floor(line->t / grid_s) : NAN;
        bool stays = line->keep & kept;

        if (grid_s > 0 && line->series < t->n_series && cell != t->series[line->series].cell) {
            t->series[line->series].cell = cell;
            stays = true;
        }
        if (!stays) {
            ++*ret_left_out;
            continue;
        }
        size += line->len;
        if (ret) /* it has the room */
            pl_buf_add(ret, t->text + line->at, line->len);
    }
    return size;
}

int pl_thin(const char *lines, size_t len, size_t target, double grid_s, struct pl_thinned *ret)
{
    struct thinning t = {.text = lines};
    struct pl_thinned out = {.grid_s = PL_MAX(grid_s, GRID_MIN_S)};
    unsigned kept = KEEP_LAST | KEEP_EDGE;
    size_t size, left_out;
    int r = 0;

    for (size_t at = 0; r == 0 && at < len;) {
        const char *newline = memchr(lines + at, '\n', len - at);
        size_t n = newline ? (size_t)(newline - lines) - at + 1 : len - at;

        r = add_line(&t, at, n);
        at += n;
    }
    mark(&t);
    while (r == 0 && (size = select_lines(&t, kept, out.grid_s, NULL, &left_out)) > target) {
        if (out.grid_s > 0 && out.grid_s < GRID_MAX_S) {
            out.grid_s *= 2;
        } else if (out.grid_s > 0) {
            out.grid_s = 0;
        } else if (kept & KEEP_EDGE) {
            kept = KEEP_LAST;
        } else {
            break;
        }
    }
    if (r == 0)
        r = pl_buf_reserve(&out.text, size + 1);
    if (r == 0) {
        select_lines(&t, kept, out.grid_s, &out.text, &out.n_left_out);
        if (out.grid_s <= 0)
            out.grid_s = GRID_MAX_S;
        *ret = out;
    }
    finish(&t);
    return r;
}
