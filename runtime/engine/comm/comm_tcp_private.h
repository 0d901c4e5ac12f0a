/* SPDX-License-Identifier: MIT */
/* Shared by comm_tcp.c (the collectives), comm_tcp_frame.c and comm_tcp_connect.c. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_TCP_PRIVATE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_TCP_PRIVATE_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/util/bump.h"

#include <stdarg.h>
#include <stdbool.h>

#define PL_TCP_TICK_MS 1000 /* interval of checking the peer's host while waiting */

struct pl_tcp {
    struct pl_comm base;
    unsigned *world_ranks;
    int *fd; /* by member; -1 if not connected */
    uint32_t seq;
    void *scratch;
    size_t scratch_size;
    struct pl_bump memory;
    bool abort_sent;               /* all peers were told */
    char failed[PL_COMM_TEXT_MAX]; /* "" if healthy */
};

extern const struct pl_comm_ops pl_tcp_ops;
void pl_tcp_destroy(struct pl_comm *comm);

/* True if these two members of a communicator of this size are connected. */
bool pl_tcp_is_peer(unsigned a, unsigned b, unsigned size);

enum pl_tcp_op {
    PL_TCP_OP_ALLREDUCE,
    PL_TCP_OP_BROADCAST,
    PL_TCP_OP_BARRIER,
    PL_TCP_OP_ALLGATHER,
    PL_TCP_OP_REDUCE_SCATTER,
};

/* The head of a frame, in the machine's byte order, which must be the same on all. */
struct pl_tcp_frame {
    uint32_t magic;
    uint32_t type;
    uint32_t seq; /* number of the collective */
    uint32_t op;
    uint64_t total; /* bytes of the whole collective */
    uint64_t bytes; /* in this frame, after the head */
};

#define PL_TCP_NO_PEER UINT32_MAX

/* Fills in the fields that all frames of one collective share. */
struct pl_tcp_frame pl_tcp_frame(enum pl_tcp_op op, uint32_t seq, size_t total);

/* Sends a frame to one member and receives one from another (or the same) at the same time. Either
 * may be PL_TCP_NO_PEER. -ECONNRESET: a rank is lost, gave up or is in another collective. All
 * peers have then been sent an abort, and t->failed has the text. */
int pl_tcp_swap(struct pl_tcp *t,
                const struct pl_tcp_frame *like,
                unsigned to,
                const void *send_data,
                size_t send_len,
                unsigned from,
                void *recv_data,
                size_t recv_len,
                struct pl_error *err);

/* Checks without waiting if a peer is lost or gave up: -ECONNRESET. For callers that wait for
 * something else; no collective of t may be in progress. */
int pl_tcp_check(struct pl_tcp *t, struct pl_error *err);

/* Sends an abort with the text to all peers, without waiting. */
void pl_tcp_abort(struct pl_tcp *t, const char *text);

#endif
