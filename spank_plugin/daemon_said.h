/* SPDX-License-Identifier: MIT */
/* plrund's stderr is a pipe to slurmstepd. This reads plrund's warnings from it, for the user. No
 * Slurm in here. */
#ifndef PL_SPANK_PLUGIN_DAEMON_SAID_H
#define PL_SPANK_PLUGIN_DAEMON_SAID_H

/* Lines of one node and step; the user can write what he likes to that pipe. */
#define PL_DAEMON_SAID_MAX 32u

/* Makes the pipe; neither end blocks. 0, -errno. */
int pl_daemon_said_open(int ret[2]);

/* Calls show() for each line that has come, without "plrund: " and made printable; for at most
 * *left lines, and then once more to say that there are others. Never waits for a line. Waits for a
 * second until `to`, where show() writes, takes one; if it does not, no more lines are shown, and
 * *left is 0. fd < 0: nothing. */
void pl_daemon_said_read(int fd, int to, unsigned *left, void (*show)(const char *line));

#endif
