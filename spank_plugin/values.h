/* SPDX-License-Identifier: MIT */
/* What the options' values must look like, and foreign text. Pure text, no Slurm. */
#ifndef PL_SPANK_PLUGIN_VALUES_H
#define PL_SPANK_PLUGIN_VALUES_H

#include "common/base/error.h"

/* Replaces in place what could harm a terminal or tear a message: control and bidirectional
 * characters and bytes that are no UTF-8 become '?'. */
void pl_values_make_printable(char *text);

/* NCCL_DEBUG's levels, in any case; *ret is a constant in NCCL's spelling. -EINVAL. */
int pl_values_nccl_debug(const char *s, const char **ret, struct pl_error *err);

/* A port or LO-HI. -EINVAL, -ERANGE. */
int pl_values_master_port(const char *s, struct pl_error *err);

/* NAME=REGEX, or several, one a line; REGEX is a POSIX extended expression. -EINVAL. */
int pl_values_metric(const char *s, struct pl_error *err);

/* Adds the lines of `entries` to *list (NULL is an empty one; lines NAME=REGEX); a name that is
 * there gets the new expression, so that adding twice changes nothing. -ENOMEM leaves *list. */
int pl_values_metric_add(char **list, const char *entries);

#endif
