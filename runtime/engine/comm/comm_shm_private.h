/* SPDX-License-Identifier: MIT */
/* Shared by comm_shm.c (the collectives), comm_shm_sum.c (sums), comm_shm_later.c (sums for which
 * no rank waits), comm_shm_post.c (what ranks have completed), comm_shm_memory.c (slabs) and
 * comm_shm_wait.c (the barrier, and lost ranks). */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_SHM_PRIVATE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_SHM_PRIVATE_H

#include "runtime/engine/comm/comm.h"

#include <stdatomic.h>
#include <time.h>

#define PL_SHM_TICK_MS 200 /* interval of checking the others while waiting */
#define PL_SHM_SPINS 1000  /* about 20 us */

#define PL_SHM_RANKS_MAX 1024 /* per node */

/* The first slab: four slots for the pieces of sums, two to copy in and two to copy out. Other
 * collectives use its first PL_SHM_STAGE bytes. Large slots, since a barrier that has to sleep, on
 * cores that are shared, costs as much as the copies of many KiB. */
#define PL_SHM_SLOT ((size_t)512 * 1024)
#define PL_SHM_STAGE ((size_t)256 * 1024)

enum pl_shm_op {
    PL_SHM_SUM,
    PL_SHM_BROADCAST,
    PL_SHM_BARRIER,
    PL_SHM_SHARE,
    PL_SHM_GATHER,
    PL_SHM_SCATTER,
};

/* A rank's view of the collective at a barrier; all must agree. In a cache line of its own. */
struct pl_shm_claim {
    _Alignas(64) _Atomic uint32_t here; /* the barrier's generation + 1, once the rank has come */
    uint32_t op, slab;
    uint64_t offset, bytes;
};

#define PL_SHM_POSTS 64 /* sums that wait for each other at most */

/* The sums that a rank has posted, see comm_shm_later.c. */
struct pl_shm_posts {
    _Alignas(64) _Atomic uint32_t n; /* so far; the last PL_SHM_POSTS of them follow */
    _Atomic uint32_t counted;        /* pl_comm_node_post(); a futex, see comm_shm_post.c */
    struct pl_shm_post {
        uint32_t slab;
        uint64_t offset, bytes;
    } post[PL_SHM_POSTS];
};

/* The first rank's control file; zeroed by the kernel. */
struct pl_shm_control {
    _Atomic uint32_t arrived;
    _Atomic uint32_t generation; /* number of barriers passed; a futex */
    _Atomic uint32_t failing;    /* 1 + the rank that writes the text */
    _Atomic uint32_t failed;     /* the text is complete */
    _Atomic uint32_t sleepers;   /* ranks that wait for another one's `counted` */
    char text[PL_COMM_TEXT_MAX];
    _Atomic int32_t fd[PL_SHM_RANKS_MAX]; /* of the slab that is being shared */
    /* By barrier (odd or even: no rank is two ahead) and rank. Written before the barrier, read
     * after it. */
    struct pl_shm_claim claim[2][PL_SHM_RANKS_MAX];
    struct pl_shm_posts posts[PL_SHM_RANKS_MAX]; /* by rank; a process maps those of its ranks */
};

struct pl_shm_slab {
    size_t bytes;
    char **base; /* by rank, mapped into this process */
};

/* Memory that all ranks have in common. Collectives do not know it. */
struct pl_shm_common {
    void *memory;
    size_t bytes;
};

struct pl_shm {
    struct pl_comm base;
    unsigned *world_ranks;
    pid_t *pid;
    int *pidfd; /* -1 for ourselves, and if the kernel has no pidfds */
    struct pl_shm_control *control;
    struct pl_shm_slab *slabs; /* the first is for staging */
    size_t n_slabs;
    struct pl_shm_common *common;
    size_t n_common;
    bool spin;
    /* This rank's posted sums: how many, of how many it has summed its range, and how many it has
     * joined. */
    uint32_t posted, summed, joined;
    struct pl_shm_later {
        enum pl_real real;
        double scale;
    } later[PL_SHM_POSTS];
};

/* An anonymous file of so many bytes, and its memory in this process. map_peer: another process's
 * file, by `map`. */
int pl_shm_make_fd(size_t bytes, int *ret, struct pl_error *err);
int pl_shm_map(int fd, size_t bytes, void **ret);
int pl_shm_map_peer(
    pid_t pid, int peer_fd, size_t bytes, int (*map)(int fd, size_t bytes, void **ret), void **ret);

/* Gives memory its pages. Else the kernel looks for each page when somebody first writes to it, and
 * where it finds none, as a limit of vm.overcommit_memory=2 may have it, it ends the writer by
 * SIGBUS. Before Linux 5.14 pages come one by one. -ENOMEM. */
int pl_shm_take_pages(void *memory, size_t bytes);

/* The error of a peer's memory that cannot be mapped (r): the peer has perhaps ended, mostly
 * because another rank did. */
int pl_shm_cannot_map(struct pl_shm *shm, unsigned peer, int r, struct pl_error *err);

/* Makes a slab, of which *ret is this rank's. Collective. pl_shm_alloc: see pl_comm_alloc();
 * pl_shm_alloc_common: see pl_comm_alloc_common(). */
int pl_shm_add_slab(struct pl_shm *shm, size_t bytes, void **ret, struct pl_error *err);
int pl_shm_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);
int pl_shm_alloc_common(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err);
void pl_shm_unmap(const struct pl_shm *shm, struct pl_shm_slab *slab);

/* The slab that holds [buf, buf + bytes); NULL: none does. */
const struct pl_shm_slab *pl_shm_find_slab(const struct pl_shm *shm, const void *buf, size_t bytes);

/* Sums elements [from, to) at `offset` of the slab, times scale, and writes them to n_to ranks from
 * `first` on. */
void pl_shm_sum_elements(const struct pl_shm *shm,
                         const struct pl_shm_slab *slab,
                         size_t offset,
                         size_t from,
                         size_t to,
                         enum pl_real real,
                         double scale,
                         unsigned first,
                         unsigned n_to);

/* Sums this rank's range of count elements at `offset` and writes it to the first n_to ranks. */
void pl_shm_sum_range(const struct pl_shm *shm,
                      const struct pl_shm_slab *slab,
                      size_t offset,
                      size_t count,
                      enum pl_real real,
                      double scale,
                      unsigned n_to);

/* Sums buf over the ranks, times scale; the first n_to ranks get the sum. Collective. */
int pl_shm_sum(struct pl_shm *shm,
               char *buf,
               size_t count,
               enum pl_real real,
               double scale,
               unsigned n_to,
               struct pl_error *err);

/* A barrier within a collective. slab and offset: this rank's buffer. -ECONNRESET: a rank is lost,
 * gave up or is in another collective. */
int pl_shm_meet(struct pl_shm *shm,
                enum pl_shm_op op,
                const struct pl_shm_slab *slab,
                size_t offset,
                size_t bytes,
                struct pl_error *err);

/* See pl_comm_allreduce_start() and pl_comm_join(). */
int pl_shm_start(struct pl_comm *comm,
                 void *buf,
                 size_t count,
                 enum pl_real real,
                 double scale,
                 struct pl_error *err);
int pl_shm_join(struct pl_comm *comm, struct pl_error *err);

/* See pl_comm_node_post(), pl_comm_node_posted() and pl_comm_node_work(). */
void pl_shm_post(struct pl_comm *comm);
uint32_t pl_shm_posted(struct pl_comm *comm);
int pl_shm_await(struct pl_comm *comm, uint32_t count, struct pl_error *err);

/* The system call. -errno. */
int pl_shm_futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout);

/* Tells the processor that a loop waits. */
void pl_shm_spin_pause(void);

/* Looks at the time that this rank has waited, in op, for ranks that are not `here` (number: as
 * `here` takes it): warns, or -ECONNRESET after the limit. */
int pl_shm_check_time(struct pl_shm *shm,
                      bool (*here)(const struct pl_shm *shm, uint32_t number, unsigned i),
                      uint32_t number,
                      enum pl_shm_op op,
                      struct pl_comm_wait *wait,
                      struct pl_error *err);

/* Gives the text to all ranks, unless another one has given its own: that one is returned. */
int pl_shm_lose(struct pl_shm *shm, struct pl_error *err, const char *fmt, ...) PL_PRINTF(3, 4);

/* -ECONNRESET with the text of the rank that gave one, else 0. */
int pl_shm_failed(struct pl_shm *shm, struct pl_error *err);

/* True if the process of another member has ended. */
bool pl_shm_peer_ended(const struct pl_shm *shm, unsigned i);

/* The first rank to call it gives the text to all. */
void pl_shm_abort(struct pl_comm *comm, const char *text);

#endif
