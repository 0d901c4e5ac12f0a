/* SPDX-License-Identifier: MIT */
/* Two sides of a session in one process, and an attacker on the line between them. */
#ifndef PL_TESTS_UNIT_SESSION_PAIR_H
#define PL_TESTS_UNIT_SESSION_PAIR_H

#include "common/proto/hub_ask.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct pl_session_id id = {.job = "12", .step = "0", .attempt = 1};
static const unsigned char secret[PL_KEY_SIZE + 1] = "0123456789abcdef0123456789abcdef";

static inline void serve(struct pl_session *s)
{
    assert_int_equal(pl_session_serve(s, &id, secret), 0);
}

static inline void connect_as(struct pl_session *s,
                              const struct pl_session_id *who,
                              const unsigned char key[PL_KEY_SIZE])
{
    json_t *hello = json_pack("{s:s}", "role", "client");

    assert_int_equal(pl_session_connect(s, who, key, hello), 0);
    json_decref(hello);
}

/* Moves what one side has to say to the other. */
static inline void carry(struct pl_session *from, struct pl_session *to)
{
    assert_int_equal(pl_session_feed(to, pl_buf_str(&from->out), from->out.len), 0);
    pl_buf_consume(&from->out, from->out.len);
}

/* The next message; NULL where more bytes are needed. */
static inline json_t *next(struct pl_session *s)
{
    struct pl_error err = {0};
    json_t *message = NULL;
    int r = pl_session_next(s, &message, &err);

    if (r < 0)
        fail_msg("%s", err.text);
    assert_int_equal(r == 1, message != NULL);
    return message;
}

static inline void assert_dead(struct pl_session *s, int code)
{
    struct pl_error err = {0};
    json_t *message = NULL;

    assert_int_equal(pl_session_next(s, &message, &err), code);
    assert_null(message);
    assert_int_not_equal(err.text[0], '\0');
    assert_int_equal(s->state, PL_SESSION_DEAD);
    assert_int_equal(pl_session_next(s, &message, &err), -ENOTCONN); /* for ever */
    assert_int_equal(pl_session_send(s, json_null()), -ENOTCONN);
}

static inline void greet(struct pl_session *server, struct pl_session *client)
{
    json_t *hello;

    serve(server);
    connect_as(client, &id, secret);
    carry(server, client);
    assert_null(next(client));
    carry(client, server);
    hello = next(server);
    assert_string_equal(pl_json_string(hello, "role"), "client");
    json_decref(hello);
    carry(server, client);
    assert_null(next(client));
    assert_int_equal(client->state, PL_SESSION_OPEN);
    assert_int_equal(server->state, PL_SESSION_OPEN);
}

static inline void say(struct pl_session *s, const char *text)
{
    json_t *m = json_pack("{s:s}", "text", text);

    assert_int_equal(pl_session_send(s, m), 0);
    json_decref(m);
}

static inline void assert_hears(struct pl_session *s, const char *text)
{
    json_t *m = next(s);

    assert_string_equal(pl_json_string(m, "text"), text);
    json_decref(m);
}

static inline void finish(struct pl_session *a, struct pl_session *b)
{
    pl_session_finish(a);
    pl_session_finish(b);
    pl_session_finish(b);
}

typedef void (*tamper_f)(struct pl_buf *wire, size_t first);

static inline void replay_first(struct pl_buf *wire, size_t first)
{
    assert_true(first * 2 == wire->len);
    memcpy(wire->data + first, wire->data, first);
}

static inline void swap_frames(struct pl_buf *wire, size_t first)
{
    char *copy = strdup(wire->data);

    memcpy(wire->data, copy + first, wire->len - first);
    memcpy(wire->data + wire->len - first, copy, first);
    free(copy);
}

static inline void cut(struct pl_buf *wire, size_t first)
{
    wire->data[first - 2] = '\n';
    wire->len = first - 1;
}

static inline void extend(struct pl_buf *wire, size_t first)
{
    wire->data[first - 1] = ' ';
    wire->data[first] = '\n';
    wire->len = first + 1;
}

static inline void drop_first(struct pl_buf *wire, size_t first)
{
    pl_buf_consume(wire, first);
}

#endif
