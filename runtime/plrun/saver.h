/* SPDX-License-Identifier: MIT */
/* PLUME_SAVE_COMMAND: between plrun, or slurmstepd, and a rank's program stands a process that
 * takes Slurm's signals and runs the user's command to save.
 *
 *   USR1, USR2:  the command runs; the program does not get the signal, and runs on
 *   TERM:        the command runs; when it has ended, the program gets the signal
 *   any other, and any that Plume sends to end a rank:  the program gets it at once */
#ifndef PL_RUNTIME_PLRUN_SAVER_H
#define PL_RUNTIME_PLRUN_SAVER_H

/* Runs the program in the calling process. Returns the exit code if it cannot. */
typedef int (*pl_saver_exec_f)(char *const *argv);

/* Runs the program until its end, and the command at each signal to save.
 * Returns the program's exit code. If a signal has ended the program, it ends this process, too.
 * 126: there is no process for the program. */
int pl_saver_run(const char *command, char *const *argv, pl_saver_exec_f exec);

#endif
