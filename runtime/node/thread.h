/* SPDX-License-Identifier: MIT */
/* Threads beside a loop that handles the process's signals. */
#ifndef PL_RUNTIME_NODE_THREAD_H
#define PL_RUNTIME_NODE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* Starts a thread with all signals blocked. 0; -EAGAIN at the limit of processes. */
int pl_thread_start(pthread_t *ret, void *(*work)(void *ctx), void *ctx);

/* Waits for the thread's end, for so long at most. False: it is left behind. */
bool pl_thread_join(pthread_t thread, unsigned ms);

/* The thread is held up by a file system: nobody waits for it, and what it uses must stay. */
void pl_thread_leave(pthread_t thread);

/* True if a thread was left behind: then the process ends by _exit(), with all memory in place. */
bool pl_thread_is_left(void);

#endif
