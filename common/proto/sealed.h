/* SPDX-License-Identifier: MIT */
/* Encrypted lines of a session: libsodium's secretstream (XChaCha20-Poly1305), one stream in each
 * direction, in base64. A line that is changed, left out, repeated, swapped or of the other
 * direction does not open, nor does any after it. */
#ifndef PL_COMMON_PROTO_SEALED_H
#define PL_COMMON_PROTO_SEALED_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/proto/key.h"

#include <sodium.h>
#include <stdbool.h>

#define PL_SEALED_HEADER_HEX (2 * crypto_secretstream_xchacha20poly1305_HEADERBYTES + 1)

/* $PLUME_ENCRYPT of this side. */
enum pl_encrypt {
    PL_ENCRYPT_AUTO, /* if the peer can */
    PL_ENCRYPT_OFF,
    PL_ENCRYPT_REQUIRE, /* else the session fails */
};

struct pl_sealed {
    crypto_secretstream_xchacha20poly1305_state out, in;
};

/* Reads $PLUME_ENCRYPT. -EINVAL. */
int pl_encrypt_read(enum pl_encrypt *ret, struct pl_error *err);

/* Begins the stream to the peer. key: the session's; server: this side is. The peer needs the
 * header, in hex. */
void pl_sealed_begin(struct pl_sealed *s,
                     const unsigned char key[PL_KEY_SIZE],
                     bool server,
                     char ret_header[PL_SEALED_HEADER_HEX]);

/* Accepts the peer's stream by its header. -EPROTO: it is none. */
int pl_sealed_accept(struct pl_sealed *s,
                     const unsigned char key[PL_KEY_SIZE],
                     bool server,
                     const char *header);

/* Bytes of the line, newline included, that body_len bytes make. */
size_t pl_sealed_line_size(size_t body_len);

/* Appends the body as a line. -ENOMEM. */
int pl_sealed_put(struct pl_sealed *s, const char *body, size_t body_len, struct pl_buf *out);

/* Opens a line (without its newline) and appends the body to ret. -EACCES, -ENOMEM. */
int pl_sealed_open(struct pl_sealed *s, const char *line, size_t len, struct pl_buf *ret);

#endif
