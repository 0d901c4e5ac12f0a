/* SPDX-License-Identifier: MIT */
/* Resolves a host's name in a thread of its own. libuv's resolver starts a pool of threads, and
 * aborts the process if it cannot: at the user's limit of processes that would end a step. */
#ifndef PL_RUNTIME_NODE_RESOLVE_H
#define PL_RUNTIME_NODE_RESOLVE_H

#include <netdb.h>
#include <uv.h>

struct pl_resolve;

/* Called once from the loop. list: the addresses, to be freed with freeaddrinfo(3); NULL if the
 * name leads to none. */
typedef void pl_resolve_fn(void *ctx, struct addrinfo *list);

/* Starts to resolve `host`, for stream sockets. 0, -ENOMEM, or -EAGAIN and others where no thread
 * can be made; then `done` is not called. */
int pl_resolve_start(
    uv_loop_t *loop, const char *host, pl_resolve_fn *done, void *ctx, struct pl_resolve **ret);

/* Before `done` has been called: it is not called any more. Does not wait for the resolver, which
 * may take many seconds. NULL is fine. */
void pl_resolve_cancel(struct pl_resolve *r);

#endif
