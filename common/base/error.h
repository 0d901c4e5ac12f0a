/* SPDX-License-Identifier: MIT */
/* The error object: a negative errno and one line of text for a person.
 *
 * Functions return 0 or a negative errno. The one that finds the problem sets the text once with
 * pl_error_set(); callers may put context in front with pl_error_wrap(). The program that handles
 * the error prints it once. Idea: crun's libcrun_error_t, flux's errprintf. */
#ifndef PL_COMMON_BASE_ERROR_H
#define PL_COMMON_BASE_ERROR_H

#include "common/base/macros.h"

/* Exit codes of all tools; the table stands in every man page. */
enum pl_exit {
    PL_EXIT_OK = 0,
    PL_EXIT_FAILED = 1,
    PL_EXIT_USAGE = 2,
    PL_EXIT_NOT_FOUND = 3,
    PL_EXIT_PARTIAL = 4,
    PL_EXIT_TRY_AGAIN = 75,
    PL_EXIT_INTERRUPTED = 130,
};

#define PL_ERROR_TEXT_MAX 1024

struct pl_error {
    int code;                     /* negative errno, 0 when nothing failed */
    char text[PL_ERROR_TEXT_MAX]; /* no newline at the end, lower case, no full stop */
};

/* Sets code and text. err may be NULL. code may be given as errno or -errno.
 * Returns the negative code, so that `return pl_error_set(...)` is one line. Keeps errno. */
int pl_error_set(struct pl_error *err, int code, const char *fmt, ...) PL_PRINTF(3, 4);

/* As pl_error_set(), with ": " and the errno's own words at the end. */
int pl_error_errno(struct pl_error *err, int code, const char *fmt, ...) PL_PRINTF(3, 4);

/* Sets -ENOMEM with the text "out of memory". */
int pl_error_nomem(struct pl_error *err);

/* Puts "context: " in front of the text that is there. Returns the negative code. */
int pl_error_wrap(struct pl_error *err, int code, const char *fmt, ...) PL_PRINTF(3, 4);

/* The text, or the errno's own words when none was set. Never NULL. */
const char *pl_error_text(const struct pl_error *err);

#endif
