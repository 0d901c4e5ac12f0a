/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_store.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/comm/connect_soon.h"

#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define RETRY_MS 5
#define CLIENT_MS 10000 /* for one client to send everything */
#define STRANGERS 256   /* connections beside those of the ranks */
#define MAGIC 0x504c4d32u
#define NONCE 16
#define MAC PL_SHA256_BYTES

/* Sent by rank 0 as soon as it has accepted a connection. */
struct challenge {
    uint32_t magic;
    uint8_t nonce[NONCE];
};

/* Sent by a client before its text and its proof. */
struct head {
    uint32_t magic, rank, size, bytes;
    uint8_t nonce[NONCE];
};

/* HMAC(key, side, server's nonce, a, b). */
static int prove(const uint8_t *key,
                 char side,
                 const uint8_t server_nonce[NONCE],
                 const void *a,
                 size_t a_len,
                 const void *b,
                 size_t b_len,
                 uint8_t ret[MAC])
{
    _cleanup_free_ uint8_t *all = malloc(1 + NONCE + a_len + b_len);

    if (!all)
        return -ENOMEM;
    all[0] = (uint8_t)side;
    memcpy(all + 1, server_nonce, NONCE);
    memcpy(all + 1 + NONCE, a, a_len);
    memcpy(all + 1 + NONCE + a_len, b, b_len);
    pl_hmac_sha256(key, PL_SHA256_BYTES, all, 1 + NONCE + a_len + b_len, ret);
    return 0;
}

/* Sends or receives all bytes before the limit. */
static int move_all(int fd, char *buf, size_t len, bool out, uint64_t limit)
{
    while (len) {
        struct pollfd p = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        int left_ms = pl_left_ms(limit);
        ssize_t n;

        if (left_ms == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, left_ms) == 0)
            continue;
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
    uint8_t nonce[NONCE]; /* ours */
    struct head head;
    char *text; /* with the proof after it */
    size_t got; /* bytes of head, text and proof */
};

/* A rank that has sent its text. */
struct member {
    int fd; /* -1: it has not come */
    uint8_t server_nonce[NONCE], client_nonce[NONCE];
};

struct server {
    const struct pl_world *world;
    const uint8_t *key;
    size_t bytes;
    char *block;
    struct member *members; /* by rank */
    unsigned arrived;       /* with rank 0 */
    struct pl_log_limit refusals;
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
    size_t head = sizeof(c->head), rest = s->bytes + MAC;
    ssize_t n;

    for (;;) {
        bool of_head = c->got < head;

        n = of_head ? recv(c->fd, (char *)&c->head + c->got, head - c->got, MSG_DONTWAIT)
                    : recv(c->fd, c->text + c->got - head, head + rest - c->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (n <= 0)
            return -EPIPE;
        c->got += (size_t)n;
        if (of_head && c->got == head &&
            (c->head.magic != MAGIC || c->head.rank >= s->world->size ||
             c->head.rank == s->world->rank || c->head.size != s->world->size ||
             c->head.bytes != s->bytes || !(c->text = malloc(rest))))
            return -EPROTO;
        if (c->got == head + rest)
            return 1;
    }
}

/* The oldest connection makes room: a rank sends at once. */
static void take_client(struct server *s, int listener)
{
    /* cppcheck-suppress nullPointer ; accept(2) allows it */
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct client c = {.fd = fd, .limit = pl_now_ns() + CLIENT_MS * 1000000ull};
    struct challenge challenge = {.magic = MAGIC};

    if (fd < 0)
        return;
    if (getrandom(c.nonce, NONCE, 0) != NONCE) {
        close(fd);
        return;
    }
    memcpy(challenge.nonce, c.nonce, NONCE);
    if (send(fd, &challenge, sizeof(challenge), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        (ssize_t)sizeof(challenge)) { /* fits into an empty socket buffer */
        close(fd);
        return;
    }
    if (s->n == s->cap)
        drop(s, 0, true);
    s->in[s->n++] = c;
}

static void warn_refused(struct server *s, const struct client *c)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    char from[64] = "?";
    unsigned left_out;

    if (!pl_log_limit_pass(&s->refusals, pl_now_ns(), &left_out))
        return;
    if (getpeername(c->fd, (struct sockaddr *)&a, &len) == 0)
        getnameinfo((struct sockaddr *)&a, len, from, sizeof(from), NULL, 0, NI_NUMERICHOST);
    pl_log_warn("comm",
                "refused a process at %s that claims to be rank %u: it does not have the ranks' "
                "key%s",
                from, c->head.rank, left_out ? " (and more)" : "");
}

/* The client has sent all. True if it is the rank that it claims to be, and the first such. */
static bool admit(struct server *s, const struct client *c)
{
    struct member *m = &s->members[c->head.rank];
    uint8_t want[MAC];

    if (prove(s->key, 'C', c->nonce, &c->head, sizeof(c->head), c->text, s->bytes, want) < 0)
        return false;
    if (!pl_bytes_equal(want, c->text + s->bytes, MAC)) {
        warn_refused(s, c);
        return false;
    }
    if (m->fd >= 0)
        return false;
    memcpy(s->block + c->head.rank * s->bytes, c->text, s->bytes);
    m->fd = c->fd;
    memcpy(m->server_nonce, c->nonce, NONCE);
    memcpy(m->client_nonce, c->head.nonce, NONCE);
    s->arrived++;
    return true;
}

static void read_clients(struct server *s, const struct pollfd *p)
{
    for (size_t i = s->n; i-- > 0;) {
        struct client *c = &s->in[i];
        int r = p[i].revents ? read_client(s, c) : 0;

        if (r == 1 && admit(s, c)) {
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
            return pl_error_set(
                err, -ETIMEDOUT,
                "only %u of %u ranks connected to rank 0 at '%s' port %u: see the others' output",
                s->arrived, world->size, world->store_address, world->store_port);
        for (size_t i = 0; i < s->n; i++)
            p[i] = (struct pollfd){.fd = s->in[i].fd, .events = POLLIN};
        p[s->n] = (struct pollfd){.fd = listener, .events = POLLIN};
        if (poll(p, s->n + 1, pl_left_ms(until)) < 0)
            continue;
        is_new = p[s->n].revents != 0;
        read_clients(s, p);
        if (is_new)
            take_client(s, listener);
    }
    return 0;
}

/* All texts, and the proof that they are from rank 0. */
static int answer(const struct server *s, unsigned rank, uint64_t limit, struct pl_error *err)
{
    const struct member *m = &s->members[rank];
    size_t len = s->world->size * s->bytes;
    uint8_t head[NONCE + 4], proof[MAC];
    uint32_t number = rank;

    memcpy(head, m->client_nonce, NONCE);
    memcpy(head + NONCE, &number, 4);
    if (prove(s->key, 'S', m->server_nonce, head, sizeof(head), s->block, len, proof) < 0)
        return pl_error_nomem(err);
    if (move_all(m->fd, s->block, len, true, limit) < 0 ||
        move_all(m->fd, (char *)proof, sizeof(proof), true, limit) < 0)
        return pl_error_set(err, -ECONNRESET, "lost rank %u: its connection closed", rank);
    return 0;
}

static int serve(struct server *s, uint64_t limit, struct pl_error *err)
{
    _cleanup_close_ int listener = -EBADF;
    int r = listen_at_store(s->world, &listener, err);

    if (r == 0)
        r = gather(s, listener, limit, err);
    for (unsigned i = 1; r == 0 && i < s->world->size; i++)
        r = answer(s, i, limit, err);
    return r;
}

/* The talk with whoever listens there. */
static int ask_store(const struct pl_world *world,
                     const uint8_t *key,
                     int fd,
                     char *block,
                     size_t bytes,
                     uint64_t limit,
                     struct pl_error *err)
{
    struct head head = {MAGIC, world->rank, world->size, (uint32_t)bytes, {0}};
    char *own = block + world->rank * bytes;
    uint8_t proof[MAC], want[MAC], seen[NONCE + 4];
    struct challenge challenge;
    int r = move_all(fd, (char *)&challenge, sizeof(challenge), false, limit);

    if (r == 0 && challenge.magic != MAGIC)
        return pl_error_set(
            err, -EPROTO,
            "another program, or rank 0 of another version, listens at '%s' port %u: change "
            "MASTER_PORT, and start the same pltrain everywhere",
            world->store_address, world->store_port);
    if (r == 0 && getrandom(head.nonce, NONCE, 0) != NONCE)
        r = -errno;
    if (r == 0)
        r = prove(key, 'C', challenge.nonce, &head, sizeof(head), own, bytes, proof);
    if (r == 0)
        r = move_all(fd, (char *)&head, sizeof(head), true, limit);
    if (r == 0)
        r = move_all(fd, own, bytes, true, limit);
    if (r == 0)
        r = move_all(fd, (char *)proof, sizeof(proof), true, limit);
    if (r == 0)
        r = move_all(fd, block, world->size * bytes, false, limit);
    if (r == 0)
        r = move_all(fd, (char *)proof, sizeof(proof), false, limit);
    if (r == 0) {
        memcpy(seen, head.nonce, NONCE);
        memcpy(seen + NONCE, &head.rank, 4);
        r = prove(key, 'S', challenge.nonce, seen, sizeof(seen), block, world->size * bytes, want);
    }
    if (r < 0)
        return pl_error_errno(
            err, r,
            "the rendezvous failed at '%s' port %u; do the ranks share a key (see "
            "PLUME_KEY_FILE)?",
            world->store_address, world->store_port);
    if (!pl_bytes_equal(want, proof, MAC))
        return pl_error_set(
            err, -EACCES,
            "the program that listens at '%s' port %u does not have the ranks' key, so "
            "it is not rank 0 (see PLUME_KEY_FILE)",
            world->store_address, world->store_port);
    return 0;
}

static int join_store(const struct pl_world *world,
                      const uint8_t *key,
                      char *block,
                      size_t bytes,
                      uint64_t limit,
                      struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    struct addrinfo *list, *a;
    int r = resolve(world, &list, err);

    if (r < 0)
        return r;
    while (fd < 0 && pl_now_ns() < limit) {
        for (a = list; a && fd < 0; a = a->ai_next) {
            fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (fd >= 0 && pl_connect_soon(fd, a->ai_addr, a->ai_addrlen, limit) < 0) {
                close(fd);
                fd = -EBADF;
            }
        }
        if (fd < 0)
            poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(list);
    if (fd < 0)
        return pl_error_set(
            err, -ETIMEDOUT,
            "rank 0 does not listen at '%s' port %u: did it start, and is this its address?",
            world->store_address, world->store_port);
    return ask_store(world, key, fd, block, bytes, limit, err);
}

int pl_comm_store_exchange(const struct pl_world *world,
                           const uint8_t key[PL_SHA256_BYTES],
                           char *block,
                           size_t bytes,
                           unsigned timeout_ms,
                           struct pl_error *err)
{
    uint64_t limit = pl_now_ns() + timeout_ms * 1000000ull;
    size_t cap = world->size + STRANGERS;
    _cleanup_free_ struct member *members = NULL;
    int r;

    if (world->rank)
        return join_store(world, key, block, bytes, limit, err);
    members = calloc(world->size, sizeof(*members));
    if (!members)
        return pl_error_nomem(err);
    for (unsigned i = 0; i < world->size; i++)
        members[i].fd = -1;
    {
        _cleanup_(server_finish) struct server s = {.world = world,
                                                    .key = key,
                                                    .bytes = bytes,
                                                    .block = block,
                                                    .members = members,
                                                    .arrived = 1,
                                                    .in = calloc(cap, sizeof(*s.in)),
                                                    .cap = cap};

        r = serve(&s, limit, err);
    }
    for (unsigned i = 0; i < world->size; i++)
        if (members[i].fd >= 0)
            close(members[i].fd);
    return r;
}
