/* SPDX-License-Identifier: MIT */
/* The proofs by which a rank and rank 0's store show each other that they have the key. */
#include "runtime/engine/comm/kv_server.h"

#include <string.h>

void pl_kv_digest(
    const void *a, size_t a_len, const void *b, size_t b_len, uint8_t ret[PL_SHA256_BYTES])
{
    struct pl_sha256 sha;

    pl_sha256_init(&sha);
    if (a_len)
        pl_sha256_add(&sha, a, a_len);
    if (b_len)
        pl_sha256_add(&sha, b, b_len);
    pl_sha256_final(&sha, ret);
}

static void prove(const uint8_t key[PL_SHA256_BYTES],
                  char side,
                  const uint8_t nonce[PL_KV_NONCE],
                  const void *head,
                  size_t len,
                  uint8_t ret[PL_SHA256_BYTES])
{
    uint8_t all[1 + PL_KV_NONCE + sizeof(struct pl_kv_request)];

    all[0] = (uint8_t)side;
    memcpy(all + 1, nonce, PL_KV_NONCE);
    memcpy(all + 1 + PL_KV_NONCE, head, len);
    pl_hmac_sha256(key, PL_SHA256_BYTES, all, 1 + PL_KV_NONCE + len, ret);
}

void pl_kv_prove_request(const uint8_t key[PL_SHA256_BYTES],
                         const uint8_t nonce[PL_KV_NONCE],
                         struct pl_kv_request *request)
{
    prove(key, 'C', nonce, request, offsetof(struct pl_kv_request, proof), request->proof);
}

bool pl_kv_request_proven(const uint8_t key[PL_SHA256_BYTES],
                          const uint8_t nonce[PL_KV_NONCE],
                          const struct pl_kv_request *request)
{
    struct pl_kv_request want = *request;

    pl_kv_prove_request(key, nonce, &want);
    return pl_bytes_equal(want.proof, request->proof, sizeof(want.proof));
}

void pl_kv_prove_reply(const uint8_t key[PL_SHA256_BYTES],
                       const uint8_t nonce[PL_KV_NONCE],
                       struct pl_kv_reply *reply)
{
    prove(key, 'S', nonce, reply, offsetof(struct pl_kv_reply, proof), reply->proof);
}

bool pl_kv_reply_proven(const uint8_t key[PL_SHA256_BYTES],
                        const uint8_t nonce[PL_KV_NONCE],
                        const struct pl_kv_reply *reply)
{
    struct pl_kv_reply want = *reply;

    pl_kv_prove_reply(key, nonce, &want);
    return pl_bytes_equal(want.proof, reply->proof, sizeof(want.proof));
}
