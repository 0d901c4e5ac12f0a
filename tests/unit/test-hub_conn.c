/* SPDX-License-Identifier: MIT */
/* Both ends of a session in one loop, over TCP on loopback and over socket pairs; and the two ends
 * of a pair without a socket. */
#include "common/proto/json.h"
#include "runtime/node/hub_conn.h"
#include "runtime/node/net.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct pl_session_id id = {.job = "12", .step = "0", .attempt = 1};
static const unsigned char secret[PL_KEY_SIZE + 1] = "0123456789abcdef0123456789abcdef";

struct end {
    struct pl_hub_conn *wire;
    unsigned opened, messages, closed;
    int reason;
    char last[64];
    enum { NOTHING, CLOSE_IT, ANSWER } on_message;
    bool close_on_open;
};

static uv_loop_t loop;
static struct end server, client;

static void on_message(struct pl_hub_conn *wire, json_t *message)
{
    struct end *e = wire->ctx;
    const char *text = pl_json_string(message, "text");

    e->messages++;
    snprintf(e->last, sizeof(e->last), "%s", text ? text : "");
    if (e->on_message == CLOSE_IT)
        pl_hub_conn_close(PL_TAKE(e->wire));
    else if (e->on_message == ANSWER && text)
        pl_hub_conn_send_new(wire, json_pack("{s:s}", "text", "answer"));
}

static void on_open(struct pl_hub_conn *wire)
{
    struct end *e = wire->ctx;

    e->opened++;
    if (e->close_on_open)
        pl_hub_conn_close(PL_TAKE(e->wire));
}

static void on_closed(struct pl_hub_conn *wire, const struct pl_error *err)
{
    struct end *e = wire->ctx;

    assert_ptr_equal(wire, e->wire);
    assert_int_not_equal(err->text[0], '\0');
    e->closed++;
    e->reason = err->code;
    e->wire = NULL;
    pl_hub_conn_close(wire); /* allowed, and nothing more */
}

static const struct pl_hub_conn_ops ops = {on_message, on_open, on_closed};

static void make(struct end *e, int fd, const unsigned char key[PL_KEY_SIZE], bool connects)
{
    json_t *hello = connects ? json_pack("{s:s}", "role", "client") : NULL;

    memset(e, 0, sizeof(*e));
    assert_int_equal(pl_hub_conn_create(&loop, fd, &id, key, hello, &ops, e, &e->wire), 0);
    json_decref(hello);
}

static void begin_pair(const unsigned char client_key[PL_KEY_SIZE])
{
    int pair[2];

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    make(&server, pair[0], secret, false);
    make(&client, pair[1], client_key, true);
}

/* Runs until the counter has this value; the loop has nothing but events of ours. */
static void until(const unsigned *counter, unsigned value)
{
    for (int i = 0; *counter != value && i < 100000; i++)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(*counter, value);
}

static void finish(void)
{
    pl_hub_conn_close(PL_TAKE(server.wire));
    pl_hub_conn_close(PL_TAKE(client.wire));
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void say(struct end *e, const char *text)
{
    pl_hub_conn_send_new(e->wire, json_pack("{s:s}", "text", text));
}

/* Connects both ends over TCP, and waits until they are open. */
static void begin_tcp(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct pl_error err = {0};
    int held, listener, fd, room = 1 << 20;
    uint16_t port;

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pl_port_reserve(0, &held, &port, &err), 0);
    assert_int_equal(pl_net_listen(NULL, port, &listener, &err), 0);
    a.sin_port = htons(port);
    assert_int_equal(pl_net_connect((struct sockaddr *)&a, sizeof(a), &fd), 0);
    make(&client, fd, secret, true);
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
        uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
    make(&server, fd, secret, false);
    close(held);
    close(listener);
    until(&client.opened, 1);
}

static void test_send_over_tcp(void **state)
{
    (void)state;
    begin_tcp();
    server.on_message = ANSWER;
    say(&client, "question");
    until(&client.messages, 1);
    assert_string_equal(server.last, "question");
    assert_string_equal(client.last, "answer");
    assert_int_equal(server.messages, 2); /* the hello first */
    assert_int_equal(pl_hub_conn_unsent(client.wire), 0);
    assert_string_equal(pl_hub_conn_role(server.wire), "client");
    finish();
}

/* A peer that did not wait for us any longer has reset the connection; what it said before counts,
 * of which the first event reads a part. */
static void test_messages_before_a_reset(void **state)
{
    (void)state;
    begin_tcp();
    until(&server.messages, 1); /* the hello */
    for (int i = 0; i < 1000; i++)
        say(&client,
            "more words than are read at once, by far, so that there are some after the reset");
    say(&client, "last words");
    assert_int_equal(pl_hub_conn_unsent(client.wire), 0);
    say(&server, "nobody reads this: the system resets the connection");
    pl_hub_conn_close(PL_TAKE(client.wire));
    until(&server.closed, 1);
    assert_int_equal(server.messages, 1002);
    assert_string_equal(server.last, "last words");
    finish();
}

static void test_connect_refused(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct pl_error err = {0};
    int held, fd;
    uint16_t port;

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pl_port_reserve(0, &held, &port, &err), 0);
    a.sin_port = htons(port);
    memset(&server, 0, sizeof(server));
    if (pl_net_connect((struct sockaddr *)&a, sizeof(a), &fd) == 0) {
        make(&client, fd, secret, true);
        until(&client.closed, 1);
        assert_int_equal(client.reason, -ECONNREFUSED);
    }
    finish();
    close(held);
}

static void test_closed_by_peer(void **state)
{
    begin_pair(secret);
    until(&client.opened, 1);
    pl_hub_conn_close(PL_TAKE(client.wire));
    until(&server.closed, 1);
    assert_int_equal(server.reason, -EPIPE);
    assert_int_equal(client.closed, 0); /* not after our own close */
    finish();
}

/* Data that was queued before a close still arrives. */
static void test_close_flushes(void **state)
{
    begin_pair(secret);
    until(&client.opened, 1);
    say(&client, "last words");
    pl_hub_conn_close(PL_TAKE(client.wire));
    until(&server.closed, 1);
    assert_string_equal(server.last, "last words");
    finish();
}

static void test_close_inside_callbacks(void **state)
{
    begin_pair(secret);
    server.on_message = CLOSE_IT; /* at the hello, with more data after it */
    until(&client.closed, 1);
    assert_int_equal(server.messages, 1);
    finish();

    begin_pair(secret);
    client.close_on_open = true;
    until(&server.closed, 1);
    assert_int_equal(client.messages, 0);
    finish();

    begin_pair(secret);
    until(&client.opened, 1);
    server.on_message = CLOSE_IT;
    for (int i = 0; i < 100; i++)
        say(&client, "one of many in one read");
    until(&client.closed, 1);
    assert_int_equal(server.messages, 2);
    finish();
}

static void test_wrong_key(void **state)
{
    static const unsigned char other[PL_KEY_SIZE] = {1};

    begin_pair(other);
    until(&server.closed, 1);
    until(&client.closed, 1);
    assert_int_equal(client.reason, -ESTALE); /* by the banner: it says nothing */
    assert_int_equal(server.reason, -EPIPE);
    assert_int_equal(server.opened + client.opened, 0);
    finish();
}

static void test_send_not_open(void **state)
{
    begin_pair(secret);
    say(&client, "too early"); /* dropped, and nothing goes before the banner */
    say(&server, "too early");
    pl_hub_conn_send_new(client.wire, NULL);
    pl_hub_conn_send(NULL, json_null());
    until(&client.opened, 1);
    say(&client, "now");
    until(&server.messages, 2);
    assert_string_equal(server.last, "now");
    assert_int_equal(client.messages, 0);
    finish();
}

/* A peer that reads nothing costs 4 MiB and is cut off; its owner hears of it from the loop. */
static void test_queue_limit(void **state)
{
    char block[60000];

    begin_pair(secret);
    until(&client.opened, 1);
    memset(block, 'x', sizeof(block) - 1);
    block[sizeof(block) - 1] = '\0';
    uv_poll_stop(&client.wire->poll); /* it does not read any more */
    for (int i = 0; i < 200; i++) {
        say(&server, block);
        assert_int_equal(server.closed, 0); /* never from within */
        assert_true(server.wire->session.out.len < 5u << 20);
    }
    until(&server.closed, 1);
    finish();
}

static void test_peer_talks_nonsense(void **state)
{
    int pair[2];

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    memset(&client, 0, sizeof(client));
    make(&server, pair[0], secret, false);
    assert_int_equal(send(pair[1], "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
    until(&server.closed, 1);
    assert_int_equal(server.reason, -EPROTO);
    close(pair[1]);
    finish();
}

/* ---- a pair in one process ---- */

static void make_pair(void)
{
    json_t *hello = json_pack("{s:s}", "role", "daemon");
    struct pl_hub_conn *ends[2];

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(pl_hub_conn_pair(&loop, hello, ends), 0);
    json_decref(hello);
    memset(&server, 0, sizeof(server));
    memset(&client, 0, sizeof(client));
    server.wire = ends[0];
    client.wire = ends[1];
    pl_hub_conn_set_owner(ends[0], &ops, &server);
    pl_hub_conn_set_owner(ends[1], &ops, &client);
}

static void test_pair_delivers_from_loop(void **state)
{
    char name[64];

    make_pair();
    server.on_message = ANSWER;
    say(&client, "first");
    say(&client, "second");
    assert_int_equal(server.messages, 0); /* never from within */
    until(&client.messages, 2);
    assert_int_equal(client.opened, 1);
    assert_int_equal(server.opened, 1);
    assert_string_equal(server.last, "second");
    assert_string_equal(client.last, "answer");
    assert_string_equal(pl_hub_conn_role(server.wire), "daemon");
    assert_int_equal(pl_hub_conn_address(server.wire, true, name, sizeof(name)), 0);
    assert_string_equal(name, "127.0.0.1");
    assert_int_equal(pl_hub_conn_unsent(client.wire), 0);
    assert_false(pl_hub_conn_is_silent(server.wire, 0));
    finish();
}

static void test_pair_close_flushes(void **state)
{
    make_pair();
    say(&client, "last words");
    pl_hub_conn_close(PL_TAKE(client.wire));
    assert_int_equal(server.closed, 0);
    say(&server, "to nobody");
    until(&server.closed, 1);
    assert_string_equal(server.last, "last words");
    assert_int_equal(server.reason, -EPIPE);
    assert_int_equal(client.closed + client.messages, 0);
    finish();
}

static void test_pair_close_inside_message(void **state)
{
    make_pair();
    server.on_message = CLOSE_IT;
    say(&client, "one");
    say(&client, "of many");
    until(&client.closed, 1);
    assert_int_equal(server.messages, 1);
    finish();
}

static void test_pair_cut(void **state)
{
    make_pair();
    pl_hub_conn_cut(server.wire);
    pl_hub_conn_cut(server.wire);
    assert_int_equal(server.closed + client.closed, 0);
    until(&server.closed, 1);
    until(&client.closed, 1);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_send_over_tcp),
        cmocka_unit_test(test_messages_before_a_reset),
        cmocka_unit_test(test_connect_refused),
        cmocka_unit_test(test_closed_by_peer),
        cmocka_unit_test(test_close_flushes),
        cmocka_unit_test(test_close_inside_callbacks),
        cmocka_unit_test(test_wrong_key),
        cmocka_unit_test(test_send_not_open),
        cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_peer_talks_nonsense),
        cmocka_unit_test(test_pair_delivers_from_loop),
        cmocka_unit_test(test_pair_close_flushes),
        cmocka_unit_test(test_pair_close_inside_message),
        cmocka_unit_test(test_pair_cut),
    };

    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
