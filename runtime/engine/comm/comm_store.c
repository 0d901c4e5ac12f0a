/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_store.h"
#include "common/base/fs.h"

#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define RETRY_MS 5
#define CLIENT_MS 10000 /* for one client to send everything */
#define MAGIC 0x504c4d31u

/* Sent by a client before its text. */
struct head {
    uint32_t magic, rank, size, bytes;
};

/* Sends or receives all bytes before the limit. */
static int move_all(int fd, char *buf, size_t len, bool out, uint64_t limit)
{
    while (len) {
        uint64_t now = pl_now_ns();
        struct pollfd p = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        ssize_t n;

        if (now >= limit || poll(&p, 1, (int)((limit - now) / 1000000u) + 1) == 0)
            return -ETIMEDOUT;
        n = out ? send(fd, buf, len, MSG_NOSIGNAL | MSG_DONTWAIT)
                : recv(fd, buf, len, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EPIPE;
        buf += n;
        len -= (size_t)n;
    }
    return 0;
}

static int resolve(const struct pl_world *world, struct addrinfo **ret, struct pl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char port[16];
    int r;

    snprintf(port, sizeof(port), "%u", world->store_port);
    r = getaddrinfo(world->store_address, port, &hints, ret);
    if (r != 0)
        return pl_error_set(err, -EHOSTUNREACH, "cannot resolve the rendezvous host '%s': %s",
                            world->store_address, gai_strerror(r));
    return 0;
}

static int listen_at_store(const struct pl_world *world, int *ret, struct pl_error *err)
{
    struct addrinfo *list, *a;
    _cleanup_close_ int fd = -EBADF;
    const int one = 1;
    int code = EADDRNOTAVAIL, r = resolve(world, &list, err);

    if (r < 0)
        return r;
    for (a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
            code = errno;
            close(fd);
            fd = -EBADF;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return pl_error_errno(err, code, "cannot listen at the rendezvous '%s' port %u",
                              world->store_address, world->store_port);
    *ret = PL_TAKE_FD(fd);
    return 0;
}

/* Receives one client's text. Returns 1, or 0 if the client is invalid: it is dropped and does not
 * count. */
static int
accept_client(const struct pl_world *world, int fd, int *clients, char *block, size_t bytes)
{
    struct head head;
    uint64_t limit = pl_now_ns() + CLIENT_MS * 1000000ull;

    if (move_all(fd, (char *)&head, sizeof(head), false, limit) < 0 || head.magic != MAGIC ||
        head.rank >= world->size || head.rank == world->rank || head.size != world->size ||
        head.bytes != bytes || clients[head.rank] >= 0 ||
        move_all(fd, block + head.rank * bytes, bytes, false, limit) < 0)
        return 0;
    clients[head.rank] = fd;
    return 1;
}

static int serve(const struct pl_world *world,
                 int *clients,
                 char *block,
                 size_t bytes,
                 uint64_t limit,
                 struct pl_error *err)
{
    _cleanup_close_ int listener = -EBADF;
    unsigned arrived = 1;
    int r = listen_at_store(world, &listener, err);

    if (r < 0)
        return r;
    while (arrived < world->size) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        uint64_t now = pl_now_ns();
        int fd;

        if (now >= limit || poll(&p, 1, (int)((limit - now) / 1000000u) + 1) == 0)
            return pl_error_set(err, -ETIMEDOUT, "only %u of %u ranks came to '%s' port %u",
                                arrived, world->size, world->store_address, world->store_port);
        /* cppcheck-suppress nullPointer ; accept(2) allows it */
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (accept_client(world, fd, clients, block, bytes))
            arrived++;
        else
            close(fd);
    }
    for (unsigned i = 1; i < world->size; i++)
        if (move_all(clients[i], block, world->size * bytes, true, limit) < 0)
            return pl_error_set(err, -ECONNRESET, "lost rank %u: its connection closed", i);
    return 0;
}

static int join_store(
    const struct pl_world *world, char *block, size_t bytes, uint64_t limit, struct pl_error *err)
{
    struct head head = {MAGIC, world->rank, world->size, (uint32_t)bytes};
    _cleanup_close_ int fd = -EBADF;
    struct addrinfo *list, *a;
    int r = resolve(world, &list, err);

    if (r < 0)
        return r;
    while (fd < 0 && pl_now_ns() < limit) {
        for (a = list; a && fd < 0; a = a->ai_next) {
            fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
                close(fd);
                fd = -EBADF;
            }
        }
        if (fd < 0)
            poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(list);
    if (fd < 0)
        return pl_error_set(err, -ETIMEDOUT, "rank 0 does not listen at '%s' port %u",
                            world->store_address, world->store_port);
    r = move_all(fd, (char *)&head, sizeof(head), true, limit);
    if (r == 0)
        r = move_all(fd, block + world->rank * bytes, bytes, true, limit);
    if (r == 0)
        r = move_all(fd, block, world->size * bytes, false, limit);
    if (r < 0)
        return pl_error_errno(err, r, "the rendezvous failed at '%s' port %u", world->store_address,
                              world->store_port);
    return 0;
}

int pl_comm_store_exchange(const struct pl_world *world,
                           char *block,
                           size_t bytes,
                           unsigned timeout_ms,
                           struct pl_error *err)
{
    uint64_t limit = pl_now_ns() + timeout_ms * 1000000ull;
    _cleanup_free_ int *clients = NULL;
    int r;

    if (world->rank)
        return join_store(world, block, bytes, limit, err);
    clients = malloc(world->size * sizeof(*clients));
    if (!clients)
        return pl_error_nomem(err);
    for (unsigned i = 0; i < world->size; i++)
        clients[i] = -1;
    r = serve(world, clients, block, bytes, limit, err);
    for (unsigned i = 0; i < world->size; i++)
        if (clients[i] >= 0)
            close(clients[i]);
    return r;
}
