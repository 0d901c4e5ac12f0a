/* SPDX-License-Identifier: MIT */
/* Collectives behind one table: self (one rank), shm (ranks of one node), tcp and mpi (between
 * nodes) and the hierarchy of shm and one of these. All ranks of a communicator call the same
 * functions in the same order; every call blocks by sleeping, never by spinning for long, so ranks
 * may outnumber cores.
 *
 * Results are the same bits on every rank and in every run with the same layout of ranks: the
 * order of additions is fixed by the number and place of ranks (with mpi: by MPI). With `ordered`
 * it is that of ranks wherever they are, as within a node anyway.
 *
 * The loss of a rank (its process ends, its connection breaks) fails the call that waits for it,
 * and the later ones, with -ECONNRESET and a text that names the rank; whoever notices tells the
 * others. A failed communicator can only be destroyed. Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_H
#define PL_RUNTIME_ENGINE_COMM_COMM_H

#include "common/base/error.h"
#include "common/proto/rank/rank_link.h"
#include "kernels/half.h"
#include "runtime/engine/device/device.h"

#include <stdbool.h>

#define PL_COMM_TEXT_MAX 160

struct pl_comm;

struct pl_comm_ops {
    const char *name;
    bool in_order; /* allreduce adds rank 1 to rank 0, then rank 2, and so on */
    int (*allreduce)(struct pl_comm *comm,
                     void *buf,
                     size_t count,
                     enum pl_real real,
                     double scale,
                     struct pl_error *err);
    int (*broadcast)(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err);
    int (*barrier)(struct pl_comm *comm, struct pl_error *err);
    int (*allgather)(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err);
    int (*alloc)(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);
    void (*abort)(struct pl_comm *comm, const char *text); /* text as the others shall report it */
    void (*destroy)(struct pl_comm *comm);
};

enum pl_comm_kind {
    PL_COMM_AUTO, /* shm inside a node; between nodes mpi where it started the job, else tcp */
    PL_COMM_SHM,  /* these for all ranks */
    PL_COMM_TCP,
    PL_COMM_MPI,
};

struct pl_mpi; /* comm_mpi.h */

/* Which rank this process is, among how many, and where. */
struct pl_world {
    unsigned rank, size, local_rank, local_size, node;
    unsigned n_nodes;  /* known once they have met */
    char address[256]; /* of this node, for other nodes */
    enum pl_comm_kind kind;
    struct pl_mpi *mpi; /* NULL = not used; closed with the communicator of all ranks */
    /* A meeting place of the user's own, where rank 0 listens; port 0 = none. */
    char store_address[256];
    unsigned store_port;
};

struct pl_comm {
    const struct pl_comm_ops *ops;
    unsigned rank, size;         /* in this communicator */
    const unsigned *world_ranks; /* world rank of each member, owned by the backend */
    struct pl_world world;       /* of this process in it */
    struct pl_comm *gpu; /* the same members' for memory of their GPUs (comm_gpu.h), or NULL;
                               not owned */
    bool ordered;        /* sums in the order of ranks, at the cost of gathering them all; set by
                            the user, on all ranks alike */
};

/* From the environment that the launcher sets: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
 * NODE_RANK and PLUME_NODE_ADDR (default 127.0.0.1); a world of one where RANK is not set.
 * -EINVAL names the bad variable. */
int pl_world_from_env(struct pl_world *ret, struct pl_error *err);

/* The same, and starts MPI where the kind wants it or where it alone started the job (mpirun
 * without plrun). -ENOTSUP where MPI is needed but not built in or not installed. */
int pl_world_open(struct pl_world *ret, enum pl_comm_kind kind, struct pl_error *err);

/* Meets the other ranks through the exchange of `link` (unused, and may be NULL, in a world of
 * one, with MPI and with a meeting place) and connects. *ret is freed by pl_comm_destroy(). */
int pl_comm_create(const struct pl_world *world,
                   struct pl_rank_link *link,
                   struct pl_comm **ret,
                   struct pl_error *err);

/* The members of comm that give the same color, ordered by key, then rank, as a communicator of
 * their own; *ret is NULL for who gives a negative color. Collective over comm, which stays. */
int pl_comm_split(
    struct pl_comm *comm, int color, int key, struct pl_comm **ret, struct pl_error *err);
void pl_comm_destroy(struct pl_comm *comm);
PL_DEFINE_CLEANUP(struct pl_comm *, pl_comm_destroy)

/* buf = scale * sum over ranks of buf; count elements. */
int pl_comm_allreduce(struct pl_comm *comm,
                      void *buf,
                      size_t count,
                      enum pl_real real,
                      double scale,
                      struct pl_error *err);

/* The same for 16-bit numbers: summed in f32, rounded once. -ENOMEM. */
int pl_comm_allreduce_half(struct pl_comm *comm,
                           uint16_t *buf,
                           size_t count,
                           enum pl_half type,
                           double scale,
                           struct pl_error *err);

/* Everybody gets rank 0's bytes. */
int pl_comm_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err);

/* The same for a device's memory, on other devices than the CPU by comm->gpu, or without one by
 * way of the host's memory. -ENOMEM, -EIO. */
int pl_comm_broadcast_on(
    struct pl_comm *comm, struct pl_device *dev, void *buf, size_t bytes, struct pl_error *err);

/* Returns when all have called it. */
int pl_comm_barrier(struct pl_comm *comm, struct pl_error *err);

/* Everybody gets everybody's part: rank i's stands at buf + offset[i] up to offset[i + 1] (bytes;
 * size + 1 of them, the same on all ranks), and each fills in its own before. */
int pl_comm_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err);

/* *ret is true where all ranks say so. */
int pl_comm_agree(struct pl_comm *comm, bool mine, bool *ret, struct pl_error *err);

/* Zeroed memory in which collectives are cheapest (shared with the node's other ranks where that
 * helps), aligned to 64 bytes. Collective: all ranks ask for the same size. Freed by destroy. */
int pl_comm_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);

/* Tells the others, as far as that goes without waiting, that this rank gives up and why. */
void pl_comm_abort(struct pl_comm *comm, const char *text);

/* Behind a call that failed, as the last thing but destroy: does what that comes to. The loss of
 * another rank (r is -ECONNRESET) is passed on as it is where this communicator may not know of it
 * yet (comm->gpu does); what happened here is an abort. */
void pl_comm_fail(struct pl_comm *comm, int r, const struct pl_error *err);

/* For backends and their tests. A member is a rank of the communicator to be. */
struct pl_comm_peer {
    unsigned world_rank;
    int pid, fd;       /* shm: control memory of the first member, as /proc/PID/fd/FD */
    char address[256]; /* tcp */
    unsigned port;
};

int pl_comm_shm_create(const struct pl_comm_peer *peers,
                       unsigned size,
                       unsigned rank,
                       int control_fd,
                       struct pl_comm **ret,
                       struct pl_error *err);
/* Makes the control memory that the first member publishes. */
int pl_comm_shm_control(int *ret_fd, struct pl_error *err);
/* Half of an allreduce: rank 0's buf becomes the sum, elsewhere its contents are lost. */
int pl_comm_shm_reduce(
    struct pl_comm *comm, void *buf, size_t count, enum pl_real real, struct pl_error *err);

/* Takes listen_fd over, also on failure. */
int pl_comm_tcp_create(const struct pl_comm_peer *peers,
                       unsigned size,
                       unsigned rank,
                       int listen_fd,
                       const void *key,
                       size_t key_len,
                       struct pl_comm **ret,
                       struct pl_error *err);
/* A listening socket at a port that the kernel chose. */
int pl_comm_tcp_listen(const char *address, int *ret_fd, unsigned *ret_port, struct pl_error *err);

int pl_comm_self_create(unsigned world_rank, struct pl_comm **ret, struct pl_error *err);

/* local: this node's ranks, shm or (a single one) self; leaders: NULL but on the first of each
 * node. Owns both on success. peers and node (an index into the leaders): of all `size` members.
 * by_mpi: how the leaders meet, for the name. */
int pl_comm_hier_create(struct pl_comm *local,
                        struct pl_comm *leaders,
                        const struct pl_comm_peer *peers,
                        const unsigned *node,
                        unsigned rank,
                        unsigned size,
                        bool by_mpi,
                        struct pl_comm **ret,
                        struct pl_error *err);

#endif
