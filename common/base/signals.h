/* SPDX-License-Identifier: MIT */
/* Signals of threads that are not the program's main thread. */
#ifndef PL_COMMON_BASE_SIGNALS_H
#define PL_COMMON_BASE_SIGNALS_H

#include <signal.h>
#include <stddef.h>

/* All signals but those that a fault of the thread itself raises: a blocked fault ends the process
 * without calling its handler. */
static inline void pl_signals_of_threads(sigset_t *ret)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

    sigfillset(ret);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(ret, faults[i]);
}

#endif
