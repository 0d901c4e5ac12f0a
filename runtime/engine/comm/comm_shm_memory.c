/* SPDX-License-Identifier: MIT */
/* The memory that the ranks of a node share: slabs, and how they map each other's. */
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_shm_private.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_LEAST (2 * HUGE_PAGE)
#define ENDING_MS 2000 /* limit of a process between its first descriptor's end and its own */

int pl_shm_map(int fd, size_t bytes, void **ret)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return -errno;
    *ret = p;
    return 0;
}

/* The same at an address at which huge pages fit, if the file has any. */
static int map_slab(int fd, size_t bytes, void **ret)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before, end;
    char *room, *at;

    if (bytes < HUGE_LEAST)
        return pl_shm_map(fd, bytes, ret);
    room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return -errno;
    before = -(uintptr_t)room % HUGE_PAGE;
    at = mmap(room + before, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        int r = -errno;

        munmap(room, bytes + HUGE_PAGE);
        return r;
    }
    end = (before + bytes + page - 1) / page * page;
    if (before)
        munmap(room, before);
    if (bytes + HUGE_PAGE > end)
        munmap(room + end, bytes + HUGE_PAGE - end);
    *ret = at;
    return 0;
}

int pl_shm_take_pages(void *memory, size_t bytes)
{
    if (bytes == 0 || madvise(memory, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    return errno == EFAULT || errno == ENOMEM ? -ENOMEM : 0; /* EFAULT: instead of SIGBUS */
}

/* Kernels make small pages of shared memory, whatever madvise(2) asks of huge ones, unless an
 * administrator has allowed these; but from Linux 6.1 on they join pages to huge ones on demand.
 * That is also ten times as fast as a fault for each small page. Only whole huge pages, so that no
 * memory is used that was not asked for. Kernels that refuse leave small pages. */
static int join_pages(char *slab, size_t bytes)
{
    size_t whole = bytes / HUGE_PAGE * HUGE_PAGE;
    int r = 0;

    if (bytes >= HUGE_LEAST) {
        for (size_t at = 0; at < whole && r == 0; at += HUGE_PAGE)
            r = pl_shm_take_pages(slab + at, 1); /* a huge page needs one page to begin with */
        if (r == 0)
            (void)madvise(slab, whole, MADV_COLLAPSE);
    }
    return r == 0 ? pl_shm_take_pages(slab, bytes) : r;
}

static int no_pages(size_t bytes, struct pl_error *err)
{
    return pl_error_set(err, -ENOMEM, "out of memory for %zu bytes that ranks of a node share",
                        bytes);
}

int pl_shm_map_peer(
    pid_t pid, int peer_fd, size_t bytes, int (*map)(int fd, size_t bytes, void **ret), void **ret)
{
    char path[64];
    _cleanup_close_ int fd = -EBADF;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, peer_fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : map(fd, bytes, ret);
}

int pl_shm_make_fd(size_t bytes, int *ret, struct pl_error *err)
{
    _cleanup_close_ int fd = memfd_create("plume", MFD_CLOEXEC);

    if (fd < 0)
        return pl_error_errno(
            err, errno, "cannot make shared memory by memfd_create(2) (--comm tcp needs none)");
    if (ftruncate(fd, (off_t)bytes) < 0)
        return pl_error_errno(err, errno, "cannot make %zu bytes of shared memory%s", bytes,
                              errno == EFBIG ? " (ulimit -f is too small; --comm tcp needs none)"
                                             : "");
    *ret = PL_TAKE_FD(fd);
    return 0;
}

void pl_shm_unmap(const struct pl_shm *shm, struct pl_shm_slab *slab)
{
    for (unsigned i = 0; slab->base && i < shm->base.size; i++)
        if (slab->base[i])
            munmap(slab->base[i], slab->bytes);
    free(slab->base);
}

/* The peer may have ended, and then mostly because another rank did. A process that ends closes its
 * descriptors first. */
int pl_shm_cannot_map(struct pl_shm *shm, unsigned peer, int r, struct pl_error *err)
{
    uint64_t limit = pl_now_ns() + (r == -ENOENT ? ENDING_MS * 1000000ull : 0);
    bool ended;

    while (!(ended = pl_shm_peer_ended(shm, peer)) && pl_now_ns() < limit)
        poll(NULL, 0, 1);
    if (shm->control && pl_shm_failed(shm, err) < 0)
        return -ECONNRESET;
    if (ended)
        return pl_error_set(err, -ECONNRESET, "lost rank %u: its process ended",
                            shm->world_ranks[peer]);
    return pl_error_errno(err, r, "cannot map the memory of rank %u", shm->world_ranks[peer]);
}

static int share_slab(struct pl_shm *shm, struct pl_shm_slab *slab, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    unsigned me = shm->base.rank;
    int r = pl_shm_make_fd(slab->bytes, &fd, err);

    if (r < 0)
        return r;
    r = map_slab(fd, slab->bytes, (void **)&slab->base[me]);
    if (r < 0)
        return pl_error_errno(err, r, "cannot map %zu bytes of shared memory", slab->bytes);
    r = join_pages(slab->base[me], slab->bytes);
    if (r < 0)
        return no_pages(slab->bytes, err);
    atomic_store(&shm->control->fd[me], fd);
    if ((r = pl_shm_meet(shm, PL_SHM_SHARE, NULL, 0, slab->bytes, err)) < 0)
        return r;
    for (unsigned i = 0; i < shm->base.size; i++) {
        if (i == me)
            continue;
        r = pl_shm_map_peer(shm->pid[i], atomic_load(&shm->control->fd[i]), slab->bytes, map_slab,
                            (void **)&slab->base[i]);
        if (r < 0)
            return pl_shm_cannot_map(shm, i, r, err);
    }
    /* Barrier: all ranks have opened our descriptor before it is closed. */
    return pl_shm_meet(shm, PL_SHM_SHARE, NULL, 0, slab->bytes, err);
}

int pl_shm_add_slab(struct pl_shm *shm, size_t bytes, void **ret, struct pl_error *err)
{
    struct pl_shm_slab *slabs = reallocarray(shm->slabs, shm->n_slabs + 1, sizeof(*slabs));
    struct pl_shm_slab slab = {.bytes = (PL_MAX(bytes, (size_t)64) + 4095) & ~(size_t)4095};
    int r;

    if (!slabs)
        return pl_error_nomem(err);
    shm->slabs = slabs;
    slab.base = calloc(shm->base.size, sizeof(*slab.base));
    if (!slab.base)
        return pl_error_nomem(err);
    r = share_slab(shm, &slab, err);
    if (r < 0) {
        pl_shm_abort(&shm->base, pl_error_text(err));
        pl_shm_unmap(shm, &slab);
        return r;
    }
    shm->slabs[shm->n_slabs++] = slab;
    *ret = slab.base[shm->base.rank];
    return 0;
}

int pl_shm_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    return pl_shm_add_slab((struct pl_shm *)comm, bytes, ret, err);
}

/* This rank's part of the pages, so that they lie in the memory of its processor. */
static int join_part(const struct pl_shm *shm, char *memory, size_t bytes)
{
    size_t pages = bytes / HUGE_PAGE;
    size_t from = pages * shm->base.rank / shm->base.size;
    size_t to = pages * (shm->base.rank + 1) / shm->base.size;
    bool last = shm->base.rank + 1 == shm->base.size;

    return join_pages(memory + from * HUGE_PAGE,
                      last ? bytes - from * HUGE_PAGE : (to - from) * HUGE_PAGE);
}

static int share_common(struct pl_shm *shm, struct pl_shm_common *common, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    bool first = shm->base.rank == 0;
    int r = first ? pl_shm_make_fd(common->bytes, &fd, err) : 0;

    if (r < 0)
        return r;
    if (first)
        atomic_store(&shm->control->fd[0], fd);
    if ((r = pl_shm_meet(shm, PL_SHM_SHARE, NULL, 0, common->bytes, err)) < 0)
        return r;
    r = first ? map_slab(fd, common->bytes, &common->memory)
              : pl_shm_map_peer(shm->pid[0], atomic_load(&shm->control->fd[0]), common->bytes,
                                map_slab, &common->memory);
    if (r < 0)
        return pl_shm_cannot_map(shm, 0, r, err);
    r = join_part(shm, common->memory, common->bytes);
    if (r < 0)
        return no_pages(common->bytes, err);
    return pl_shm_meet(shm, PL_SHM_SHARE, NULL, 0, common->bytes, err);
}

int pl_shm_alloc_common(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    struct pl_shm_common *list = reallocarray(shm->common, shm->n_common + 1, sizeof(*list));
    struct pl_shm_common common = {.bytes = (PL_MAX(bytes, (size_t)64) + 4095) & ~(size_t)4095};
    int r;

    if (!list)
        return pl_error_nomem(err);
    shm->common = list;
    r = share_common(shm, &common, err);
    if (r < 0) {
        pl_shm_abort(&shm->base, pl_error_text(err));
        if (common.memory)
            munmap(common.memory, common.bytes);
        return r;
    }
    shm->common[shm->n_common++] = common;
    *ret = common.memory;
    return 0;
}
