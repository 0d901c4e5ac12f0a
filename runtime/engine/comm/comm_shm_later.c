/* SPDX-License-Identifier: MIT */
/* Sums in slabs for which no rank waits. A rank posts that its elements are complete and goes on;
 * it sums its range of those that all ranks have posted when it comes by, so at its next post or
 * when it joins. Only joining waits: for the last posts, then for the last sums. Ranks that take
 * turns at being late, as ranks on shared caches do, lose nothing, and sleep twice per step instead
 * of twice per bucket. The order of additions is that of any other sum in a slab. */
#include "runtime/engine/comm/comm_shm_private.h"

static struct pl_shm_post *post_of(const struct pl_shm *shm, unsigned rank, uint32_t number)
{
    return &shm->control->posts[rank].post[number % PL_SHM_POSTS];
}

/* True if all ranks have posted this sum. A rank is PL_SHM_POSTS ahead of another at most. */
static bool is_complete(const struct pl_shm *shm, uint32_t number)
{
    for (unsigned i = 0; i < shm->base.size; i++)
        if ((int32_t)(atomic_load_explicit(&shm->control->posts[i].n, memory_order_acquire) -
                      number) <= 0)
            return false;
    return true;
}

static int check_posts(struct pl_shm *shm, uint32_t number, struct pl_error *err)
{
    const struct pl_shm_post *mine = post_of(shm, shm->base.rank, number);

    for (unsigned i = 0; i < shm->base.size; i++) {
        const struct pl_shm_post *other = post_of(shm, i, number);

        if (mine->slab != other->slab || mine->offset != other->offset ||
            mine->bytes != other->bytes)
            return pl_shm_lose(
                shm, err,
                "ranks disagree: sum of %llu bytes on rank %u, sum of %llu bytes on rank %u%s",
                (unsigned long long)mine->bytes, shm->world_ranks[shm->base.rank],
                (unsigned long long)other->bytes, shm->world_ranks[i],
                mine->bytes == other->bytes ? ", in other memory" : "");
    }
    return 0;
}

/* Sums what can be summed now. */
static int sum_complete(struct pl_shm *shm, struct pl_error *err)
{
    int r = 0;

    for (; shm->summed != shm->posted && is_complete(shm, shm->summed); shm->summed++) {
        const struct pl_shm_post *post = post_of(shm, shm->base.rank, shm->summed);
        const struct pl_shm_later *later = &shm->later[shm->summed % PL_SHM_POSTS];

        r = check_posts(shm, shm->summed, err);
        if (r < 0)
            return r;
        pl_shm_sum_range(shm, &shm->slabs[post->slab], post->offset,
                         post->bytes / pl_real_size(later->real), later->real, later->scale,
                         shm->base.size);
    }
    return 0;
}

int pl_shm_start(struct pl_comm *comm,
                 void *buf,
                 size_t count,
                 enum pl_real real,
                 double scale,
                 struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    size_t bytes = count * pl_real_size(real);
    const struct pl_shm_slab *slab = pl_shm_find_slab(shm, buf, bytes);
    int r = pl_shm_failed(shm, err);

    if (r < 0 || !count)
        return r;
    if (!slab)
        return pl_shm_sum(shm, buf, count, real, scale, comm->size, err);
    if (shm->posted - shm->joined == PL_SHM_POSTS && (r = pl_shm_join(comm, err)) < 0)
        return r;
    *post_of(shm, comm->rank, shm->posted) =
        (struct pl_shm_post){.slab = (uint32_t)(slab - shm->slabs),
                             .offset = (size_t)((char *)buf - slab->base[comm->rank]),
                             .bytes = bytes};
    shm->later[shm->posted % PL_SHM_POSTS] = (struct pl_shm_later){.real = real, .scale = scale};
    atomic_store_explicit(&shm->control->posts[comm->rank].n, ++shm->posted, memory_order_release);
    return sum_complete(shm, err);
}

int pl_shm_join(struct pl_comm *comm, struct pl_error *err)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    size_t bytes = 0;
    int r;

    if (shm->posted == shm->joined)
        return 0;
    for (uint32_t i = shm->joined; i != shm->posted; i++)
        bytes += post_of(shm, comm->rank, i)->bytes;
    /* All ranks have posted as many; then all have summed their ranges. */
    r = pl_shm_meet(shm, PL_SHM_SUM, NULL, shm->posted, bytes, err);
    if (r == 0)
        r = sum_complete(shm, err);
    if (r == 0)
        r = pl_shm_meet(shm, PL_SHM_SUM, NULL, shm->posted, bytes, err);
    shm->joined = shm->posted;
    return r;
}
