/* SPDX-License-Identifier: MIT */
/* The session codec, with an attacker on the line between both sides. */
#include "common/base/fs.h"
#include "common/proto/hub_ask.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static const struct pl_session_id id = {.job = "12", .step = "0", .attempt = 1};
static const unsigned char secret[PL_KEY_SIZE] = "0123456789abcdef0123456789abcdef";

static void serve(struct pl_session *s)
{
    assert_int_equal(pl_session_serve(s, &id, secret), 0);
}

static void connect_as(struct pl_session *s,
                       const struct pl_session_id *who,
                       const unsigned char key[PL_KEY_SIZE])
{
    json_t *hello = json_pack("{s:s}", "role", "client");

    assert_int_equal(pl_session_connect(s, who, key, hello), 0);
    json_decref(hello);
}

/* Moves what one side has to say to the other. */
static void carry(struct pl_session *from, struct pl_session *to)
{
    assert_int_equal(pl_session_feed(to, pl_buf_str(&from->out), from->out.len), 0);
    pl_buf_consume(&from->out, from->out.len);
}

/* The next message; NULL where more bytes are needed. */
static json_t *next(struct pl_session *s)
{
    struct pl_error err = {0};
    json_t *message = NULL;
    int r = pl_session_next(s, &message, &err);

    if (r < 0)
        fail_msg("%s", err.text);
    assert_int_equal(r == 1, message != NULL);
    return message;
}

static void assert_dead(struct pl_session *s, int code)
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

static void greet(struct pl_session *server, struct pl_session *client)
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

static void say(struct pl_session *s, const char *text)
{
    json_t *m = json_pack("{s:s}", "text", text);

    assert_int_equal(pl_session_send(s, m), 0);
    json_decref(m);
}

static void assert_hears(struct pl_session *s, const char *text)
{
    json_t *m = next(s);

    assert_string_equal(pl_json_string(m, "text"), text);
    json_decref(m);
}

static void finish(struct pl_session *a, struct pl_session *b)
{
    pl_session_finish(a);
    pl_session_finish(b);
    pl_session_finish(b);
}

static void test_next_conversation(void **state)
{
    struct pl_session s, c;

    greet(&s, &c);
    for (int i = 0; i < 300; i++) {
        say(&c, "question");
        say(&c, "another");
        carry(&c, &s);
        assert_hears(&s, "question");
        assert_hears(&s, "another");
        assert_null(next(&s));
        say(&s, "answer");
        carry(&s, &c);
        assert_hears(&c, "answer");
    }
    finish(&s, &c);
}

static void test_next_one_byte_at_a_time(void **state)
{
    struct pl_session s, c;
    json_t *m = NULL;

    greet(&s, &c);
    say(&c, "slowly");
    for (size_t i = 0; i < c.out.len; i++) {
        assert_null(m);
        assert_int_equal(pl_session_feed(&s, c.out.data + i, 1), 0);
        m = next(&s);
    }
    assert_string_equal(pl_json_string(m, "text"), "slowly");
    json_decref(m);
    finish(&s, &c);
}

static void test_send_before_open(void **state)
{
    struct pl_session s, c;

    serve(&s);
    connect_as(&c, &id, secret);
    assert_int_equal(pl_session_send(&s, json_null()), -ENOTCONN);
    assert_int_equal(pl_session_send(&c, json_null()), -ENOTCONN);
    assert_int_equal(c.out.len, 0); /* a client says nothing before a valid banner */
    finish(&s, &c);
}

/* The banner as a hub before 1.1 wrote it. */
static void old_banner(struct pl_session *s, const char *job)
{
    char nonce[PL_NONCE_SIZE * 2 + 1];

    sodium_bin2hex(nonce, sizeof(nonce), s->nonce, sizeof(s->nonce));
    pl_buf_consume(&s->out, s->out.len);
    assert_int_equal(pl_buf_addf(&s->out,
                                 "{\"proto\":\"plume\",\"major\":1,\"minor\":0,\"role\":\"hub\","
                                 "\"job\":\"%s\",\"step\":\"0\",\"attempt\":1,\"nonce\":\"%s\"}\n",
                                 job, nonce),
                     0);
}

static void test_next_wrong_key(void **state)
{
    unsigned char other[PL_KEY_SIZE];
    struct pl_session s, c;

    memcpy(other, secret, sizeof(other));
    other[PL_KEY_SIZE - 1] ^= 1; /* equal up to the last bit */
    serve(&s);
    connect_as(&c, &id, other);
    carry(&s, &c);
    assert_dead(&c, -ESTALE); /* its secret does not explain the tag */
    assert_int_equal(c.out.len, 0);
    finish(&s, &c);

    /* A client of before 1.1 looks at no tag: the hub refuses it. */
    serve(&s);
    connect_as(&c, &id, other);
    old_banner(&s, "12");
    carry(&s, &c);
    assert_null(next(&c));
    carry(&c, &s);
    assert_dead(&s, -EACCES);
    carry(&s, &c); /* the refusal */
    assert_dead(&c, -EACCES);
    finish(&s, &c);
}

/* The banner names the run to those with the secret; others learn nothing, not even that two
 * banners are of one run. */
static void test_serve_banner_tells_nothing(void **state)
{
    static const char *const words[] = {"job", "step", "attempt", "12"};
    _cleanup_(json_decrefp) json_t *a = NULL, *b = NULL;
    struct pl_session s, t;

    serve(&s);
    serve(&t);
    for (size_t i = 0; i < PL_COUNT(words); i++) {
        char quoted[16];

        snprintf(quoted, sizeof(quoted), "\"%s\"", words[i]);
        assert_null(strstr(s.out.data, quoted));
    }
    assert_int_equal(pl_json_parse(s.out.data, s.out.len - 1, 4096, &a, NULL), 0);
    assert_int_equal(pl_json_parse(t.out.data, t.out.len - 1, 4096, &b, NULL), 0);
    assert_int_equal(json_object_size(a), 6); /* proto, major, minor, role, nonce, tag */
    assert_string_not_equal(pl_json_string(a, "tag"), pl_json_string(b, "tag"));
    finish(&s, &t);
}

static void test_next_other_run(void **state)
{
    static const struct pl_session_id others[] = {
        {.job = "13", .step = "0", .attempt = 1},
        {.job = "12", .step = "1", .attempt = 1},
        {.job = "12", .step = "0", .attempt = 2},
        {.job = "120", .step = "", .attempt = 1},
    };

    for (size_t i = 0; i < PL_COUNT(others); i++) {
        struct pl_session s, c;

        serve(&s);
        connect_as(&c, &others[i], secret);
        carry(&s, &c);
        assert_dead(&c, -ESTALE);
        assert_int_equal(c.out.len, 0); /* and it learns nothing of us */
        finish(&s, &c);
    }
}

/* A banner of before 1.1 that lies about the run gets a hello that is worth nothing. */
static void test_next_forged_banner(void **state)
{
    struct pl_session_id theirs = {.job = "99", .step = "0", .attempt = 1};
    struct pl_session s, c;

    assert_int_equal(pl_session_serve(&s, &theirs, secret), 0);
    connect_as(&c, &id, secret);
    old_banner(&s, "12");
    carry(&s, &c);
    assert_null(next(&c));
    carry(&c, &s);
    assert_dead(&s, -EACCES);
    finish(&s, &c);
}

typedef void (*tamper_f)(struct pl_buf *wire, size_t first);

static void replay_first(struct pl_buf *wire, size_t first)
{
    assert_true(first * 2 == wire->len);
    memcpy(wire->data + first, wire->data, first);
}

static void swap_frames(struct pl_buf *wire, size_t first)
{
    char *copy = strdup(wire->data);

    memcpy(wire->data, copy + first, wire->len - first);
    memcpy(wire->data + wire->len - first, copy, first);
    free(copy);
}

static void cut(struct pl_buf *wire, size_t first)
{
    wire->data[first - 2] = '\n';
    wire->len = first - 1;
}

static void extend(struct pl_buf *wire, size_t first)
{
    wire->data[first - 1] = ' ';
    wire->data[first] = '\n';
    wire->len = first + 1;
}

static void flip_body(struct pl_buf *wire, size_t first)
{
    wire->data[first - 4] ^= 1;
}

static void flip_digit(struct pl_buf *wire, size_t first)
{
    wire->data[0] = wire->data[0] == '0' ? '1' : '0';
}

static void flip_last_digit(struct pl_buf *wire, size_t first)
{
    wire->data[63] = wire->data[63] == '0' ? '1' : '0';
}

static void no_digits(struct pl_buf *wire, size_t first)
{
    pl_buf_consume(wire, 65);
}

static void drop_first(struct pl_buf *wire, size_t first)
{
    pl_buf_consume(wire, first);
}

static void test_next_tampered(void **state)
{
    static const struct {
        tamper_f tamper;
        int good, code;
    } rows[] = {
        {replay_first, 1, -EACCES}, {swap_frames, 0, -EACCES}, {cut, 0, -EACCES},
        {extend, 0, -EACCES},       {flip_body, 0, -EACCES},   {flip_digit, 0, -EACCES},
        {no_digits, 0, -EPROTO},    {drop_first, 0, -EACCES},  {flip_last_digit, 0, -EACCES},
    };

    for (size_t i = 0; i < PL_COUNT(rows) * 2; i++) {
        bool to_server = i & 1;
        struct pl_session s, c, *from = to_server ? &c : &s, *to = to_server ? &s : &c;
        size_t first;

        greet(&s, &c);
        say(from, "aaaa");
        first = from->out.len;
        say(from, "bbbb");
        rows[i / 2].tamper(&from->out, first);
        carry(from, to);
        for (int n = 0; n < rows[i / 2].good; n++)
            assert_hears(to, "aaaa");
        assert_dead(to, rows[i / 2].code);
        finish(&s, &c);
    }
}

static void test_next_reflected(void **state)
{
    struct pl_session s, c;

    greet(&s, &c);
    say(&c, "mine"); /* both counters are equal, only the direction differs */
    assert_int_equal(pl_session_feed(&c, c.out.data, c.out.len), 0);
    assert_dead(&c, -EACCES);
    finish(&s, &c);
}

static void test_next_other_session(void **state)
{
    struct pl_session s1, c1, s2, c2;

    greet(&s1, &c1);
    greet(&s2, &c2);
    say(&c1, "same counter, same key file, other nonces");
    carry(&c1, &s2);
    assert_dead(&s2, -EACCES);
    finish(&s1, &c1);
    finish(&s2, &c2);
}

/* A recorded hello does not open a second session. */
static void test_next_hello_replayed(void **state)
{
    struct pl_session s, c, again;
    char *hello;

    serve(&s);
    connect_as(&c, &id, secret);
    carry(&s, &c);
    assert_null(next(&c));
    hello = strdup(c.out.data);
    serve(&again);
    assert_int_equal(pl_session_feed(&again, hello, strlen(hello)), 0);
    assert_dead(&again, -EACCES);
    free(hello);
    finish(&s, &c);
    pl_session_finish(&again);
}

/* All that a hub said in an earlier session, to a client of the same run and key: the client's own
 * nonce is another one. */
static void test_next_hub_replayed(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf said = {0};
    struct pl_session s, c, later;

    serve(&s);
    connect_as(&c, &id, secret);
    pl_buf_add(&said, s.out.data, s.out.len);
    carry(&s, &c);
    assert_null(next(&c));
    carry(&c, &s);
    json_decref(next(&s));
    say(&s, "do this");
    pl_buf_add(&said, s.out.data, s.out.len);

    connect_as(&later, &id, secret);
    assert_int_equal(pl_session_feed(&later, said.data, said.len), 0);
    assert_dead(&later, -EACCES);
    finish(&s, &c);
    pl_session_finish(&later);
}

/* The tag of a banner that differs in its last digit only. */
static void test_next_tag_begins_alike(void **state)
{
    struct pl_session s, c;
    char *tag;

    serve(&s);
    connect_as(&c, &id, secret);
    tag = strstr(pl_buf_str(&s.out), "\"tag\":\"");
    assert_non_null(tag);
    tag += 7 + strspn(tag + 7, "0123456789abcdef") - 1;
    *tag = *tag == '0' ? '1' : '0';
    carry(&s, &c);
    assert_dead(&c, -ESTALE);
    assert_int_equal(c.out.len, 0);
    finish(&s, &c);
}

/* Frames with right digits around text that breaks a limit. */
static void signed_text(struct pl_session *from, const char *body)
{
    unsigned char head[9] = {from->server ? 'S' : 'C'}, digest[crypto_auth_hmacsha256_BYTES];
    crypto_auth_hmacsha256_state h;
    char hex[2 * sizeof(digest) + 1];

    for (int i = 0; i < 8; i++)
        head[1 + i] = (unsigned char)(from->sent >> (56 - 8 * i));
    crypto_auth_hmacsha256_init(&h, from->key, PL_KEY_SIZE);
    crypto_auth_hmacsha256_update(&h, head, sizeof(head));
    crypto_auth_hmacsha256_update(&h, (const unsigned char *)body, strlen(body));
    crypto_auth_hmacsha256_final(&h, digest);
    sodium_bin2hex(hex, sizeof(hex), digest, sizeof(digest));
    assert_int_equal(pl_buf_addf(&from->out, "%s %s\n", hex, body), 0);
}

static void test_next_signed_nonsense(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf deep = {0};
    const char *bad[] = {"[]",
                         "17",
                         "{\"a\":1,\"a\":2}",
                         "{ ",
                         "{\"a\":\"\xff\"}",
                         "{\"a\":\"\\u0000\"}",
                         "{} {}",
                         "nonsense",
                         NULL};

    for (int i = 0; i < 33; i++)
        pl_buf_adds(&deep, "{\"a\":");
    pl_buf_adds(&deep, "1");
    for (int i = 0; i < 33; i++)
        pl_buf_addc(&deep, '}');
    bad[PL_COUNT(bad) - 1] = deep.data;
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_session s, c;

        greet(&s, &c);
        signed_text(&c, bad[i]);
        carry(&c, &s);
        assert_dead(&s, -EINVAL);
        finish(&s, &c);
    }
}

static void test_next_signed_depth_limit(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf deep = {0};
    struct pl_session s, c;

    for (int i = 0; i < 32; i++)
        pl_buf_adds(&deep, "{\"a\":");
    pl_buf_adds(&deep, "1");
    for (int i = 0; i < 32; i++)
        pl_buf_addc(&deep, '}');
    greet(&s, &c);
    signed_text(&c, deep.data);
    carry(&c, &s);
    json_decref(next(&s));
    finish(&s, &c);
}

static void test_next_line_limits(void **state)
{
    _cleanup_free_ char *big = malloc(PL_FRAME_MAX + 1);
    struct pl_session s, c;
    json_t *m;

    memset(big, 'x', PL_FRAME_MAX + 1);
    serve(&s);
    assert_int_equal(pl_session_feed(&s, big, PL_GREETING_MAX - 1), 0);
    assert_null(next(&s));
    assert_int_equal(pl_session_feed(&s, big, 1), 0);
    assert_dead(&s, -EMSGSIZE);
    pl_session_finish(&s);
    connect_as(&c, &id, secret);
    assert_int_equal(pl_session_feed(&c, big, PL_GREETING_MAX), 0);
    assert_dead(&c, -EMSGSIZE);
    pl_session_finish(&c);

    greet(&s, &c);
    assert_int_equal(pl_session_feed(&s, big, PL_FRAME_MAX), 0);
    assert_dead(&s, -EMSGSIZE);
    finish(&s, &c);

    greet(&s, &c);
    big[PL_FRAME_MAX] = '\0';
    m = json_pack("{s:s}", "text", big);
    assert_int_equal(pl_session_send(&c, m), -EMSGSIZE);
    assert_int_equal(c.out.len, 0);
    json_decref(m);
    big[PL_FRAME_MAX - 65 - 12] = '\0'; /* {"text":""} and its newline around it: just the limit */
    say(&c, big);
    assert_int_equal(c.out.len, PL_FRAME_MAX);
    carry(&c, &s);
    m = next(&s);
    assert_non_null(m);
    json_decref(m);
    finish(&s, &c);
}

static void test_next_foreign_services(void **state)
{
    static const struct {
        const char *text;
        int code;
    } rows[] = {
        {"SSH-2.0-OpenSSH_9.2\r\n", -EPROTO},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", -EPROTO},
        {"\n", -EPROTO},
        {"{}\n", -EPROTO},
        {"{\"proto\":\"plume\"}\n", -EPROTO},
        {"{\"proto\":\"plume\",\"major\":2,\"job\":\"12\",\"step\":\"0\",\"attempt\":1}\n",
         -EPROTO},
        {"{\"proto\":\"plume\",\"major\":1,\"job\":\"12\",\"step\":\"0\",\"attempt\":1}\n",
         -EPROTO},
        {"{\"proto\":\"plume\",\"major\":1,\"job\":12,\"step\":\"0\",\"attempt\":1,"
         "\"nonce\":\"00112233445566778899aabbccddeeff\"}\n",
         -ESTALE},
        {"{\"proto\":\"plume\",\"major\":1,\"nonce\":\"00112233445566778899aabbccddeeff\"}\n",
         -ESTALE},
        {"{\"proto\":\"plume\",\"major\":1,\"job\":\"12\",\"step\":\"0\",\"attempt\":1,\"tag\":"
         "\"\","
         "\"nonce\":\"00112233445566778899aabbccddeeff\"}\n",
         -ESTALE},
        {"{\"proto\":\"plume\",\"major\":1,\"job\":\"12\",\"step\":\"0\",\"attempt\":1,"
         "\"nonce\":\"0011\"}\n",
         -EPROTO},
        {"{\"proto\":\"plume\",\"major\":1,\"job\":\"12\",\"step\":\"0\",\"attempt\":1,"
         "\"nonce\":\"zz112233445566778899aabbccddeeff\"}\n",
         -EPROTO},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        struct pl_session c;

        connect_as(&c, &id, secret);
        assert_int_equal(pl_session_feed(&c, rows[i].text, strlen(rows[i].text)), 0);
        assert_dead(&c, rows[i].code);
        assert_int_equal(c.out.len, 0);
        pl_session_finish(&c);
    }
}

/* A conversation recorded once is understood for ever: a server's side with its nonce put back. */
static void test_next_recorded(void **state)
{
    _cleanup_free_ char *text = NULL;
    struct pl_error err = {0};
    struct pl_session s, c;
    char *line, *end;
    json_t *m;
    size_t len;

    if (pl_file_read(PL_FIXTURES "/protocol-1.0.txt", 65536, &text, NULL, &err) < 0)
        fail_msg("%s", err.text);
    serve(&s);
    connect_as(&c, &id, secret);
    memset(s.nonce, 0x11, sizeof(s.nonce));
    memset(c.nonce, 0x22, sizeof(c.nonce));
    for (line = text; *line; line = end + 1) {
        end = strchr(line, '\n');
        len = (size_t)(end - line) + 1;
        if (line[0] == '#')
            continue;
        assert_true(line[1] == ' ' && (line[0] == 'S' || line[0] == 'C'));
        assert_int_equal(pl_session_feed(line[0] == 'S' ? &c : &s, line + 2, len - 2), 0);
        m = next(line[0] == 'S' ? &c : &s);
        json_decref(m);
    }
    assert_int_equal(s.state, PL_SESSION_OPEN);
    assert_int_equal(c.state, PL_SESSION_OPEN);
    assert_int_equal(s.received, 3);
    assert_int_equal(c.received, 3);
    finish(&s, &c);
}

/* ---- encrypted sessions ---- */

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

static void test_key_load_places(void **state)
{
    char home[64], path[80];
    unsigned char a[PL_KEY_SIZE], b[PL_KEY_SIZE];
    struct pl_error err = {0};

    assert_int_equal(tmpdir_make(home, sizeof(home)), 0);
    setenv("PLUME_HOME", home, 1);
    unsetenv("PLUME_KEY_FILE");
    assert_int_equal(pl_key_load(NULL, a, &err), 0); /* made */
    assert_int_equal(pl_key_load(NULL, b, &err), 0);
    assert_memory_equal(a, b, PL_KEY_SIZE);
    assert_int_equal(pl_key_load(home, b, &err), 0); /* DIR/key */
    assert_memory_equal(a, b, PL_KEY_SIZE);
    assert_int_equal(pl_key_load("/nonexistent", b, &err), -ENOENT);
    snprintf(path, sizeof(path), "%s/key", home);
    setenv("PLUME_KEY_FILE", path, 1);
    assert_int_equal(pl_key_load("/nonexistent", b, &err), 0); /* comes first */
    chmod(path, 0644);
    assert_int_equal(pl_key_load(NULL, b, &err), -EPERM);
    assert_non_null(strstr(err.text, "PLUME_KEY_FILE"));
    unsetenv("PLUME_KEY_FILE");
    assert_int_equal(tmpdir_remove(home), 0);
}

static void test_hub_ask_unreachable(void **state)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    struct pl_error err = {0};
    json_t *answer = NULL;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t port;

    a.ss_family = AF_INET;
    assert_int_equal(bind(fd, (struct sockaddr *)&a, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    port = (uint16_t)((unsigned char *)&a)[2] * 256 + ((unsigned char *)&a)[3];
    assert_int_equal(pl_hub_ask("127.0.0.1", port, &id, secret, PL_MSG_ASK_SNAPSHOT,
                                PL_MSG_SNAPSHOT, 2000, &answer, &err),
                     -ECONNREFUSED);
    assert_int_equal(listen(fd, 8), 0); /* connects, says nothing */
    assert_int_equal(pl_hub_ask("127.0.0.1", port, &id, secret, PL_MSG_ASK_SNAPSHOT,
                                PL_MSG_SNAPSHOT, 100, &answer, &err),
                     -ETIMEDOUT);
    assert_int_equal(pl_hub_ask("no-such-host.invalid", port, &id, secret, PL_MSG_ASK_SNAPSHOT,
                                PL_MSG_SNAPSHOT, 100, &answer, &err),
                     -EHOSTUNREACH);
    assert_null(answer);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_next_conversation),
        cmocka_unit_test(test_next_one_byte_at_a_time),
        cmocka_unit_test(test_send_before_open),
        cmocka_unit_test(test_next_wrong_key),
        cmocka_unit_test(test_next_other_run),
        cmocka_unit_test(test_next_forged_banner),
        cmocka_unit_test(test_next_tampered),
        cmocka_unit_test(test_next_reflected),
        cmocka_unit_test(test_next_other_session),
        cmocka_unit_test(test_next_hello_replayed),
        cmocka_unit_test(test_next_hub_replayed),
        cmocka_unit_test(test_next_tag_begins_alike),
        cmocka_unit_test(test_next_signed_nonsense),
        cmocka_unit_test(test_next_signed_depth_limit),
        cmocka_unit_test(test_next_line_limits),
        cmocka_unit_test(test_next_foreign_services),
        cmocka_unit_test(test_next_recorded),
        cmocka_unit_test(test_key_load_places),
        cmocka_unit_test(test_hub_ask_unreachable),
        cmocka_unit_test(test_serve_banner_tells_nothing),
        cmocka_unit_test(test_sealed_negotiation),
        cmocka_unit_test(test_sealed_conversation),
        cmocka_unit_test(test_sealed_line_limit),
        cmocka_unit_test(test_sealed_tampered),
        cmocka_unit_test(test_sealed_reflected),
        cmocka_unit_test(test_sealed_downgraded),
        cmocka_unit_test(test_sealed_header_nonsense),
    };

    if (sodium_init() < 0)
        return 1;
    setenv("PLUME_ENCRYPT", "off", 1); /* most tests look at signed frames */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
