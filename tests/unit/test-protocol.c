/* SPDX-License-Identifier: MIT */
/* The session codec, with an attacker on the line between both sides. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "tests/unit/session_pair.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

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
    tag = strstr(s.out.data, "\"tag\":\"");
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
        cmocka_unit_test(test_serve_banner_tells_nothing),
    };

    if (sodium_init() < 0)
        return 1;
    setenv("PLUME_ENCRYPT", "off", 1); /* most tests look at signed frames */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
