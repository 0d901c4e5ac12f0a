/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/words.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/cause.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define SECONDS_MAX 1e12 /* 31,700 years */

void pl_words_duration(double seconds, char *ret, size_t size)
{
    /* of a file: it may be any number, also one that no integer has */
    long long s = seconds >= 0 && seconds < SECONDS_MAX ? (long long)seconds : -1;

    if (s < 0)
        snprintf(ret, size, "-");
    else if (s < 3600)
        snprintf(ret, size, "%lld:%02lld", s / 60, s % 60);
    else if (s < 86400)
        snprintf(ret, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(ret, size, "%lldd %02lld:%02lld", s / 86400, s / 3600 % 24, s / 60 % 60);
}

void pl_words_number(double value, char *ret, size_t size)
{
    if (isnan(value))
        snprintf(ret, size, "nan");
    else if (isinf(value))
        snprintf(ret, size, value > 0 ? "inf" : "-inf");
    else
        snprintf(ret, size, "%.4g", value);
}

enum pl_term_style pl_words_trial_style(enum pl_trial_state state)
{
    switch (state) {
    case PL_TRIAL_DONE:
        return PL_TERM_GREEN;
    case PL_TRIAL_RUNNING:
        return PL_TERM_CYAN;
    case PL_TRIAL_WAITING:
    case PL_TRIAL_PRUNED:
        return PL_TERM_DIM;
    case PL_TRIAL_CANCELLED:
    case PL_TRIAL_PREEMPTED:
        return PL_TERM_YELLOW;
    default:
        return PL_TERM_RED;
    }
}

enum pl_term_style pl_words_sweep_style(enum pl_sweep_state state)
{
    static const enum pl_term_style styles[] = {
        [PL_SWEEP_WAITING] = PL_TERM_DIM,      [PL_SWEEP_RUNNING] = PL_TERM_CYAN,
        [PL_SWEEP_DONE] = PL_TERM_GREEN,       [PL_SWEEP_FAILED] = PL_TERM_RED,
        [PL_SWEEP_CANCELLED] = PL_TERM_YELLOW,
    };

    return styles[state];
}

void pl_words_exit(const json_t *o, char *ret, size_t size)
{
    const char *name = pl_json_string(o, "signal_name");
    int64_t v;

    if (pl_json_int(o, "signal", &v) == 0 && name)
        snprintf(ret, size, "killed by %s (signal %lld)", name, (long long)v);
    else if (pl_json_int(o, "signal", &v) == 0)
        snprintf(ret, size, "killed by signal %lld", (long long)v);
    else if (pl_json_int(o, "exit", &v) == 0)
        snprintf(ret, size, "exit %lld", (long long)v);
    else
        snprintf(ret, size, "%s", "");
}

void pl_words_exit_short(const json_t *o, char *ret, size_t size)
{
    const char *name = pl_json_string(o, "signal_name");

    if (name)
        snprintf(ret, size, "%s", name);
    else
        pl_words_exit(o, ret, size);
}

static int add_place(const json_t *cause, struct pl_buf *ret)
{
    const char *node = pl_json_string(cause, "node");
    int64_t rank, pid;
    bool has_pid = pl_json_int(cause, "pid", &pid) == 0;
    int r = 0;

    if (pl_json_int(cause, "rank", &rank) < 0)
        return node ? pl_buf_addf(ret, "%s: ", node) : 0;
    r = pl_buf_addf(ret, "rank %lld", (long long)rank);
    if (r == 0 && (node || has_pid))
        r = pl_buf_addf(ret, " (%s", node ? node : "");
    if (r == 0 && has_pid)
        r = pl_buf_addf(ret, "%spid %lld", node ? ", " : "", (long long)pid);
    if (r == 0)
        r = pl_buf_adds(ret, node || has_pid ? "): " : ": ");
    return r;
}

/* "rank 2 (n02): had ended with exit 0, 2.4 s before rank 0 (inferred)" */
static int add_early(const json_t *cause, const json_t *early, struct pl_buf *ret)
{
    double before_s = json_number_value(json_object_get(early, "before_s"));
    char status[96];
    int64_t rank;
    int r = add_place(early, ret);

    pl_words_exit(early, status, sizeof(status));
    if (r == 0)
        r = pl_buf_addf(ret, "had ended with %s, %.1f s before", status, before_s);
    if (r == 0 && pl_json_int(cause, "rank", &rank) == 0)
        r = pl_buf_addf(ret, " rank %lld", (long long)rank);
    return r < 0 ? r : pl_buf_adds(ret, " (inferred)");
}

/* "plrund was killed or stopped": the process of the runtime, where the cause names it. */
static int add_runtime(const json_t *cause, const char *words, struct pl_buf *ret)
{
    const char *process = pl_json_string(cause, "process");

    if (!process)
        return pl_buf_adds(ret, words);
    return pl_buf_addf(ret, "%s was killed%s", process,
                       strcmp(process, "plrund") == 0 &&
                               json_is_true(json_object_get(cause, "inferred"))
                           ? " or stopped"
                           : "");
}

/* "": the signal's name says enough. Who sent SIGKILL is not known, and neither is the reason. */
static const char *signal_reason(const json_t *cause, enum pl_cause_kind kind)
{
    int64_t v;

    if (kind != PL_CAUSE_SIGNAL || pl_json_int(cause, "signal", &v) < 0)
        return "";
    return v == SIGKILL   ? ", sender unknown"
           : v == SIGXFSZ ? ", a file has reached the limit of its size (ulimit -f)"
                          : "";
}

int pl_words_cause(const json_t *cause, struct pl_buf *ret)
{
    static const char *const table[PL_CAUSE_UNKNOWN + 1] = {
        [PL_CAUSE_OOM] = "out of memory",
        [PL_CAUSE_TIMEOUT] = "the time limit was reached",
        [PL_CAUSE_PREEMPTED] = "preempted by another job",
        [PL_CAUSE_CANCELLED] = "cancelled",
        [PL_CAUSE_NODE] = "the node failed",
        [PL_CAUSE_HANG] = "made no progress and was ended",
        [PL_CAUSE_RUNTIME] = "the runtime was killed",
        [PL_CAUSE_LAUNCH] = "the ranks could not be started",
        [PL_CAUSE_SETUP] = "the job's set-up failed",
    };
    const char *name = pl_json_string(cause, "kind");
    const json_t *early = json_object_get(cause, "early");
    enum pl_cause_kind kind = pl_cause_parse(name);
    const char *words = table[kind];
    char status[96] = "";
    int64_t signal;
    int r;

    if (json_is_object(early))
        return add_early(cause, early, ret);
    r = add_place(cause, ret);
    if (kind != PL_CAUSE_RUNTIME) /* the rank's end is only its consequence */
        pl_words_exit(cause, status, sizeof(status));
    if (kind == PL_CAUSE_LAUNCH && pl_json_int(cause, "signal", &signal) == 0 &&
        signal == PL_SLURM_SIGNAL_OUTPUT) {
        words = "Slurm could not open the job's output file";
        status[0] = '\0';
    }
    if (r == 0 && kind == PL_CAUSE_RUNTIME)
        r = add_runtime(cause, words, ret);
    else if (r == 0 && words)
        r = pl_buf_adds(ret, words);
    if (r == 0 && *status)
        r = pl_buf_addf(ret, "%s%s", words ? ", " : "", status);
    if (r == 0)
        r = pl_buf_adds(ret, signal_reason(cause, kind));
    if (r == 0 && !words && !*status)
        r = pl_buf_adds(ret, name ? name : "unknown");
    if (r == 0 && json_is_true(json_object_get(cause, "inferred")))
        r = pl_buf_adds(ret, " (inferred)");
    return r;
}

int pl_words_node_reason(const json_t *reason, struct pl_buf *ret)
{
    const char *node = pl_json_string(reason, "node"), *state = pl_json_string(reason, "state");
    const char *text = pl_json_string(reason, "reason"), *by = pl_json_string(reason, "by");
    char date[32] = "";
    int64_t since;
    struct tm tm;
    int r;

    if (pl_json_int(reason, "since", &since) == 0 && localtime_r(&(time_t){since}, &tm))
        strftime(date, sizeof(date), "%Y-%m-%d %H:%M", &tm);
    r = pl_buf_addf(ret, "%s is %s: %s", node ? node : "?", state ? state : "not available",
                    text ? text : "no reason is given");
    if (r == 0 && (by || *date))
        r = pl_buf_addf(ret, " (%s%s%s)", by ? by : "", by && *date ? ", " : "", date);
    return r;
}

void pl_words_trial(const struct pl_run *run, unsigned trial, char *ret, size_t size)
{
    if (pl_run_n_trials(run) > 1)
        snprintf(ret, size, "%s/%u", pl_run_sweep(run), trial);
    else
        snprintf(ret, size, "%s", pl_run_sweep(run));
}

int pl_words_attempt(const struct pl_trial_status *ts, struct pl_buf *ret)
{
    if (ts->attempts == 0)
        return 0;
    return ts->unstarted ? pl_buf_addf(ret, "before attempt %u", ts->attempts + 1)
                         : pl_buf_addf(ret, "attempt %u", ts->attempts);
}

int pl_words_earlier(const struct pl_trial_status *ts, struct pl_buf *ret)
{
    const char *job = pl_json_string(ts->earlier, "job");
    const char *state = pl_json_string(ts->earlier, "state");
    const json_t *cause = json_object_get(ts->earlier, "cause");
    const char *kind = pl_json_string(cause, "kind");
    int64_t attempt = (int64_t)ts->attempts - 1;
    int r;

    if (!ts->unstarted || ts->attempts == 0)
        return 0;
    pl_json_int(ts->earlier, "attempt", &attempt);
    r = pl_buf_addf(ret, "attempt %lld", (long long)attempt + 1);
    if (r == 0 && job)
        r = pl_buf_addf(ret, " (job %s)", job);
    if (r == 0)
        r = pl_buf_addf(ret, " %s", state ? state : "wrote no result");
    /* The state and the kind of cause may have the same name. */
    if (r < 0 || !state || !kind || (strcmp(kind, state) == 0 && !json_object_get(cause, "rank")))
        return r;
    r = pl_buf_adds(ret, ": ");
    return r < 0 ? r : pl_words_cause(cause, ret);
}

int pl_words_failure(const struct pl_trial_status *ts, struct pl_buf *ret)
{
    const char *state = pl_trial_state_name(ts->state);
    const char *kind = pl_json_string(ts->cause, "kind"), *text = pl_json_string(ts->cause, "text");
    int r;

    /* The state and the kind of cause have the same name. */
    if (kind && strcmp(kind, state) == 0 && !json_object_get(ts->cause, "rank"))
        return pl_words_cause(ts->cause, ret);
    r = pl_buf_adds(ret, state);
    if (r < 0 || !ts->cause)
        return r;
    if (ts->state == PL_TRIAL_LOST && text)
        return pl_buf_addf(ret, ": %s", text);
    r = pl_buf_adds(ret, ": ");
    return r < 0 ? r : pl_words_cause(ts->cause, ret);
}

/* The offset of the digits at the end of a name; the name's length if it has none or more than
 * nine.
 */
static size_t stem_length(const char *name)
{
    size_t len = strlen(name), at = len;

    while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
        at--;
    return len - at > 9 ? len : at;
}

/* Appends "n[01-03,07]" for the first names, which differ only in their number. *ret_n counts them.
 */
static int add_family(const char *const *nodes, size_t n, size_t *ret_n, struct pl_buf *ret)
{
    size_t at = stem_length(nodes[0]), len = strlen(nodes[0]), used = 1;
    int64_t first, last, value;
    int r;

    while (used < n && at < len && strlen(nodes[used]) == len && stem_length(nodes[used]) == at &&
           memcmp(nodes[used], nodes[0], at) == 0)
        used++;
    *ret_n = used;
    if (used == 1)
        return pl_buf_adds(ret, nodes[0]);
    r = pl_buf_addf(ret, "%.*s[", (int)at, nodes[0]);
    for (size_t i = 0, end; r == 0 && i < used; i = end + 1) {
        first = last = strtoll(nodes[i] + at, NULL, 10);
        for (end = i; end + 1 < used; end++, last = value) {
            value = strtoll(nodes[end + 1] + at, NULL, 10);
            if (value != last + 1)
                break;
        }
        r = pl_buf_addf(ret, "%s%s", i ? "," : "", nodes[i] + at);
        if (r == 0 && last > first)
            r = pl_buf_addf(ret, "-%s", nodes[end] + at);
    }
    return r < 0 ? r : pl_buf_addc(ret, ']');
}

int pl_words_nodes(const char *const *nodes, size_t n, struct pl_buf *ret)
{
    _cleanup_free_ const char **once = calloc(n + 1, sizeof(*once));
    size_t n_once = 0, used;
    int r = once ? 0 : -ENOMEM;

    for (size_t i = 0; once && i < n; i++) {
        bool known = false;

        /* Ranks are ordered by node, so a repeated name is nearly always the last one. */
        for (size_t k = n_once; k-- > 0 && !known;)
            known = strcmp(once[k], nodes[i]) == 0;
        if (!known)
            once[n_once++] = nodes[i];
    }
    for (size_t i = 0; r == 0 && i < n_once; i += used) {
        used = 1;
        if (i)
            r = pl_buf_addc(ret, ',');
        if (r == 0)
            r = add_family(once + i, n_once - i, &used, ret);
    }
    return r;
}
