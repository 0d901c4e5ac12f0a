/* SPDX-License-Identifier: MIT */
/* Shared by comm_tcp.c and comm_tcp_connect.c. */
#ifndef PL_RUNTIME_ENGINE_COMM_TCP_PRIVATE_H
#define PL_RUNTIME_ENGINE_COMM_TCP_PRIVATE_H

#include "runtime/engine/bump.h"
#include "runtime/engine/comm.h"

#include <stdarg.h>
#include <stdbool.h>

#define PL_TCP_TICK_MS                                                                             \
    1000 /* how often a waiting rank looks whether its peer's host still answers */

struct pl_tcp {
    struct pl_comm base;
    unsigned *world;
    int *fd; /* by member; -1 where there is no connection */
    uint32_t seq;
    void *scratch;
    size_t scratch_size;
    struct pl_bump memory;
    bool told;                     /* the others know */
    char failed[PL_COMM_TEXT_MAX]; /* "" while all is well */
};

extern const struct pl_comm_ops pl_tcp_ops;
void pl_tcp_destroy(struct pl_comm *comm);

/* Whether these two members of a communicator of this size are connected. */
bool pl_tcp_is_peer(unsigned a, unsigned b, unsigned size);

#endif
