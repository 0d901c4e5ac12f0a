/* SPDX-License-Identifier: MIT */
#include "runtime/node/thread.h"
#include "common/base/fs.h"

#include <poll.h>
#include <signal.h>

#define JOIN_POLL_MS 5

static bool is_left; /* the loop's alone */

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

void pl_thread_leave(pthread_t thread)
{
    pthread_detach(thread);
    is_left = true;
}

bool pl_thread_join(pthread_t thread, unsigned ms)
{
    uint64_t until = pl_now_ns() + ms * 1000000ull; /* of a clock that does not jump */

    while (pthread_tryjoin_np(thread, NULL) != 0) {
        if (pl_now_ns() >= until) {
            pl_thread_leave(thread);
            return false;
        }
        poll(NULL, 0, JOIN_POLL_MS);
    }
    return true;
}

bool pl_thread_is_left(void)
{
    return is_left;
}
