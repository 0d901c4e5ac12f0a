/* SPDX-License-Identifier: MIT */
/* Terminal-safe printing. Every string that we did not write ourselves (names, values, output of
 * ranks, Slurm's words) goes through pl_term_escape() on its way to a terminal. */
#ifndef PL_COMMON_BASE_TERM_H
#define PL_COMMON_BASE_TERM_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stdio.h>

/* Appends s so that it can change nothing but the text it stands in: C0 and C1 controls and DEL as
 * \xNN (\n, \t, \r, \e by their names), bidirectional controls, zero-width and other invisible
 * characters as \u{NNNN}, bytes that are no UTF-8 as \xNN. A backslash stays as it is: the result
 * is for reading, not for parsing back. -ENOMEM. */
int pl_term_escape(struct pl_buf *out, const char *s, size_t len);

/* Appends a JSON text with the same characters as \uNNNN: the same document, which may be shown on
 * a terminal, too. -ENOMEM. */
int pl_term_escape_json(struct pl_buf *out, const char *json, size_t len);

/* Columns of s after escaping (wcwidth of a UTF-8 locale, whatever the current locale is). */
size_t pl_term_width(const char *s);

/* Appends s, escaped, in exactly `width` columns: padded with blanks (in front where `right`),
 * and where it is too long cut, with '+' as the last column, if `truncate`; else it stands whole.
 */
int pl_term_cell(struct pl_buf *out, const char *s, size_t width, bool right, bool truncate);

/* Writes the line "program: text" with text escaped, in one write, for error messages. Embedded
 * newlines become `\n`. */
void pl_term_complain(FILE *out, const char *program, const char *text);

enum pl_term_color {
    PL_TERM_COLOR_AUTO, /* on a terminal, unless NO_COLOR is set (not empty) or TERM=dumb */
    PL_TERM_COLOR_ALWAYS,
    PL_TERM_COLOR_NEVER,
};

/* --color=auto|always|never. 0 or -EINVAL. */
int pl_term_color_parse(const char *s, enum pl_term_color *ret);

/* True if the stream takes colour. */
bool pl_term_use_color(enum pl_term_color choice, FILE *out);

/* Columns of the stream's terminal; without a terminal $COLUMNS, else 80. */
size_t pl_term_columns(FILE *out);

enum pl_term_style {
    PL_TERM_PLAIN,
    PL_TERM_BOLD,
    PL_TERM_DIM,
    PL_TERM_RED,
    PL_TERM_GREEN,
    PL_TERM_YELLOW,
    PL_TERM_CYAN,
};

/* The escape sequence that starts a style ("" where `on` is false); PL_TERM_PLAIN ends it. */
const char *pl_term_style(enum pl_term_style style, bool on);

#endif
