/* SPDX-License-Identifier: MIT */
/* Shared by comm_tcp.c (the collectives), comm_tcp_frame.c and comm_tcp_connect.c. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_TCP_PRIVATE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_TCP_PRIVATE_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/util/bump.h"

#include <stdarg.h>
#include <stdbool.h>

#define PL_TCP_TICK_MS                                                                             \
    1000 /* how often a waiting rank looks whether its peer's host still answers */

struct pl_tcp {
    struct pl_comm base;
    unsigned *world_ranks;
    int *fd; /* by member; -1 where there is no connection */
    uint32_t seq;
    void *scratch;
    size_t scratch_size;
    struct pl_bump memory;
    bool abort_sent;               /* the others know */
    char failed[PL_COMM_TEXT_MAX]; /* "" while all is well */
};

extern const struct pl_comm_ops pl_tcp_ops;
void pl_tcp_destroy(struct pl_comm *comm);

/* Whether these two members of a communicator of this size are connected. */
bool pl_tcp_is_peer(unsigned a, unsigned b, unsigned size);

enum pl_tcp_op {
    PL_TCP_OP_ALLREDUCE,
    PL_TCP_OP_BROADCAST,
    PL_TCP_OP_BARRIER,
    PL_TCP_OP_ALLGATHER,
};

/* The head of a frame, as sent: in the byte order of the machine, which must be that of all. */
struct pl_tcp_frame {
    uint32_t magic;
    uint32_t type;
    uint32_t seq; /* number of the collective */
    uint32_t op;
    uint64_t total; /* bytes of the whole collective */
    uint64_t bytes; /* that follow */
};

#define PL_TCP_NO_PEER UINT32_MAX

/* What all frames of one collective have in common. */
struct pl_tcp_frame pl_tcp_frame(enum pl_tcp_op op, uint32_t seq, size_t total);

/* Sends a frame to one member and receives one from another (or the same), both at once; either
 * may be PL_TCP_NO_PEER. -ECONNRESET where a rank is lost, gave up or does something else; all
 * peers have been abort_sent then, and t->failed says what. */
int pl_tcp_swap(struct pl_tcp *t,
                const struct pl_tcp_frame *like,
                unsigned to,
                const void *send_data,
                size_t send_len,
                unsigned from,
                void *recv_data,
                size_t recv_len,
                struct pl_error *err);

/* Looks, without waiting, whether a peer is gone or gave up: -ECONNRESET then. For who waits for
 * something else; no collective of ours may be under way. */
int pl_tcp_check(struct pl_tcp *t, struct pl_error *err);

/* Tells all peers that it is over, and why, as far as that goes without waiting. */
void pl_tcp_abort(struct pl_tcp *t, const char *text);

#endif
