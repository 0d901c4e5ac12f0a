/* SPDX-License-Identifier: MIT */
#include "common/proto/protocol.h"
#include "common/base/trace.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_line.h"

#include <sodium.h>
#include <string.h>

#define MAC_HEX (crypto_auth_hmacsha256_BYTES * 2)
#define TAG_SIZE 16

static const char refused_plain[] = "{\"error\":\"encrypt\"}\n";

static int start(struct pl_session *s,
                 const struct pl_session_id *id,
                 const unsigned char secret[PL_KEY_SIZE],
                 enum pl_session_state state)
{
    if (sodium_init() < 0)
        return -ENOSYS;
    *s = (struct pl_session){.state = state, .server = state == PL_SESSION_BANNER_SENT, .id = *id};
    if (pl_encrypt_read(&s->encrypt, NULL) < 0)
        return -EINVAL;
    memcpy(s->secret, secret, PL_KEY_SIZE);
    randombytes_buf(s->nonce, sizeof(s->nonce));
    return 0;
}

/* The NULs keep the parts apart. */
static void add_run(crypto_generichash_state *h,
                    const struct pl_session *s,
                    const char *context,
                    size_t context_size)
{
    char attempt[16];

    snprintf(attempt, sizeof(attempt), "%u", s->id.attempt);
    crypto_generichash_update(h, (const unsigned char *)context, context_size);
    crypto_generichash_update(h, (const unsigned char *)s->id.job, strlen(s->id.job) + 1);
    crypto_generichash_update(h, (const unsigned char *)s->id.step, strlen(s->id.step) + 1);
    crypto_generichash_update(h, (const unsigned char *)attempt, strlen(attempt) + 1);
}

/* Names the run to those who have the secret, and to nobody else. */
static void make_tag(const struct pl_session *s,
                     const unsigned char server_nonce[PL_NONCE_SIZE],
                     char ret[TAG_SIZE * 2 + 1])
{
    static const char context[] = "plume banner 1";
    unsigned char tag[TAG_SIZE];
    crypto_generichash_state h;

    crypto_generichash_init(&h, s->secret, PL_KEY_SIZE, TAG_SIZE);
    add_run(&h, s, context, sizeof(context));
    crypto_generichash_update(&h, server_nonce, PL_NONCE_SIZE);
    crypto_generichash_final(&h, tag, TAG_SIZE);
    sodium_bin2hex(ret, TAG_SIZE * 2 + 1, tag, sizeof(tag));
}

int pl_session_serve(struct pl_session *s,
                     const struct pl_session_id *id,
                     const unsigned char secret[PL_KEY_SIZE])
{
    char nonce[PL_NONCE_SIZE * 2 + 1], tag[TAG_SIZE * 2 + 1];
    json_t *banner;
    int r = start(s, id, secret, PL_SESSION_BANNER_SENT);

    if (r < 0)
        return r;
    sodium_bin2hex(nonce, sizeof(nonce), s->nonce, sizeof(s->nonce));
    make_tag(s, s->nonce, tag);
    banner = pl_msg_new(&(struct pl_msg){
        .type = PL_MSG_BANNER,
        .banner = {.proto = "plume",
                   .major = PL_PROTO_MAJOR,
                   .minor = PL_PROTO_MINOR,
                   .role = "hub",
                   .attempt = PL_MSG_ABSENT,
                   .nonce = nonce,
                   .tag = tag},
    });
    r = banner ? pl_json_dump_line(banner, &s->out) : -ENOMEM;
    json_decref(banner);
    return r;
}

int pl_session_connect(struct pl_session *s,
                       const struct pl_session_id *id,
                       const unsigned char secret[PL_KEY_SIZE],
                       json_t *hello)
{
    int r = start(s, id, secret, PL_SESSION_WAIT_BANNER);

    if (r < 0)
        return r;
    s->hello = json_copy(hello);
    return s->hello ? 0 : -ENOMEM;
}

void pl_session_finish(struct pl_session *s)
{
    json_decref(s->hello);
    pl_buf_finish(&s->in);
    pl_buf_finish(&s->out);
    sodium_memzero(s->secret, sizeof(s->secret));
    sodium_memzero(s->key, sizeof(s->key));
    sodium_memzero(&s->stream, sizeof(s->stream));
    *s = (struct pl_session){.state = PL_SESSION_DEAD};
}

int pl_session_feed(struct pl_session *s, const void *data, size_t len)
{
    return pl_buf_add(&s->in, data, len);
}

static void derive_key(struct pl_session *s,
                       const unsigned char server_nonce[PL_NONCE_SIZE],
                       const unsigned char client_nonce[PL_NONCE_SIZE])
{
    static const char context[] = "plume session 1";
    crypto_generichash_state h;

    crypto_generichash_init(&h, s->secret, PL_KEY_SIZE, PL_KEY_SIZE);
    add_run(&h, s, context, sizeof(context));
    crypto_generichash_update(&h, server_nonce, PL_NONCE_SIZE);
    crypto_generichash_update(&h, client_nonce, PL_NONCE_SIZE);
    crypto_generichash_final(&h, s->key, PL_KEY_SIZE);
}

static void mac(const struct pl_session *s,
                bool from_server,
                uint64_t counter,
                const char *body,
                size_t len,
                unsigned char ret[crypto_auth_hmacsha256_BYTES])
{
    crypto_auth_hmacsha256_state h;
    unsigned char head[9];

    head[0] = from_server ? 'S' : 'C';
    for (int i = 0; i < 8; i++)
        head[1 + i] = (unsigned char)(counter >> (56 - 8 * i));
    crypto_auth_hmacsha256_init(&h, s->key, PL_KEY_SIZE);
    crypto_auth_hmacsha256_update(&h, head, sizeof(head));
    crypto_auth_hmacsha256_update(&h, (const unsigned char *)body, len);
    crypto_auth_hmacsha256_final(&h, ret);
}

static int put_signed(struct pl_session *s, const struct pl_buf *body)
{
    unsigned char digest[crypto_auth_hmacsha256_BYTES];
    char hex[MAC_HEX + 1];
    int r;

    mac(s, s->server, s->sent, body->data, body->len - 1, digest);
    sodium_bin2hex(hex, sizeof(hex), digest, sizeof(digest));
    r = pl_buf_add(&s->out, hex, MAC_HEX);
    if (r == 0)
        r = pl_buf_addc(&s->out, ' ');
    if (r == 0)
        r = pl_buf_add(&s->out, body->data, body->len);
    if (r == 0)
        s->sent++;
    return r;
}

/* A message has the same limit whether its frame is signed or sealed. */
static int put_line(struct pl_session *s, const struct pl_buf *body)
{
    size_t mark = s->out.len;
    int r = body->len + MAC_HEX + 1 > PL_FRAME_MAX ? -EMSGSIZE : 0;

    if (r == 0)
        r = s->sealed ? pl_sealed_put(&s->stream, body->data, body->len - 1, &s->out)
                      : put_signed(s, body);
    if (r < 0)
        s->out.len = mark;
    return r;
}

static int put_frame(struct pl_session *s, json_t *message)
{
    _cleanup_(pl_buf_finish) struct pl_buf body = {0};
    int r = pl_json_dump_line(message, &body);

    return r < 0 ? r : put_line(s, &body);
}

/* Types only: messages of the greeting have nonces. */
static void trace(const struct pl_session *s, const char *event, const json_t *message)
{
    const char *type = pl_trace_enabled() ? pl_json_string(message, "type") : NULL;

    if (type)
        pl_trace(event, type, s->server ? "peer" : "hub", -1);
}

int pl_session_send(struct pl_session *s, json_t *message)
{
    if (s->state != PL_SESSION_OPEN)
        return -ENOTCONN;
    trace(s, "send", message);
    return put_frame(s, message);
}

int pl_session_send_line(struct pl_session *s, const char *type, const struct pl_buf *line)
{
    if (s->state != PL_SESSION_OPEN)
        return -ENOTCONN;
    pl_trace("send", type, s->server ? "peer" : "hub", -1);
    return put_line(s, line);
}

static int read_nonce(const char *hex, unsigned char ret[PL_NONCE_SIZE])
{
    size_t len;

    if (!hex || strlen(hex) != PL_NONCE_SIZE * 2 ||
        sodium_hex2bin(ret, PL_NONCE_SIZE, hex, strlen(hex), NULL, &len, NULL) < 0 ||
        len != PL_NONCE_SIZE)
        return -EPROTO;
    return 0;
}

/* A hub before 1.1 says its run in clear. */
static bool right_run(const struct pl_session *s,
                      const struct pl_msg_banner *banner,
                      const unsigned char server_nonce[PL_NONCE_SIZE])
{
    char want[TAG_SIZE * 2 + 1];

    if (!banner->tag)
        return banner->job && banner->step && strcmp(banner->job, s->id.job) == 0 &&
               strcmp(banner->step, s->id.step) == 0 && banner->attempt == (int64_t)s->id.attempt;
    make_tag(s, server_nonce, want);
    return strlen(banner->tag) == sizeof(want) - 1 &&
           sodium_memcmp(banner->tag, want, sizeof(want) - 1) == 0;
}

static int check_proto(const char *proto, int64_t major, struct pl_error *err)
{
    if (strcmp(proto, "plume") != 0)
        return pl_error_set(err, -EPROTO, "the peer does not speak Plume's protocol");
    if (major != PL_PROTO_MAJOR)
        return pl_error_set(err, -EPROTO, "the peer speaks version %lld of the protocol, we %d",
                            (long long)major, PL_PROTO_MAJOR);
    return 0;
}

/* Parses and reads a line of the greeting. type: the banner or the hello. */
static int read_greeting(const char *line,
                         size_t len,
                         enum pl_msg_type type,
                         json_t **ret,
                         struct pl_msg *ret_msg,
                         struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *o = NULL;

    if (pl_json_parse(line, len, PL_GREETING_MAX, &o, NULL) < 0 && type == PL_MSG_HELLO)
        return pl_error_set(err, -EPROTO, "the peer sent no hello");
    if (pl_msg_read_as(o, type, ret_msg) < 0)
        return pl_error_set(err, -EPROTO, "the peer does not speak Plume's protocol");
    *ret = PL_TAKE(o);
    return 0;
}

/* The client's answer to the banner. */
static int send_hello(struct pl_session *s, struct pl_error *err)
{
    char hex[PL_NONCE_SIZE * 2 + 1], stream[PL_SEALED_HEADER_HEX];
    json_t *hello;
    int r;

    sodium_bin2hex(hex, sizeof(hex), s->nonce, sizeof(s->nonce));
    if (s->encrypt != PL_ENCRYPT_OFF)
        pl_sealed_begin(&s->stream, s->key, false, stream);
    hello = pl_msg_new(&(struct pl_msg){
        .type = PL_MSG_HELLO,
        .hello = {pl_json_string(s->hello, "role"), "plume", PL_PROTO_MAJOR, PL_PROTO_MINOR, hex,
                  s->encrypt != PL_ENCRYPT_OFF ? stream : NULL},
    });
    r = hello ? put_frame(s, hello) : -ENOMEM;
    json_decref(hello);
    return r < 0 ? pl_error_set(err, r, "out of memory") : 0;
}

/* Client: the banner came; answer with our hello. */
static int on_banner(struct pl_session *s, const char *line, size_t len, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *o = NULL;
    unsigned char nonce[PL_NONCE_SIZE];
    struct pl_msg m;
    int r = read_greeting(line, len, PL_MSG_BANNER, &o, &m, err);

    if (r == 0)
        r = check_proto(m.banner.proto, m.banner.major, err);
    if (r < 0)
        return r;
    if (read_nonce(m.banner.nonce, nonce) < 0)
        return pl_error_set(err, -EPROTO, "the hub's banner has no nonce");
    if (!right_run(s, &m.banner, nonce))
        return pl_error_set(err, -ESTALE,
                            "the hub is of another job, step or attempt, or has another key (see "
                            "PLUME_KEY_FILE)");
    derive_key(s, nonce, s->nonce);
    s->state = PL_SESSION_WAIT_WELCOME;
    return send_hello(s, err);
}

/* Checks a frame's digits and leaves its object in *ret. */
static int
open_frame(struct pl_session *s, const char *line, size_t len, json_t **ret, struct pl_error *err)
{
    unsigned char want[crypto_auth_hmacsha256_BYTES], have[crypto_auth_hmacsha256_BYTES];
    _cleanup_(json_decrefp) json_t *message = NULL;
    unsigned char nonce[PL_NONCE_SIZE];
    bool greeting = s->state == PL_SESSION_BANNER_SENT;
    const char *body = line + MAC_HEX + 1;
    size_t body_len, have_len;
    int r;

    if (len < MAC_HEX + 3 || line[MAC_HEX] != ' ' ||
        sodium_hex2bin(have, sizeof(have), line, MAC_HEX, NULL, &have_len, NULL) < 0 ||
        have_len != sizeof(have)) {
        if (s->state == PL_SESSION_WAIT_WELCOME && len == sizeof(refused_plain) - 2 &&
            memcmp(line, refused_plain, len) == 0)
            return pl_error_set(err, -ENOTSUP,
                                "the hub wants an encrypted session: its PLUME_ENCRYPT is require, "
                                "ours is off");
        if (s->state == PL_SESSION_WAIT_WELCOME)
            return pl_error_set(err, -EACCES,
                                "the hub does not take our key: both sides must read the same key "
                                "file (see PLUME_KEY_FILE)");
        return pl_error_set(err, -EPROTO, "the peer sent no frame");
    }
    body_len = len - MAC_HEX - 1;
    if (greeting) { /* checking the frame needs the nonce in it */
        struct pl_msg m;

        r = read_greeting(body, body_len, PL_MSG_HELLO, &message, &m, err);
        if (r == 0)
            r = check_proto(m.hello.proto, m.hello.major, err);
        if (r < 0)
            return r;
        if (read_nonce(m.hello.nonce, nonce) < 0)
            return pl_error_set(err, -EPROTO, "the peer's hello has no nonce");
        derive_key(s, s->nonce, nonce);
    }
    mac(s, !s->server, s->received, body, body_len, want);
    if (sodium_memcmp(want, have, sizeof(want)) != 0)
        return pl_error_set(err, -EACCES,
                            "the peer's key differs from ours: both sides must read the same key "
                            "file (see PLUME_KEY_FILE)");
    s->received++;
    if (!message) {
        r = pl_json_parse(body, body_len, PL_FRAME_MAX, &message, err);
        if (r < 0)
            return r;
    }
    *ret = PL_TAKE(message);
    return 1;
}

/* Opens a sealed line and leaves its object in *ret. */
static int
open_sealed(struct pl_session *s, const char *line, size_t len, json_t **ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf body = {0};
    int r = pl_sealed_open(&s->stream, line, len, &body);

    if (r < 0)
        return pl_error_set(err, r, "a line of the peer was changed on its way");
    r = pl_json_parse(pl_buf_str(&body), body.len, PL_FRAME_MAX, ret, err);
    return r < 0 ? r : 1;
}

/* Server: the hello came; answer with our welcome, the last frame that is signed only. */
static int welcome(struct pl_session *s, json_t *hello, struct pl_error *err)
{
    _cleanup_(json_decrefp) json_t *answer = NULL;
    char stream[PL_SEALED_HEADER_HEX];
    struct pl_msg m;
    bool seal;
    int r;

    if (pl_msg_read_as(hello, PL_MSG_HELLO, &m) < 0)
        return pl_error_set(err, -EPROTO, "the peer sent no hello");
    seal = m.hello.stream && s->encrypt != PL_ENCRYPT_OFF;
    if (s->encrypt == PL_ENCRYPT_REQUIRE && !seal) {
        pl_buf_add(&s->out, refused_plain, sizeof(refused_plain) - 1);
        return pl_error_set(err, -ENOTSUP,
                            "the peer does not encrypt, and PLUME_ENCRYPT is require here");
    }
    if (seal && pl_sealed_accept(&s->stream, s->key, true, m.hello.stream) < 0)
        return pl_error_set(err, -EPROTO, "the peer's hello has no stream");
    if (seal)
        pl_sealed_begin(&s->stream, s->key, true, stream);
    answer = pl_msg_new(
        &(struct pl_msg){.type = PL_MSG_WELCOME, .welcome.stream = seal ? stream : NULL});
    r = answer ? put_frame(s, answer) : -ENOMEM;
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    s->state = PL_SESSION_OPEN;
    s->sealed = seal;
    s->hello = json_incref(hello);
    return 0;
}

/* Client: the welcome came. The peer has the secret, so nobody has taken the stream out on the way.
 */
static int on_welcome(struct pl_session *s, const json_t *message, struct pl_error *err)
{
    struct pl_msg m;

    if (pl_msg_read_as(message, PL_MSG_WELCOME, &m) < 0)
        return pl_error_set(err, -EPROTO, "the hub sent no welcome");
    if (m.welcome.stream && (s->encrypt == PL_ENCRYPT_OFF ||
                             pl_sealed_accept(&s->stream, s->key, false, m.welcome.stream) < 0))
        return pl_error_set(err, -EPROTO, "the hub's welcome makes no sense");
    if (s->encrypt == PL_ENCRYPT_REQUIRE && !m.welcome.stream)
        return pl_error_set(err, -ENOTSUP,
                            "the hub does not encrypt, and PLUME_ENCRYPT is require here");
    s->sealed = m.welcome.stream != NULL;
    s->state = PL_SESSION_OPEN;
    return 0;
}

static int
take_line(struct pl_session *s, const char *line, size_t len, json_t **ret, struct pl_error *err)
{
    static const char refusal[] = "{\"error\":\"key\"}\n";
    _cleanup_(json_decrefp) json_t *message = NULL;
    int r;

    if (s->state == PL_SESSION_WAIT_BANNER) {
        r = on_banner(s, line, len, err);
        return r < 0 ? r : 0;
    }
    r = s->sealed ? open_sealed(s, line, len, &message, err)
                  : open_frame(s, line, len, &message, err);
    if (r == -EACCES && s->state == PL_SESSION_BANNER_SENT)
        pl_buf_add(&s->out, refusal, sizeof(refusal) - 1);
    if (r < 0)
        return r;
    if (s->state == PL_SESSION_WAIT_WELCOME)
        return on_welcome(s, message, err);
    if (s->state == PL_SESSION_BANNER_SENT) {
        r = welcome(s, message, err);
        if (r < 0)
            return r;
    }
    *ret = PL_TAKE(message);
    return 1;
}

/* Bytes that a line may have, its newline included. */
static size_t line_max(const struct pl_session *s)
{
    if (s->sealed)
        return pl_sealed_line_size(PL_FRAME_MAX - MAC_HEX - 2);
    return s->state == PL_SESSION_OPEN || s->state == PL_SESSION_WAIT_WELCOME ? PL_FRAME_MAX
                                                                              : PL_GREETING_MAX;
}

int pl_session_next(struct pl_session *s, json_t **ret, struct pl_error *err)
{
    for (;;) {
        size_t max = line_max(s);
        char *newline;
        size_t len;
        int r;

        if (s->state == PL_SESSION_DEAD)
            return pl_error_set(err, -ENOTCONN, "the session has ended");
        newline = s->in.len ? memchr(s->in.data, '\n', PL_MIN(s->in.len, max)) : NULL;
        if (!newline && s->in.len < max)
            return 0;
        if (!newline) {
            s->state = PL_SESSION_DEAD;
            return pl_error_set(err, -EMSGSIZE, "the peer sent a line of more than %zu bytes", max);
        }
        len = (size_t)(newline - s->in.data);
        r = take_line(s, s->in.data, len, ret, err);
        pl_buf_consume(&s->in, len + 1);
        if (r < 0)
            s->state = PL_SESSION_DEAD;
        if (r > 0)
            trace(s, "receive", *ret);
        if (r != 0)
            return r;
    }
}
