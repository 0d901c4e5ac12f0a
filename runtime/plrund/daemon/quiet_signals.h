/* SPDX-License-Identifier: MIT */
/* Signals that Slurm, or its user by scancel(1), may send to every process of a step. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_QUIET_SIGNALS_H
#define PL_RUNTIME_PLRUND_DAEMON_QUIET_SIGNALS_H

#include "common/base/macros.h"

#include <signal.h>

/* For plrund and its children: they must report how the ranks end, and their own end is no answer
 * to such a signal. A write past the user's limit of a file's size fails, and abort(3) still ends
 * the process. */
static inline void pl_ignore_signals_of_step(void)
{
    static const int ignored[] = {SIGHUP,  SIGINT,    SIGQUIT, SIGTERM, SIGPIPE,
                                  SIGUSR1, SIGUSR2,   SIGXCPU, SIGXFSZ, SIGALRM,
                                  SIGABRT, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR};

    for (size_t i = 0; i < PL_COUNT(ignored); i++)
        signal(ignored[i], SIG_IGN);
}

#endif
