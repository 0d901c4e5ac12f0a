/* SPDX-License-Identifier: MIT */
#include "common/proto/sealed.h"
#include "common/base/env.h"

#include <string.h>

#define TAG crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
#define EXTRA crypto_secretstream_xchacha20poly1305_ABYTES
#define HEADER crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define BASE64 sodium_base64_VARIANT_ORIGINAL_NO_PADDING

int pl_encrypt_read(enum pl_encrypt *ret, struct pl_error *err)
{
    static const char *const names[] = {"auto", "off", "require"};
    const char *given = pl_env_text(PL_ENV_PLUME_ENCRYPT);

    *ret = PL_ENCRYPT_AUTO;
    for (size_t i = 0; given && i < PL_COUNT(names); i++)
        if (strcmp(given, names[i]) == 0) {
            *ret = (enum pl_encrypt)i;
            return 0;
        }
    if (!given)
        return 0;
    return pl_error_set(err, -EINVAL, "PLUME_ENCRYPT is '%s': give auto, off or require", given);
}

/* The key of one direction. */
static void derive(const unsigned char key[PL_KEY_SIZE], bool from_server, unsigned char *ret)
{
    static const char context[] = "plume stream 1";
    crypto_generichash_state h;

    crypto_generichash_init(&h, key, PL_KEY_SIZE, crypto_secretstream_xchacha20poly1305_KEYBYTES);
    crypto_generichash_update(&h, (const unsigned char *)context, sizeof(context));
    crypto_generichash_update(&h, (const unsigned char *)(from_server ? "S" : "C"), 1);
    crypto_generichash_final(&h, ret, crypto_secretstream_xchacha20poly1305_KEYBYTES);
}

void pl_sealed_begin(struct pl_sealed *s,
                     const unsigned char key[PL_KEY_SIZE],
                     bool server,
                     char ret_header[PL_SEALED_HEADER_HEX])
{
    unsigned char own[crypto_secretstream_xchacha20poly1305_KEYBYTES], header[HEADER];

    derive(key, server, own);
    crypto_secretstream_xchacha20poly1305_init_push(&s->out, header, own);
    sodium_bin2hex(ret_header, PL_SEALED_HEADER_HEX, header, sizeof(header));
    sodium_memzero(own, sizeof(own));
}

int pl_sealed_accept(struct pl_sealed *s,
                     const unsigned char key[PL_KEY_SIZE],
                     bool server,
                     const char *header)
{
    unsigned char own[crypto_secretstream_xchacha20poly1305_KEYBYTES], binary[HEADER];
    size_t len;
    int r;

    if (strlen(header) != PL_SEALED_HEADER_HEX - 1 ||
        sodium_hex2bin(binary, sizeof(binary), header, strlen(header), NULL, &len, NULL) < 0 ||
        len != sizeof(binary))
        return -EPROTO;
    derive(key, !server, own);
    r = crypto_secretstream_xchacha20poly1305_init_pull(&s->in, binary, own);
    sodium_memzero(own, sizeof(own));
    return r == 0 ? 0 : -EPROTO;
}

size_t pl_sealed_line_size(size_t body_len)
{
    return sodium_base64_encoded_len(body_len + EXTRA, BASE64); /* its NUL is our newline */
}

int pl_sealed_put(struct pl_sealed *s, const char *body, size_t body_len, struct pl_buf *out)
{
    size_t line_len = pl_sealed_line_size(body_len);
    _cleanup_free_ unsigned char *sealed = malloc(body_len + EXTRA);
    int r = sealed ? pl_buf_reserve(out, line_len + 1) : -ENOMEM;

    if (r < 0)
        return r;
    crypto_secretstream_xchacha20poly1305_push(&s->out, sealed, NULL, (const unsigned char *)body,
                                               body_len, NULL, 0, TAG);
    sodium_bin2base64(out->data + out->len, line_len, sealed, body_len + EXTRA, BASE64);
    out->len += line_len;
    out->data[out->len - 1] = '\n';
    out->data[out->len] = '\0';
    return 0;
}

int pl_sealed_open(struct pl_sealed *s, const char *line, size_t len, struct pl_buf *ret)
{
    _cleanup_free_ unsigned char *sealed = malloc(len + 1);
    unsigned char tag;
    size_t n;

    if (!sealed)
        return -ENOMEM;
    if (sodium_base642bin(sealed, len, line, len, NULL, &n, NULL, BASE64) < 0 || n < EXTRA)
        return -EACCES;
    if (pl_buf_reserve(ret, n - EXTRA + 1) < 0)
        return -ENOMEM;
    if (crypto_secretstream_xchacha20poly1305_pull(&s->in, (unsigned char *)ret->data + ret->len,
                                                   NULL, &tag, sealed, n, NULL, 0) < 0 ||
        tag != TAG)
        return -EACCES;
    ret->len += n - EXTRA;
    ret->data[ret->len] = '\0';
    return 0;
}
