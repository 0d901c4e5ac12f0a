/* SPDX-License-Identifier: MIT */
/* Connecting: the higher member connects to the lower one's listening socket. Both prove that they
 * know the run's key, by HMAC-SHA256 over both sides' nonces and member numbers.
 *
 *   listener   -> "PLUM", version, nonce L
 *   connector  -> member, nonce C, HMAC(key, "C", member, listener's member, L, C)
 *   listener   -> HMAC(key, "L", member, listener's member, L, C)
 *
 * A connection that fails is closed and does not count. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/comm/comm_tcp_private.h"
#include "runtime/engine/comm/connect_soon.h"
#include "runtime/engine/util/sha256.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define CONNECT_TIMEOUT_MS 30000
#define CONNECT_HOST_S 10      /* for a host that does not answer */
#define UNAUTHENTICATED_MAX 64 /* connections that are not authenticated yet */
#define NONCE 16
#define VERSION 1

struct hello {
    char magic[4];
    uint8_t version, zero[3];
    uint8_t nonce[NONCE];
};

struct claim {
    uint32_t member; /* network byte order, as below */
    uint8_t nonce[NONCE];
    uint8_t mac[PL_SHA256_BYTES];
};

struct proof {
    uint8_t mac[PL_SHA256_BYTES];
};

/* A connection in progress.
 *   connector: AWAIT_HELLO -> (sends claim) AWAIT_PROOF -> done
 *   listener:  (sends hello) AWAIT_CLAIM -> (sends proof) done */
enum stage {
    AWAIT_HELLO,
    AWAIT_PROOF,
    AWAIT_CLAIM,
};

struct pending {
    int fd;
    enum stage stage;
    unsigned member; /* of the other side; unknown in AWAIT_CLAIM */
    uint8_t l[NONCE], c[NONCE];
    uint8_t in[sizeof(struct claim)];
    size_t got;
};

struct rendezvous {
    struct pl_tcp *t;
    const struct pl_comm_peer *peers;
    const void *key;
    size_t key_len;
    int listen_fd;
    struct pending *pending;
    size_t n, cap;
    unsigned missing; /* peers not yet connected */
};

static void mac(const struct rendezvous *m,
                char side,
                unsigned connector,
                unsigned listener,
                const struct pending *p,
                uint8_t ret[PL_SHA256_BYTES])
{
    uint8_t text[1 + 4 + 4 + 2 * NONCE];
    uint32_t a = htonl(connector), b = htonl(listener);

    text[0] = (uint8_t)side;
    memcpy(text + 1, &a, 4);
    memcpy(text + 5, &b, 4);
    memcpy(text + 9, p->l, NONCE);
    memcpy(text + 9 + NONCE, p->c, NONCE);
    pl_hmac_sha256(m->key, m->key_len, text, sizeof(text), ret);
}

static bool send_small(int fd, const void *data, size_t len)
{
    return send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len; /* fits into an empty socket buffer */
}

static void set_options(int fd)
{
    const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 1},
        {IPPROTO_TCP, TCP_KEEPINTVL, 1},
        {IPPROTO_TCP, TCP_KEEPCNT, (int)pl_comm_limits.host_s - 1},
    };
    const struct timeval tick = {.tv_sec = PL_TCP_TICK_MS / 1000};

    for (size_t i = 0; i < PL_COUNT(options); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof(tick));
}

static void drop(struct rendezvous *m, struct pending *p)
{
    if (p->fd >= 0)
        close(p->fd);
    *p = m->pending[--m->n];
}

/* The connection is authenticated: it becomes the member's. */
static void adopt(struct rendezvous *m, struct pending *p)
{
    m->t->fd[p->member] = p->fd;
    m->missing--;
    p->fd = -1;
    drop(m, p);
}

static size_t wanted(const struct pending *p)
{
    return p->stage == AWAIT_HELLO   ? sizeof(struct hello)
           : p->stage == AWAIT_PROOF ? sizeof(struct proof)
                                     : sizeof(struct claim);
}

static bool answer_hello(struct rendezvous *m, struct pending *p)
{
    unsigned me = m->t->base.rank;
    struct claim claim = {.member = htonl(me)};
    struct hello hello;

    memcpy(&hello, p->in, sizeof(hello));
    if (memcmp(hello.magic, "PLUM", 4) != 0 || hello.version != VERSION)
        return false;
    memcpy(p->l, hello.nonce, NONCE);
    memcpy(claim.nonce, p->c, NONCE);
    mac(m, 'C', me, p->member, p, claim.mac);
    p->stage = AWAIT_PROOF;
    p->got = 0;
    return send_small(p->fd, &claim, sizeof(claim));
}

static bool check_proof(struct rendezvous *m, const struct pending *p)
{
    uint8_t expected[PL_SHA256_BYTES];

    mac(m, 'L', m->t->base.rank, p->member, p, expected);
    return pl_bytes_equal(expected, p->in, sizeof(expected));
}

static bool check_claim(struct rendezvous *m, struct pending *p)
{
    unsigned me = m->t->base.rank;
    uint8_t expected[PL_SHA256_BYTES];
    struct proof proof = {0};
    struct claim claim;

    memcpy(&claim, p->in, sizeof(claim));
    p->member = ntohl(claim.member);
    memcpy(p->c, claim.nonce, NONCE);
    mac(m, 'C', p->member, me, p, expected);
    if (!pl_bytes_equal(expected, claim.mac, sizeof(expected)) || p->member <= me ||
        p->member >= m->t->base.size || m->t->fd[p->member] >= 0 ||
        !pl_tcp_is_peer(me, p->member, m->t->base.size))
        return false;
    mac(m, 'L', p->member, me, p, proof.mac);
    return send_small(p->fd, &proof, sizeof(proof));
}

/* Handles data or the end of a connection. Returns 0, or -errno if a peer is lost. */
static int advance(struct rendezvous *m, struct pending *p, struct pl_error *err)
{
    ssize_t n = recv(p->fd, p->in + p->got, wanted(p) - p->got, MSG_DONTWAIT);
    bool ours = p->stage != AWAIT_CLAIM, ok = true;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        int code = n < 0 ? errno : ECONNRESET;

        if (ours)
            return pl_error_errno(err, code, "lost rank %u while connecting to it",
                                  m->peers[p->member].world_rank);
        drop(m, p);
        return 0;
    }
    p->got += (size_t)n;
    if (p->got < wanted(p))
        return 0;
    switch (p->stage) {
    case AWAIT_HELLO:
        ok = answer_hello(m, p);
        break;
    case AWAIT_PROOF:
        if ((ok = check_proof(m, p)))
            adopt(m, p);
        break;
    case AWAIT_CLAIM:
        if (check_claim(m, p))
            adopt(m, p);
        else
            drop(m, p);
        break;
    }
    if (!ok)
        return pl_error_set(
            err, -EPROTO, "another program listens at the address of rank %u (%s port %u)",
            m->peers[p->member].world_rank, m->peers[p->member].address, m->peers[p->member].port);
    return 0;
}

/* Accepts a connection and sends hello. */
static void accept_connection(struct rendezvous *m)
{
    struct hello hello = {.magic = {'P', 'L', 'U', 'M'}, .version = VERSION};
    struct pending p = {.stage = AWAIT_CLAIM};

    /* cppcheck-suppress nullPointer ; accept(2) allows it */
    p.fd = accept4(m->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (p.fd < 0)
        return;
    set_options(p.fd);
    if (m->n == m->cap || getrandom(p.l, NONCE, 0) != NONCE) {
        close(p.fd);
        return;
    }
    memcpy(hello.nonce, p.l, NONCE);
    if (!send_small(p.fd, &hello, sizeof(hello))) {
        close(p.fd);
        return;
    }
    m->pending[m->n++] = p;
}

/* Connects to a lower member, which has listened since before the exchange. */
static int connect_to(struct rendezvous *m, unsigned member, struct pl_error *err)
{
    const struct pl_comm_peer *peer = &m->peers[member];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list, *a;
    struct pending p = {.fd = -1, .stage = AWAIT_HELLO, .member = member};
    char port[8];
    int r, code = 0;

    if (getrandom(p.c, NONCE, 0) != NONCE)
        return pl_error_errno(err, errno, "cannot get random bytes");
    snprintf(port, sizeof(port), "%u", peer->port);
    r = getaddrinfo(peer->address, port, &hints, &list);
    if (r != 0)
        return pl_error_set(err, -EHOSTUNREACH, "cannot look up '%s', the address of rank %u: %s",
                            peer->address, peer->world_rank, gai_strerror(r));
    for (a = list; a; a = a->ai_next) {
        p.fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        code = p.fd < 0 ? -errno
                        : pl_connect_soon(p.fd, a->ai_addr, a->ai_addrlen,
                                          pl_now_ns() + CONNECT_HOST_S * 1000000000ull);
        if (code == 0)
            break;
        if (p.fd >= 0)
            close(p.fd);
        p.fd = -1;
    }
    freeaddrinfo(list);
    if (p.fd < 0)
        return pl_error_errno(err, code, "cannot connect to rank %u at %s port %u",
                              peer->world_rank, peer->address, peer->port);
    set_options(p.fd);
    m->pending[m->n++] = p;
    return 0;
}

static int name_missing(const struct rendezvous *m, struct pl_error *err)
{
    unsigned me = m->t->base.rank;

    for (unsigned i = 0; i < m->t->base.size; i++)
        if (pl_tcp_is_peer(me, i, m->t->base.size) && m->t->fd[i] < 0)
            return pl_error_set(err, -ETIMEDOUT,
                                "rank %u did not connect in %d s (%u ranks are missing)",
                                m->peers[i].world_rank, CONNECT_TIMEOUT_MS / 1000, m->missing);
    return pl_error_set(err, -ETIMEDOUT, "ranks did not connect");
}

static int authenticate_all(struct rendezvous *m, struct pollfd *polls, struct pl_error *err)
{
    uint64_t limit = pl_now_ns() + CONNECT_TIMEOUT_MS * 1000000ull;

    while (m->missing) {
        uint64_t now = pl_now_ns();
        size_t n = m->n;
        int r;

        if (now >= limit)
            return name_missing(m, err);
        for (size_t i = 0; i < n; i++)
            polls[i] = (struct pollfd){.fd = m->pending[i].fd, .events = POLLIN};
        polls[n] = (struct pollfd){.fd = m->listen_fd, .events = POLLIN};
        r = poll(polls, n + 1, pl_left_ms(limit));
        if (r < 0 && errno != EINTR)
            return pl_error_errno(err, errno, "cannot wait for connections");
        if (r <= 0)
            continue;
        for (size_t i = n; i-- > 0;) /* from the end: drop() moves the last one into the gap */
            if (polls[i].revents && (r = advance(m, &m->pending[i], err)) < 0)
                return r;
        if (polls[n].revents)
            accept_connection(m);
    }
    return 0;
}

int pl_comm_tcp_create(const struct pl_comm_peer *peers,
                       unsigned size,
                       unsigned rank,
                       int listen_fd,
                       const void *key,
                       size_t key_len,
                       struct pl_comm **ret,
                       struct pl_error *err)
{
    _cleanup_close_ int listener = listen_fd;
    struct pl_tcp *t = calloc(1, sizeof(*t));
    struct rendezvous m = {.t = t, .peers = peers, .key = key, .key_len = key_len};
    _cleanup_free_ struct pollfd *polls = NULL;
    _cleanup_free_ struct pending *pending = NULL;
    int r = 0;

    if (!t)
        return pl_error_nomem(err);
    m.listen_fd = listener;
    m.cap = size + UNAUTHENTICATED_MAX;
    m.pending = pending = calloc(m.cap, sizeof(*pending));
    polls = calloc(m.cap + 1, sizeof(*polls));
    t->base = (struct pl_comm){.ops = &pl_tcp_ops, .rank = rank, .size = size};
    t->base.world_ranks = t->world_ranks = calloc(size, sizeof(*t->world_ranks));
    t->fd = calloc(size, sizeof(*t->fd));
    if (!pending || !polls || !t->world_ranks || !t->fd) {
        free(t->fd);
        t->fd = NULL;
        r = pl_error_nomem(err);
        goto fail;
    }
    for (unsigned i = 0; i < size; i++) {
        t->world_ranks[i] = peers[i].world_rank;
        t->fd[i] = -1;
        m.missing += pl_tcp_is_peer(rank, i, size);
    }
    for (unsigned i = 0; i < rank && r == 0; i++)
        if (pl_tcp_is_peer(rank, i, size))
            r = connect_to(&m, i, err);
    if (r == 0)
        r = authenticate_all(&m, polls, err);
    while (m.n)
        drop(&m, &m.pending[m.n - 1]);
    if (r == 0) {
        *ret = &t->base;
        return 0;
    }
    /* The others shall name the rank that is lost, not this one, which ends because of it. */
    pl_tcp_abort(t, err ? pl_error_text(err) : "a rank is lost");
fail:
    pl_tcp_destroy(&t->base);
    return r;
}

/* Binds a port of the range, from one that differs per process, and listens. Returns a descriptor
 * or a negative errno. */
static int listen_at(const struct addrinfo *a, uint16_t low, uint16_t high)
{
    uint32_t n = (uint32_t)high - low + 1, first = (uint32_t)getpid() % n;
    int r = -EADDRINUSE;

    for (uint32_t i = 0; i < n; i++) {
        struct sockaddr_storage at = {0};
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
            return -errno;
        memcpy(&at, a->ai_addr, a->ai_addrlen);
        ((struct sockaddr_in *)&at)->sin_port =
            htons((uint16_t)(low + (first + i) % n)); /* v6, too */
        if (bind(fd, (struct sockaddr *)&at, a->ai_addrlen) == 0 && listen(fd, 1024) == 0)
            return fd;
        r = -errno;
        close(fd);
        if (r != -EADDRINUSE)
            break;
    }
    return r;
}

int pl_comm_tcp_listen(const char *address, int *ret_fd, unsigned *ret_port, struct pl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list, *a;
    union {
        struct sockaddr any;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_storage room;
    } own;
    socklen_t len = sizeof(own);
    const char *range = pl_env_text(PL_ENV_PLUME_TCP_PORTS);
    _cleanup_close_ int fd = -EBADF;
    int r, code = EADDRNOTAVAIL;
    uint16_t low = 0, high = 0;

    if (range && (r = pl_parse_port_range(range, &low, &high, err)) < 0)
        return pl_error_wrap(err, r, "PLUME_TCP_PORTS");
    /* First the node's address as others see it; if no interface has it (it is translated on the
     * way), any address. */
    for (int any = 0; any < 2 && fd < 0; any++) {
        r = getaddrinfo(any ? NULL : address, "0", &hints, &list);
        if (r != 0)
            continue;
        for (a = list; a && fd < 0; a = a->ai_next) {
            fd = listen_at(a, low, high);
            code = fd < 0 ? -fd : 0;
        }
        freeaddrinfo(list);
    }
    if (fd < 0)
        return pl_error_errno(err, code, "cannot listen at '%s'%s%s", address,
                              range ? ", ports " : "", range ? range : "");
    if (getsockname(fd, &own.any, &len) < 0)
        return pl_error_errno(err, errno, "cannot read the port of a socket");
    *ret_port = ntohs(own.any.sa_family == AF_INET6 ? own.in6.sin6_port : own.in.sin_port);
    *ret_fd = PL_TAKE_FD(fd);
    return 0;
}
