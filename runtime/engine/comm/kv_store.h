/* SPDX-License-Identifier: MIT */
/* Values by key that the ranks of a run share: for PJRT's plugins, whose processes on several hosts
 * tell each other of their devices in this way. Rank 0 keeps them, in a thread, and serves all
 * ranks by TCP; the communicator tells them where, and the key by which both sides prove who they
 * are. Each call is a connection of its own:
 *
 *   rank 0 -> nonce S
 *   rank   -> what, lengths, time limit, nonce C, SHA-256 of key and value; HMAC(key, "C", S, all
 * of these); key, value rank 0 -> result, length, SHA-256 of the value; HMAC(key, "S", C, all of
 * these); value
 *
 * Neither side keeps more than the fixed part of a side that has not proven the key. */
#ifndef PL_RUNTIME_ENGINE_COMM_KV_STORE_H
#define PL_RUNTIME_ENGINE_COMM_KV_STORE_H

#include "runtime/engine/comm/comm.h"

#define PL_KV_KEY_MAX 4096
#define PL_KV_VALUE_MAX (16u << 20)

struct pl_kv_store;

/* Collective over comm, which it does not need later. -EADDRINUSE and others of listen(2). */
int pl_kv_store_open(struct pl_comm *comm, struct pl_kv_store **ret, struct pl_error *err);

/* The values are gone once rank 0 closes. NULL is ignored. */
void pl_kv_store_close(struct pl_kv_store *store);

/* Any thread may call these. put: -EEXIST: the key has a value already; -EMSGSIZE. get: *ret has
 * *ret_len bytes and a NUL, freed by the caller; -ETIMEDOUT: nobody has put the key in timeout_ms;
 * with 0 it is -ENOENT at once; -ECANCELED: a rank has given up, whose text err has. Both:
 * -ECONNRESET: rank 0 is gone. */
int pl_kv_store_put(struct pl_kv_store *store,
                    const char *key,
                    size_t key_len,
                    const char *value,
                    size_t len,
                    struct pl_error *err);
int pl_kv_store_get(struct pl_kv_store *store,
                    const char *key,
                    size_t key_len,
                    unsigned timeout_ms,
                    char **ret,
                    size_t *ret_len,
                    struct pl_error *err);

/* This rank gives up: nobody shall wait for what it would have put. text: as the others say it. */
void pl_kv_store_fail(struct pl_kv_store *store, const char *text);

#endif
