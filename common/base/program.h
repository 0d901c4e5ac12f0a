/* SPDX-License-Identifier: MIT */
/* Programs by PATH, as execvp(3) finds them. */
#ifndef PL_COMMON_BASE_PROGRAM_H
#define PL_COMMON_BASE_PROGRAM_H

#include <stdbool.h>

/* True for a regular file that we may execute. */
bool pl_program_is(const char *path);

/* Looks for a name without '/' in PATH. *ret is absolute and keeps links, since a virtual
 * environment is found by them; NULL where nothing is found. The caller frees it. -ENOMEM. */
int pl_program_search(const char *name, char **ret);

#endif
