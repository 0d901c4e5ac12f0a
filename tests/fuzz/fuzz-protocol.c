/* SPDX-License-Identifier: MIT */
/* Bytes from the network before and after the peer is known: as hub and as client, in one piece
 * and byte by byte. Nobody without the secret gets past the greeting. */
#include "common/protocol.h"
#include "tests/fuzz/fuzz.h"

static const struct pl_session_id id = {.job = "1", .step = "0", .attempt = 0};
static const unsigned char secret[PL_KEY_SIZE] = {1, 2, 3};

static void drain(struct pl_session *s, const uint8_t *data, size_t size, size_t piece)
{
    struct pl_error err = {0};
    int r = 0;

    for (size_t at = 0; at < size && r >= 0; at += piece) {
        json_t *message = NULL;

        if (piece > size - at)
            piece = size - at;
        FUZZ_CHECK(pl_session_feed(s, data + at, piece) == 0);
        while ((r = pl_session_next(s, &message, &err)) == 1) {
            json_decref(message);
            FUZZ_CHECK(0); /* a message from somebody who cannot have the key */
        }
    }
    FUZZ_CHECK(r >= 0 || s->state == PL_SESSION_DEAD);
    FUZZ_CHECK(s->state != PL_SESSION_OPEN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t pieces[] = {1, size ? size : 1};

    for (size_t i = 0; i < 2; i++) {
        struct pl_session s = {0};
        json_t *hello = json_pack("{s:s}", "role", "client");

        FUZZ_CHECK(pl_session_serve(&s, &id, secret) == 0);
        drain(&s, data, size, pieces[i]);
        pl_session_finish(&s);

        FUZZ_CHECK(pl_session_connect(&s, &id, secret, hello) == 0);
        drain(&s, data, size, pieces[i]);
        pl_session_finish(&s);
        json_decref(hello);
    }
    return 0;
}
