/* SPDX-License-Identifier: MIT */
/* The user's own rendezvous: rank 0 listens at an address; each other rank sends its text and
 * receives all texts. For modules with the hook init_ddp_connection.
 *
 * The texts carry the run's key unencrypted: the rendezvous is as private as its network. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_STORE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_STORE_H

#include "runtime/engine/comm/comm.h"

/* block: world->size parts of `bytes`; the caller fills in its own. A rank that comes before rank 0
 * listens retries until timeout_ms: -ETIMEDOUT. -EADDRINUSE on rank 0 if the port is taken. -EPROTO
 * if something else answers. */
int pl_comm_store_exchange(const struct pl_world *world,
                           char *block,
                           size_t bytes,
                           unsigned timeout_ms,
                           struct pl_error *err);

#endif
