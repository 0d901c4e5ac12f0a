/* SPDX-License-Identifier: MIT */
/* The rank socket: accepting, and lines in. daemon_rank.c handles the messages. */
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/plrund/daemon/daemon.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define DRAIN_CONNS 64  /* waiting to be accepted */
#define DRAIN_READS 256 /* of one connection: more than a socket holds */

void pl_daemon_forward_exchange(struct pl_daemon *d, json_t *message)
{
    _cleanup_(json_decrefp) json_t *answer = NULL;
    struct pl_msg m;

    if (pl_msg_read_as(message, PL_MSG_HUB_EXCHANGED, &m) < 0)
        return;
    answer = pl_msg_new(
        &(struct pl_msg){.type = PL_MSG_RANK_EXCHANGED, .rank_exchanged = m.hub_exchanged});
    for (struct pl_rank_conn *c = d->conns; c; c = c->next)
        if (c->rank && !c->starter)
            pl_rank_conn_send(c, answer);
}

static void send_error(struct pl_rank_conn *c, const char *text)
{
    pl_rank_conn_send_new(
        c, pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_ERROR, .rank_error.text = text}));
}

/* Negative: the connection is to be given up. */
static int conn_line(struct pl_rank_conn *c, const char *line, size_t len)
{
    _cleanup_(json_decrefp) json_t *message = NULL;
    struct pl_error err = {0};
    int r = pl_json_parse(line, len, PL_RANK_LINE_MAX, &message, &err);

    pl_trace_line("receive", "rank", line, len);
    if (r == 0 && !c->rank) {
        r = pl_rank_hello(c, message);
        if (r < 0)
            pl_error_set(&err, r, "%s",
                         r == -EPERM ? "this process is not the rank's starter" : "bad hello");
        else if (c->starter && c->daemon->world)
            pl_daemon_watch_env(c->daemon);
    } else if (r == 0) {
        switch (pl_rank_message(c, message)) {
        case -ENOENT:
            send_error(c, "unknown type");
            break;
        case -EPERM:
            send_error(c, "only the rank's starter reports this");
            break;
        case -EMSGSIZE:
            send_error(c, "an exchange's name or value is too long");
            break;
        }
    }
    if (r < 0) {
        pl_log_debug("net", "bad line from a rank: %s", pl_error_text(&err));
        send_error(c, pl_error_text(&err));
        if (c->starter && c->rank)
            pl_log_error("net", "bad line from the starter of rank %u, which is cut off: %s",
                         c->rank->rank, pl_error_text(&err));
    }
    return r;
}

/* The connection ended. A guard that did not report its rank's end was killed, and the rank too. */
static void conn_gone(struct pl_rank_conn *c)
{
    struct pl_rank *rank = c->rank;
    bool guard = c->starter && rank && rank->starter == c && rank->guarded;

    pl_rank_conn_close(c);
    if (guard && !rank->running && !rank->ended && rank->daemon->refusal) {
        rank->ended = true; /* refused: its starter has left */
        rank->daemon->n_ended++;
        pl_daemon_changed(rank->daemon);
    } else if (guard && !rank->ended)
        pl_rank_starter_gone(rank);
    else if (rank)
        pl_daemon_changed(rank->daemon);
}

/* Reads once, and handles the lines. False once there is nothing to read, or nobody who writes. */
static bool conn_read(struct pl_rank_conn *c)
{
    char data[16384];
    int fds[4];
    size_t n_fds = 0;
    ssize_t n;
    char *newline;

    n = pl_recv_fds(c->fd, data, sizeof(data), fds, PL_COUNT(fds), &n_fds);
    if (n_fds && !c->n_fds) {
        memcpy(c->fds, fds, sizeof(fds));
        c->n_fds = n_fds;
    } else {
        for (size_t i = 0; i < n_fds; i++)
            close(fds[i]);
    }
    if (n == -EAGAIN)
        return false;
    if (n > 0 && pl_buf_add(&c->in, data, (size_t)n) < 0) {
        pl_log_error("net", "out of memory: a process of rank %u is cut off",
                     c->rank ? c->rank->rank : 0);
        n = -ENOMEM;
    }
    if (n <= 0) {
        conn_gone(c);
        return false;
    }
    while (!c->closing && (newline = memchr(c->in.data, '\n', c->in.len))) {
        size_t len = (size_t)(newline - c->in.data);

        if (conn_line(c, c->in.data, len) < 0) {
            conn_gone(c);
            return false;
        }
        pl_buf_consume(&c->in, len + 1);
    }
    if (!c->closing && c->in.len > PL_RANK_LINE_MAX) {
        pl_log_debug("net", "overlong line from a rank");
        conn_gone(c);
    }
    return !c->closing;
}

static void conn_event(uv_poll_t *poll, int status, int events)
{
    struct pl_rank_conn *c = poll->data;

    if (events & UV_WRITABLE)
        pl_rank_conn_flush(c);
    if ((events & (UV_READABLE | UV_DISCONNECT)) || status != 0)
        conn_read(c);
}

/* ---- the socket ---- */

/* 1, 0 if there is none, -errno. */
static int accept_one(struct pl_daemon *d)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int fd = PL_FAULT("accept", EMFILE)
                 ? -1
                 : accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct pl_rank_conn *c;

    if (fd < 0)
        return errno == EAGAIN ? 0 : -errno;
    c = calloc(1, sizeof(*c));
    if (!c || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.uid != geteuid() ||
        uv_poll_init(d->loop, &c->poll, fd) < 0) {
        close(fd);
        free(c);
        return 1;
    }
    c->daemon = d;
    c->fd = fd;
    c->pid = cred.pid;
    c->poll.data = c;
    c->born_ns = pl_now_ns();
    c->next = d->conns;
    d->conns = c;
    c->on_event = conn_event;
    pl_rank_conn_flush(c);
    return 1;
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    int r = accept_one(poll->data);

    if (r == -EMFILE || r == -ENFILE || r == -ENOMEM || r == -ENOBUFS)
        uv_poll_stop(poll); /* until the next tick: the loop would call this again at once */
}

static void drain_programs(struct pl_rank *rank)
{
    struct pl_daemon *d = rank->daemon;
    struct pl_rank_conn *c, *next;

    if (d->draining || d->finished) /* a line of another rank's starter ended that rank */
        return;
    d->draining = true;
    for (int i = 0; i < DRAIN_CONNS && accept_one(d) > 0; i++)
        ;
    for (c = d->conns; c; c = next) {
        next = c->next;
        for (int i = 0; i < DRAIN_READS && !c->closing && !c->starter &&
                        (!c->rank || c->rank == rank) && conn_read(c);
             i++)
            ;
    }
    d->draining = false;
}

void pl_daemon_accept(struct pl_daemon *d)
{
    if (d->listener.data && !uv_is_closing((uv_handle_t *)&d->listener))
        uv_poll_start(&d->listener, UV_READABLE, on_accept);
}

/* Removes a socket file without a listener. */
static int remove_stale(const struct sockaddr_un *addr)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat st;

    if (fd < 0 || connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
        return -EADDRINUSE;
    if (errno != ECONNREFUSED || lstat(addr->sun_path, &st) < 0 || st.st_uid != geteuid())
        return -EADDRINUSE;
    return unlink(addr->sun_path) < 0 ? -errno : 0;
}

int pl_daemon_listen(struct pl_daemon *d, struct pl_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int r = pl_rank_socket_path(d->step.id.job, d->step.id.step, d->step.id.attempt,
                                d->step.node_id, &d->socket_path, err);

    if (r < 0)
        return r;
    if (r > 0)
        pl_log_warn("daemon", "%s", pl_error_text(err));
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", d->socket_path);
    d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (d->listen_fd < 0)
        return pl_error_errno(err, errno, "cannot make a socket");
    r = bind(d->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
    if (r == -EADDRINUSE && remove_stale(&addr) == 0)
        r = bind(d->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
    if (r == 0 && (chmod(addr.sun_path, 0600) < 0 || listen(d->listen_fd, 256) < 0))
        r = -errno;
    if (r < 0) {
        free(PL_TAKE(d->socket_path)); /* another's: not removed at the end */
        return pl_error_errno(err, r, "cannot listen at '%s'", addr.sun_path);
    }
    d->ranks = calloc(d->step.local_ntasks, sizeof(*d->ranks));
    if (!d->ranks)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = uv_poll_init(d->loop, &d->listener, d->listen_fd);
    if (r < 0)
        return pl_error_set(err, r, "cannot watch a socket: %s", uv_strerror(r));
    d->listener.data = d;
    d->drain_programs = drain_programs;
    pl_daemon_accept(d);
    pl_daemon_sweep(d->socket_path);
    return 0;
}

void pl_daemon_close_ranks(struct pl_daemon *d)
{
    if (d->socket_path)
        unlink(d->socket_path);
    if (d->listener.data && !uv_is_closing((uv_handle_t *)&d->listener))
        uv_close((uv_handle_t *)&d->listener, NULL);
    while (d->conns)
        pl_rank_conn_close(d->conns);
    for (unsigned i = 0; i < d->n_present; i++) {
        pl_capture_close(PL_TAKE(d->ranks[i].out));
        pl_capture_close(PL_TAKE(d->ranks[i].err));
    }
}
