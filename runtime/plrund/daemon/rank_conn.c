/* SPDX-License-Identifier: MIT */
/* A connection of a starter or of a rank's program: lines out. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/proto/json.h"
#include "runtime/plrund/daemon/daemon.h"

#include <sys/socket.h>

#define OUT_MAX ((size_t)4 * 1024 * 1024) /* unread bytes at which a program is cut off */

static void conn_free(uv_handle_t *handle)
{
    struct pl_rank_conn *c = handle->data;

    close(c->fd);
    for (size_t i = 0; i < c->n_fds; i++)
        close(c->fds[i]);
    pl_buf_finish(&c->in);
    pl_buf_finish(&c->out);
    free(c);
}

void pl_rank_conn_close(struct pl_rank_conn *c)
{
    struct pl_rank_conn **p = &c->daemon->conns;

    if (c->closing)
        return;
    c->closing = true;
    while (*p && *p != c)
        p = &(*p)->next;
    if (*p)
        *p = c->next;
    if (c->rank && c->rank->starter == c)
        c->rank->starter = NULL;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, conn_free);
}

void pl_rank_conn_flush(struct pl_rank_conn *c)
{
    while (c->out.len) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break; /* full: goes on when writable; broken: the next read reports it */
        pl_buf_consume(&c->out, (size_t)n);
    }
    if (!c->closing)
        uv_poll_start(&c->poll, UV_READABLE | (c->out.len ? UV_WRITABLE : 0), c->on_event);
}

/* A message was lost: its reader would wait for it for ever. */
static void cut_without_memory(struct pl_rank_conn *c)
{
    pl_log_warn("net", "out of memory: a process of rank %u is cut off",
                c->rank ? c->rank->rank : 0);
    shutdown(c->fd, SHUT_RDWR);
}

void pl_rank_conn_send(struct pl_rank_conn *c, json_t *message)
{
    if (!c || c->closing || !message)
        return;
    if (c->out.len > OUT_MAX) {
        pl_log_warn("net", "a program of rank %u does not read: cut off",
                    c->rank ? c->rank->rank : 0);
        shutdown(c->fd, SHUT_RDWR);
        return;
    }
    pl_trace("send", pl_json_string(message, "type") ?: "?", "rank", -1);
    if (pl_json_dump_line(message, &c->out) < 0)
        cut_without_memory(c);
    pl_rank_conn_flush(c);
}

void pl_rank_conn_send_new(struct pl_rank_conn *c, json_t *message)
{
    if (c && !c->closing && !message)
        cut_without_memory(c);
    pl_rank_conn_send(c, message);
    json_decref(message);
}
