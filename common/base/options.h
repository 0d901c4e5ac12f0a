/* SPDX-License-Identifier: MIT */
/* Command lines from one table: it drives parsing, --help (at most 80 columns, on stdout), shell
 * completion and the check that each option stands in the man page. Every tool has --help and
 * --version by itself; they need not be in the table. */
#ifndef PL_COMMON_BASE_OPTIONS_H
#define PL_COMMON_BASE_OPTIONS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pl_option;

/* Stores one value. ctx is the caller's struct; value is NULL if the option takes none. The parser
 * puts "--NAME: " in front of an error. */
typedef int (*pl_option_f)(void *ctx,
                           const struct pl_option *option,
                           const char *value,
                           struct pl_error *err);

/* The place and the type of an option's value. Rows use the PL_OPTION_* macros below, which check
 * the member's type at compile time. A row without a target does not compile
 * (-Werror=missing-field-initializers). */
struct pl_option_target {
    pl_option_f set;
    size_t at;                /* offset of the member in ctx */
    int64_t min, max;         /* of a number */
    const char *const *words; /* of a choice; NULL ends the list */
    int key;                  /* for a `set` of the caller's own, as is `check` */
    int (*check)(const char *value, struct pl_error *err);
};

struct pl_option {
    const char *name; /* long name without "--"; NULL ends the table */
    char short_name;  /* 0 = none */
    const char *arg;  /* placeholder in --help; NULL = no argument; "[X]" = optional argument, which
                         must be in the same word: --name=X, -nX */
    const char *group; /* heading in --help; NULL = the same as in the row above */
    const char *help;  /* one sentence, lower case; NULL = hidden */
    struct pl_option_target target;
};

#define PL_OPTION_IS(type, member, want)                                                           \
    __builtin_types_compatible_p(__typeof__(((type *)0)->member), want)
#define PL_OPTION_AT(type, member, is) (offsetof(type, member) + 0 * sizeof(char[(is) ? 1 : -1]))

/* bool: true (or false) if the option is given. No argument. */
#define PL_OPTION_TRUE(type, member)                                                               \
    {                                                                                              \
        .set = pl_option_set_true,                                                                 \
        .at = PL_OPTION_AT(type, member, PL_OPTION_IS(type, member, bool))                         \
    }
#define PL_OPTION_FALSE(type, member)                                                              \
    {                                                                                              \
        .set = pl_option_set_false,                                                                \
        .at = PL_OPTION_AT(type, member, PL_OPTION_IS(type, member, bool))                         \
    }

/* const char *: borrows the word of argv. */
#define PL_OPTION_STRING(type, member)                                                             \
    {                                                                                              \
        .set = pl_option_set_string,                                                               \
        .at = PL_OPTION_AT(type, member, PL_OPTION_IS(type, member, const char *))                 \
    }

/* int, int64_t or uint64_t in [low, high]. */
#define PL_OPTION_INT(type, member, low, high)                                                     \
    {                                                                                              \
        .set = PL_OPTION_IS(type, member, int) ? pl_option_set_int : pl_option_set_int64,          \
        .at =                                                                                      \
            PL_OPTION_AT(type, member,                                                             \
                         PL_OPTION_IS(type, member, int) || PL_OPTION_IS(type, member, int64_t) || \
                             (PL_OPTION_IS(type, member, uint64_t) && (low) >= 0)),                \
        .min = (low), .max = (high)                                                                \
    }

/* double: finite and at least low, a whole number. */
#define PL_OPTION_REAL(type, member, low)                                                          \
    {                                                                                              \
        .set = pl_option_set_real,                                                                 \
        .at = PL_OPTION_AT(type, member, PL_OPTION_IS(type, member, double)), .min = (low)         \
    }

/* An enum or int: the index of the value in `list`, which ends with NULL. */
#define PL_OPTION_CHOICE(type, member, list)                                                       \
    {                                                                                              \
        .set = pl_option_set_choice,                                                               \
        .at = PL_OPTION_AT(type, member,                                                           \
                           sizeof(((type *)0)->member) == sizeof(int) &&                           \
                               !PL_OPTION_IS(type, member, float)),                                \
        .words = (list)                                                                            \
    }

/* A member of type `want`: `function` stores the value at target.at. */
#define PL_OPTION_MEMBER(type, member, want, function)                                             \
    {                                                                                              \
        .set = (function), .at = PL_OPTION_AT(type, member, PL_OPTION_IS(type, member, want))      \
    }

/* Anything else: `function` stores the value. */
#define PL_OPTION_CALL(function)                                                                   \
    {                                                                                              \
        .set = (function)                                                                          \
    }

int pl_option_set_true(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_option_set_false(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_option_set_string(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_option_set_int(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_option_set_int64(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_option_set_real(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_option_set_choice(void *, const struct pl_option *, const char *, struct pl_error *);

/* *ret = the index of value in words, which end with NULL. -EINVAL, with the words listed. */
int pl_parse_choice(const char *value, const char *const *words, int *ret, struct pl_error *err);

struct pl_command {
    const char *name;     /* program name */
    const char *synopsis; /* after the name, e.g. "[OPTIONS] [--] [PROGRAM [ARG...]]"; '\n'
                             separates alternatives */
    const char *summary;  /* one or two sentences */
    const char *footer;   /* shown last in --help; may be NULL */
    const struct pl_option *options;
    bool underscores; /* '_' stands for '-' in long names */
    /* May be NULL. Sets err and returns its code if `word` ("--name" or "-x") is an option of
     * another program that users type out of habit; else 0. */
    int (*explain)(const char *word, struct pl_error *err);
    /* May be NULL. After option `name` has refused `value`: replaces err's text if another program
     * has the value under another name. */
    void (*explain_value)(const char *name, const char *value, struct pl_error *err);
};

/* Parses until the first word that is not an option, or "--", and stores each value in its target.
 * Names must be whole.
 * ctx       the struct that the table's targets name
 * ret_rest  index in argv of the first word left; argc if none is left
 * ret_done  true if --help or --version was given and printed: the caller exits with 0
 * Returns 0, -EINVAL (unknown option, missing or superfluous value), -ENOTSUP (a defect of the
 * table, see pl_options_check) or the error of a target. */
int pl_options_parse(const struct pl_command *command,
                     int argc,
                     char **argv,
                     void *ctx,
                     int *ret_rest,
                     bool *ret_done,
                     struct pl_error *err);

/* Checks a table: each row has a target, targets that take a value have `arg`, no name occurs
 * twice. 0 or -ENOTSUP. pl_options_parse() calls it, so any run of a tool finds a defect. */
int pl_options_check(const struct pl_command *command, struct pl_error *err);

/* The option of a word ("--name", "--name=value", "-x"); NULL if there is none. */
const struct pl_option *pl_options_find(const struct pl_command *command, const char *word);

/* Writes the help text. Returns 0 or -errno of the stream. */
int pl_options_help(const struct pl_command *command, FILE *out);

/* The release, "X.Y.Z". */
const char *pl_version(void);

#endif
