/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/gpus.h"
#include "common/proto/json.h"
#include "common/run/run_tasks.h"
#include "launcher/plstat/words.h"

#include <math.h>
#include <string.h>

#define LINES_MAX 8
#define GIB 1073741824.0

/* Gets a GPU and a rank's share of it. */
typedef void (*share_fn)(void *ctx, const json_t *gpu, const json_t *share);

/* Calls f for each share. only: the name of one node; NULL: all nodes. */
static void for_each_share(const json_t *doc, const char *only, share_fn f, void *ctx)
{
    json_t *node, *gpu, *share;
    size_t i, j, k;

    json_array_foreach (json_object_get(doc, "nodes"), i, node) {
        const char *name = pl_json_string(node, "node");

        if (only && (!name || strcmp(name, only) != 0))
            continue;
        json_array_foreach (json_object_get(node, "gpus"), j, gpu)
            json_array_foreach (json_object_get(gpu, "ranks"), k, share)
                f(ctx, gpu, share);
    }
}

static void count(void *ctx, const json_t *gpu, const json_t *share)
{
    ++*(size_t *)ctx;
}

bool pl_gpus_known(const json_t *doc)
{
    size_t n = 0;

    for_each_share(doc, NULL, count, &n);
    return n > 0;
}

void pl_gpus_columns(struct pl_table *t)
{
    pl_table_column(t, "GPU", true, false);
    pl_table_column(t, "GPU%", true, false);
    pl_table_column(t, "W", true, false);
    pl_table_column(t, "GIB", true, false);
}

/* ---- the ranks' table ---- */

struct range {
    double low, high;
};

struct group {
    const struct pl_fold_group *g;
    struct range index, util, power, mem;
};

static void extend_range(struct range *range, const json_t *o, const char *key, double unit)
{
    const json_t *value = json_object_get(o, key);

    if (!json_is_number(value))
        return;
    range->low = fmin(range->low, json_number_value(value) / unit);
    range->high = fmax(range->high, json_number_value(value) / unit);
}

static void add_to_group(void *ctx, const json_t *gpu, const json_t *share)
{
    struct group *group = ctx;
    size_t low = 0, high = group->g->n;
    int64_t rank, at;

    if (pl_json_int(share, "rank", &rank) < 0)
        return;
    while (low < high) { /* ranks of a group ascend */
        size_t middle = (low + high) / 2;

        if (pl_json_int(group->g->ranks[middle], "rank", &at) == 0 && at < rank)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == group->g->n || pl_json_int(group->g->ranks[low], "rank", &at) < 0 || at != rank)
        return;
    extend_range(&group->index, gpu, "gpu", 1);
    extend_range(&group->util, gpu, "util", 1);
    extend_range(&group->power, gpu, "power_w", 1);
    extend_range(&group->mem, json_object_get(share, "mem") ? share : gpu,
                 json_object_get(share, "mem") ? "mem" : "mem_used", GIB);
}

static void cell(struct pl_table *t, const struct range *range, int digits)
{
    char low[32], high[32];

    if (range->low > range->high) {
        pl_table_cell(t, PL_TERM_PLAIN, NULL);
        return;
    }
    snprintf(low, sizeof(low), "%.*f", digits, range->low);
    snprintf(high, sizeof(high), "%.*f", digits, range->high);
    if (strcmp(low, high) == 0)
        pl_table_cell(t, PL_TERM_PLAIN, low);
    else
        pl_table_cellf(t, PL_TERM_PLAIN, "%s-%s", low, high);
}

void pl_gpus_cells(struct pl_table *t, const json_t *doc, const struct pl_fold_group *g)
{
    const struct range none = {INFINITY, -INFINITY};
    struct group group = {.g = g, .index = none, .util = none, .power = none, .mem = none};

    for_each_share(doc, g->n == 1 ? pl_json_string(g->ranks[0], "node") : NULL, add_to_group,
                   &group);
    cell(t, &group.index, 0);
    cell(t, &group.util, 0);
    cell(t, &group.power, 0);
    cell(t, &group.mem, 1);
}

/* ---- JSON ---- */

struct of_rank {
    int64_t rank;
    json_t *list;
};

static void add_index(void *ctx, const json_t *gpu, const json_t *share)
{
    struct of_rank *of = ctx;
    int64_t rank;

    if (pl_json_int(share, "rank", &rank) < 0 || rank != of->rank || !json_object_get(gpu, "gpu"))
        return;
    if (!of->list)
        of->list = json_array();
    json_array_append(of->list, json_object_get(gpu, "gpu"));
}

json_t *pl_gpus_of_rank(const json_t *doc, int64_t rank)
{
    struct of_rank of = {.rank = rank};

    for_each_share(
        doc, pl_json_string(json_array_get(json_object_get(doc, "ranks"), (size_t)rank), "node"),
        add_index, &of);
    return of.list;
}

/* ---- lines ---- */

static int add_ranks(struct pl_buf *line, const json_t *list)
{
    _cleanup_free_ int64_t *ranks = calloc(json_array_size(list) + 1, sizeof(*ranks));
    size_t i, n = 0;
    json_t *o;
    int r;

    if (!ranks)
        return -ENOMEM;
    json_array_foreach (list, i, o) {
        json_t *number = json_is_object(o) ? json_object_get(o, "rank") : o;

        if (json_is_integer(number))
            ranks[n++] = json_integer_value(number);
    }
    if (n == 0)
        return 0;
    r = pl_buf_addf(line, " (rank%s ", n == 1 ? "" : "s");
    if (r == 0)
        r = pl_tasks_format(ranks, n, line);
    return r < 0 ? r : pl_buf_addc(line, ')');
}

/* "Xid 79, GPU has fallen off the bus" */
static int add_error(struct pl_buf *line, const json_t *error)
{
    const char *text = pl_json_string(error, "text");
    int64_t xid;
    int r;

    if (pl_json_int(error, "xid", &xid) < 0)
        return pl_buf_adds(line, text ? text : "error");
    r = pl_buf_addf(line, "Xid %lld", (long long)xid);
    return r < 0 || !text ? r : pl_buf_addf(line, ", %s", text);
}

static int add_slow(struct pl_buf *line, const json_t *gpu)
{
    int64_t now, most, seconds;
    json_t *reason;
    char duration[32];
    size_t i;
    int r = 0;

    if (pl_json_int(gpu, "clock_mhz", &now) == 0 && pl_json_int(gpu, "clock_max_mhz", &most) == 0)
        r = pl_buf_addf(line, "%lld of %lld MHz, ", (long long)now, (long long)most);
    if (r == 0)
        r = pl_buf_adds(line, "reduced by ");
    json_array_foreach (json_object_get(gpu, "throttle"), i, reason)
        if (r == 0 && json_is_string(reason))
            r = pl_buf_addf(line, "%s%s", i ? ", " : "", json_string_value(reason));
    if (r == 0 && pl_json_int(gpu, "throttled_s", &seconds) == 0 && seconds > 0) {
        pl_words_duration((double)seconds, duration, sizeof(duration));
        r = pl_buf_addf(line, " for %s", duration);
    }
    return r;
}

static int start_line(struct pl_buf *line, const json_t *node, const json_t *o)
{
    const char *name = pl_json_string(node, "node");
    int64_t index = -1;

    pl_json_int(o, "gpu", &index);
    return pl_buf_addf(line, "%s GPU %lld: ", name ? name : "?", (long long)index);
}

static int print_error(struct pl_plstat *ps, const json_t *node, const json_t *error, double end_s)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    double at_s = json_number_value(json_object_get(error, "t"));
    int r = start_line(&line, node, error);

    if (r == 0)
        r = add_error(&line, error);
    if (r == 0)
        r = add_ranks(&line, json_object_get(error, "ranks"));
    if (r == 0 && end_s > 0 && at_s > 0)
        r = pl_buf_addf(&line, at_s <= end_s ? ", %.1f s before the end" : ", %.1f s after the end",
                        fabs(end_s - at_s));
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_RED, "%s", pl_buf_str(&line));
}

static int print_slow(struct pl_plstat *ps, const json_t *node, const json_t *gpu)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int r = start_line(&line, node, gpu);

    if (r == 0)
        r = add_slow(&line, gpu);
    if (r == 0)
        r = add_ranks(&line, json_object_get(gpu, "ranks"));
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_YELLOW, "%s", pl_buf_str(&line));
}

int pl_gpus_print(struct pl_plstat *ps, const json_t *doc, bool running, double end_s)
{
    size_t i, k, n = 0;
    json_t *node, *o;
    int r = 0;

    json_array_foreach (json_object_get(doc, "nodes"), i, node) {
        json_array_foreach (json_object_get(node, "gpu_events"), k, o)
            if (r == 0 && n++ < LINES_MAX)
                r = print_error(ps, node, o, end_s);
        json_array_foreach (json_object_get(node, "gpus"), k, o)
            if (running && json_array_size(json_object_get(o, "throttle")) && r == 0 &&
                n++ < LINES_MAX)
                r = print_slow(ps, node, o);
    }
    if (r == 0 && n > LINES_MAX)
        r = pl_plstat_line(ps, PL_TERM_PLAIN, "%zu more lines about GPUs: see --json",
                           n - LINES_MAX);
    return r;
}

int pl_gpus_print_cause(struct pl_plstat *ps, const json_t *cause)
{
    const json_t *error = json_object_get(cause, "gpu");
    double before_s = json_number_value(json_object_get(error, "before_s"));
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int64_t index = -1;
    int r;

    if (!json_is_object(error))
        return 0;
    pl_json_int(error, "gpu", &index);
    r = pl_buf_addf(&line, "its GPU %lld, %.1f s %s: ", (long long)index, fabs(before_s),
                    before_s >= 0 ? "before" : "after");
    if (r == 0)
        r = add_error(&line, error);
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_RED, "      %s", pl_buf_str(&line));
}
