/* SPDX-License-Identifier: MIT */
/* The thread of rank 0 that serves a store of values by key (kv_store.h), and what is sent. Hosts
 * of a run have one byte order. */
#ifndef PL_RUNTIME_ENGINE_COMM_KV_SERVER_H
#define PL_RUNTIME_ENGINE_COMM_KV_SERVER_H

#include "common/base/error.h"
#include "runtime/engine/util/sha256.h"

#include <stddef.h>
#include <stdint.h>

#define PL_KV_NONCE 16

enum { PL_KV_PUT = 1, PL_KV_GET = 2, PL_KV_FAIL = 3 };

/* The key and the value follow it. */
struct pl_kv_request {
    uint32_t what, key_len, len, timeout_ms;
    uint8_t nonce[PL_KV_NONCE];
    uint8_t proof[PL_SHA256_BYTES];
};

/* The value follows it. */
struct pl_kv_reply {
    int32_t code; /* 0 or a negative errno */
    uint32_t len;
    uint8_t proof[PL_SHA256_BYTES];
};

/* HMAC(key, side, nonce, head, a, b). -ENOMEM. */
int pl_kv_prove(const uint8_t key[PL_SHA256_BYTES],
                char side,
                const uint8_t nonce[PL_KV_NONCE],
                const void *head,
                size_t head_len,
                const void *a,
                size_t a_len,
                const void *b,
                size_t b_len,
                uint8_t ret[PL_SHA256_BYTES]);

struct pl_kv_server;

/* Takes the listening socket over. -ENOMEM, -EAGAIN. */
int pl_kv_server_start(int fd,
                       const uint8_t key[PL_SHA256_BYTES],
                       struct pl_kv_server **ret,
                       struct pl_error *err);

/* Closes all connections. NULL is ignored. */
void pl_kv_server_stop(struct pl_kv_server *server);

#endif
