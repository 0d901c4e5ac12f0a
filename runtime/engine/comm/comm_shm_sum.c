/* SPDX-License-Identifier: MIT */
/* Sums over ranks that share memory. In a slab, which all map, every rank sums its own range of the
 * elements, reading all slabs in the order of ranks, and writes the sum to all slabs (or, in a
 * reduce-scatter, to its own): two barriers, no copy. Other memory is copied in pieces: see
 * staged_sum(). */
#include "runtime/engine/comm/comm_shm_private.h"

#include <string.h>

#define BLOCK 2048 /* bytes that are summed at a time, in registers and L1 */

const struct pl_shm_slab *pl_shm_find_slab(const struct pl_shm *shm, const void *buf, size_t bytes)
{
    for (size_t i = 1; i < shm->n_slabs; i++) {
        const char *own = shm->slabs[i].base[shm->base.rank];

        if ((const char *)buf >= own && (const char *)buf + bytes <= own + shm->slabs[i].bytes)
            return &shm->slabs[i];
    }
    return NULL;
}

void pl_shm_sum_elements(const struct pl_shm *shm,
                         const struct pl_shm_slab *slab,
                         size_t offset,
                         size_t from,
                         size_t to,
                         enum pl_real real,
                         double scale,
                         unsigned first,
                         unsigned n_to)
{
    const struct pl_kernels *k = pl_kernels_best(real);
    size_t size = pl_real_size(real), n = shm->base.size;
    char sum[BLOCK] __attribute__((aligned(64)));

    while (from < to) {
        size_t step = PL_MIN(to - from, BLOCK / size), at = offset + from * size;
        const char *so_far = slab->base[0] + at;

        for (size_t i = 1; i < n; i++) {
            k->add(&(struct pl_add_args){.n = step,
                                         .scale = i == n - 1 ? scale : 1,
                                         .a = so_far,
                                         .b = slab->base[i] + at,
                                         .dst = sum});
            so_far = sum;
        }
        for (size_t i = first; i < first + n_to; i++)
            /* cppcheck-suppress uninitvar ; n is at least 2 */
            memcpy(slab->base[i] + at, sum, step * size);
        from += step;
    }
}

void pl_shm_sum_range(const struct pl_shm *shm,
                      const struct pl_shm_slab *slab,
                      size_t offset,
                      size_t count,
                      enum pl_real real,
                      double scale,
                      unsigned n_to)
{
    size_t line = 64 / pl_real_size(real), n = shm->base.size;
    size_t lines = (count + line - 1) / line; /* whole cache lines: no false sharing */
    size_t from = PL_MIN(lines * shm->base.rank / n * line, count);
    size_t to = PL_MIN(lines * (shm->base.rank + 1) / n * line, count);

    pl_shm_sum_elements(shm, slab, offset, from, to, real, scale, 0, n_to);
}

static int sum_slab(struct pl_shm *shm,
                    const struct pl_shm_slab *slab,
                    size_t offset,
                    size_t count,
                    enum pl_real real,
                    double scale,
                    unsigned n_to,
                    struct pl_error *err)
{
    size_t bytes = count * pl_real_size(real);
    int r = pl_shm_meet(shm, PL_SHM_SUM, slab, offset, bytes, err);

    if (r < 0)
        return r;
    pl_shm_sum_range(shm, slab, offset, count, real, scale, n_to);
    return pl_shm_meet(shm, PL_SHM_SUM, slab, offset, bytes, err);
}

/* A piece of a sum in memory that the others do not see. */
struct piece {
    char *buf;
    size_t bytes;
    enum pl_real real;
    double scale;
    unsigned n_to; /* the first ranks, which get the sum */
    size_t slot;   /* 0 or 1 */
};

/* The part of a piece that rank i sums: whole cache lines. */
static size_t part_begin(const struct pl_shm *shm, const struct piece *p, unsigned i)
{
    size_t lines = (p->bytes + 63) / 64;

    return PL_MIN(lines * i / shm->base.size * 64, p->bytes);
}

/* Rank i puts its elements of the piece into in_slot and their sums into out_slot. */
static char *in_slot(const struct pl_shm *shm, const struct piece *p, unsigned i)
{
    return shm->slabs[0].base[i] + p->slot * PL_SHM_SLOT;
}

static char *out_slot(const struct pl_shm *shm, const struct piece *p, unsigned i)
{
    return shm->slabs[0].base[i] + (2 + p->slot) * PL_SHM_SLOT;
}

/* This rank's elements that others sum. */
static void copy_in(const struct pl_shm *shm, const struct piece *p)
{
    size_t from = part_begin(shm, p, shm->base.rank), to = part_begin(shm, p, shm->base.rank + 1);
    char *slot = in_slot(shm, p, shm->base.rank);

    memcpy(slot, p->buf, from);
    memcpy(slot + to, p->buf + to, p->bytes - to);
}

/* Sums this rank's part, in the order of ranks. */
static void sum_part(const struct pl_shm *shm, const struct piece *p)
{
    const struct pl_kernels *k = pl_kernels_best(p->real);
    unsigned me = shm->base.rank, n = shm->base.size;
    size_t end = part_begin(shm, p, me + 1), size = pl_real_size(p->real);
    char *out = out_slot(shm, p, me);
    char sum[BLOCK] __attribute__((aligned(64)));

    for (size_t at = part_begin(shm, p, me), step; at < end; at += step) {
        const char *so_far = (me == 0 ? p->buf : in_slot(shm, p, 0)) + at;

        step = PL_MIN(end - at, (size_t)BLOCK);
        for (unsigned i = 1; i < n; i++) {
            k->add(&(struct pl_add_args){.n = step / size,
                                         .scale = i == n - 1 ? p->scale : 1,
                                         .a = so_far,
                                         .b = (i == me ? p->buf : in_slot(shm, p, i)) + at,
                                         .dst = sum});
            so_far = sum;
        }
        /* cppcheck-suppress uninitvar ; n is at least 2 */
        memcpy(out + at, sum, step);
        if (me < p->n_to)
            memcpy(p->buf + at, sum, step);
    }
}

/* The parts that others have summed. */
static void copy_out(const struct pl_shm *shm, const struct piece *p)
{
    for (unsigned i = 0; i < shm->base.size; i++) {
        size_t from = part_begin(shm, p, i), to = part_begin(shm, p, i + 1);

        if (i != shm->base.rank)
            memcpy(p->buf + from, out_slot(shm, p, i) + from, to - from);
    }
}

static struct piece piece_at(const struct piece *whole, size_t i)
{
    struct piece p = *whole;

    p.buf += i * PL_SHM_SLOT;
    p.bytes = PL_MIN(whole->bytes - i * PL_SHM_SLOT, PL_SHM_SLOT);
    p.slot = i & 1;
    return p;
}

/* Sums memory of each rank's own. A rank copies in only what others sum and copies out only what
 * they have summed. At the same time it copies piece i + 1 in, sums piece i and copies piece i - 1
 * out; then all meet. So a slot to copy in is written again after the barrier behind its last
 * reader, and so is one to copy out: also by the next collective, which does not write to those
 * before a barrier. */
static int staged_sum(struct pl_shm *shm, const struct piece *whole, struct pl_error *err)
{
    size_t n = (whole->bytes + PL_SHM_SLOT - 1) / PL_SHM_SLOT;
    bool has_sum = shm->base.rank < whole->n_to;
    struct piece in, sum, out;
    int r = 0;

    for (size_t i = 0; i < n + 2 && r == 0; i++) {
        in = piece_at(whole, PL_MIN(i, n - 1));
        sum = piece_at(whole, i >= 1 ? PL_MIN(i - 1, n - 1) : 0);
        out = piece_at(whole, i >= 2 ? i - 2 : 0);
        if (i < n)
            copy_in(shm, &in);
        if (i >= 1 && i <= n)
            sum_part(shm, &sum);
        if (i >= 2 && has_sum)
            copy_out(shm, &out);
        if (i < n + 1)
            r = pl_shm_meet(shm, PL_SHM_SUM, &shm->slabs[0], i, whole->bytes, err);
    }
    return r;
}

int pl_shm_sum(struct pl_shm *shm,
               char *buf,
               size_t count,
               enum pl_real real,
               double scale,
               unsigned n_to,
               struct pl_error *err)
{
    size_t bytes = count * pl_real_size(real);
    const struct pl_shm_slab *slab = pl_shm_find_slab(shm, buf, bytes);

    if (slab)
        return sum_slab(shm, slab, (size_t)(buf - slab->base[shm->base.rank]), count, real, scale,
                        n_to, err);
    if (!count)
        return 0;
    return staged_sum(
        shm,
        &(struct piece){.buf = buf, .bytes = bytes, .real = real, .scale = scale, .n_to = n_to},
        err);
}

int pl_comm_shm_reduce(
    struct pl_comm *comm, void *buf, size_t count, enum pl_real real, struct pl_error *err)
{
    return pl_shm_sum((struct pl_shm *)comm, buf, count, real, 1, 1, err);
}
