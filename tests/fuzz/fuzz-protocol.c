/* SPDX-License-Identifier: MIT */
/* Bytes from the network, as hub and as client, in pieces of all sizes: before the peer is known,
 * raw inside an open session, and as the text of frames whose digits are right. Nobody without the
 * secret gets past the greeting; nobody with it gets past the limits. */
#include "common/proto/json.h"
#include "common/proto/protocol.h"
#include "common/proto/rank/minijson.h"
#include "tests/fuzz/fuzz.h"

#include <sodium.h>

static const struct pl_session_id id = {.job = "1", .step = "0", .attempt = 0};
static const unsigned char secret[PL_KEY_SIZE] = {1, 2, 3};

static void begin(struct pl_session *server, struct pl_session *client)
{
    json_t *hello = json_pack("{s:s}", "role", "client");

    FUZZ_CHECK(pl_session_serve(server, &id, secret) == 0);
    FUZZ_CHECK(pl_session_connect(client, &id, secret, hello) == 0);
    json_decref(hello);
}

static void carry(struct pl_session *from, struct pl_session *to)
{
    struct pl_error err = {0};
    json_t *message = NULL;

    FUZZ_CHECK(pl_session_feed(to, pl_buf_str(&from->out), from->out.len) == 0);
    pl_buf_consume(&from->out, from->out.len);
    FUZZ_CHECK(pl_session_next(to, &message, &err) >= 0);
    json_decref(message);
}

static void open_session(struct pl_session *server, struct pl_session *client, bool sealed)
{
    setenv("PLUME_ENCRYPT", sealed ? "require" : "off", 1);
    begin(server, client);
    carry(server, client);
    carry(client, server);
    carry(server, client);
    FUZZ_CHECK(server->state == PL_SESSION_OPEN && client->state == PL_SESSION_OPEN);
    FUZZ_CHECK(server->sealed == sealed && client->sealed == sealed);
}

/* Feeds bytes of somebody who does not have the key. */
static void drain(struct pl_session *s, const uint8_t *data, size_t size, size_t piece)
{
    struct pl_error err = {0};
    json_t *message = NULL;
    int r = 0;

    for (size_t at = 0; at < size && r >= 0; at += piece) {
        piece = piece > size - at ? size - at : piece;
        FUZZ_CHECK(pl_session_feed(s, data + at, piece) == 0);
        r = pl_session_next(s, &message, &err);
        FUZZ_CHECK(r <= 0 && !message);
    }
    FUZZ_CHECK(r >= 0 || (s->state == PL_SESSION_DEAD && err.text[0]));
    FUZZ_CHECK(r < 0 || s->in.len <= size);
}

/* The text as a frame of the peer's: right direction, counter and digits, or a line of its stream.
 */
static void peer_frame(struct pl_session *from, const char *body, size_t len)
{
    unsigned char head[9] = {from->server ? 'S' : 'C'}, digest[crypto_auth_hmacsha256_BYTES];
    char hex[sizeof(digest) * 2 + 1];
    crypto_auth_hmacsha256_state h;

    if (from->sealed) {
        FUZZ_CHECK(pl_sealed_put(&from->stream, body, len, &from->out) == 0);
        return;
    }
    for (int i = 0; i < 8; i++)
        head[1 + i] = (unsigned char)(from->sent >> (56 - 8 * i));
    crypto_auth_hmacsha256_init(&h, from->key, PL_KEY_SIZE);
    crypto_auth_hmacsha256_update(&h, head, sizeof(head));
    crypto_auth_hmacsha256_update(&h, (const unsigned char *)body, len);
    crypto_auth_hmacsha256_final(&h, digest);
    sodium_bin2hex(hex, sizeof(hex), digest, sizeof(digest));
    FUZZ_CHECK(pl_buf_add(&from->out, hex, sizeof(hex) - 1) == 0);
    FUZZ_CHECK(pl_buf_addc(&from->out, ' ') == 0);
    FUZZ_CHECK(pl_buf_add(&from->out, body, len) == 0);
    FUZZ_CHECK(pl_buf_addc(&from->out, '\n') == 0);
    from->sent++;
}

/* Each line of the input, from one who has the key and is out of his mind. */
static void insider(struct pl_session *from, struct pl_session *to, const char *text, size_t size)
{
    struct pl_error err = {0};
    int r = 0;

    while (size && r >= 0) {
        const char *newline = memchr(text, '\n', size);
        size_t len = newline ? (size_t)(newline - text) : size;
        json_t *message = NULL, *check = NULL;
        int want = pl_json_parse(text, len, PL_FRAME_MAX, &check, &err);

        peer_frame(from, text, len);
        FUZZ_CHECK(pl_session_feed(to, from->out.data, from->out.len) == 0);
        pl_buf_consume(&from->out, from->out.len);
        r = pl_session_next(to, &message, &err);
        FUZZ_CHECK((r == 1) == (want == 0));
        FUZZ_CHECK(r < 0 || json_equal(message, check));
        json_decref(message);
        json_decref(check);
        text += len + (newline != NULL);
        size -= len + (newline != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t pieces[] = {1, 1 + (size ? data[0] : 0), size ? size : 1};
    struct pl_session server, client;

    for (size_t i = 0; i < PL_COUNT(pieces); i++) {
        begin(&server, &client);
        drain(&server, data, size, pieces[i]);
        drain(&client, data, size, pieces[i]);
        FUZZ_CHECK(server.state != PL_SESSION_OPEN && client.state != PL_SESSION_OPEN);
        pl_session_finish(&server);
        pl_session_finish(&client);
        for (int sealed = 0; sealed < 2; sealed++) {
            open_session(&server, &client, sealed);
            drain(&server, data, size, pieces[i]);
            drain(&client, data, size, pieces[i]);
            pl_session_finish(&server);
            pl_session_finish(&client);
        }
    }
    for (int sealed = 0; sealed < 2; sealed++) {
        open_session(&server, &client, sealed);
        insider(&server, &client, (const char *)data, size);
        insider(&client, &server, (const char *)data, size);
        pl_session_finish(&server);
        pl_session_finish(&client);
    }
    return 0;
}
