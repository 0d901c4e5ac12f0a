/* SPDX-License-Identifier: MIT */
/* Senders that signal every process of a rank at once, as Slurm may. A rank must get each signal
 * once, so the processes over it pass on only the signals of other senders. */
#ifndef PL_RUNTIME_PLRUN_SENDERS_H
#define PL_RUNTIME_PLRUN_SENDERS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct pl_senders {
    pid_t stepd;  /* slurmstepd, our parent or that of a script which has started us; 0: none */
    int stepd_fd; /* its pidfd; -EBADF: there is none, or it has ended */
    pid_t
        local[2]; /* of plsubmit --local: what is over the job script, and the executor; 0: none */
    bool slurm_signals_all; /* not the tasks alone */
    sigset_t missed;        /* they came before the child, which has not got them */
};

/* Looks through the ancestors. One that /proc hides is taken for slurmstepd, except under
 * plsubmit --local. The caller closes stepd_fd. */
void pl_senders_find(struct pl_senders *ret);

/* Call right before the fork() that makes the child, with its signals blocked. */
void pl_senders_before_fork(struct pl_senders *s);

/* True if a signal that this process has got has reached the child, too. code, sender: si_code and
 * si_pid of its siginfo_t. */
bool pl_senders_reach(struct pl_senders *s, int code, pid_t sender, int sig, pid_t child);

#endif
