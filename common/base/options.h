/* SPDX-License-Identifier: MIT */
/* Command lines from one table: it drives parsing, --help (at most 80 columns, on stdout), shell
 * completion and the check that each option stands in the man page. Every tool has --help and
 * --version by itself; they need not be in the table. */
#ifndef PL_COMMON_BASE_OPTIONS_H
#define PL_COMMON_BASE_OPTIONS_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_option {
    const char *name;  /* long name without "--"; NULL ends the table */
    char short_name;   /* 0 = none */
    const char *arg;   /* what --help calls the argument; NULL = takes none; "[X]": may be left out,
                          so it must stand in the same word: --name=X, -nX */
    const char *group; /* heading in --help; NULL = the same as the entry before */
    const char *help;  /* one sentence, lower case; NULL = not shown */
    int id;            /* the caller's own */
};

struct pl_command {
    const char *name;     /* program name */
    const char *synopsis; /* behind the name, e.g. "[OPTIONS] [--] [PROGRAM [ARG...]]"; lines split
                             by '\n' are alternatives */
    const char *summary;  /* one or two sentences */
    const char *footer;   /* shown last in --help; may be NULL */
    const struct pl_option *options;
};

/* Called for each option in the order given; value is NULL where it takes none. */
typedef int (*pl_option_f)(void *ctx,
                           const struct pl_option *option,
                           const char *value,
                           struct pl_error *err);

/* Parses until the first word that is no option, or "--". Names must be whole.
 * ret_rest  index in argv of the first word left (argc where none is)
 * ret_done  true where --help or --version was given and printed: the caller exits with 0
 * Returns 0, -EINVAL (unknown option, missing or superfluous value) or what `set` returned. */
int pl_options_parse(const struct pl_command *command,
                     int argc,
                     char **argv,
                     pl_option_f set,
                     void *ctx,
                     int *ret_rest,
                     bool *ret_done,
                     struct pl_error *err);

/* The option that a word ("--name", "--name=value", "-x") means; NULL where there is none. */
const struct pl_option *pl_options_find(const struct pl_command *command, const char *word);

/* Writes the help text. Returns 0 or -errno of the stream. */
int pl_options_help(const struct pl_command *command, FILE *out);

/* The release, "X.Y.Z". */
const char *pl_version(void);

#endif
