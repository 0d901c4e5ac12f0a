/* SPDX-License-Identifier: MIT */
/* A process of another parent, which is waited for and killed without mistaking it for a later one
 * with the same pid. */
#ifndef PL_COMMON_BASE_PROCESS_H
#define PL_COMMON_BASE_PROCESS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pl_process {
    pid_t pid;      /* 0: none */
    int pidfd;      /* -EBADF where the kernel has no pidfd_open(2) (before Linux 5.3) */
    uint64_t start; /* its start time, see proc(5); 0 where /proc does not show it */
};

#define PL_PROCESS_INIT                                                                            \
    {                                                                                              \
        .pidfd = -EBADF                                                                            \
    }

struct pl_process_stat {
    char state; /* 'R', 'S', 'T', 'Z', ... */
    pid_t parent;
    pid_t thread;   /* the process's number; that of another thread if the first one has ended */
    bool kernel;    /* a thread of the kernel's */
    bool exiting;   /* it runs no program any more, and nothing but its end follows */
    bool bare;      /* its program was started with an empty environment */
    uint64_t start; /* clock ticks from boot to its start; never 0 */
    char name[32];  /* the kernel's name of it, which the process may change */
};

/* Reads /proc/PID/stat (proc(5)). A process whose first thread has ended is no zombie while others
 * run: the facts are those of one that does, and its files in /proc, as the environment, are at
 * /proc/THREAD. 0, -ESRCH (it is gone), or -errno (it cannot be seen). */
int pl_process_stat(pid_t pid, struct pl_process_stat *ret);

/* False only if this signal ends the process for certain: it has its default action, and the
 * process does not block it. Of a process that has ended and is not reaped: whether that was so at
 * its end.
 */
bool pl_process_may_survive(pid_t pid, int sig);

/* The pid of a process by its descriptor (pidfd); 0: it has ended, or cannot be seen. */
pid_t pl_process_of_pidfd(int pidfd);

/* Takes a handle on a process that cannot end before this returns. */
void pl_process_open(struct pl_process *process, pid_t pid);
void pl_process_close(struct pl_process *process);

/* Waits for its end until limit_ns (pl_now_ns()). 0, -ETIMEDOUT, -ESRCH where nothing identifies it
 * any more. */
int pl_process_wait(const struct pl_process *process, uint64_t limit_ns);

/* Sends a signal. 0, also where it has ended; -ESRCH where nothing identifies it, other -errno. */
int pl_process_signal(const struct pl_process *process, int sig);

/* Sends SIGKILL; the rest as above. */
int pl_process_kill(const struct pl_process *process);

/* Sends a signal by which Plume ends a rank, or passes on another process's order to do so: a rank
 * that saves at Slurm's signals tells them apart by pl_process_is_order(). fd: a pidfd; -1: pid
 * counts. 0 or -errno. */
int pl_process_order(int fd, pid_t pid, int sig);

/* The name that the process over a rank's program has (PR_SET_NAME) while PLUME_SAVE_COMMAND runs,
 * which has a limit of its own; and whether the process has it. */
#define PL_PROCESS_SAVES "plume-saves"
bool pl_process_saves(pid_t pid);

/* The name of plsubmit's processes over a local trial, whatever its file is called. */
#define PL_PROCESS_EXECUTOR "plsubmit"

/* si_code: of the siginfo_t of the signal. */
bool pl_process_is_order(int si_code);

/* True for a signal that a terminal has sent to its whole foreground process group, such as SIGINT
 * of Ctrl-C. Other signals of the kernel are for one process: SIGALRM of a timer, and SIGHUP of a
 * terminal that goes away, which its session's leader alone gets. */
bool pl_process_is_of_terminal(int si_code, int sig);

#endif
