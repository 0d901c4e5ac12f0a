/* SPDX-License-Identifier: MIT */
#include "runtime/node/thread.h"

#include <signal.h>

int pl_thread_start(pthread_t *ret, void *(*work)(void *ctx), void *ctx)
{
    sigset_t all, before;
    int error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(ret, NULL, work, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}
