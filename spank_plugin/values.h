/* SPDX-License-Identifier: MIT */
/* Checks of the options' values, and of foreign text. Pure text, no Slurm. */
#ifndef PL_SPANK_PLUGIN_VALUES_H
#define PL_SPANK_PLUGIN_VALUES_H

#include "common/base/error.h"

/* Replaces in place what could harm a terminal or tear a message: control and bidirectional
 * characters and bytes that are no UTF-8 become '?'. */
void pl_values_make_printable(char *text);

/* A port or LO-HI. -EINVAL, -ERANGE. */
int pl_values_master_port(const char *s, struct pl_error *err);

/* "warn" or "kill". -EINVAL. */
int pl_values_on_hang(const char *s, struct pl_error *err);

/* Bytes of an option's value. */
#define PL_VALUES_MAX 16384

/* Replaces *slot by a copy of s, which nothing else looks at: all that slurmstepd, as root, does
 * with a text that the daemon checks. -E2BIG and -ENOMEM leave *slot. */
int pl_values_copy(const char *s, char **slot, struct pl_error *err);

/* NAME=REGEX, or several, one a line; compiles each, so only in the user's own command: a changed
 * one calls slurmstepd without it. -EINVAL, -E2BIG. */
int pl_values_metric(const char *s, struct pl_error *err);

/* Adds the lines of `entries` to *list (NULL is an empty one; lines NAME=REGEX); a name that is
 * there gets the new expression, so that adding twice changes nothing. -ENOMEM leaves *list. */
int pl_values_metric_add(char **list, const char *entries);

#endif
