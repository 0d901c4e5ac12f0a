/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/kv_store.h"
#include "common/base/fs.h"
#include "runtime/engine/comm/connect_soon.h"
#include "runtime/engine/comm/kv_server.h"

#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define TALK_MS 10000 /* limit of a call beside the time that it waits for a value */
#define PAUSE_MS 64   /* at most, before a broken connection is made again */

struct pl_kv_store {
    struct pl_kv_place place;
    struct pl_kv_server *server; /* of rank 0 */
};

static int serve(struct pl_kv_store *store, const char *address, struct pl_error *err)
{
    struct pl_kv_place *place = &store->place;
    unsigned port = 0;
    int fd = -EBADF, r = pl_comm_tcp_listen(address, &fd, &port, err);

    if (r < 0)
        return r;
    snprintf(place->address, sizeof(place->address), "%s", address);
    place->port = port;
    if (getrandom(place->key, sizeof(place->key), 0) != sizeof(place->key)) {
        close(fd);
        return pl_error_errno(err, errno, "cannot get random bytes");
    }
    return pl_kv_server_start(fd, place->key, &store->server, err);
}

int pl_kv_store_open(struct pl_comm *comm, struct pl_kv_store **ret, struct pl_error *err)
{
    struct pl_kv_store *store = calloc(1, sizeof(*store));
    struct pl_error why = {0};
    int r;

    if (!store)
        return pl_error_nomem(err);
    if (comm->rank == 0) {
        store->place.code = serve(store, comm->world.address, &why);
        snprintf(store->place.text, sizeof(store->place.text), "%s", pl_error_text(&why));
    }
    r = pl_comm_broadcast(comm, &store->place, sizeof(store->place), err);
    if (r == 0 && store->place.code < 0)
        r = pl_error_set(err, store->place.code, "%s", store->place.text);
    if (r < 0) {
        pl_kv_store_close(store);
        return r;
    }
    *ret = store;
    return 0;
}

void pl_kv_store_close(struct pl_kv_store *store)
{
    if (!store)
        return;
    pl_kv_server_stop(store->server);
    free(store);
}

/* ---- a call ---- */

/* Sends or receives all bytes before the limit. */
static int move_all(int fd, void *bytes, size_t len, bool out, uint64_t limit)
{
    char *at = bytes;

    while (len) {
        struct pollfd p = {.fd = fd, .events = out ? POLLOUT : POLLIN};
        int left_ms = pl_left_ms(limit);
        ssize_t n;

        if (left_ms == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, left_ms) == 0)
            continue;
        n = out ? send(fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, len, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return -ECONNRESET;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static int connect_to(const struct pl_kv_place *place, uint64_t limit)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *a;
    char port[16];
    int fd = -1, r = -EHOSTUNREACH;

    snprintf(port, sizeof(port), "%u", place->port);
    if (getaddrinfo(place->address, port, &hints, &list) != 0)
        return r;
    for (a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        r = fd < 0 ? -errno : pl_connect_soon(fd, a->ai_addr, a->ai_addrlen, limit);
        if (r < 0 && fd >= 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd < 0 ? r : fd;
}

/* Sends a request whose nonce and digest are set, and receives the reply. */
static int talk(const struct pl_kv_place *place,
                int fd,
                struct pl_kv_request *request,
                const char *key,
                const char *value,
                struct pl_kv_reply *reply,
                char **ret,
                uint64_t limit)
{
    uint8_t nonce[PL_KV_NONCE], body[PL_SHA256_BYTES];
    int r = move_all(fd, nonce, sizeof(nonce), false, limit);

    pl_kv_prove_request(place->key, nonce, request);
    if (r == 0)
        r = move_all(fd, request, sizeof(*request), true, limit);
    if (r == 0)
        r = move_all(fd, (char *)(uintptr_t)key, request->key_len, true, limit);
    if (r == 0)
        r = move_all(fd, (char *)(uintptr_t)value, request->len, true, limit);
    if (r == 0)
        r = move_all(fd, reply, sizeof(*reply), false, limit);
    if (r == 0 && !pl_kv_reply_proven(place->key, request->nonce, reply))
        r = -EACCES;
    if (r == 0 && reply->len > PL_KV_VALUE_MAX)
        r = -EPROTO;
    if (r < 0)
        return r;
    *ret = calloc(1, (size_t)reply->len + 1);
    r = *ret ? move_all(fd, *ret, reply->len, false, limit) : -ENOMEM;
    if (r < 0)
        return r;
    pl_kv_digest(*ret, reply->len, NULL, 0, body);
    return pl_bytes_equal(body, reply->body, sizeof(body)) ? 0 : -EACCES;
}

/* Connects and talks, again if the connection breaks: among many strangers it may be ended before
 * it has proven the key. -ECONNRESET: rank 0 is gone. */
static int talk_again(const struct pl_kv_place *place,
                      struct pl_kv_request *request,
                      const char *key,
                      const char *value,
                      struct pl_kv_reply *reply,
                      char **ret)
{
    uint64_t limit = pl_now_ns() + (request->timeout_ms + (uint64_t)TALK_MS) * 1000000u;

    for (int tries = 1;; tries++) {
        int fd = connect_to(place, limit), r = fd;

        if (fd >= 0) {
            free(*ret);
            *ret = NULL;
            r = talk(place, fd, request, key, value, reply, ret, limit);
            close(fd);
        }
        if (r == -ECONNREFUSED)
            return -ECONNRESET;
        if (r != -ECONNRESET || pl_now_ns() >= limit)
            return r;
        poll(NULL, 0, PL_MIN(1 << PL_MIN(tries, 10), PAUSE_MS));
    }
}

static int call(const struct pl_kv_store *store,
                struct pl_kv_request *request,
                const char *key,
                const char *value,
                char **ret,
                size_t *ret_len,
                struct pl_error *err)
{
    const struct pl_kv_place *place = &store->place;
    _cleanup_free_ char *got = NULL;
    struct pl_kv_reply reply;
    int r;

    if (request->key_len > PL_KV_KEY_MAX || request->len > PL_KV_VALUE_MAX)
        return pl_error_set(err, -EMSGSIZE, "a key has at most %d bytes, and a value %u MiB",
                            PL_KV_KEY_MAX, PL_KV_VALUE_MAX >> 20);
    if (getrandom(request->nonce, PL_KV_NONCE, 0) != PL_KV_NONCE)
        return pl_error_errno(err, errno, "cannot get random bytes");
    pl_kv_digest(key, request->key_len, value, request->len, request->body);
    r = talk_again(place, request, key, value, &reply, &got);
    if (r < 0)
        return pl_error_errno(err, r, "rank 0 does not answer at '%s' port %u", place->address,
                              place->port);
    if (reply.code < 0 && reply.len)
        return pl_error_set(err, reply.code, "%s", got);
    if (reply.code < 0)
        return pl_error_errno(err, reply.code, "key '%.*s'", (int)PL_MIN(request->key_len, 200u),
                              key);
    if (ret) {
        *ret = PL_TAKE(got);
        *ret_len = reply.len;
    }
    return 0;
}

int pl_kv_store_put(struct pl_kv_store *store,
                    const char *key,
                    size_t key_len,
                    const char *value,
                    size_t len,
                    struct pl_error *err)
{
    struct pl_kv_request request = {.what = PL_KV_PUT,
                                    .key_len = (uint32_t)PL_MIN(key_len, (size_t)UINT32_MAX),
                                    .len = (uint32_t)PL_MIN(len, (size_t)UINT32_MAX)};

    return call(store, &request, key, value, NULL, NULL, err);
}

int pl_kv_store_get(struct pl_kv_store *store,
                    const char *key,
                    size_t key_len,
                    unsigned timeout_ms,
                    char **ret,
                    size_t *ret_len,
                    struct pl_error *err)
{
    struct pl_kv_request request = {.what = PL_KV_GET,
                                    .key_len = (uint32_t)PL_MIN(key_len, (size_t)UINT32_MAX),
                                    .timeout_ms = timeout_ms};

    return call(store, &request, key, NULL, ret, ret_len, err);
}

void pl_kv_store_fail(struct pl_kv_store *store, const char *text)
{
    struct pl_kv_request request = {.what = PL_KV_FAIL, .len = (uint32_t)strlen(text)};

    (void)call(store, &request, "", text, NULL, NULL, NULL); /* they have limits of their own */
}
