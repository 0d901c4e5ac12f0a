/* SPDX-License-Identifier: MIT */
/* Calls that this project does not make, each with what to use instead. Included by the build into
 * every C file (-include), so that a use does not compile. Idea: git's banned.h. */
#ifndef PL_COMMON_BASE_BANNED_H
#define PL_COMMON_BASE_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With _FORTIFY_SOURCE and clang these two are macros of the C library. */
#undef sprintf
#undef vsprintf

#pragma GCC poison strcpy strcat sprintf vsprintf gets /* snprintf, struct pl_buf */
#pragma GCC poison atoi atol atoll atof strtok         /* pl_parse_*() */
#pragma GCC poison system popen mktemp tmpnam          /* fork and exec an argument vector */

#endif
