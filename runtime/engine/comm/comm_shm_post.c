/* SPDX-License-Identifier: MIT */
/* Ranks count what they have completed, and wait until all have completed so much. A rank counts
 * without a system call unless another one sleeps. */
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_shm_private.h"

#include <limits.h>
#include <linux/futex.h>

static _Atomic uint32_t *count_of(const struct pl_shm *shm, unsigned rank)
{
    return &shm->control->posts[rank].counted;
}

void pl_shm_post(struct pl_comm *comm)
{
    struct pl_shm *shm = (struct pl_shm *)comm;

    atomic_fetch_add(count_of(shm, comm->rank), 1);
    if (atomic_load(&shm->control->sleepers))
        pl_shm_futex(count_of(shm, comm->rank), FUTEX_WAKE, INT_MAX, NULL);
}

uint32_t pl_shm_posted(struct pl_comm *comm)
{
    const struct pl_shm *shm = (const struct pl_shm *)comm;
    uint32_t own = atomic_load(count_of(shm, comm->rank));
    int32_t least = 0;

    for (unsigned i = 0; i < comm->size; i++)
        least = PL_MIN(least, (int32_t)(atomic_load(count_of(shm, i)) - own));
    return own + (uint32_t)least;
}

static bool has_posted(const struct pl_shm *shm, uint32_t count, unsigned i)
{
    return (int32_t)(atomic_load(count_of(shm, i)) - count) >= 0;
}

/* The first rank that has not; their number if all have. */
static unsigned first_late(const struct pl_shm *shm, uint32_t count)
{
    unsigned i = 0;

    while (i < shm->base.size && has_posted(shm, count, i))
        i++;
    return i;
}

static void sleep_for(struct pl_shm *shm, unsigned late, uint32_t count)
{
    const struct timespec tick = {0, PL_SHM_TICK_MS * 1000000};
    uint32_t now;

    atomic_fetch_add(&shm->control->sleepers, 1);
    now = atomic_load(count_of(shm, late));
    if ((int32_t)(now - count) < 0)
        pl_shm_futex(count_of(shm, late), FUTEX_WAIT, now, &tick);
    atomic_fetch_sub(&shm->control->sleepers, 1);
}

static int check_late(struct pl_shm *shm, uint32_t count, struct pl_error *err)
{
    for (unsigned i = 0; i < shm->base.size; i++)
        if (!has_posted(shm, count, i) && pl_shm_peer_ended(shm, i) && !has_posted(shm, count, i))
            return pl_shm_lose(shm, err, "lost rank %u: its process ended", shm->world_ranks[i]);
    return 0;
}

int pl_shm_await(struct pl_comm *comm, uint32_t count, struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    struct pl_comm_wait wait = {0};
    uint64_t looked;
    unsigned late;
    int r = pl_shm_failed(shm, err);

    for (int i = 0; shm->spin && i < PL_SHM_SPINS && first_late(shm, count) < comm->size; i++)
        pl_shm_spin_pause();
    looked = pl_now_ns();
    while (r == 0 && (late = first_late(shm, count)) < comm->size) {
        sleep_for(shm, late, count);
        r = pl_shm_failed(shm, err);
        /* By the clock: a profiler's signals may end each wait early. */
        if (r < 0 || pl_now_ns() - looked < PL_SHM_TICK_MS * 1000000ull)
            continue;
        looked = pl_now_ns();
        r = check_late(shm, count, err);
        if (r == 0)
            r = pl_shm_check_time(shm, has_posted, count, PL_SHM_SUM, &wait, err);
    }
    return r;
}
