/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/kv_server.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/signals.h"
#include "runtime/engine/comm/kv_store.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define TALK_MS 10000 /* for a client to send its request, and to take the reply */
#define CLIENTS_MAX 4096
#define STORE_MAX (1ull << 30) /* bytes of all values */

struct value {
    char *key, *data;
    uint32_t key_len, len;
};

/* A connection: it sends a request, may wait for a value, and takes the reply. */
struct client {
    int fd;
    uint8_t nonce[PL_KV_NONCE]; /* ours */
    uint64_t limit;             /* of sending, of waiting or of taking */
    struct pl_buf in, out;
    size_t sent; /* of `out` */
    bool waits;  /* for a value */
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
};

int pl_kv_prove(const uint8_t key[PL_SHA256_BYTES],
                char side,
                const uint8_t nonce[PL_KV_NONCE],
                const void *head,
                size_t head_len,
                const void *a,
                size_t a_len,
                const void *b,
                size_t b_len,
                uint8_t ret[PL_SHA256_BYTES])
{
    _cleanup_(pl_buf_finish) struct pl_buf all = {0};

    if (pl_buf_addc(&all, side) < 0 || pl_buf_add(&all, nonce, PL_KV_NONCE) < 0 ||
        pl_buf_add(&all, head, head_len) < 0 || (a_len && pl_buf_add(&all, a, a_len) < 0) ||
        (b_len && pl_buf_add(&all, b, b_len) < 0))
        return -ENOMEM;
    pl_hmac_sha256(key, PL_SHA256_BYTES, all.data, all.len, ret);
    return 0;
}

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

/* The first one counts. */
static int fail(struct pl_kv_server *s, const struct pl_kv_request *r, const char *key)
{
    if (!s->failed.data)
        s->failed = (struct value){.data = copy(key + r->key_len, r->len), .len = r->len};
    return s->failed.data ? 0 : -ENOMEM;
}

static int put(struct pl_kv_server *s, const struct pl_kv_request *r, const char *key)
{
    struct value v = {.key_len = r->key_len, .len = r->len}, *more;

    if (find(s, key, r->key_len))
        return -EEXIST;
    if (s->bytes + r->key_len + r->len > STORE_MAX)
        return -ENOSPC;
    more = reallocarray(s->values, s->n_values + 1, sizeof(*more));
    if (!more)
        return -ENOMEM;
    s->values = more;
    v.key = copy(key, r->key_len);
    v.data = copy(key + r->key_len, r->len);
    if (!v.key || !v.data) {
        free(v.key);
        free(v.data);
        return -ENOMEM;
    }
    s->bytes += r->key_len + r->len;
    more[s->n_values++] = v;
    return 0;
}

/* ---- clients ---- */

static void drop(struct pl_kv_server *s, size_t i)
{
    close(s->clients[i].fd);
    pl_buf_finish(&s->clients[i].in);
    pl_buf_finish(&s->clients[i].out);
    s->clients[i] = s->clients[--s->n];
}

static void welcome(struct pl_kv_server *s)
{
    /* cppcheck-suppress nullPointer ; accept(2) allows it */
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct client c = {.fd = fd, .limit = pl_now_ns() + TALK_MS * 1000000ull};

    if (fd < 0)
        return;
    if (s->n == CLIENTS_MAX || getrandom(c.nonce, PL_KV_NONCE, 0) != PL_KV_NONCE ||
        send(fd, c.nonce, PL_KV_NONCE, MSG_NOSIGNAL) !=
            PL_KV_NONCE) { /* an empty buffer takes it */
        close(fd);
        return;
    }
    s->clients[s->n++] = c;
}

static struct pl_kv_request request_of(const struct client *c)
{
    struct pl_kv_request r;

    memcpy(&r, c->in.data, sizeof(r));
    return r;
}

/* value: NULL without one. */
static int
reply(const struct pl_kv_server *s, struct client *c, int code, const struct value *value)
{
    struct pl_kv_request request = request_of(c);
    struct pl_kv_reply head = {.code = code, .len = value ? value->len : 0};
    int r = pl_kv_prove(s->key, 'S', request.nonce, &head, offsetof(struct pl_kv_reply, proof),
                        value ? value->data : NULL, head.len, NULL, 0, head.proof);

    if (r == 0)
        r = pl_buf_add(&c->out, &head, sizeof(head));
    if (r == 0 && head.len)
        r = pl_buf_add(&c->out, value->data, head.len);
    c->waits = false;
    c->limit = pl_now_ns() + TALK_MS * 1000000ull;
    return r;
}

/* Replies to a get as far as that is possible now. */
static int look(const struct pl_kv_server *s, struct client *c)
{
    struct pl_kv_request r = request_of(c);
    const struct value *v = find(s, c->in.data + sizeof(r), r.key_len);
    uint64_t now = pl_now_ns();

    if (v)
        return reply(s, c, 0, v);
    if (s->failed.data)
        return reply(s, c, -ECANCELED, &s->failed);
    if (!c->waits) {
        c->waits = true;
        c->limit = now + r.timeout_ms * 1000000ull;
    }
    return now < c->limit ? 0 : reply(s, c, r.timeout_ms ? -ETIMEDOUT : -ENOENT, NULL);
}

/* The whole request is here. */
static int answer(struct pl_kv_server *s, struct client *c)
{
    struct pl_kv_request r = request_of(c);
    const char *key = c->in.data + sizeof(r);
    uint8_t want[PL_SHA256_BYTES];

    if (pl_kv_prove(s->key, 'C', c->nonce, &r, offsetof(struct pl_kv_request, proof), key,
                    r.key_len, key + r.key_len, r.len, want) < 0 ||
        !pl_bytes_equal(want, r.proof, sizeof(want)))
        return -EACCES;
    if (r.what == PL_KV_PUT)
        return reply(s, c, put(s, &r, key), NULL);
    if (r.what == PL_KV_FAIL)
        return reply(s, c, fail(s, &r, key), NULL);
    return r.what == PL_KV_GET ? look(s, c) : -EPROTO;
}

/* A negative number: the connection ends. */
static int receive(struct pl_kv_server *s, struct client *c)
{
    struct pl_kv_request r;
    ssize_t n;

    if (pl_buf_reserve(&c->in, 64 * 1024) < 0)
        return -ENOMEM;
    n = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0 || c->waits || c->out.len) /* it is gone, or says more than it should */
        return -EPROTO;
    c->in.len += (size_t)n;
    if (c->in.len < sizeof(r))
        return 0;
    r = request_of(c);
    if (r.key_len > PL_KV_KEY_MAX || r.len > PL_KV_VALUE_MAX ||
        c->in.len > sizeof(r) + r.key_len + r.len)
        return -EPROTO;
    return c->in.len < sizeof(r) + r.key_len + r.len ? 0 : answer(s, c);
}

static int give(struct client *c)
{
    ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    c->sent += (size_t)n;
    return c->sent == c->out.len ? -EPIPE : 0; /* that was all */
}

static void serve(struct pl_kv_server *s)
{
    for (size_t i = s->n; i-- > 0;) {
        struct client *c = &s->clients[i];
        int r = s->polls[i].revents & (POLLIN | POLLHUP | POLLERR) ? receive(s, c) : 0;

        if (r == 0 && c->waits)
            r = look(s, c);
        if (r == 0 && c->out.len)
            r = give(c);
        if (r < 0 || pl_now_ns() > c->limit)
            drop(s, i);
    }
}

/* What others wait for may have come: these are looked at in the next turn, at once. */
static int wait_ms(const struct pl_kv_server *s, bool news)
{
    uint64_t now = pl_now_ns(), until = UINT64_MAX;

    if (news)
        return 0;
    for (size_t i = 0; i < s->n; i++)
        until = PL_MIN(until, s->clients[i].limit);
    if (until == UINT64_MAX)
        return -1;
    return until > now ? (int)PL_MIN((until - now) / 1000000u + 1, (uint64_t)60000) : 0;
}

static void *run(void *arg)
{
    struct pl_kv_server *s = arg;
    size_t before = 0;
    bool failed = false;

    for (;;) {
        int ms = wait_ms(s, s->n_values != before || (s->failed.data && !failed));
        size_t n = s->n;

        before = s->n_values;
        failed = s->failed.data;
        for (size_t i = 0; i < n; i++)
            s->polls[i] =
                (struct pollfd){.fd = s->clients[i].fd,
                                .events = (short)(POLLIN | (s->clients[i].out.len ? POLLOUT : 0))};
        s->polls[n] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
        s->polls[n + 1] = (struct pollfd){.fd = s->stop[0], .events = POLLIN};
        if (poll(s->polls, n + 2, ms) < 0)
            continue;
        if (s->polls[n + 1].revents)
            return NULL;
        serve(s);
        if (s->polls[n].revents)
            welcome(s);
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
