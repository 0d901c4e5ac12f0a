/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/refuser.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define COME_MS 10000 /* for all ranks of a node to come; they start together */
#define HELLO_MS 2000 /* for one's hello, once it is connected */

static int wait_readable(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int n;

    do
        n = poll(&p, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n;
}

static int listen_at(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before;
    int r;

    if (fd < 0 || strlen(path) >= sizeof(addr.sun_path))
        return -EINVAL;
    memcpy(addr.sun_path, path, strlen(path) + 1);
    unlink(path); /* our daemon's; it has no other process */
    before = umask(0077);
    r = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 256) < 0 ? -errno : 0;
    umask(before);
    return r < 0 ? r : PL_TAKE_FD(fd);
}

/* Reads the hello first: who has not written it yet would only see a broken connection. */
static void refuse(int fd, const struct pl_buf *line)
{
    char data[4096];
    ssize_t n = 0;

    while (wait_readable(fd, HELLO_MS) > 0 && (n = recv(fd, data, sizeof(data), MSG_DONTWAIT)) > 0)
        if (memchr(data, '\n', (size_t)n))
            break;
    if (n > 0)
        pl_send_fds(fd, line->data, line->len, NULL, 0);
}

void pl_refuser_run(const char *path, unsigned n_ranks, const char *text)
{
    _cleanup_(json_decrefp) json_t *message =
        pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_REFUSED, .rank_refused.text = text});
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    _cleanup_close_ int listener = -EBADF;
    uint64_t end = pl_now_ns() + COME_MS * 1000000ull;

    if (!n_ranks || !message || pl_json_dump_line(message, &line) < 0)
        return;
    listener = listen_at(path);
    while (listener >= 0 && n_ranks && pl_now_ns() < end) {
        _cleanup_close_ int fd = -EBADF;

        if (wait_readable(listener, (int)((end - pl_now_ns()) / 1000000u) + 1) <= 0)
            break;
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        refuse(fd, &line);
        n_ranks--;
    }
    if (listener >= 0)
        unlink(path);
}
