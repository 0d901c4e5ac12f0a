/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_store.h"
#include "common/base/fs.h"

#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define RETRY_MS 5
#define CLIENT_MS 10000 /* for one client to send everything */
#define STRANGERS 256   /* connections beside those of the ranks */
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

/* A connection whose text has not come yet: a rank's, or a stranger's. */
struct client {
    int fd;
    uint64_t limit;
    struct head head;
    char *text;
    size_t got; /* bytes of head and text */
};

struct server {
    const struct pl_world *world;
    size_t bytes;
    char *block;
    int *clients;      /* by rank; -1: has not come */
    unsigned arrived;  /* with rank 0 */
    struct client *in; /* in the order of their limits */
    size_t n, cap;
};

static void drop(struct server *s, size_t i, bool close_it)
{
    if (close_it)
        close(s->in[i].fd);
    free(s->in[i].text);
    memmove(&s->in[i], &s->in[i + 1], (--s->n - i) * sizeof(*s->in));
}

static void server_finish(struct server *s)
{
    while (s->n)
        drop(s, s->n - 1, true);
    free(s->in);
}

/* Reads what has come. Returns 1 when all has, 0 to wait, or a negative number for a client that is
 * none. */
static int read_client(const struct server *s, struct client *c)
{
    size_t head = sizeof(c->head);
    ssize_t n;

    for (;;) {
        bool of_head = c->got < head;

        n = of_head ? recv(c->fd, (char *)&c->head + c->got, head - c->got, MSG_DONTWAIT)
                    : recv(c->fd, c->text + c->got - head, head + s->bytes - c->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n <= 0)
            return -EPIPE;
        c->got += (size_t)n;
        if (of_head && c->got == head &&
            (c->head.magic != MAGIC || c->head.rank >= s->world->size ||
             c->head.rank == s->world->rank || c->head.size != s->world->size ||
             c->head.bytes != s->bytes || !(c->text = malloc(s->bytes))))
            return -EPROTO;
        if (c->got == head + s->bytes)
            return 1;
    }
}

/* The oldest connection makes room: a rank sends at once. */
static void take_client(struct server *s, int listener)
{
    /* cppcheck-suppress nullPointer ; accept(2) allows it */
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (s->n == s->cap)
        drop(s, 0, true);
    s->in[s->n++] = (struct client){.fd = fd, .limit = pl_now_ns() + CLIENT_MS * 1000000ull};
}

static void read_clients(struct server *s, const struct pollfd *p)
{
    for (size_t i = s->n; i-- > 0;) {
        struct client *c = &s->in[i];
        int r = p[i].revents ? read_client(s, c) : 0;

        if (r == 1 && s->clients[c->head.rank] < 0) {
            memcpy(s->block + c->head.rank * s->bytes, c->text, s->bytes);
            s->clients[c->head.rank] = c->fd;
            s->arrived++;
            drop(s, i, false);
        } else if (r != 0 || pl_now_ns() > c->limit) {
            drop(s, i, true);
        }
    }
}

/* Waits until all ranks have sent their texts. Whoever connects and is silent holds nobody up. */
static int gather(struct server *s, int listener, uint64_t limit, struct pl_error *err)
{
    const struct pl_world *world = s->world;
    _cleanup_free_ struct pollfd *p = calloc(s->cap + 1, sizeof(*p));

    if (!p || !s->in)
        return pl_error_nomem(err);
    while (s->arrived < world->size) {
        uint64_t now = pl_now_ns(), until = s->n ? PL_MIN(limit, s->in[0].limit) : limit;
        bool is_new;

        if (now >= limit)
            return pl_error_set(err, -ETIMEDOUT, "only %u of %u ranks came to '%s' port %u",
                                s->arrived, world->size, world->store_address, world->store_port);
        for (size_t i = 0; i < s->n; i++)
            p[i] = (struct pollfd){.fd = s->in[i].fd, .events = POLLIN};
        p[s->n] = (struct pollfd){.fd = listener, .events = POLLIN};
        if (poll(p, s->n + 1, until > now ? (int)((until - now) / 1000000u) + 1 : 0) < 0)
            continue;
        is_new = p[s->n].revents != 0;
        read_clients(s, p);
        if (is_new)
            take_client(s, listener);
    }
    return 0;
}

static int serve(const struct pl_world *world,
                 int *clients,
                 char *block,
                 size_t bytes,
                 uint64_t limit,
                 struct pl_error *err)
{
    size_t cap = world->size + STRANGERS;
    _cleanup_(server_finish) struct server s = {.world = world,
                                                .bytes = bytes,
                                                .block = block,
                                                .clients = clients,
                                                .arrived = 1,
                                                .in = calloc(cap, sizeof(*s.in)),
                                                .cap = cap};
    _cleanup_close_ int listener = -EBADF;
    int r = listen_at_store(world, &listener, err);

    if (r == 0)
        r = gather(&s, listener, limit, err);
    if (r < 0)
        return r;
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
