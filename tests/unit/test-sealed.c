/* SPDX-License-Identifier: MIT */
/* Encrypted sessions, with an attacker on the line between both sides. */
#include "common/proto/protocol.h"
#include "tests/unit/session_pair.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

static void greet_as(struct pl_session *server,
                     const char *server_mode,
                     struct pl_session *client,
                     const char *client_mode)
{
    setenv("PLUME_ENCRYPT", server_mode, 1);
    serve(server);
    setenv("PLUME_ENCRYPT", client_mode, 1);
    connect_as(client, &id, secret);
    setenv("PLUME_ENCRYPT", "off", 1);
    carry(server, client);
    assert_null(next(client));
    carry(client, server);
}

static void greet_sealed(struct pl_session *server, struct pl_session *client)
{
    greet_as(server, "", client, "auto"); /* "": not set */
    json_decref(next(server));
    carry(server, client);
    assert_null(next(client));
    assert_true(server->sealed && client->sealed);
}

static void test_sealed_negotiation(void **state)
{
    static const struct {
        const char *server, *client;
        int sealed; /* or a negative errno */
    } rows[] = {
        {"auto", "auto", 1},       {"auto", "require", 1},       {"require", "auto", 1},
        {"require", "require", 1}, {"off", "auto", 0},           {"auto", "off", 0},
        {"off", "off", 0},         {"require", "off", -ENOTSUP}, {"off", "require", -ENOTSUP},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        struct pl_session s, c;
        json_t *hello;

        greet_as(&s, rows[i].server, &c, rows[i].client);
        if (rows[i].sealed < 0 && strcmp(rows[i].server, "require") == 0) {
            assert_dead(&s, -ENOTSUP);
            carry(&s, &c);
            assert_dead(&c, -ENOTSUP);
            finish(&s, &c);
            continue;
        }
        hello = next(&s);
        assert_non_null(hello);
        json_decref(hello);
        carry(&s, &c);
        if (rows[i].sealed < 0) {
            assert_dead(&c, -ENOTSUP);
        } else {
            assert_null(next(&c));
            assert_int_equal(s.sealed, rows[i].sealed);
            assert_int_equal(c.sealed, rows[i].sealed);
            say(&c, "question");
            carry(&c, &s);
            assert_hears(&s, "question");
        }
        finish(&s, &c);
    }
    setenv("PLUME_ENCRYPT", "yes", 1);
    {
        struct pl_error err = {0};
        struct pl_session s;
        enum pl_encrypt e;

        assert_int_equal(pl_session_serve(&s, &id, secret), -EINVAL);
        assert_int_equal(pl_encrypt_read(&e, &err), -EINVAL);
        assert_non_null(strstr(err.text, "auto, off or require"));
    }
    setenv("PLUME_ENCRYPT", "off", 1);
}

static void test_sealed_conversation(void **state)
{
    struct pl_session s, c;
    char text[32];

    greet_sealed(&s, &c);
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof(text), "secret-%d", i);
        say(&c, text);
        say(&c, text);
        assert_null(strstr(c.out.data, "secret"));
        assert_null(strchr(c.out.data, '{'));
        carry(&c, &s);
        assert_hears(&s, text);
        assert_hears(&s, text);
        say(&s, text);
        carry(&s, &c);
        assert_hears(&c, text);
    }
    finish(&s, &c);
}

static void test_sealed_line_limit(void **state)
{
    _cleanup_free_ char *big = malloc(PL_FRAME_MAX + 1);
    struct pl_session s, c;
    json_t *m;

    memset(big, 'x', PL_FRAME_MAX + 1);
    big[PL_FRAME_MAX] = '\0';
    greet_sealed(&s, &c);
    m = json_pack("{s:s}", "text", big);
    assert_int_equal(pl_session_send(&c, m), -EMSGSIZE);
    json_decref(m);
    big[PL_FRAME_MAX - 65 - 12] = '\0'; /* the same limit as without encryption */
    say(&c, big);
    carry(&c, &s);
    assert_hears(&s, big);
    memset(big, 'A', PL_FRAME_MAX);
    assert_int_equal(pl_session_feed(&s, big, PL_FRAME_MAX), 0);
    assert_null(next(&s)); /* a sealed line is longer */
    assert_int_equal(pl_session_feed(&s, big, PL_FRAME_MAX), 0);
    assert_dead(&s, -EMSGSIZE);
    finish(&s, &c);
}

static void flip_first(struct pl_buf *wire, size_t first)
{
    wire->data[0] = wire->data[0] == 'A' ? 'B' : 'A';
}

static void flip_last(struct pl_buf *wire, size_t first)
{
    wire->data[first - 2] = wire->data[first - 2] == 'A' ? 'Q' : 'A';
}

static void no_base64(struct pl_buf *wire, size_t first)
{
    wire->data[4] = '*';
}

static void empty_line(struct pl_buf *wire, size_t first)
{
    wire->data[0] = '\n';
}

static void plain_object(struct pl_buf *wire, size_t first)
{
    memcpy(wire->data, "{}\n", 3);
}

static void test_sealed_tampered(void **state)
{
    static const struct {
        tamper_f tamper;
        int good;
    } rows[] = {
        {replay_first, 1}, {swap_frames, 0}, {cut, 0},       {extend, 0},     {flip_first, 0},
        {flip_last, 0},    {drop_first, 0},  {no_base64, 0}, {empty_line, 0}, {plain_object, 0},
    };

    for (size_t i = 0; i < PL_COUNT(rows) * 2; i++) {
        bool to_server = i & 1;
        struct pl_session s, c, *from = to_server ? &c : &s, *to = to_server ? &s : &c;
        size_t first;

        greet_sealed(&s, &c);
        say(from, "aaaa");
        first = from->out.len;
        say(from, "bbbb");
        rows[i / 2].tamper(&from->out, first);
        carry(from, to);
        for (int n = 0; n < rows[i / 2].good; n++)
            assert_hears(to, "aaaa");
        assert_dead(to, -EACCES);
        finish(&s, &c);
    }
}

static void test_sealed_reflected(void **state)
{
    struct pl_session s, c;

    greet_sealed(&s, &c);
    say(&c, "mine");
    assert_int_equal(pl_session_feed(&c, c.out.data, c.out.len), 0);
    assert_dead(&c, -EACCES);
    finish(&s, &c);
}

/* A third party in between cannot take the offer out: it is signed. */
static void test_sealed_downgraded(void **state)
{
    struct pl_session s, c;
    char *at;

    greet_as(&s, "auto", &c, "auto");
    pl_buf_consume(&s.in, s.in.len);
    pl_session_finish(&s);
    pl_session_finish(&c);

    setenv("PLUME_ENCRYPT", "auto", 1);
    serve(&s);
    connect_as(&c, &id, secret);
    setenv("PLUME_ENCRYPT", "off", 1);
    carry(&s, &c);
    assert_null(next(&c));
    at = strstr(c.out.data, "\"stream\"");
    assert_non_null(at);
    memcpy(at, "\"strean\"", 8);
    carry(&c, &s);
    assert_dead(&s, -EACCES);
    finish(&s, &c);
}

static void test_sealed_header_nonsense(void **state)
{
    static const char *const headers[] = {"", "00", "zz", NULL, "0"};
    char wrong[2 * PL_SEALED_HEADER_HEX];

    memset(wrong, '0', sizeof(wrong) - 1);
    wrong[sizeof(wrong) - 1] = '\0';
    for (size_t i = 0; i < PL_COUNT(headers); i++) {
        unsigned char key[PL_KEY_SIZE] = {1};
        struct pl_sealed s;

        assert_int_equal(pl_sealed_accept(&s, key, true, headers[i] ? headers[i] : wrong), -EPROTO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sealed_negotiation),     cmocka_unit_test(test_sealed_conversation),
        cmocka_unit_test(test_sealed_line_limit),      cmocka_unit_test(test_sealed_tampered),
        cmocka_unit_test(test_sealed_reflected),       cmocka_unit_test(test_sealed_downgraded),
        cmocka_unit_test(test_sealed_header_nonsense),
    };

    if (sodium_init() < 0)
        return 1;
    setenv("PLUME_ENCRYPT", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
