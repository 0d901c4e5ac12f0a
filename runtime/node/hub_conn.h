/* SPDX-License-Identifier: MIT */
/* A connection between a daemon, or a client, and the hub, in a libuv loop. It is either a session
 * (common/proto/protocol.h) over TCP, or a pair of ends in one process: the hub and the daemon of
 * its own node. Both kinds deliver messages from the loop, never from within a function here. */
#ifndef PL_RUNTIME_NODE_HUB_CONN_H
#define PL_RUNTIME_NODE_HUB_CONN_H

#include "common/proto/protocol.h"

#include <uv.h>

struct pl_hub_conn;

struct pl_hub_conn_ops {
    /* Each message; borrowed. May call pl_hub_conn_close(). */
    void (*message)(struct pl_hub_conn *wire, json_t *message);
    /* The session became OPEN (both sides know that the other holds the secret). May be NULL. */
    void (*open)(struct pl_hub_conn *wire);
    /* Once, when the connection failed or the peer closed it, after the peer's last message; not
     * after pl_hub_conn_close(). err has the reason (-EPIPE: closed). The wire is freed after the
     * call. */
    void (*closed)(struct pl_hub_conn *wire, const struct pl_error *err);
};

struct pl_hub_conn {
    union {
        uv_poll_t poll;  /* TCP */
        uv_async_t wake; /* a pair's end: the inbox has something, or the other end is gone */
    };
    int fd;                   /* -EBADF: a pair's end */
    struct pl_hub_conn *peer; /* a pair's other end; NULL once that is closed */
    json_t *inbox;            /* a pair's end: messages to deliver */
    struct pl_session session;
    const struct pl_hub_conn_ops *ops;
    void *ctx; /* the owner's */
    uint64_t last_heard_ns;
    bool connecting, was_open, closing;
};

/* Takes fd (also on failure) and starts the session: the server's side, or the client's with its
 * hello (borrowed) once the connection is up. *ret lives until it is closed. */
int pl_hub_conn_create(uv_loop_t *loop,
                       int fd,
                       const struct pl_session_id *id,
                       const unsigned char secret[PL_KEY_SIZE],
                       json_t *hello,
                       const struct pl_hub_conn_ops *ops,
                       void *ctx,
                       struct pl_hub_conn **ret);

/* Makes the two ends of a connection inside this process: ret[0] for the side that serves, ret[1]
 * for the one that connects with this hello (borrowed). Each end waits for its owner, see
 * pl_hub_conn_set_owner(). Errors as uv_async_init(), -ENOMEM. */
int pl_hub_conn_pair(uv_loop_t *loop, json_t *hello, struct pl_hub_conn *ret[2]);

/* Gives an end of a pair its owner, before the loop runs. */
void pl_hub_conn_set_owner(struct pl_hub_conn *wire, const struct pl_hub_conn_ops *ops, void *ctx);

/* Queues a message (borrowed). A wire that is not open, or that is closing, drops it. A peer that
 * leaves more than 4 MiB unread is cut off. The other end of a pair gets the same object, so the
 * sender must not change it later. Returns 0 or what pl_session_send() returns (-EMSGSIZE). */
int pl_hub_conn_send(struct pl_hub_conn *wire, json_t *message);

/* As pl_hub_conn_send(), for a message that several wires get: its line, by pl_json_dump_line(),
 * and its type. -ENOTSUP for an end of a pair. */
int pl_hub_conn_send_line(struct pl_hub_conn *wire, const char *type, const struct pl_buf *line);

/* As pl_hub_conn_send() with a new reference that is consumed; NULL is skipped. */
void pl_hub_conn_send_new(struct pl_hub_conn *wire, json_t *message);

/* Bytes that the kernel has not taken yet. */
size_t pl_hub_conn_unsent(const struct pl_hub_conn *wire);

/* Numeric host of this side's address or of the peer's; "127.0.0.1" for a pair. */
int pl_hub_conn_address(const struct pl_hub_conn *wire, bool peer, char *ret, size_t size);

/* The role of the client's hello; NULL before it came. Borrowed. */
const char *pl_hub_conn_role(const struct pl_hub_conn *wire);

/* True if the peer has sent nothing for so long. An end of a pair is never silent. */
bool pl_hub_conn_is_silent(const struct pl_hub_conn *wire, unsigned limit_ms);

/* True if the kernel of the peer's host has acknowledged all that was sent: a peer that is silent
 * is then stopped or stuck, and its host is up. False without a connection. */
bool pl_hub_conn_host_answers(const struct pl_hub_conn *wire);

/* Counts silence from now on: this process could not listen, since its job was suspended. */
void pl_hub_conn_reset_silence(struct pl_hub_conn *wire);

/* Ends the connection in both directions; the loop then reports it as closed. */
void pl_hub_conn_cut(struct pl_hub_conn *wire);

/* Closes (after one last try to write what is queued) and frees it later. NULL is fine. */
void pl_hub_conn_close(struct pl_hub_conn *wire);

#endif
