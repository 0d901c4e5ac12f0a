/* SPDX-License-Identifier: MIT */
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/near.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "common/base/site.h"
#include "common/base/strv.h"
#include "common/base/trace.h"
#include "common/proto/json.h"
#include "common/run/output_ranks.h"
#include "launcher/plstat/find.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "launcher/slurm/slurm_conf.h"

#include <inttypes.h>
#include <locale.h>
#include <string.h>

#define DOCTOR_NODES 2

static int set_color(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;

    if (pl_term_color_parse(value, &ps->color_choice) < 0)
        return pl_error_set(err, -EINVAL, "'%s' is not auto, always or never", value);
    return 0;
}

static bool bare_watch; /* --watch without SEC */

static int set_watch(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;

    ps->watch = true;
    if (!value) {
        bare_watch = true;
        return 0;
    }
    if (pl_parse_double(value, &ps->interval_s, err) < 0)
        return -EINVAL;
    if (ps->interval_s < 0.1 || ps->interval_s > 86400)
        return pl_error_set(err, -EINVAL, "'%s' is not within 0.1 to 86400 seconds", value);
    return 0;
}

static int
set_job_number(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;
    const char *task = strchr(value, '_');
    _cleanup_free_ char *job = task ? strndup(value, (size_t)(task - value)) : strdup(value);
    char *name = ps->ghosts.job_name;
    int64_t number, index;

    if (!job)
        return pl_error_nomem(err);
    if (pl_parse_int(job, 1, INT64_MAX, &number, NULL) < 0 ||
        (task && pl_parse_int(task + 1, 0, INT32_MAX, &index, NULL) < 0))
        return pl_error_set(err, -EINVAL, "'%s' is not a job of Slurm, as 123 or 123_4", value);
    /* As squeue writes it: 123_4 for 123_04. */
    if (task)
        snprintf(name, sizeof(ps->ghosts.job_name), "%" PRId64 "_%" PRId64, number, index);
    else
        snprintf(name, sizeof(ps->ghosts.job_name), "%" PRId64, number);
    ps->ghosts.job = name;
    return 0;
}

static int set_follow(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;

    ps->log.follow = ps->log.given = true;
    return 0;
}

static int set_lines(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;

    ps->log.given = true;
    return pl_parse_int(value, 0, INT64_MAX, &ps->log.lines, err) < 0 ? -EINVAL : 0;
}

static int set_ranks(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;

    ps->log.given = true;
    ps->log.ranks = value;
    return pl_output_ranks_check(value, 0, err);
}

static int set_stream(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    static const char *const words[] = {
        [PL_LOG_BOTH] = "both", [PL_LOG_OUT] = "out", [PL_LOG_ERR] = "err", NULL};
    struct pl_plstat *ps = ctx;

    ps->log.given = true;
    return pl_parse_choice(value, words, &ps->log.stream, err);
}

static int
set_doctor_nodes(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;
    int64_t n;
    int r = pl_parse_int(value, 1, 65535, &n, err);

    if (r < 0)
        return -EINVAL; /* -ERANGE, too: a bad value is wrong usage */
    ps->doctor_nodes = (unsigned)n;
    return 0;
}

static int set_probe(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_plstat *ps = ctx;

    ps->probe = value;
    return 0;
}

static const struct pl_option options[] = {
    {"json", 'j', NULL, "Output",
     "print one JSON document, schema plstat/1; with --watch one per line",
     PL_OPTION_TRUE(struct pl_plstat, json)},
    {"watch", 'w', "[SEC]", NULL, "repeat the report every SEC seconds (2)",
     PL_OPTION_CALL(set_watch)},
    {"all", 'a', NULL, NULL, "also list older sweeps and ended jobs; with show: one line per rank",
     PL_OPTION_TRUE(struct pl_plstat, all)},
    {"color", 0, "WHEN", NULL, "auto (default: on a terminal without NO_COLOR), always or never",
     PL_OPTION_CALL(set_color)},
    {"check", 0, NULL, NULL, "exit with 1 if a trial or job shown has failed",
     PL_OPTION_TRUE(struct pl_plstat, check)},
    {"follow", 'f', NULL, "With log", "write lines as they come, until the trial has ended",
     PL_OPTION_CALL(set_follow)},
    {"lines", 'n', "N", NULL, "begin with the last N lines of each file",
     PL_OPTION_CALL(set_lines)},
    {"ranks", 0, "LIST", NULL, "these ranks, as in 0,4-7 (all)", PL_OPTION_CALL(set_ranks)},
    {"stream", 0, "NAME", NULL, "out, err or both (default)", PL_OPTION_CALL(set_stream)},
    {"nodes", 0, "N", "With doctor",
     "look at up to N nodes, by srun (2; inside a job: all of its nodes)",
     PL_OPTION_CALL(set_doctor_nodes)},
    {"probe", 0, "FILE", NULL,
     "doctor runs this on nodes: print the facts of this node, and a line of FILE",
     PL_OPTION_CALL(set_probe)},
    {"job", 0, "JOB", "With ghosts", "look at the nodes of this running job, by srun",
     PL_OPTION_CALL(set_job_number)},
    {"end", 0, NULL, NULL, "end the processes PID... of yours whose job has ended",
     PL_OPTION_TRUE(struct pl_plstat, ghosts.end)},
    {"yes", 0, NULL, NULL, "with --end: all of yours whose job has ended",
     PL_OPTION_TRUE(struct pl_plstat, ghosts.yes)},
    {"epilog", 0, NULL, NULL,
     "for slurmd's epilog: the processes that job SLURM_JOB_ID left behind",
     PL_OPTION_TRUE(struct pl_plstat, ghosts.epilog)},
    {0},
};

/* The table of commands: parsing and help come from it. */
static const struct command {
    const char *name; /* NULL: the command without a name */
    const char *arg;  /* NULL: no argument */
    const char *help;
    int (*run)(struct pl_plstat *ps, struct pl_error *err);
} commands[] = {
    {NULL, NULL, "your sweeps and jobs", pl_cmd_list},
    {"show", "JOB", "the ranks of a job: node, state, step, metrics, end", pl_cmd_show},
    {"sweep", "SWEEP", "the trials of a sweep: parameters, state, objective", pl_cmd_sweep},
    {"log", "JOB", "the output of a trial's ranks, also as it is written", pl_cmd_log},
    {"ghosts", NULL, "GPUs of this node, and processes that outlived their job", pl_cmd_ghosts},
    {"doctor", NULL, "Slurm, the plugin, names, clocks and releases of some nodes", pl_cmd_doctor},
    {"why", "JOB", "the first failure, with the last lines of that rank's stderr", pl_cmd_why},
};

/* A JOB or SWEEP without a command: which one it is depends on the word. */
static int run_any(struct pl_plstat *ps, struct pl_error *err);
static const struct command any = {"", "JOB", "a job as by show, a sweep as by sweep", run_any};

static const struct command *chosen;
static const char *chosen_name; /* for the document */

static int run_any(struct pl_plstat *ps, struct pl_error *err)
{
    return pl_cmd_any(ps, &chosen_name, err);
}

/* Commands of other tools, and of a user's first guess. */
static const struct {
    const char *word, *instead;
} others[] = {
    {"watch", "plstat show JOB --watch"},
    {"list", "plstat"},
    {"ls", "plstat"},
    {"status", "plstat show JOB"},
    {"logs", "plstat log JOB"},
    {"tail", "plstat log -f JOB"},
    {"output", "plstat log JOB"},
    {"cancel", "plsubmit --cancel SWEEP"},
    {"kill", "plsubmit --cancel SWEEP"},
    {"stop", "plsubmit --cancel SWEEP"},
    {"retry", "plsubmit --retry SWEEP"},
};

/* A word that is no command: a JOB, unless it is nearly a command's name. */
static int set_job(struct pl_plstat *ps, const char *word, struct pl_error *err)
{
    struct pl_near near = {.word = word};
    struct pl_target target;
    struct pl_error why = {0};
    int r = pl_target_find(word, &target, &why);

    if (r == 0) {
        pl_target_finish(&target);
        chosen = &any;
        ps->word = word;
        return 0;
    }
    if (strstr(pl_error_text(&why), " has no trial ")) /* it is a sweep */
        return pl_error_set(err, -EINVAL, "%s", pl_error_text(&why));
    for (size_t i = 1; i < PL_COUNT(commands); i++)
        pl_near_offer(&near, commands[i].name);
    if (near.best)
        return pl_error_set(err, -EINVAL, "unknown command '%s': did you mean %s?", word,
                            near.best);
    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (strcmp(word, others[i].word) == 0)
            return pl_error_set(err, -EINVAL, "'%s' is not a command: write %s", word,
                                others[i].instead);
    if (r != -ENOENT && r != -EINVAL) /* it may be one, and cannot be looked at */
        return pl_error_set(err, r, "%s", pl_error_text(&why));
    return pl_error_set(err, -EINVAL,
                        "'%s' is not a command, job, sweep or run folder: see plstat --help", word);
}

static int set_word(struct pl_plstat *ps, const char *word, struct pl_error *err)
{
    if (!chosen) {
        for (size_t i = 1; i < PL_COUNT(commands); i++)
            if (strcmp(word, commands[i].name) == 0) {
                chosen = &commands[i];
                return 0;
            }
        return set_job(ps, word, err);
    }
    if (chosen->run == pl_cmd_doctor)
        return pl_error_set(err, -EINVAL,
                            "unexpected argument '%s': plstat doctor takes no argument", word);
    if (chosen->run == pl_cmd_ghosts)
        return pl_strv_append(&ps->ghosts.pids, word) < 0 ? pl_error_nomem(err) : 0;
    if (ps->word)
        return pl_error_set(err, -EINVAL, "unexpected argument '%s': plstat%s%s takes one %s", word,
                            *chosen->name ? " " : "", chosen->name, chosen->arg);
    ps->word = word;
    return 0;
}

/* Options may stand before, between and after the words. */
static int parse(struct pl_plstat *ps,
                 const struct pl_command *command,
                 int argc,
                 char **argv,
                 bool *ret_done,
                 struct pl_error *err)
{
    bool only_words = false;
    int r = 0;

    while (r == 0) {
        int rest = 1;

        if (!only_words) {
            r = pl_options_parse(command, argc, argv, ps, &rest, ret_done, err);
            if (r < 0 || *ret_done)
                return r;
            only_words = rest > 1 && strcmp(argv[rest - 1], "--") == 0;
        }
        if (rest >= argc)
            break;
        r = set_word(ps, argv[rest], err);
        argv += rest;
        argc -= rest;
    }
    if (r == 0 && !chosen)
        chosen = &commands[0];
    if (r == 0 && chosen->run != pl_cmd_ghosts &&
        (ps->ghosts.job || ps->ghosts.end || ps->ghosts.yes || ps->ghosts.epilog))
        r = pl_error_set(err, -EINVAL,
                         "--job, --end, --yes and --epilog go with plstat ghosts only");
    if (r == 0 && chosen->run != pl_cmd_doctor && (ps->doctor_nodes || ps->probe))
        r = pl_error_set(err, -EINVAL, "--nodes and --probe go with plstat doctor only");
    if (r == 0 && chosen->run != pl_cmd_log && ps->log.given)
        r = pl_error_set(err, -EINVAL,
                         "--follow, --lines, --ranks and --stream go with plstat log only%s",
                         ps->log.follow ? ": write --watch to repeat a report" : "");
    if (r == 0 && chosen->run == pl_cmd_log && (ps->json || ps->watch))
        r = pl_error_set(err, -EINVAL, "plstat log takes no --%s%s", ps->json ? "json" : "watch",
                         ps->json ? "" : ": write --follow");
    if (r == 0 && !ps->doctor_nodes)
        ps->doctor_nodes = DOCTOR_NODES;
    if (r == 0 && chosen->arg && !ps->word)
        r = pl_error_set(err, -EINVAL, "plstat %s needs a %s: a job id, a sweep or a run folder",
                         chosen->name, chosen->arg);
    return r;
}

static int exit_code(int r)
{
    switch (r) {
    case -EINVAL:
        return PL_EXIT_USAGE;
    case -ENOENT:
        return PL_EXIT_NOT_FOUND;
    case -EACCES:
    case -EPERM:
    case -EHOSTUNREACH:
    case -ETIMEDOUT:
        return PL_EXIT_PARTIAL;
    default:
        return PL_EXIT_FAILED;
    }
}

/* Prints notes to stderr, with --watch below the report. */
static void put_notes(struct pl_plstat *ps)
{
    const json_t *note;
    size_t i;

    if (ps->json)
        return;
    json_array_foreach (ps->notes.list, i, note) {
        if (ps->watch)
            pl_plstat_line(ps, PL_TERM_YELLOW, "? %s", json_string_value(note));
        else
            pl_term_complain(stderr, "plstat", json_string_value(note));
    }
}

/* --watch 5: the number is a JOB, which an optional value of an option is not. */
static void hint_watch(const char *word, struct pl_error *err)
{
    int64_t seconds;
    struct pl_error why = *err;

    if (bare_watch && word && pl_parse_int(word, 1, 3600, &seconds, NULL) == 0)
        pl_error_set(err, why.code, "%s; for a report every %s seconds write --watch=%s",
                     pl_error_text(&why), word, word);
}

/* Makes one report in ps->text; returns an exit code. */
static int report(struct pl_plstat *ps)
{
    _cleanup_(pl_buf_finish) struct pl_buf document = {0};
    struct pl_error err = {0};
    int r;

    pl_plstat_reset(ps);
    ps->columns = pl_term_columns(stdout);
    ps->wrap = isatty(STDOUT_FILENO) || pl_env_text(PL_ENV_COLUMNS);
    ps->color = pl_term_use_color(ps->color_choice, stdout);
    r = chosen->run(ps, &err);
    if (r < 0)
        hint_watch(ps->word, &err);
    if (r == 0 && ps->json) {
        r = pl_plstat_json_finish(&ps->doc,
                                  chosen == &any ? chosen_name
                                  : chosen->name ? chosen->name
                                                 : "list",
                                  &ps->notes);
        if (r == 0)
            r = pl_json_dump_line(ps->doc, &document);
        if (r == 0)
            r = pl_term_escape_json(&ps->text, document.data, document.len);
        if (r < 0)
            pl_error_set(&err, r, "cannot make the document");
    }
    if (pl_json_had_no_memory() && r == 0) {
        r = pl_error_set(&err, -ENOMEM, "out of memory: the report would lack a part");
        ps->text.len = 0;
    }
    if (r < 0) {
        if (ps->rounds++ && !ps->json) /* stderr would break the screen */
            pl_plstat_line(ps, PL_TERM_YELLOW, "? %s", pl_error_text(&err));
        else
            pl_term_complain(stderr, "plstat", pl_error_text(&err));
        return exit_code(r);
    }
    ps->rounds++;
    put_notes(ps);
    if (ps->check && ps->any_failure)
        return PL_EXIT_FAILED;
    return ps->notes.partial ? PL_EXIT_PARTIAL : PL_EXIT_OK;
}

/* Options of squeue, sacct and tail. */
static int explain(const char *word, struct pl_error *err)
{
    static const struct {
        const char *name, *text;
    } habits[] = {
        {"--tail", "write --lines N"},
        {"--iterate", "write --watch=SEC"},
        {"-u", "it shows your own sweeps and jobs; squeue -u USER shows those of habits"},
        {"--user", "it shows your own sweeps and jobs; squeue --user USER shows those of habits"},
        {"--me", "it shows your own sweeps and jobs: omit it"},
        {"-o", "write --json for programs"},
        {"--format", "write --json for programs"},
        {"--csv", "write --json for programs"},
        {"--sort", "trials stand by their numbers, and * marks the best; write --json to sort"},
    };

    for (size_t i = 0; i < PL_COUNT(habits); i++)
        if (strcmp(word, habits[i].name) == 0)
            return pl_error_set(err, -EINVAL, "unknown option '%s': %s", word, habits[i].text);
    return 0;
}

/* Makes the usage lines from the table of commands. */
static void make_synopsis(char *ret, size_t size)
{
    size_t at = 0;

    for (size_t i = 0; i < PL_COUNT(commands) && at < size; i++)
        at +=
            (size_t)snprintf(ret + at, size - at, "%s%s%s[OPTIONS]%s%s", i ? "\n" : "",
                             commands[i].name ? commands[i].name : "", commands[i].name ? " " : "",
                             commands[i].arg ? " " : "", commands[i].arg ? commands[i].arg : "");
}

static void make_footer(char *ret, size_t size)
{
    size_t at = (size_t)snprintf(ret, size, "Commands:\n");

    for (size_t i = 0; i < PL_COUNT(commands) && at < size; i++)
        at += (size_t)snprintf(ret + at, size - at, "%s: %s\n",
                               commands[i].name ? commands[i].name : "(none)", commands[i].help);
    if (at < size)
        snprintf(ret + at, size - at,
                 "\nJOB is 123, 123_4, SWEEP, SWEEP/TRIAL or a run folder. Exit codes: 0 ok, "
                 "1 failed (with --check), 2 usage, 3 nothing matched, 4 data is missing.");
}

int main(int argc, char **argv)
{
    struct pl_plstat ps = {.interval_s = 2, .log.lines = -1};
    struct pl_error err = {0};
    char synopsis[1024], footer[1024];
    struct pl_command command = {
        .name = "plstat",
        .synopsis = synopsis,
        .summary = "Shows sweeps, jobs and their ranks, and the first failure of a job.",
        .footer = footer,
        .options = options,
        .explain = explain,
    };
    bool done = false;
    int r;

    setlocale(LC_CTYPE, "");
    pl_std_open();
    pl_child_init();
    pl_log_init("plstat");
    pl_trace_init("plstat");
    make_synopsis(synopsis, sizeof(synopsis));
    make_footer(footer, sizeof(footer));
    if (pl_slurm_conf_readable()) /* libslurm asks this host's cluster: so do Slurm's commands */
        unsetenv("SLURM_CLUSTERS");
    r = pl_site_load(&err);
    if (r == 0)
        r = parse(&ps, &command, argc, argv, &done, &err);
    if (r < 0) {
        pl_term_complain(stderr, "plstat", pl_error_text(&err));
        r = exit_code(r);
    } else if (done) {
        r = PL_EXIT_OK;
    } else if (ps.watch) {
        r = pl_plstat_watch(&ps, report);
    } else {
        r = report(&ps);
        if (pl_plstat_write(pl_buf_str(&ps.text), ps.text.len) < 0) {
            pl_term_complain(stderr, "plstat", "cannot write the report");
            r = PL_EXIT_FAILED;
        }
    }
    pl_plstat_reset(&ps);
    pl_strv_free(ps.ghosts.pids);
    return r;
}
