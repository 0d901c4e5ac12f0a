/* SPDX-License-Identifier: MIT */
#ifndef PL_RUNTIME_ENGINE_COMM_CONNECT_SOON_H
#define PL_RUNTIME_ENGINE_COMM_CONNECT_SOON_H

#include <stdint.h>
#include <sys/socket.h>

/* connect(2) that ends at limit_ns (of pl_now_ns()), whatever signals arrive meanwhile; the kernel
 * waits two minutes for a silent host. fd blocks before and after. Returns 0, -ETIMEDOUT, or
 * another negative errno. Does not log. */
int pl_connect_soon(int fd, const struct sockaddr *to, socklen_t len, uint64_t limit_ns);

#endif
