/* SPDX-License-Identifier: MIT */
/* A meeting place of the user's own: rank 0 listens at an address, the others bring their cards
 * there, and each takes all of them home. For modules with the hook init_ddp_connection.
 *
 * The cards carry the run's key in the clear: the place is as private as the network it is in. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_STORE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_STORE_H

#include "runtime/engine/comm/comm.h"

/* block: world->size parts of `bytes`, of which the own is filled in. A rank that comes before
 * rank 0 listens tries again until timeout_ms is over: -ETIMEDOUT. -EADDRINUSE on rank 0 where the
 * port is taken, -EPROTO where somebody else is there. */
int pl_comm_store_exchange(const struct pl_world *world,
                           char *block,
                           size_t bytes,
                           unsigned timeout_ms,
                           struct pl_error *err);

#endif
