/* SPDX-License-Identifier: MIT */
/* Programs by PATH, as execvp(3) finds them. */
#ifndef PL_COMMON_BASE_PROGRAM_H
#define PL_COMMON_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* True for a regular file that we may execute. */
bool pl_program_is(const char *path);

/* Looks for a name without '/' in PATH. *ret is absolute and keeps links, since a virtual
 * environment is found by them; NULL where nothing is found. The caller frees it. -ENOMEM. */
int pl_program_search(const char *name, char **ret);

/* The interpreter in the #! line of a file, without its argument; false if the file has no such
 * line, or cannot be read.
 * ret     the interpreter, up to a control character and cut to `size` bytes
 * ret_cr  the line ends with CR LF, as on Windows: the kernel takes the CR for a part of it */
bool pl_program_interpreter(const char *path, char *ret, size_t size, bool *ret_cr);

/* Why execvp(3) could not start a program, and what to do; strerror() alone names neither a missing
 * interpreter nor a missing mode.
 * name   as execvp() got it
 * error  its errno
 * ret    the text, cut to `size` bytes */
void pl_program_why(const char *name, int error, char *ret, size_t size);

#endif
