/* SPDX-License-Identifier: MIT */
/* Threads beside a loop that handles the process's signals. */
#ifndef PL_RUNTIME_NODE_THREAD_H
#define PL_RUNTIME_NODE_THREAD_H

#include <pthread.h>

/* Starts a thread with all signals blocked. 0; -EAGAIN at the limit of processes. */
int pl_thread_start(pthread_t *ret, void *(*work)(void *ctx), void *ctx);

#endif
