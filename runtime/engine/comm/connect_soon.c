/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/connect_soon.h"
#include "common/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

static int wait_connected(int fd, uint64_t limit_ns)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t len = sizeof(int);
    int code = 0;

    for (;;) {
        int left_ms = pl_left_ms(limit_ns);
        int r = left_ms ? poll(&p, 1, left_ms) : 0;

        if (r > 0)
            break;
        if (r < 0 && errno != EINTR)
            return -errno;
        if (pl_now_ns() >= limit_ns)
            return -ETIMEDOUT;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len) < 0 ? -errno : -code;
}

int pl_connect_soon(int fd, const struct sockaddr *to, socklen_t len, uint64_t limit_ns)
{
    int flags = fcntl(fd, F_GETFL), r = 0;

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    if (connect(fd, to, len) < 0)
        r = errno == EINPROGRESS || errno == EINTR ? wait_connected(fd, limit_ns) : -errno;
    return fcntl(fd, F_SETFL, flags) < 0 && r == 0 ? -errno : r;
}
