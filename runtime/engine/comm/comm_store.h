/* SPDX-License-Identifier: MIT */
/* The user's own rendezvous: rank 0 listens at an address; each other rank sends its text and
 * receives all texts. For modules with the hook init_ddp_connection.
 *
 * Both sides prove that they have the ranks' key, by HMAC-SHA256 over nonces of both. Whoever
 * claims a rank without it is refused, and whoever poses as rank 0 is found out. The key is not
 * sent.
 *
 *   rank 0  -> magic, nonce S
 *   rank N  -> magic, N, size, bytes, nonce C, its text, HMAC(key, "C", S, all of these)
 *   rank 0  -> all texts, HMAC(key, "S", S, C, N, the texts) */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_STORE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_STORE_H

#include "common/proto/rank/rank_link.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/util/sha256.h"

/* The ranks' key, equal on all: through the node daemon, or (link NULL) from the file of
 * $PLUME_KEY_FILE, else ~/.plume/key. Collective with a link. -EPERM, -ENOENT and others name the
 * file. */
int pl_comm_store_key(const struct pl_world *world,
                      struct pl_rank_link *link,
                      unsigned timeout_ms,
                      uint8_t ret[PL_SHA256_BYTES],
                      struct pl_error *err);

/* Bytes as hex digits. */
void pl_store_hex(const uint8_t bytes[PL_SHA256_BYTES], char ret[2 * PL_SHA256_BYTES + 1]);

/* block: world->size parts of `bytes`; the caller fills in its own. A rank that comes before rank 0
 * listens retries until timeout_ms: -ETIMEDOUT. -EADDRINUSE on rank 0 if the port is taken. -EPROTO
 * if something else answers, -EACCES if it does not have the key. */
int pl_comm_store_exchange(const struct pl_world *world,
                           const uint8_t key[PL_SHA256_BYTES],
                           char *block,
                           size_t bytes,
                           unsigned timeout_ms,
                           struct pl_error *err);

#endif
