/* SPDX-License-Identifier: MIT */
/* Collectives between ranks of one node, through memory that all of them map.
 *
 * Each rank has slabs: anonymous files (memfd_create(2)), which the others open through
 * /proc/PID/fd (comm_shm_memory.c). They have no names, so nothing is left after a crash. Buffers
 * outside the slabs go through a staging slab in pieces. Sums are in comm_shm_sum.c.
 *
 * A barrier is a counter and a futex. A rank spins only if there is a core per rank, and then
 * briefly. Sums that are started now and joined later are in comm_shm_later.c. */
#include "runtime/engine/comm/comm_shm_private.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int shm_barrier(struct pl_comm *comm, struct pl_error *err)
{
    return pl_shm_meet((struct pl_shm *)comm, PL_SHM_BARRIER, NULL, 0, 0, err);
}

static int shm_allreduce(struct pl_comm *comm,
                         void *buf,
                         size_t count,
                         enum pl_real real,
                         double scale,
                         struct pl_error *err)
{
    return pl_shm_sum((struct pl_shm *)comm, buf, count, real, scale, comm->size, err);
}

static int shm_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    const struct pl_shm_slab *slab = pl_shm_find_slab(shm, buf, bytes);
    char *to = buf;
    int r;

    if (slab) {
        size_t offset = (size_t)(to - slab->base[comm->rank]);

        if ((r = pl_shm_meet(shm, PL_SHM_BROADCAST, slab, offset, bytes, err)) < 0)
            return r;
        if (comm->rank)
            memcpy(to, slab->base[0] + offset, bytes);
        return pl_shm_meet(shm, PL_SHM_BROADCAST, slab, offset, bytes, err);
    }
    for (size_t at = 0; at < bytes; at += PL_SHM_STAGE) {
        size_t step = PL_MIN(bytes - at, PL_SHM_STAGE);

        if (comm->rank == 0)
            memcpy(shm->slabs[0].base[0], to + at, step);
        if ((r = pl_shm_meet(shm, PL_SHM_BROADCAST, NULL, at, bytes, err)) < 0)
            return r;
        if (comm->rank)
            memcpy(to + at, shm->slabs[0].base[0], step);
        if ((r = pl_shm_meet(shm, PL_SHM_BROADCAST, NULL, at, bytes, err)) < 0)
            return r;
    }
    return 0;
}

static int
shm_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    const struct pl_shm_slab *stage = &shm->slabs[0];
    unsigned me = comm->rank, n = comm->size;
    size_t most = 0;
    int r;

    for (unsigned i = 0; i < n; i++)
        most = PL_MAX(most, offset[i + 1] - offset[i]);
    for (size_t at = 0; at < most; at += PL_SHM_STAGE) {
        for (unsigned k = 0; k <= n; k++) { /* copy our part out; a barrier; copy the others' in */
            unsigned i = (me + k) % n;
            size_t len = offset[i + 1] - offset[i],
                   step = PL_MIN(len - PL_MIN(at, len), PL_SHM_STAGE);
            char *part = (char *)buf + offset[i] + at;

            if (k == 0)
                memcpy(stage->base[me], part, step);
            if (k == 0 && (r = pl_shm_meet(shm, PL_SHM_GATHER, stage, at, offset[n], err)) < 0)
                return r;
            if (k > 0 && i != me)
                memcpy(part, stage->base[i], step);
        }
        if ((r = pl_shm_meet(shm, PL_SHM_GATHER, stage, at, offset[n], err)) < 0)
            return r;
    }
    return 0;
}

/* Sums this rank's part, `count` elements from `from` on, in its own slab. */
static int scatter_slab(struct pl_shm *shm,
                        const struct pl_shm_slab *slab,
                        size_t offset,
                        size_t bytes,
                        size_t from,
                        size_t count,
                        enum pl_real real,
                        double scale,
                        struct pl_error *err)
{
    int r = pl_shm_meet(shm, PL_SHM_SCATTER, slab, offset, bytes, err);

    if (r < 0)
        return r;
    pl_shm_sum_elements(shm, slab, offset, from, from + count, real, scale, shm->base.rank, 1);
    return pl_shm_meet(shm, PL_SHM_SCATTER, slab, offset, bytes, err);
}

/* In pieces that have equally many elements of each part, so that all ranks add at the same time.
 */
static int scatter_staged(struct pl_shm *shm,
                          char *buf,
                          const size_t *offset,
                          enum pl_real real,
                          double scale,
                          struct pl_error *err)
{
    const struct pl_shm_slab *stage = &shm->slabs[0];
    unsigned me = shm->base.rank, n = shm->base.size;
    size_t size = pl_real_size(real), most = PL_SHM_STAGE / n / 64 * 64 / size, longest = 0;
    char *own = stage->base[me];
    int r = 0;

    for (unsigned i = 0; i < n; i++)
        longest = PL_MAX(longest, offset[i + 1] - offset[i]);
    for (size_t at = 0; at < longest && r == 0; at += most) {
        size_t mine = 0;

        for (unsigned i = 0; i < n; i++) {
            size_t len = offset[i + 1] - offset[i], step = PL_MIN(len - PL_MIN(at, len), most);

            if (step)
                memcpy(own + i * most * size, buf + (offset[i] + at) * size, step * size);
            if (i == me)
                mine = step;
        }
        r = scatter_slab(shm, stage, 0, offset[n] * size, me * most, mine, real, scale, err);
        if (r == 0 && mine)
            memcpy(buf + (offset[me] + at) * size, own + me * most * size, mine * size);
    }
    return r;
}

static int shm_reduce_scatter(struct pl_comm *comm,
                              void *buf,
                              const size_t *offset,
                              enum pl_real real,
                              double scale,
                              struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    unsigned me = comm->rank;
    size_t bytes = offset[comm->size] * pl_real_size(real);
    const struct pl_shm_slab *slab = pl_shm_find_slab(shm, buf, bytes);

    if (!slab)
        return scatter_staged(shm, buf, offset, real, scale, err);
    return scatter_slab(shm, slab, (size_t)((char *)buf - slab->base[me]), bytes, offset[me],
                        offset[me + 1] - offset[me], real, scale, err);
}

static struct pl_comm *shm_node(struct pl_comm *comm)
{
    return comm->size > 1 ? comm : NULL;
}

static void *shm_of_peer(struct pl_comm *comm, const void *own, unsigned peer)
{
    const struct pl_shm *shm = (const struct pl_shm *)comm;
    const struct pl_shm_slab *slab = pl_shm_find_slab(shm, own, 0);

    return slab->base[peer] + ((const char *)own - slab->base[comm->rank]);
}

/* Of the control memory that so many ranks use. */
static size_t control_bytes(unsigned ranks)
{
    return offsetof(struct pl_shm_control, posts) + ranks * sizeof(struct pl_shm_posts);
}

static void shm_destroy(struct pl_comm *comm)
{
    struct pl_shm *shm = (struct pl_shm *)comm;

    for (size_t i = 0; i < shm->n_slabs; i++)
        pl_shm_unmap(shm, &shm->slabs[i]);
    free(shm->slabs);
    for (size_t i = 0; i < shm->n_common; i++)
        munmap(shm->common[i].memory, shm->common[i].bytes);
    free(shm->common);
    if (shm->control)
        munmap(shm->control, control_bytes(comm->size));
    for (unsigned i = 0; shm->pidfd && i < comm->size; i++)
        if (shm->pidfd[i] >= 0)
            close(shm->pidfd[i]);
    free(shm->pidfd);
    free(shm->pid);
    free(shm->world_ranks);
    free(shm);
}

static const struct pl_comm_ops shm_ops = {
    .name = "shm",
    .in_order = true,
    .allreduce = shm_allreduce,
    .start = pl_shm_start,
    .join = pl_shm_join,
    .broadcast = shm_broadcast,
    .barrier = shm_barrier,
    .allgather = shm_allgather,
    .reduce_scatter = shm_reduce_scatter,
    .alloc = pl_shm_alloc,
    .node = shm_node,
    .alloc_common = pl_shm_alloc_common,
    .of_peer = shm_of_peer,
    .post = pl_shm_post,
    .posted = pl_shm_posted,
    .await = pl_shm_await,
    .abort = pl_shm_abort,
    .destroy = shm_destroy,
};

int pl_comm_shm_control(int *ret_fd, struct pl_error *err)
{
    return pl_shm_make_fd(sizeof(struct pl_shm_control), ret_fd, err);
}

static int
attach(struct pl_shm *shm, const struct pl_comm_peer *peers, int control_fd, struct pl_error *err)
{
    unsigned gone = shm->base.size;
    void *unused;
    int r;

    for (unsigned i = 0; i < shm->base.size; i++) {
        shm->world_ranks[i] = peers[i].world_rank;
        shm->pid[i] = peers[i].pid;
        if (i != shm->base.rank)
            shm->pidfd[i] = (int)syscall(SYS_pidfd_open, peers[i].pid, 0);
        if (shm->pidfd[i] < 0 && i != shm->base.rank && errno == ESRCH)
            gone = PL_MIN(gone, i);
    }
    if (shm->base.rank == 0)
        r = pl_shm_map(control_fd, control_bytes(shm->base.size), (void **)&shm->control);
    else
        r = pl_shm_map_peer(peers[0].pid, peers[0].fd, control_bytes(shm->base.size), pl_shm_map,
                            (void **)&shm->control);
    if (r == 0)
        r = pl_shm_take_pages(shm->control, control_bytes(shm->base.size));
    if (r == -ENOMEM)
        return pl_error_set(err, r, "out of memory for the ranks of a node to meet in");
    if (r < 0)
        return pl_shm_cannot_map(shm, gone < shm->base.size ? gone : 0, r, err);
    if (gone == shm->base.size)
        return pl_shm_add_slab(shm, 4 * PL_SHM_SLOT, &unused, err);
    /* The others shall name this rank, not one that ends because of it. */
    r = pl_shm_cannot_map(shm, gone, -ESRCH, err);
    pl_shm_abort(&shm->base, pl_error_text(err));
    return r;
}

int pl_comm_shm_create(const struct pl_comm_peer *peers,
                       unsigned size,
                       unsigned rank,
                       int control_fd,
                       struct pl_comm **ret,
                       struct pl_error *err)
{
    struct pl_shm *shm;
    int r;

    if (size > PL_SHM_RANKS_MAX)
        return pl_error_set(err, -ENOTSUP, "%u ranks on one node are more than %d", size,
                            PL_SHM_RANKS_MAX);
    shm = calloc(1, sizeof(*shm));
    if (!shm)
        return pl_error_nomem(err);
    shm->base = (struct pl_comm){.ops = &shm_ops, .rank = rank, .size = size};
    shm->base.world_ranks = shm->world_ranks = calloc(size, sizeof(*shm->world_ranks));
    shm->pid = calloc(size, sizeof(*shm->pid));
    shm->pidfd = malloc(size * sizeof(*shm->pidfd));
    for (unsigned i = 0; shm->pidfd && i < size; i++)
        shm->pidfd[i] = -1;
    shm->spin = sysconf(_SC_NPROCESSORS_ONLN) >= (long)size;
    r = shm->world_ranks && shm->pid && shm->pidfd ? attach(shm, peers, control_fd, err)
                                                   : pl_error_nomem(err);
    if (r < 0) {
        shm_destroy(&shm->base);
        return r;
    }
    *ret = &shm->base;
    return 0;
}
