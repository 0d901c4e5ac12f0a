/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/kv_server.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/signals.h"
#include "runtime/engine/comm/kv_store.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define TALK_MS 10000 /* for a client to send its request, and to take the reply */
#define CLIENTS_MAX 4096
#define STRANGERS_MAX 256 /* of these, who have not proven the key: they take descriptors, too */
#define CROWDS 64         /* of addresses, by a hash */
#define ACCEPTS 64        /* connections taken in a turn */
#define DEAF_MS 100       /* without a descriptor for one more connection */
#define PIECE ((size_t)64 * 1024)
#define STORE_MAX (1ull << 30) /* bytes of all values */

struct value {
    char *key, *data;
    uint32_t key_len, len;
    uint8_t nonce[PL_KV_NONCE]; /* of the call that put it */
    uint8_t digest[PL_SHA256_BYTES];
};

/* A connection: it proves the key, sends a key and a value, may wait for a value, and takes the
 * reply. */
struct client {
    int fd;
    bool proven;
    bool waits;                 /* for a value */
    unsigned crowd;             /* of a stranger */
    uint8_t nonce[PL_KV_NONCE]; /* ours */
    uint64_t limit;             /* of sending, of waiting or of taking */
    struct pl_kv_request request;
    size_t got; /* bytes of it */
    struct pl_buf in;
    bool replies;
    struct pl_kv_reply reply;
    const char *value; /* that follows it: the store's own */
    size_t sent;       /* of both */
};

struct pl_kv_server {
    pthread_t thread;
    int listen_fd, stop[2]; /* stop: a pipe, whose other end is closed to end the thread */
    uint8_t key[PL_SHA256_BYTES];
    struct value *values;
    size_t n_values;
    uint64_t bytes;
    struct value failed; /* data: why a rank has given up; NULL: none has */
    struct client *clients;
    struct pollfd *polls;
    size_t n;
    unsigned n_strangers, crowds[CROWDS];
    uint64_t seed;       /* of the crowds' hash: nobody can choose one */
    uint64_t deaf_until; /* 0: it listens */
};

/* ---- values ---- */

static struct value *find(const struct pl_kv_server *s, const char *key, uint32_t key_len)
{
    for (size_t i = 0; i < s->n_values; i++)
        if (s->values[i].key_len == key_len && memcmp(s->values[i].key, key, key_len) == 0)
            return &s->values[i];
    return NULL;
}

static char *copy(const char *from, size_t len)
{
    char *to = malloc(len + 1);

    if (to && len)
        memcpy(to, from, len);
    return to;
}

/* ---- replies ---- */

/* value: NULL without one. */
static void
reply(const struct pl_kv_server *s, struct client *c, int code, const struct value *value)
{
    c->reply = (struct pl_kv_reply){.code = code, .len = value ? value->len : 0};
    if (value)
        memcpy(c->reply.body, value->digest, PL_SHA256_BYTES);
    else
        pl_kv_digest(NULL, 0, NULL, 0, c->reply.body);
    pl_kv_prove_reply(s->key, c->request.nonce, &c->reply);
    c->value = value ? value->data : NULL;
    c->replies = true;
    c->waits = false;
    c->limit = pl_now_ns() + TALK_MS * 1000000ull;
}

/* Replies to those who wait for this value, or with code < 0 to all who wait. */
static void wake(struct pl_kv_server *s, int code, const struct value *value)
{
    for (size_t i = 0; i < s->n; i++) {
        struct client *c = &s->clients[i];

        if (c->waits && (code < 0 || (c->request.key_len == value->key_len &&
                                      memcmp(c->in.data, value->key, value->key_len) == 0)))
            reply(s, c, code, value);
    }
}

/* The first one counts. */
static int fail(struct pl_kv_server *s, const struct client *c)
{
    const struct pl_kv_request *r = &c->request;

    if (s->failed.data)
        return 0;
    s->failed = (struct value){.data = copy(c->in.data + r->key_len, r->len), .len = r->len};
    if (!s->failed.data)
        return -ENOMEM;
    pl_kv_digest(s->failed.data, r->len, NULL, 0, s->failed.digest);
    wake(s, -ECANCELED, &s->failed);
    return 0;
}

static int put(struct pl_kv_server *s, const struct client *c)
{
    const struct pl_kv_request *r = &c->request;
    struct value v = {.key_len = r->key_len, .len = r->len}, *more;

    more = find(s, c->in.data, r->key_len);
    if (more) /* by this call, whose first connection has broken */
        return memcmp(more->nonce, r->nonce, PL_KV_NONCE) == 0 ? 0 : -EEXIST;
    if (s->bytes + r->key_len + r->len > STORE_MAX)
        return -ENOSPC;
    more = reallocarray(s->values, s->n_values + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    s->values = more;
    v.key = copy(c->in.data, r->key_len);
    v.data = copy(c->in.data + r->key_len, r->len);
    if (!v.key || !v.data) {
        free(v.key);
        free(v.data);
        return -ENOMEM;
    }
    memcpy(v.nonce, r->nonce, PL_KV_NONCE);
    pl_kv_digest(v.data, v.len, NULL, 0, v.digest);
    s->bytes += r->key_len + r->len;
    more[s->n_values++] = v;
    wake(s, 0, &v);
    return 0;
}

static void get(const struct pl_kv_server *s, struct client *c)
{
    const struct value *v = find(s, c->in.data, c->request.key_len);

    if (v) {
        reply(s, c, 0, v);
    } else if (s->failed.data) {
        reply(s, c, -ECANCELED, &s->failed);
    } else if (c->request.timeout_ms == 0) {
        reply(s, c, -ENOENT, NULL);
    } else {
        c->waits = true;
        c->limit = pl_now_ns() + c->request.timeout_ms * 1000000ull;
    }
}

/* The whole request is here. */
static int answer(struct pl_kv_server *s, struct client *c)
{
    const struct pl_kv_request *r = &c->request;
    uint8_t body[PL_SHA256_BYTES];

    pl_kv_digest(c->in.data, c->in.len, NULL, 0, body);
    if (!pl_bytes_equal(body, r->body, sizeof(body)))
        return -EACCES;
    if (r->what == PL_KV_PUT)
        reply(s, c, put(s, c), NULL);
    else if (r->what == PL_KV_FAIL)
        reply(s, c, fail(s, c), NULL);
    else if (r->what == PL_KV_GET)
        get(s, c);
    else
        return -EPROTO;
    return 0;
}

/* ---- clients ---- */

static void leave_strangers(struct pl_kv_server *s, struct client *c)
{
    s->n_strangers--;
    s->crowds[c->crowd]--;
    c->proven = true;
}

static void drop(struct pl_kv_server *s, size_t i)
{
    if (!s->clients[i].proven)
        leave_strangers(s, &s->clients[i]);
    close(s->clients[i].fd);
    pl_buf_finish(&s->clients[i].in);
    s->clients[i] = s->clients[--s->n];
}

static unsigned crowd_of(const struct pl_kv_server *s, const struct sockaddr_storage *from)
{
    const struct in6_addr *six = &((const struct sockaddr_in6 *)from)->sin6_addr;
    const uint8_t *four = NULL;
    uint64_t address = 0;

    if (from->ss_family == AF_INET)
        four = (const uint8_t *)&((const struct sockaddr_in *)from)->sin_addr;
    else if (from->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(six))
        four = six->s6_addr + 12;
    if (four)
        memcpy(&address, four, *four == 127 ? 1 : 4); /* this host has 127.x.x.x */
    else if (from->ss_family == AF_INET6)
        memcpy(&address, six->s6_addr, 8); /* a host may use a whole /64 */
    return (unsigned)((address * s->seed) >> 32) % CROWDS;
}

/* Ends the oldest connection of the largest crowd. Who has the key tries again. */
static bool drop_stranger(struct pl_kv_server *s)
{
    unsigned largest = 0;
    size_t oldest = s->n;

    for (unsigned i = 1; i < CROWDS; i++)
        if (s->crowds[i] > s->crowds[largest])
            largest = i;
    for (size_t i = 0; i < s->n; i++)
        if (!s->clients[i].proven && s->clients[i].crowd == largest &&
            (oldest == s->n || s->clients[i].limit < s->clients[oldest].limit))
            oldest = i;
    if (oldest == s->n)
        return false;
    drop(s, oldest);
    return true;
}

/* Accepts a connection and sends our nonce. False: there is none. */
static bool welcome(struct pl_kv_server *s)
{
    struct sockaddr_storage from = {0};
    socklen_t len = sizeof(from);
    int fd = accept4(s->listen_fd, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client c = {.fd = fd, .limit = pl_now_ns() + TALK_MS * 1000000ull};

    if (fd < 0) {
        if ((errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) &&
            !drop_stranger(s))
            s->deaf_until = pl_now_ns() + DEAF_MS * 1000000ull;
        return false;
    }
    if (s->n_strangers == STRANGERS_MAX)
        (void)drop_stranger(s);
    if (s->n == CLIENTS_MAX || getrandom(c.nonce, PL_KV_NONCE, 0) != PL_KV_NONCE ||
        send(fd, c.nonce, PL_KV_NONCE, MSG_NOSIGNAL) !=
            PL_KV_NONCE) { /* an empty buffer takes it */
        close(fd);
        return true;
    }
    c.crowd = crowd_of(s, &from);
    s->n_strangers++;
    s->crowds[c.crowd]++;
    s->clients[s->n++] = c;
    return true;
}

/* As recv(2), but 0 if there is nothing yet, and -EPROTO if the other side is gone. */
static ssize_t receive_some(int fd, void *to, size_t len)
{
    ssize_t n = recv(fd, to, len, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return n > 0 ? n : -EPROTO;
}

static int receive_head(struct pl_kv_server *s, struct client *c)
{
    struct pl_kv_request *r = &c->request;
    ssize_t n = receive_some(c->fd, (char *)r + c->got, sizeof(*r) - c->got);

    if (n < 0)
        return (int)n;
    c->got += (size_t)n;
    if (c->got < sizeof(*r))
        return 0;
    if (!pl_kv_request_proven(s->key, c->nonce, r))
        return -EACCES;
    if (r->key_len > PL_KV_KEY_MAX || r->len > PL_KV_VALUE_MAX)
        return -EPROTO;
    leave_strangers(s, c);
    c->limit = pl_now_ns() + TALK_MS * 1000000ull;
    return pl_buf_reserve(&c->in, PL_MIN((size_t)r->key_len + r->len, PIECE));
}

static int receive_body(struct client *c)
{
    size_t all = (size_t)c->request.key_len + c->request.len, len = PL_MIN(all - c->in.len, PIECE);
    ssize_t n;

    if (pl_buf_reserve(&c->in, len) < 0)
        return -ENOMEM;
    n = receive_some(c->fd, c->in.data + c->in.len, len);
    if (n < 0)
        return (int)n;
    c->in.len += (size_t)n;
    return 0;
}

/* A negative number: the connection ends. */
static int receive(struct pl_kv_server *s, struct client *c)
{
    char more;
    int r;

    if (c->waits || c->replies) /* it is gone, or says more than it should */
        return (int)receive_some(c->fd, &more, 1) == 0 ? 0 : -EPROTO;
    r = c->proven ? receive_body(c) : receive_head(s, c);
    if (r < 0 || !c->proven || c->in.len < (size_t)c->request.key_len + c->request.len)
        return r;
    return answer(s, c);
}

static int give(struct client *c)
{
    size_t head = PL_MIN(c->sent, sizeof(c->reply)), value = c->sent - head;
    struct iovec parts[] = {
        {.iov_base = (char *)&c->reply + head, .iov_len = sizeof(c->reply) - head},
        {.iov_base = (char *)((uintptr_t)c->value + value), .iov_len = c->reply.len - value},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = c->value ? 2 : 1};
    ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    c->sent += (size_t)n;
    return c->sent == sizeof(c->reply) + c->reply.len ? -EPIPE : 0; /* that was all */
}

static void serve(struct pl_kv_server *s)
{
    uint64_t now = pl_now_ns();

    for (size_t i = s->n; i-- > 0;) {
        struct client *c = &s->clients[i];
        int r = s->polls[i].revents & (POLLIN | POLLHUP | POLLERR) ? receive(s, c) : 0;

        if (r == 0 && c->waits && now >= c->limit)
            reply(s, c, -ETIMEDOUT, NULL);
        if (r == 0 && c->replies)
            r = give(c);
        if (r < 0 || now > c->limit)
            drop(s, i);
    }
}

static int wait_ms(const struct pl_kv_server *s)
{
    uint64_t now = pl_now_ns(), until = s->deaf_until ? s->deaf_until : UINT64_MAX;

    for (size_t i = 0; i < s->n; i++)
        until = PL_MIN(until, s->clients[i].limit);
    if (until == UINT64_MAX)
        return -1;
    return until > now ? (int)PL_MIN((until - now) / 1000000u + 1, (uint64_t)60000) : 0;
}

static void *run(void *arg)
{
    struct pl_kv_server *s = arg;

    for (;;) {
        int ms = wait_ms(s);
        size_t n = s->n;

        if (s->deaf_until && pl_now_ns() >= s->deaf_until)
            s->deaf_until = 0;
        for (size_t i = 0; i < n; i++)
            s->polls[i] =
                (struct pollfd){.fd = s->clients[i].fd,
                                .events = (short)(POLLIN | (s->clients[i].replies ? POLLOUT : 0))};
        s->polls[n] = (struct pollfd){.fd = s->deaf_until ? -1 : s->listen_fd, .events = POLLIN};
        s->polls[n + 1] = (struct pollfd){.fd = s->stop[0], .events = POLLIN};
        if (poll(s->polls, n + 2, ms) < 0)
            continue;
        if (s->polls[n + 1].revents)
            return NULL;
        serve(s);
        for (int i = 0; i < ACCEPTS && s->polls[n].revents && welcome(s); i++)
            ;
    }
}

static void finish(struct pl_kv_server *s)
{
    while (s->n)
        drop(s, s->n - 1);
    for (size_t i = 0; i < s->n_values; i++) {
        free(s->values[i].key);
        free(s->values[i].data);
    }
    free(s->failed.data);
    free(s->values);
    free(s->clients);
    free(s->polls);
    pl_closep(&s->stop[0]);
    pl_closep(&s->stop[1]);
    close(s->listen_fd);
    free(s);
}

int pl_kv_server_start(int fd,
                       const uint8_t key[PL_SHA256_BYTES],
                       struct pl_kv_server **ret,
                       struct pl_error *err)
{
    struct pl_kv_server *s = calloc(1, sizeof(*s));
    sigset_t all, before;
    int r;

    if (!s) {
        close(fd);
        return pl_error_nomem(err);
    }
    *s = (struct pl_kv_server){.listen_fd = fd, .stop = {-EBADF, -EBADF}};
    memcpy(s->key, key, sizeof(s->key));
    s->clients = calloc(CLIENTS_MAX, sizeof(*s->clients));
    s->polls = calloc(CLIENTS_MAX + 2, sizeof(*s->polls));
    r = s->clients && s->polls ? 0 : pl_error_nomem(err);
    if (r == 0 && getrandom(&s->seed, sizeof(s->seed), 0) != sizeof(s->seed))
        r = pl_error_errno(err, errno, "cannot get random bytes");
    s->seed |= 1;
    if (r == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
        r = pl_error_errno(err, errno, "cannot set a socket up");
    if (r == 0 && pipe2(s->stop, O_CLOEXEC) < 0)
        r = pl_error_errno(err, errno, "cannot make a pipe");
    if (r == 0) {
        pl_signals_of_threads(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&s->thread, NULL, run, s);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r > 0)
            r = pl_error_errno(err, r, "cannot start a thread");
    }
    if (r < 0) {
        finish(s);
        return r;
    }
    *ret = s;
    return 0;
}

void pl_kv_server_stop(struct pl_kv_server *server)
{
    if (!server)
        return;
    close(PL_TAKE_FD(server->stop[1]));
    pthread_join(server->thread, NULL);
    finish(server);
}
