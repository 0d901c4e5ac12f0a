/* SPDX-License-Identifier: MIT */
#include "runtime/node/hub_conn.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/proto/json.h"
#include "runtime/node/net.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define QUEUE_MAX ((size_t)4 * 1024 * 1024)
#define REST_MAX ((size_t)64 * 1024 * 1024) /* more than a socket keeps */

static void on_ready(uv_poll_t *poll, int status, int events);

static bool is_pair(const struct pl_hub_conn *w)
{
    return w->fd < 0;
}

static void free_wire(uv_handle_t *handle)
{
    struct pl_hub_conn *w = handle->data;

    if (w->fd >= 0)
        close(w->fd);
    json_decref(w->inbox);
    pl_session_finish(&w->session);
    free(w);
}

/* Separates the ends of a pair; each hears of it from the loop. */
static void part(struct pl_hub_conn *w)
{
    if (!w->peer)
        return;
    uv_async_send(&w->wake);
    uv_async_send(&w->peer->wake);
    w->peer->peer = NULL;
    w->peer = NULL;
}

static void drop(struct pl_hub_conn *w)
{
    if (w->closing)
        return;
    w->closing = true;
    if (is_pair(w))
        part(w);
    else
        uv_poll_stop(&w->poll);
    uv_close(is_pair(w) ? (uv_handle_t *)&w->wake : (uv_handle_t *)&w->poll, free_wire);
}

/* Tells the owner and frees. */
static void fail(struct pl_hub_conn *w, const struct pl_error *err)
{
    if (w->closing)
        return;
    pl_log_debug("net", "connection ended: %s", pl_error_text(err));
    w->ops->closed(w, err);
    drop(w);
}

static void watch(struct pl_hub_conn *w)
{
    int events = UV_READABLE;

    if (w->closing)
        return;
    if (w->connecting || w->session.out.len)
        events |= UV_WRITABLE;
    uv_poll_start(&w->poll, events, on_ready);
}

static int flush(struct pl_hub_conn *w, struct pl_error *err)
{
    while (w->session.out.len) {
        ssize_t n = send(w->fd, w->session.out.data, w->session.out.len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0)
            return pl_error_errno(err, errno, "cannot write");
        pl_buf_consume(&w->session.out, (size_t)n);
    }
    return 0;
}

/* Hands all whole messages to the owner. */
static int take_messages(struct pl_hub_conn *w, struct pl_error *err)
{
    int r = 0;

    while (!w->closing) {
        json_t *message = NULL;

        r = pl_session_next(&w->session, &message, err);
        if (!w->was_open && w->session.state == PL_SESSION_OPEN) {
            w->was_open = true;
            if (w->ops->open)
                w->ops->open(w);
        }
        if (r == 1 && !w->closing)
            w->ops->message(w, message);
        json_decref(message);
        if (r <= 0)
            break;
    }
    return r < 0 ? r : 0;
}

static int receive(struct pl_hub_conn *w, struct pl_error *err)
{
    char data[65536];
    ssize_t n = recv(w->fd, data, sizeof(data), 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n < 0)
        return pl_error_errno(err, errno, "cannot read");
    if (n == 0)
        return pl_error_set(err, -EPIPE, "the peer closed the connection");
    w->last_heard_ns = pl_now_ns();
    if (pl_session_feed(&w->session, data, (size_t)n) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    return take_messages(w, err);
}

/* Takes what had arrived before the connection broke: a peer that has left has said so. After a
 * pause of this process (a file system that did not answer) both may be there at once. */
static void receive_rest(struct pl_hub_conn *w)
{
    struct pl_error err = {0};
    char data[65536];
    size_t total = 0;
    ssize_t n;

    while (!w->closing && total < REST_MAX && (n = recv(w->fd, data, sizeof(data), 0)) > 0) {
        total += (size_t)n;
        if (pl_session_feed(&w->session, data, (size_t)n) < 0 || take_messages(w, &err) < 0)
            break;
    }
}

/* libuv reports EBADF for whatever error a socket has: a reset connection, a host that is silent.
 */
static int error_of(int fd, int fallback)
{
    int error = 0;
    socklen_t len = sizeof(error);

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error ? error : fallback;
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct pl_hub_conn *w = poll->data;
    struct pl_error err = {0};
    int r = 0;

    if (w->connecting) {
        socklen_t len = sizeof(r);

        if (getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &r, &len) < 0)
            r = errno;
        if (r == 0 && status < 0)
            r = -status;
        if (r) {
            pl_error_errno(&err, r, "cannot connect");
            fail(w, &err);
            return;
        }
        w->connecting = false;
    } else if (status < 0) {
        pl_error_errno(&err, error_of(w->fd, -status), "the connection broke");
        receive_rest(w);
        fail(w, &err);
        return;
    }
    if (events & UV_READABLE)
        r = receive(w, &err);
    if (!w->closing) {
        struct pl_error late = {0};
        int f = flush(w, r < 0 ? &late : &err);

        if (r == 0 && f < 0)
            receive_rest(w);
        if (r == 0)
            r = f;
    }
    if (r < 0)
        fail(w, &err);
    else
        watch(w);
}

int pl_hub_conn_create(uv_loop_t *loop,
                       int fd,
                       const struct pl_session_id *id,
                       const unsigned char secret[PL_KEY_SIZE],
                       json_t *hello,
                       const struct pl_hub_conn_ops *ops,
                       void *ctx,
                       struct pl_hub_conn **ret)
{
    struct pl_hub_conn *w = calloc(1, sizeof(*w));
    int r = w ? 0 : -ENOMEM;

    if (r == 0) {
        w->fd = fd;
        w->ops = ops;
        w->ctx = ctx;
        w->connecting = hello != NULL;
        w->last_heard_ns = pl_now_ns();
        r = hello ? pl_session_connect(&w->session, id, secret, hello)
                  : pl_session_serve(&w->session, id, secret);
    }
    if (r == 0)
        r = uv_poll_init(loop, &w->poll, fd);
    if (r < 0) {
        close(fd);
        if (w)
            pl_session_finish(&w->session);
        free(w);
        return r;
    }
    w->poll.data = w;
    pl_net_tune(fd);
    if (!hello) {
        struct pl_error err;

        flush(w, &err); /* the banner; a failure shows at the next event */
    }
    watch(w);
    *ret = w;
    return 0;
}

/* ---- a pair in one process ---- */

static void on_wake(uv_async_t *wake)
{
    struct pl_hub_conn *w = wake->data;
    _cleanup_(json_decrefp) json_t *messages = PL_TAKE(w->inbox);
    struct pl_error err = {0};
    json_t *message;
    size_t i;

    if (!w->was_open) {
        w->was_open = true;
        if (w->ops->open)
            w->ops->open(w);
    }
    json_array_foreach (messages, i, message)
        if (!w->closing)
            w->ops->message(w, message);
    if (w->closing || w->peer || w->inbox)
        return;
    pl_error_set(&err, -EPIPE, "the peer closed the connection");
    fail(w, &err);
}

int pl_hub_conn_pair(uv_loop_t *loop, json_t *hello, struct pl_hub_conn *ret[2])
{
    struct pl_hub_conn *ends[2] = {NULL, NULL};
    int r = 0;

    for (int i = 0; i < 2 && r == 0; i++) {
        struct pl_hub_conn *w = calloc(1, sizeof(*w));

        if (!w)
            r = -ENOMEM;
        else if ((r = uv_async_init(loop, &w->wake, on_wake)) < 0)
            free(w);
        if (r == 0) {
            w->fd = -EBADF;
            w->wake.data = w;
            ends[i] = w;
        }
    }
    if (r < 0) {
        pl_hub_conn_close(ends[0]);
        return r;
    }
    ends[0]->session.hello = json_incref(hello);
    ends[0]->peer = ends[1];
    ends[1]->peer = ends[0];
    ret[0] = ends[0];
    ret[1] = ends[1];
    return 0;
}

void pl_hub_conn_set_owner(struct pl_hub_conn *wire, const struct pl_hub_conn_ops *ops, void *ctx)
{
    wire->ops = ops;
    wire->ctx = ctx;
    uv_async_send(&wire->wake); /* it opens */
}

static int send_to_peer(struct pl_hub_conn *w, json_t *message)
{
    struct pl_hub_conn *peer = w->peer;

    if (!peer)
        return -ENOTCONN;
    if (!peer->inbox)
        peer->inbox = json_array();
    if (json_array_append(peer->inbox, message) < 0)
        return -ENOMEM;
    uv_async_send(&peer->wake);
    return 0;
}

/* ---- both ---- */

static int send_out(struct pl_hub_conn *wire)
{
    struct pl_error err = {0};

    if (flush(wire, &err) < 0 || wire->session.out.len > QUEUE_MAX) {
        pl_hub_conn_cut(wire); /* the loop reports it: the owner must not be called from here */
        pl_buf_consume(&wire->session.out, wire->session.out.len);
    }
    watch(wire);
    return 0;
}

int pl_hub_conn_send(struct pl_hub_conn *wire, json_t *message)
{
    int r;

    if (!wire || wire->closing)
        return -ENOTCONN;
    if (is_pair(wire)) {
        pl_trace("send", pl_json_string(message, "type") ?: "?", "own", -1);
        return send_to_peer(wire, message);
    }
    r = pl_session_send(&wire->session, message);
    return r < 0 ? r : send_out(wire);
}

int pl_hub_conn_send_line(struct pl_hub_conn *wire, const char *type, const struct pl_buf *line)
{
    int r;

    if (!wire || wire->closing)
        return -ENOTCONN;
    if (is_pair(wire))
        return -ENOTSUP;
    r = pl_session_send_line(&wire->session, type, line);
    return r < 0 ? r : send_out(wire);
}

void pl_hub_conn_send_new(struct pl_hub_conn *wire, json_t *message)
{
    if (message)
        pl_hub_conn_send(wire, message);
    json_decref(message);
}

size_t pl_hub_conn_unsent(const struct pl_hub_conn *wire)
{
    return wire->session.out.len;
}

int pl_hub_conn_address(const struct pl_hub_conn *wire, bool peer, char *ret, size_t size)
{
    if (!is_pair(wire))
        return pl_net_name(wire->fd, peer, ret, size);
    snprintf(ret, size, "127.0.0.1");
    return 0;
}

const char *pl_hub_conn_role(const struct pl_hub_conn *wire)
{
    return pl_json_string(wire->session.hello, "role");
}

bool pl_hub_conn_is_silent(const struct pl_hub_conn *wire, unsigned limit_ms)
{
    return !is_pair(wire) && pl_now_ns() - wire->last_heard_ns > limit_ms * 1000000ull;
}

bool pl_hub_conn_host_answers(const struct pl_hub_conn *wire)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    int waiting = 0; /* bytes that are not sent, or not acknowledged */

    if (!wire || is_pair(wire))
        return wire != NULL;
    /* Without a route nothing is sent, so nothing is unacknowledged, but it waits. */
    return getsockopt(wire->fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
           info.tcpi_state == TCP_ESTABLISHED && ioctl(wire->fd, TIOCOUTQ, &waiting) == 0 &&
           waiting == 0;
}

void pl_hub_conn_reset_silence(struct pl_hub_conn *wire)
{
    wire->last_heard_ns = pl_now_ns();
}

void pl_hub_conn_cut(struct pl_hub_conn *wire)
{
    if (is_pair(wire))
        part(wire);
    else
        shutdown(wire->fd, SHUT_RDWR);
}

void pl_hub_conn_close(struct pl_hub_conn *wire)
{
    struct pl_error err;

    if (!wire || wire->closing)
        return;
    if (!is_pair(wire))
        flush(wire, &err);
    drop(wire);
}
