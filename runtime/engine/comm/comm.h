/* SPDX-License-Identifier: MIT */
/* Collectives, with a table per backend: self (one rank), shm (ranks of one node), tcp and mpi
 * (between nodes), and the hierarchy of shm and one of these. All ranks of a communicator call the
 * same functions in the same order. A call that waits sleeps and does not spin for long, so ranks
 * may outnumber cores.
 *
 * The results are the same bits on every rank, and in every run with the same layout of ranks: the
 * number and layout of ranks fix the order of additions (with mpi: MPI does). With `ordered` the
 * order is that of the ranks for any layout; within a node it always is. The same bits on every
 * rank are needed: batch norm over ranks decides by its sums whether to add up once more.
 *
 * When a rank is lost (its process ends, its connection breaks), the call that waits for it and all
 * later calls fail with -ECONNRESET and a text that names the rank. The rank that notices tells the
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
    bool in_order; /* sums add rank 1 to rank 0, then rank 2, and so on */
    int (*allreduce)(struct pl_comm *comm,
                     void *buf,
                     size_t count,
                     enum pl_real real,
                     double scale,
                     struct pl_error *err);
    /* An allreduce that needs to be complete after join() only; NULL: there is none. */
    int (*start)(struct pl_comm *comm,
                 void *buf,
                 size_t count,
                 enum pl_real real,
                 double scale,
                 struct pl_error *err);
    int (*join)(struct pl_comm *comm, struct pl_error *err);
    int (*broadcast)(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err);
    int (*barrier)(struct pl_comm *comm, struct pl_error *err);
    int (*allgather)(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err);
    int (*reduce_scatter)(struct pl_comm *comm,
                          void *buf,
                          const size_t *offset,
                          enum pl_real real,
                          double scale,
                          struct pl_error *err);
    int (*alloc)(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);
    /* Of shared memory; NULL: the backend has none. node: see pl_comm_node(). */
    struct pl_comm *(*node)(struct pl_comm *comm);
    int (*alloc_common)(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);
    void *(*of_peer)(struct pl_comm *comm, const void *own, unsigned peer);
    void (*post)(struct pl_comm *comm);
    uint32_t (*posted)(struct pl_comm *comm);
    int (*await)(struct pl_comm *comm, uint32_t count, struct pl_error *err);
    void (*abort)(struct pl_comm *comm, const char *text); /* text: as the others shall report it */
    void (*destroy)(struct pl_comm *comm);
};

enum pl_comm_kind {
    PL_COMM_AUTO, /* shm within a node; between nodes mpi if it started the job, else tcp */
    PL_COMM_SHM,  /* this one for all ranks */
    PL_COMM_TCP,
    PL_COMM_MPI,
};

/* Limits of waiting in this process; set before pl_comm_create(). Collectives of MPI and NCCL wait
 * by their own. */
struct pl_comm_limits {
    double
        warn_s; /* a collective that waits longer is reported, with the missing ranks; 0 = never */
    double end_s;   /* the missing ranks are lost then; 0 = never */
    int64_t host_s; /* a host that acknowledges nothing for so long is lost; 2 to 120 */
};

extern struct pl_comm_limits pl_comm_limits; /* 60, 0, 4 */

/* The time that a rank waits. Zeroed: it does not wait. */
struct pl_comm_wait {
    uint64_t since_ns;
    bool warned;
};

/* Call now and then while waiting. Returns 1 if a warning is due (once), -ETIMEDOUT after the
 * limit, 0 otherwise; *ret_s = the time so far. */
int pl_comm_waits(struct pl_comm_wait *wait, double *ret_s);

struct pl_mpi; /* comm_mpi.h */

/* This process's rank and node, and the size of the world. */
struct pl_world {
    unsigned rank, size, local_rank, local_size, node;
    unsigned n_nodes;  /* known after the rendezvous */
    bool is_part;      /* of the world: pl_comm_split() has set rank and size to those in it */
    char address[256]; /* of this node, as other nodes reach it */
    enum pl_comm_kind kind;
    struct pl_mpi *mpi; /* NULL = unused; closed with the communicator of all ranks */
    /* The user's own rendezvous, at which rank 0 listens; port 0 = none. */
    char store_address[256];
    unsigned store_port;
};

struct pl_comm {
    const struct pl_comm_ops *ops;
    unsigned rank, size;         /* in this communicator */
    const unsigned *world_ranks; /* world rank of each member, owned by the backend */
    struct pl_world world;       /* this process in the world */
    struct pl_comm
        *gpu;     /* same members, for memory of their GPUs (comm_gpu.h), or NULL; not owned */
    bool ordered; /* sums in the order of ranks, which gathers all parts; set by the user, equal on
                     all ranks */
};

/* Reads the launcher's environment: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK and
 * PLUME_NODE_ADDR (default 127.0.0.1). Without RANK it is a world of one. -EINVAL names the bad
 * variable. */
int pl_world_from_env(struct pl_world *ret, struct pl_error *err);

/* Also starts MPI, if the kind is mpi or if MPI alone started the job (mpirun without plrun).
 * -ENOTSUP: MPI is needed but not built in or not installed. */
int pl_world_open(struct pl_world *ret, enum pl_comm_kind kind, struct pl_error *err);

/* Meets the other ranks through `link` and connects. link is unused, and may be NULL, in a world of
 * one, with MPI and with the user's own rendezvous. *ret is freed by pl_comm_destroy(). */
int pl_comm_create(const struct pl_world *world,
                   struct pl_rank_link *link,
                   struct pl_comm **ret,
                   struct pl_error *err);

/* Makes a communicator of the members of comm that give the same color, ordered by key, then rank.
 * *ret is NULL for a negative color. Collective over comm, which stays. */
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

/* An allreduce with the same result, which is there after pl_comm_join(): until then nobody may
 * read or write buf. Without waiting where the backend can (shm, of memory of pl_comm_alloc()).
 * Other collectives may come between. */
int pl_comm_allreduce_start(struct pl_comm *comm,
                            void *buf,
                            size_t count,
                            enum pl_real real,
                            double scale,
                            struct pl_error *err);
int pl_comm_join(struct pl_comm *comm, struct pl_error *err);

/* The same for a device's memory: by comm->gpu, or without one through the host's memory. -ENOMEM,
 * -EIO. */
int pl_comm_allreduce_on(struct pl_comm *comm,
                         struct pl_device *dev,
                         void *buf,
                         size_t count,
                         enum pl_real real,
                         struct pl_error *err);

/* The same for 16-bit numbers: summed in f32, rounded once. -ENOMEM. */
int pl_comm_allreduce_half(struct pl_comm *comm,
                           uint16_t *buf,
                           size_t count,
                           enum pl_half type,
                           double scale,
                           struct pl_error *err);

/* Copies rank 0's bytes to all ranks. */
int pl_comm_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err);

/* The same for a device's memory: by comm->gpu, or without one through the host's memory. -ENOMEM,
 * -EIO. */
int pl_comm_broadcast_on(
    struct pl_comm *comm, struct pl_device *dev, void *buf, size_t bytes, struct pl_error *err);

/* Returns after all ranks have called it. */
int pl_comm_barrier(struct pl_comm *comm, struct pl_error *err);

/* Gathers all parts on all ranks: rank i's is at buf + offset[i] up to offset[i + 1] (in bytes;
 * size + 1 of them, the same on all ranks). Each rank fills in its own part first. */
int pl_comm_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err);

/* The same for a device's memory: by comm->gpu, or without one through the host's memory. -ENOMEM,
 * -EIO. */
int pl_comm_allgather_on(struct pl_comm *comm,
                         struct pl_device *dev,
                         void *buf,
                         const size_t *offset,
                         struct pl_error *err);

/* An allreduce of which each rank gets its own part: rank i elements offset[i] up to offset[i + 1]
 * of buf (size + 1 of them, the same on all ranks). The rest of buf is undefined afterwards. With
 * `ordered` the sums are the same bits as allreduce's. */
int pl_comm_reduce_scatter(struct pl_comm *comm,
                           void *buf,
                           const size_t *offset,
                           enum pl_real real,
                           double scale,
                           struct pl_error *err);

/* *ret is true if `mine` is true on all ranks. */
int pl_comm_agree(struct pl_comm *comm, bool mine, bool *ret, struct pl_error *err);

/* Zeroed memory in which collectives are fastest (shared with the node's other ranks if that
 * helps), aligned to 64 bytes. Collective: all ranks ask for the same size. Freed by destroy. */
int pl_comm_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);

/* The communicator of this node's ranks, if they share memory; NULL: this rank is alone, or the
 * backend has none. comm itself, or owned by it. */
struct pl_comm *pl_comm_node(struct pl_comm *comm);

/* For a comm with a node. Zeroed memory of which the node has one piece for all of its ranks,
 * aligned to 64 bytes. Each rank touches its part first, so that the pages are near its processor:
 * from bytes * rank / size on. Collective over the node. Freed by destroy. -ENOMEM, -ECONNRESET. */
int pl_comm_alloc_common(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);

/* For a comm with a node: where this process sees a peer's memory. own: an address in this rank's
 * memory of pl_comm_alloc(); peer: a rank of the node. */
void *pl_comm_of_peer(struct pl_comm *comm, const void *own, unsigned peer);

/* Returns after all ranks of the node have called it: at once where there are no others. All ranks
 * of all nodes call it equally often. */
int pl_comm_node_barrier(struct pl_comm *comm, struct pl_error *err);

/* For a comm that is its own node: counts one more thing that this rank has completed. All ranks
 * count the same things in the same order. */
void pl_comm_node_post(struct pl_comm *comm);

/* The number of things that all ranks have completed. It begins at 0 and wraps. */
uint32_t pl_comm_node_posted(struct pl_comm *comm);

/* Returns after all ranks have posted so many things. Until then, and once when they have, calls
 * work (may be NULL) each time that all ranks have posted more, with their number. Counts as a
 * collective of all ranks. */
int pl_comm_node_work(struct pl_comm *comm,
                      uint32_t count,
                      int (*work)(void *ctx, uint32_t posted, struct pl_error *err),
                      void *ctx,
                      struct pl_error *err);

/* Time that the calling thread has spent in the calls above, of communicators of several ranks:
 * most of it waiting for them. ns. */
uint64_t pl_comm_spent_ns(void);

/* Tells the other ranks, without waiting, that this rank gives up and why. */
void pl_comm_abort(struct pl_comm *comm, const char *text);

/* Call once after a collective failed, before destroy. With r = -ECONNRESET (another rank is lost)
 * the text is forwarded to this communicator if comm->gpu found it; any other error aborts with our
 * text. */
void pl_comm_fail(struct pl_comm *comm, int r, const struct pl_error *err);

/* For backends and their tests. A member is a rank of the new communicator. */
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
/* Makes the control memory, which the first member publishes. */
int pl_comm_shm_control(int *ret_fd, struct pl_error *err);
/* The first half of an allreduce: rank 0's buf becomes the sum; elsewhere its contents are lost. */
int pl_comm_shm_reduce(
    struct pl_comm *comm, void *buf, size_t count, enum pl_real real, struct pl_error *err);

/* Takes ownership of listen_fd, also on failure. */
int pl_comm_tcp_create(const struct pl_comm_peer *peers,
                       unsigned size,
                       unsigned rank,
                       int listen_fd,
                       const void *key,
                       size_t key_len,
                       struct pl_comm **ret,
                       struct pl_error *err);
/* Opens a listening socket; the kernel chooses the port. */
int pl_comm_tcp_listen(const char *address, int *ret_fd, unsigned *ret_port, struct pl_error *err);

int pl_comm_self_create(unsigned world_rank, struct pl_comm **ret, struct pl_error *err);

/* local: this node's ranks, shm or (one rank) self. leaders: NULL except on the first rank of each
 * node. Takes ownership of both on success. peers and node (an index into the leaders) have `size`
 * entries, one per member. by_mpi: the leaders use MPI (only for the name). */
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
