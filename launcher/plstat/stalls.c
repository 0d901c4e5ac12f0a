/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/stalls.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/run_tasks.h"
#include "launcher/plstat/words.h"

#include <string.h>

#define STACKS_MAX 4

/* "rank 5 (n03)", "ranks 5-7 (n03)", "no rank". */
static int add_ranks(struct pl_buf *line, const json_t *stall)
{
    const json_t *list = json_object_get(stall, "ranks");
    size_t n = json_array_size(list);
    _cleanup_free_ int64_t *ranks = calloc(n + 1, sizeof(*ranks));
    const char *node = pl_json_string(stall, "node");
    int r;

    if (!ranks)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        ranks[i] = json_integer_value(json_array_get(list, i));
    r = pl_buf_adds(line, n == 1 ? "rank " : "ranks ");
    if (r == 0)
        r = pl_tasks_format(ranks, n, line);
    return r == 0 && node && n == 1 ? pl_buf_addf(line, " (%s)", node) : r;
}

/* Until now_s, by the clock of the run: see pl_trial_status_until(). */
static double stalled_s(const json_t *stall, double now_s)
{
    double since = json_number_value(json_object_get(stall, "since"));
    double for_s = json_number_value(json_object_get(stall, "for_s"));

    return since > 0 ? PL_MAX(now_s - since, 0) + for_s : for_s;
}

/* Ranks that compute, read or write, while the others wait for them. */
static int print_busy(struct pl_plstat *ps, const json_t *stall, double now_s)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    const char *doing = pl_json_string(stall, "doing");
    bool one = json_array_size(json_object_get(stall, "ranks")) == 1;
    int r = add_ranks(&line, stall);

    if (r == 0)
        r = pl_buf_addf(&line, "%s busy, the others wait: no step for %.0f s", one ? " is" : " are",
                        stalled_s(stall, now_s));
    if (r == 0 && doing)
        r = pl_buf_addf(&line, ", %s", doing);
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_YELLOW, "%s", pl_buf_str(&line));
}

static int print_suspected(struct pl_plstat *ps, const json_t *stall, double now_s)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    const char *doing = pl_json_string(stall, "doing");
    bool all = json_is_true(json_object_get(stall, "all"));
    int64_t step;
    int r = all ? pl_buf_adds(&line, "no rank makes progress, and none differs from the others")
                : add_ranks(&line, stall);

    if (r == 0 && !all)
        r = pl_buf_adds(&line, json_array_size(json_object_get(stall, "ranks")) == 1
                                   ? " is behind"
                                   : " are behind");
    if (r == 0)
        r = pl_buf_addf(&line, ": no step for %.0f s", stalled_s(stall, now_s));
    if (r == 0 && pl_json_int(stall, "step", &step) == 0)
        r = pl_buf_addf(&line, " after step %lld", (long long)step);
    if (r == 0 && doing && !all)
        r = pl_buf_addf(&line, ", %s", doing);
    if (r == 0 && strcmp(pl_json_string(stall, "confidence") ?: "", "inferred") == 0)
        r = pl_buf_adds(&line, " (inferred)");
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_RED, "! hang? %s", pl_buf_str(&line));
}

static int print_stall(struct pl_plstat *ps, const json_t *stall, double now_s)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    const char *state = pl_json_string(stall, "state");
    int r;

    if (!state || strcmp(state, "over") == 0)
        return 0;
    if (strcmp(state, "suspected") == 0)
        return print_suspected(ps, stall, now_s);
    if (strcmp(state, "busy") == 0)
        return print_busy(ps, stall, now_s);
    r = add_ranks(&line, stall);
    if (r < 0)
        return r;
    if (strcmp(state, "stopped") == 0)
        return pl_plstat_line(ps, PL_TERM_YELLOW, "%s: stopped by a debugger or a signal",
                              pl_buf_str(&line));
    return pl_plstat_line(ps, PL_TERM_YELLOW,
                          "hint: %s: no output and no CPU time; no rank reports steps, so this is "
                          "no proof of a hang",
                          pl_buf_str(&line));
}

static int print_slow(struct pl_plstat *ps, const json_t *rank)
{
    double factor = json_number_value(json_object_get(rank, "slow"));
    const char *node = pl_json_string(rank, "node");
    int64_t number;

    if (factor <= 0 || pl_json_int(rank, "rank", &number) < 0)
        return 0;
    return pl_plstat_line(ps, PL_TERM_YELLOW, "rank %lld (%s) is slow: %.2f times the median step",
                          (long long)number, node ? node : "?", factor);
}

static int print_stack(struct pl_plstat *ps,
                       const struct pl_run_status *s,
                       const struct pl_trial_status *ts,
                       const json_t *rank)
{
    _cleanup_free_ char *name = NULL, *path = NULL;
    int64_t number;

    if (!pl_json_string(rank, "stack") || pl_json_int(rank, "rank", &number) < 0 || !ts->attempts)
        return 0;
    name = pl_strf("hang-rank-%lld.txt", (long long)number);
    path = name ? pl_run_attempt_path(s->run, ts->trial, ts->attempts - 1, name) : NULL;
    if (!path)
        return -ENOMEM;
    if (access(path, R_OK) < 0)
        return 0;
    if (pl_buf_addf(&ps->text, "stack of rank %lld: ", (long long)number) < 0 ||
        pl_term_escape(&ps->text, path, strlen(path)) < 0)
        return -ENOMEM;
    return pl_buf_addc(&ps->text, '\n');
}

int pl_stalls_print(struct pl_plstat *ps,
                    const struct pl_run_status *s,
                    const struct pl_trial_status *ts)
{
    const json_t *stall = json_object_get(ts->doc, "stall"), *rank;
    const char *state = pl_json_string(stall, "state");
    bool running = ts->state == PL_TRIAL_RUNNING;
    bool hung = pl_cause_parse(pl_json_string(ts->cause, "kind")) == PL_CAUSE_HANG;
    bool suspected = running && state && strcmp(state, "suspected") == 0;
    size_t i, n = 0;
    int r = running ? print_stall(ps, stall, pl_trial_status_until(ts)) : 0;

    json_array_foreach (json_object_get(ts->doc, "ranks"), i, rank) {
        if (r == 0 && running)
            r = print_slow(ps, rank);
        if (r == 0 && (hung || suspected) && json_object_get(rank, "stack") && n++ < STACKS_MAX)
            r = print_stack(ps, s, ts, rank);
    }
    return r;
}
