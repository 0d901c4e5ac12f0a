/* SPDX-License-Identifier: MIT */
/* Lists of strings that a NULL ends, as argv and environ are. NULL is an empty list. */
#ifndef PL_COMMON_BASE_STRV_H
#define PL_COMMON_BASE_STRV_H

#include "common/base/macros.h"

/* Frees the list and its strings. */
void pl_strv_free(char **list);
PL_DEFINE_CLEANUP(char **, pl_strv_free)

/* Appends a copy of text. -ENOMEM leaves the list as it was. */
int pl_strv_append(char ***list, const char *text);

#endif
