/* SPDX-License-Identifier: MIT */
/* Shared by plstat's commands: options, screen and report. A command makes either text or one JSON
 * document; main_plstat.c and watch.c print it. */
#ifndef PL_LAUNCHER_PLSTAT_PLSTAT_H
#define PL_LAUNCHER_PLSTAT_PLSTAT_H

#include "common/base/buf.h"
#include "common/base/term.h"
#include "launcher/plstat/find.h"
#include "launcher/plstat/status.h"

struct pl_ghosts_options {
    const char *job;       /* look at the nodes of this job; NULL: at this node */
    char job_name[36];     /* its text */
    bool end, yes, epilog; /* yes: end without a list of PIDs */
    char **pids;           /* NULL: none */
};

struct pl_log_options {
    bool follow, given; /* given: an option of log is there */
    int64_t lines;      /* -1: all */
    const char *ranks;  /* NULL: all */
    int stream;         /* enum pl_log_stream */
};

enum pl_log_stream {
    PL_LOG_BOTH,
    PL_LOG_OUT,
    PL_LOG_ERR,
};

struct pl_plstat {
    /* options */
    struct pl_ghosts_options ghosts;
    struct pl_log_options log;
    unsigned doctor_nodes; /* --nodes of doctor */
    const char *probe;     /* --probe of doctor; NULL: not given */
    bool json, check, all, watch;
    double interval_s;
    enum pl_term_color color_choice;
    const char *word; /* JOB or SWEEP; NULL: none */
    /* the screen */
    size_t columns;
    bool color, wrap; /* wrap: long quotations are broken at the screen's width */
    /* one report; pl_plstat_reset() before the next */
    struct pl_slurm_view slurm;
    struct pl_notes notes;
    struct pl_buf text; /* the report as text */
    json_t *doc;        /* or as JSON */
    bool any_failure;   /* a trial or job shown has failed */
    unsigned rounds;    /* reports so far */
};

/* The commands, each in its own file. Return 0, -ENOENT (nothing matched), -EINVAL (usage), ...;
 * err is the message for the user. */
int pl_cmd_doctor(struct pl_plstat *ps, struct pl_error *err);
int pl_cmd_ghosts(struct pl_plstat *ps, struct pl_error *err);
int pl_cmd_list(struct pl_plstat *ps, struct pl_error *err);
int pl_cmd_log(struct pl_plstat *ps, struct pl_error *err);
int pl_cmd_show(struct pl_plstat *ps, struct pl_error *err);
int pl_cmd_sweep(struct pl_plstat *ps, struct pl_error *err);
int pl_cmd_why(struct pl_plstat *ps, struct pl_error *err);

/* Reports a JOB as pl_cmd_show() does, or a sweep of several trials as pl_cmd_sweep(). *ret_name is
 * the name of that command. */
int pl_cmd_any(struct pl_plstat *ps, const char **ret_name, struct pl_error *err);

void pl_plstat_reset(struct pl_plstat *ps);

/* The parts in which show, sweep and why differ. */
struct pl_job_report {
    bool ranks;  /* collect the ranks of each trial */
    bool settle; /* as JSON, tell which trials Slurm may start again */
    /* Reports a run. -ENOMEM. */
    int (*run)(struct pl_plstat *ps, const struct pl_run_status *s);
    /* Reports a job that only Slurm knows. -ENOMEM. NULL: such a job is an error. */
    int (*slurm_job)(struct pl_plstat *ps, const struct pl_slurm_job *job);
};

/* Finds ps->word, collects its status and reports it. Sets ps->any_failure if a trial shown failed.
 * -ENOENT: neither the index nor Slurm knows the job, or it is not a sweep. -EACCES: its run folder
 * is unreadable. -EHOSTUNREACH: the index does not know it and Slurm does not answer. */
int pl_plstat_report_job(struct pl_plstat *ps,
                         const struct pl_job_report *report,
                         struct pl_error *err);

/* Finds ps->word. *ret_job is Slurm's record if no run is known for it; ret->run is NULL then. The
 * caller finishes ret. Errors as pl_plstat_report_job(). */
int pl_plstat_find_job(struct pl_plstat *ps,
                       struct pl_target *ret,
                       const struct pl_slurm_job **ret_job,
                       struct pl_error *err);

/* Makes doc the report; takes the reference. -ENOMEM for NULL. */
int pl_plstat_document(struct pl_plstat *ps, json_t *doc);

/* Notes that the report has Slurm's record of the job only. */
void pl_plstat_note_slurm_only(struct pl_plstat *ps, bool partial);

/* Appends one line of text in a style: escaped, and cut at the screen's width with '+'. */
int pl_plstat_line(struct pl_plstat *ps, enum pl_term_style style, const char *fmt, ...)
    PL_PRINTF(3, 4);

/* As pl_plstat_line(), but wraps the text on a terminal and never cuts it; each line has an indent.
 */
int pl_plstat_text(struct pl_plstat *ps, size_t indent, const char *text);

/* Adds the line of pl_words_earlier(), if there is one. */
int pl_plstat_earlier(struct pl_plstat *ps, const struct pl_trial_status *ts);

/* Adds a line for each node of the trial that Slurm has drained or given up. */
int pl_plstat_node_reasons(struct pl_plstat *ps, const struct pl_trial_status *ts);

/* Writes all of it to stdout, also where another process has made that non-blocking. -errno. */
int pl_plstat_write(const char *data, size_t len);

/* Repeats `report` until a signal or 'q'; returns an exit code. */
int pl_plstat_watch(struct pl_plstat *ps, int (*report)(struct pl_plstat *ps));

#endif
