/* SPDX-License-Identifier: MIT */
/* The thread of rank 0 that serves a store of values by key (kv_store.h), and what is sent. Hosts
 * of a run have one byte order. */
#ifndef PL_RUNTIME_ENGINE_COMM_KV_SERVER_H
#define PL_RUNTIME_ENGINE_COMM_KV_SERVER_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/util/sha256.h"

#include <stddef.h>
#include <stdint.h>

#define PL_KV_NONCE 16

/* Address, port and key of rank 0's server. All ranks get them. */
struct pl_kv_place {
    char address[256];
    uint32_t port;
    uint8_t key[PL_SHA256_BYTES];
    int32_t code; /* 0, or why there is none */
    char text[PL_COMM_TEXT_MAX];
};

enum { PL_KV_PUT = 1, PL_KV_GET = 2, PL_KV_FAIL = 3 };

/* The key and the value follow it. The proof comes before them, so that no more than this is kept
 * of somebody without the key. */
struct pl_kv_request {
    uint32_t what, key_len, len, timeout_ms;
    uint8_t nonce[PL_KV_NONCE]; /* of the call: one that is made again has the same */
    uint8_t body[PL_SHA256_BYTES];
    uint8_t proof[PL_SHA256_BYTES];
};

/* The value follows it. */
struct pl_kv_reply {
    int32_t code; /* 0 or a negative errno */
    uint32_t len;
    uint8_t body[PL_SHA256_BYTES];
    uint8_t proof[PL_SHA256_BYTES];
};

/* SHA-256 of what follows a head: key and value, or a value alone. */
void pl_kv_digest(
    const void *a, size_t a_len, const void *b, size_t b_len, uint8_t ret[PL_SHA256_BYTES]);

/* Set and check the proof, the last member: HMAC(key, side, the other side's nonce, the members
 * before it). */
void pl_kv_prove_request(const uint8_t key[PL_SHA256_BYTES],
                         const uint8_t nonce[PL_KV_NONCE],
                         struct pl_kv_request *request);
bool pl_kv_request_proven(const uint8_t key[PL_SHA256_BYTES],
                          const uint8_t nonce[PL_KV_NONCE],
                          const struct pl_kv_request *request);
void pl_kv_prove_reply(const uint8_t key[PL_SHA256_BYTES],
                       const uint8_t nonce[PL_KV_NONCE],
                       struct pl_kv_reply *reply);
bool pl_kv_reply_proven(const uint8_t key[PL_SHA256_BYTES],
                        const uint8_t nonce[PL_KV_NONCE],
                        const struct pl_kv_reply *reply);

struct pl_kv_server;

/* Takes the listening socket over. -ENOMEM, -EAGAIN. */
int pl_kv_server_start(int fd,
                       const uint8_t key[PL_SHA256_BYTES],
                       struct pl_kv_server **ret,
                       struct pl_error *err);

/* Closes all connections. NULL is ignored. */
void pl_kv_server_stop(struct pl_kv_server *server);

#endif
