/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/wait_report.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/change.h"

#include <inttypes.h>
#include <string.h>

#define LINES_MAX 5

/* ---- the live line ---- */

struct line {
    const struct pl_run *run;
    bool shown;
};

static void show(void *ctx, const struct pl_wait_result *so_far, unsigned running)
{
    struct line *line = ctx;
    unsigned ended = so_far->done + so_far->other, n = pl_run_n_trials(line->run);

    fprintf(stderr,
            "\r%s: %u of %u done, %u not, %u running, %u waiting\033[K", /* erase the rest */
            pl_run_sweep(line->run), so_far->done, n, so_far->other, running, n - ended - running);
    fflush(stderr);
    line->shown = true;
}

int pl_wait_show(const struct pl_run *run, struct pl_wait_result *ret, struct pl_error *err)
{
    struct line line = {.run = run};
    int r = pl_wait_run(run, isatty(STDERR_FILENO) ? show : NULL, &line, ret, err);

    if (line.shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    return r;
}

/* ---- causes ---- */

struct group {
    char *text; /* the state and the cause */
    unsigned first, n;
};

static int add_number(struct pl_buf *out, const json_t *cause, const char *key, const char *words)
{
    int64_t n;

    return pl_json_int(cause, key, &n) == 0 ? pl_buf_addf(out, ", %s %" PRId64, words, n) : 0;
}

/* "failed, exit code 3, rank 3 on n02" of plstat's record of a trial. */
static int describe(const json_t *o, enum pl_trial_state state, struct pl_buf *out)
{
    bool open = state == PL_TRIAL_WAITING || state == PL_TRIAL_RUNNING; /* it knows no end */
    const json_t *cause = json_object_get(o, "cause");
    const char *kind = pl_json_string(cause, "kind"), *node = pl_json_string(cause, "node");
    const char *signal = pl_json_string(cause, "signal_name");
    int r = pl_buf_adds(out, open ? "ended without a result" : pl_trial_state_name(state));

    if (r == 0 && signal)
        r = pl_buf_addf(out, ", %s", signal);
    else if (r == 0 && kind && strcmp(kind, "exit") != 0 &&
             strcmp(kind, pl_trial_state_name(state)) != 0)
        r = pl_buf_addf(out, ", %s", kind);
    if (r == 0)
        r = add_number(out, cause, "exit", "exit code");
    if (r == 0)
        r = add_number(out, cause, "rank", "rank");
    return r == 0 && node ? pl_buf_addf(out, " on %s", node) : r;
}

/* Adds a trial to the group of its text; -ENOSPC: there are LINES_MAX others. */
static int add_to_group(struct group *groups, const char *text, unsigned trial)
{
    for (size_t i = 0; i < LINES_MAX; i++) {
        if (groups[i].text && strcmp(groups[i].text, text) != 0)
            continue;
        if (!groups[i].text) {
            groups[i].text = strdup(text);
            groups[i].first = trial;
        }
        groups[i].n++;
        return groups[i].text ? 0 : -ENOMEM;
    }
    return -ENOSPC;
}

/* Counts the trials that are not done, and those of them that no group has. */
static int
collect(const json_t *trials, struct group *groups, unsigned *ret_other, unsigned *ret_rest)
{
    const json_t *o;
    size_t i;

    json_array_foreach (trials, i, o) {
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};
        const char *name = pl_json_string(o, "state");
        enum pl_trial_state state;
        int64_t trial;
        int r;

        if (!name || pl_trial_state_parse(name, &state) < 0 || state == PL_TRIAL_DONE ||
            pl_json_int(o, "trial", &trial) < 0)
            continue;
        r = describe(o, state, &text);
        if (r == 0)
            r = add_to_group(groups, pl_buf_str(&text), (unsigned)trial);
        if (r < 0 && r != -ENOSPC)
            return r;
        ++*ret_other;
        *ret_rest += r == -ENOSPC;
    }
    return 0;
}

int pl_wait_causes(const struct pl_run *run,
                   const char *bin_dir,
                   unsigned other,
                   struct pl_buf *out,
                   struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *doc = NULL;
    struct group groups[LINES_MAX] = {0};
    unsigned rest = 0, known = 0;
    int r = pl_change_ask(bin_dir, pl_run_dir(run), &doc, err);

    if (r < 0)
        return r;
    r = collect(json_object_get(doc, "trials"), groups, &known, &rest);

    for (size_t i = 0; i < LINES_MAX && groups[i].text && r == 0; i++) {
        const struct group *g = &groups[i];

        r = pl_buf_addf(out, "trial %u", g->first);
        if (r == 0 && g->n > 1)
            r = pl_buf_addf(out, " and %u more", g->n - 1);
        if (r == 0)
            r = pl_buf_addf(out, " %s: plstat why %s/%u\n", g->text, pl_run_sweep(run), g->first);
    }
    if (r == 0 && rest)
        r = pl_buf_addf(out, "%u more: plstat sweep %s\n", rest, pl_run_sweep(run));
    if (r == 0 && known < other) /* plstat reads what could not be read here, or came later */
        r = pl_buf_addf(out,
                        "plsubmit: %u trial%s left the queue without a result that could be read: "
                        "plstat sweep %s\n",
                        other - known, other - known == 1 ? "" : "s", pl_run_sweep(run));
    for (size_t i = 0; i < LINES_MAX; i++)
        free(groups[i].text);
    return r < 0 ? pl_error_nomem(err) : 0;
}
