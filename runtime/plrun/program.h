/* SPDX-License-Identifier: MIT */
/* The program of a rank: its environment, its container, and exec. */
#ifndef PL_RUNTIME_PLRUN_PROGRAM_H
#define PL_RUNTIME_PLRUN_PROGRAM_H

/* Becomes the program. On failure writes a message to fd 2 and returns the exit code: 127 (no such
 * program) or 126. Does not log; safe in a forked child. */
int pl_program_exec(char *const *argv);

#endif
