/* SPDX-License-Identifier: MIT */
#include "common/proto/hub_ask.h"
#include "common/base/fs.h"
#include "common/proto/json.h"

#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static int
connect_to(const char *host, uint16_t port, uint64_t limit, int *ret, struct pl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list = NULL;
    char service[8];
    int r = -EHOSTUNREACH;

    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &list) != 0)
        return pl_error_set(err, r, "cannot resolve '%s'", host);
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        _cleanup_close_ int fd =
            socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t len = sizeof(r);

        if (fd < 0) {
            r = -errno;
            continue;
        }
        if (connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS) {
            r = -errno;
            continue;
        }
        r = poll(&p, 1, pl_left_ms(limit));
        if (r <= 0) {
            r = r < 0 ? -errno : -ETIMEDOUT;
            continue;
        }
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &len) == 0 && r == 0) {
            *ret = PL_TAKE_FD(fd);
            freeaddrinfo(list);
            return 0;
        }
        r = -r;
    }
    freeaddrinfo(list);
    return pl_error_errno(err, r, "cannot reach the hub at %s:%u", host, port);
}

/* Moves bytes both ways until the answer came. */
static int converse(int fd,
                    struct pl_session *s,
                    enum pl_msg_type question,
                    enum pl_msg_type answer,
                    uint64_t limit,
                    json_t **ret,
                    struct pl_error *err)
{
    bool asked = false;

    for (;;) {
        _cleanup_(json_decrefp) json_t *message = NULL;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char data[16384];
        ssize_t n;
        int r = pl_session_next(s, &message, err);

        if (r < 0)
            return r;
        if (r == 1) {
            const char *type = pl_json_string(message, "type");

            if (type && strcmp(type, pl_msg_type_name(answer)) == 0) {
                *ret = PL_TAKE(message);
                return 0;
            }
            continue;
        }
        if (s->state == PL_SESSION_OPEN && !asked) {
            _cleanup_(json_decrefp) json_t *q = pl_msg_new(&(struct pl_msg){.type = question});

            if (!q || pl_session_send(s, q) < 0)
                return pl_error_set(err, -ENOMEM, "out of memory");
            asked = true;
        }
        if (s->out.len)
            p.events |= POLLOUT;
        n = poll(&p, 1, pl_left_ms(limit));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return pl_error_set(err, -ETIMEDOUT, "the hub does not answer");
        if (s->out.len && (p.revents & POLLOUT)) {
            n = send(fd, s->out.data, s->out.len, MSG_NOSIGNAL);
            if (n > 0)
                pl_buf_consume(&s->out, (size_t)n);
        }
        if (!(p.revents & (POLLIN | POLLHUP | POLLERR)))
            continue;
        n = recv(fd, data, sizeof(data), 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n <= 0)
            return pl_error_set(err, -EPIPE, "the hub closed the connection");
        if (pl_session_feed(s, data, (size_t)n) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
    }
}

int pl_hub_ask(const char *host,
               uint16_t port,
               const struct pl_session_id *id,
               const unsigned char secret[PL_KEY_SIZE],
               enum pl_msg_type question,
               enum pl_msg_type answer,
               unsigned timeout_ms,
               json_t **ret,
               struct pl_error *err)
{
    uint64_t limit = pl_now_ns() + (uint64_t)timeout_ms * 1000000u;
    _cleanup_(json_decrefp) json_t *hello = json_pack("{s:s}", "role", "client");
    _cleanup_close_ int fd = -EBADF;
    struct pl_session s = {.state = PL_SESSION_DEAD};
    enum pl_encrypt encrypt;
    int r;

    if (!hello)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_encrypt_read(&encrypt, err);
    if (r == 0)
        r = connect_to(host, port, limit, &fd, err);
    if (r < 0)
        return r;
    r = pl_session_connect(&s, id, secret, hello);
    if (r == 0)
        r = converse(fd, &s, question, answer, limit, ret, err);
    pl_session_finish(&s);
    return r;
}
