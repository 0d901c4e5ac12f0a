/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/grad_norm.h"
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The parameter of the range that has this element, or the gap after it. */
static const struct pl_param *
param_at(const struct pl_optimizers *all, const struct pl_optimizer_range *range, size_t at)
{
    size_t i = range->first;

    while (i + 1 < range->first + range->n && all->params->order[i + 1]->offset <= at)
        i++;
    return all->params->order[i];
}

/* Elements from `at` on that have one sum of squares: the rest of the range; by blocks, the rest of
 * the parameter in its block, as shards end with blocks and stages with parameters; of the
 * parameter, where ranks have parts of some. *next: of a walk through the range, range->first at
 * its begin. */
static size_t measured_at(const struct pl_optimizers *all,
                          const struct pl_optimizer_range *range,
                          size_t at,
                          size_t *next)
{
    size_t block = pl_shard_block(all->params), end = range->own + range->own_count;

    if (!all->params->peers && !all->by_blocks)
        return end - at;
    while (*next < range->first + range->n && all->params->order[*next]->offset <= at)
        ++*next;
    if (*next < range->first + range->n)
        end = PL_MIN(end, all->params->order[*next]->offset);
    return (all->params->peers ? end : PL_MIN(end, (at / block + 1) * block)) - at;
}

void pl_grad_norm_finish(struct pl_optimizers *all)
{
    for (size_t i = 0; i < PL_OPTIMIZERS_MAX && all->params; i++)
        pl_grad_graph_finish(&all->captured[i], all->params->dev);
    if (all->params)
        pl_device_free(all->params->dev, all->stats);
    all->stats = NULL;
}

int pl_grad_norm_init(struct pl_optimizers *all, struct pl_error *err)
{
    size_t n = 0;
    int r;

    for (size_t i = 0; i < all->n; i++)
        for (size_t k = 0; k < all->list[i].n_ranges; k++) {
            const struct pl_optimizer_range *range = &all->list[i].ranges[k];
            size_t next = range->first;

            for (size_t at = range->own; at < range->own + range->own_count;
                 at += measured_at(all, range, at, &next))
                n++;
        }
    r = pl_device_alloc(all->params->dev, n * sizeof(*all->stats) + 2 * sizeof(*all->clip),
                        "optimizers' state", (void **)&all->stats, err);
    if (r == 0)
        all->clip = (double *)(all->stats + n);
    return r;
}

/* Multiplies the gradients by scale and takes their statistics. */
struct taking {
    struct pl_optimizers *all;
    size_t first, n;
    const struct pl_kernels *kernels;
    double scale;
    double limit; /* not 0: the kernels also find the factor that clips by all of them */
    uint64_t *key;
    size_t n_key;
};

#define KEY_FIXED 6 /* words before those of the statistics */
#define KEY_EACH 2  /* words of each */

/* Calls of(taking, elements from `from` on, their statistics) for each; returns their number. */
static size_t
each(struct taking *t,
     void (*of)(struct taking *t, size_t from, size_t count, struct pl_range_stats *stats))
{
    const struct pl_optimizers *all = t->all;
    size_t n = 0;

    for (size_t i = t->first; i < t->first + t->n; i++)
        for (size_t k = 0; k < all->list[i].n_ranges; k++) {
            const struct pl_optimizer_range *range = &all->list[i].ranges[k];
            size_t end = range->own + range->own_count, count, next = range->first;

            for (size_t from = range->own; from < end; from += count, n++) {
                count = measured_at(all, range, from, &next);
                of(t, from, count, &all->stats[n]);
            }
        }
    return n;
}

static void take_one(struct taking *t, size_t from, size_t count, struct pl_range_stats *stats)
{
    t->kernels->grad_stats(&(struct pl_grad_stats_args){
        .n = count,
        .scale = t->scale,
        .grad = pl_params_grad(t->all->params, from),
        .limit = t->limit,
        .total = t->limit > 0 ? &t->all->clip[0] : NULL,
        .ret_factor = t->limit > 0 ? &t->all->clip[1] : NULL,
        .ret_squares = &stats->squares,
        .ret_finite = &stats->finite,
    });
}

static void take_all(void *ctx)
{
    struct taking *t = ctx;

    if (t->limit > 0)
        pl_device_zero(t->all->params->dev, t->all->clip, sizeof(*t->all->clip));
    (void)each(t, take_one);
}

static void count_one(struct taking *t, size_t from, size_t count, struct pl_range_stats *stats)
{
    (void)t, (void)from, (void)count, (void)stats;
}

static void add_key(struct taking *t, size_t from, size_t count, struct pl_range_stats *stats)
{
    t->key[t->n_key++] = (uintptr_t)pl_params_grad(t->all->params, from);
    t->key[t->n_key++] = count;
}

static uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* All that the kernels' arguments come from. False: out of memory. */
static bool make_key(struct taking *t, size_t n)
{
    t->key = calloc(KEY_FIXED + n * KEY_EACH, sizeof(*t->key));
    if (!t->key)
        return false;
    t->key[t->n_key++] = t->first;
    t->key[t->n_key++] = t->n;
    t->key[t->n_key++] = (uintptr_t)t->kernels;
    t->key[t->n_key++] = (uintptr_t)t->all->stats;
    t->key[t->n_key++] = bits_of(t->scale);
    t->key[t->n_key++] = bits_of(t->limit);
    (void)each(t, add_key);
    return true;
}

/* Returns the number of statistics. */
static size_t take(struct taking *t)
{
    struct pl_optimizers *all = t->all;
    size_t n = each(t, count_one);

    if (n > 0 && all->graphs && make_key(t, n))
        pl_grad_graph_run(&all->captured[t->first], all->params->dev, t->key, t->n_key, take_all,
                          t);
    else
        take_all(t);
    free(t->key);
    return n;
}

/* The same, and maps them. */
static int measure(struct pl_optimizers *all,
                   size_t first,
                   size_t n,
                   const struct pl_kernels *kernels,
                   double scale,
                   struct pl_device_map *ret,
                   struct pl_error *err)
{
    struct taking taking = {.all = all, .first = first, .n = n, .kernels = kernels, .scale = scale};

    return pl_device_map(all->params->dev, all->stats, take(&taking) * sizeof(*all->stats),
                         PL_DEVICE_READ, ret, err);
}

bool pl_grad_clips_on_device(const struct pl_optimizers *optimizers, size_t n)
{
    return n == 1 && !optimizers->params->dev->ops->host && !optimizers->by_blocks &&
           !optimizers->params->peers && !(optimizers->comm && optimizers->comm->size > 1);
}

const double *pl_grad_clip(struct pl_optimizers *optimizers,
                           size_t optimizer,
                           const struct pl_kernels *kernels,
                           double limit)
{
    struct taking taking = {.all = optimizers,
                            .first = optimizer,
                            .n = 1,
                            .kernels = kernels,
                            .scale = 1,
                            .limit = limit};

    (void)take(&taking);
    return &optimizers->clip[1];
}

/* The place of element `at` among the sums of its range, and the number of these. */
static size_t
sum_at(const struct pl_optimizers *all, const struct pl_optimizer_range *range, size_t at)
{
    size_t block = pl_shard_block(all->params), n = at / block - range->offset / block;
    struct pl_param *const *order = all->params->order;

    if (!all->by_blocks)
        return 0;
    for (size_t i = range->first + 1; !all->params->peers && i < range->first + range->n; i++)
        n += order[i]->offset <= at && order[i]->offset % block &&
             order[i]->offset != order[i - 1]->offset;
    return n;
}

static size_t n_sums(const struct pl_optimizers *all, const struct pl_optimizer *o)
{
    size_t n = 0;

    for (size_t k = 0; all->by_blocks && k < o->n_ranges; k++)
        n += sum_at(all, &o->ranges[k], o->ranges[k].offset + o->ranges[k].count - 1) + 1;
    return all->by_blocks ? n : 1;
}

/* False on all ranks but one of those that have the same gradients. */
static bool
counts(const struct pl_optimizers *all, const struct pl_optimizer_range *range, size_t at)
{
    const struct pl_comm *peers = all->params->peers;

    return !peers || peers->rank == 0 || pl_param_is_split(param_at(all, range, at));
}

/* Adds an optimizer's statistics to its sums; returns those that follow. */
static const struct pl_range_stats *add_squares(const struct pl_optimizers *all,
                                                const struct pl_optimizer *o,
                                                const struct pl_range_stats *stats,
                                                double *sums,
                                                double *ret_bad)
{
    for (size_t k = 0; k < o->n_ranges; k++) {
        const struct pl_optimizer_range *range = &o->ranges[k];
        size_t end = range->own + range->own_count, next = range->first;
        size_t sum = sum_at(all, range, range->own);

        for (size_t at = range->own; at < end; at += measured_at(all, range, at, &next), stats++) {
            if (all->params->peers)
                sum = sum_at(all, range, at);
            if (counts(all, range, at))
                sums[sum] += stats->squares;
            sum += all->by_blocks && !all->params->peers;
            *ret_bad += !stats->finite;
        }
        if (all->by_blocks)
            sums += sum_at(all, range, range->offset + range->count - 1) + 1;
    }
    return stats;
}

/* For the n optimizers from `first` on: the sum of squares, and if all gradients are finite. A rank
 * has zeros for the others' shards: adding them up over the ranks is exact by blocks. */
static int sum_up(const struct pl_optimizers *all,
                  size_t first,
                  size_t n,
                  const struct pl_range_stats *stats,
                  double *ret_squares,
                  bool *ret_finite,
                  struct pl_error *err)
{
    const struct pl_optimizer *list = &all->list[first];
    _cleanup_free_ double *sums = NULL;
    size_t count = 0, at = 0;
    int r = 0;

    for (size_t i = 0; i < n; i++)
        count += n_sums(all, &list[i]);
    sums = calloc(count + n, sizeof(*sums));
    if (!sums)
        return pl_error_nomem(err);
    for (size_t i = 0; i < n; at += n_sums(all, &list[i++]))
        stats = add_squares(all, &list[i], stats, sums + at, &sums[count + i]);
    if (all->comm && all->comm->size > 1)
        r = pl_comm_allreduce(all->comm, sums, count + n, PL_REAL_F64, 1, err);
    if (r == 0 && all->params->peers)
        r = pl_comm_allreduce(all->params->peers, sums, count + n, PL_REAL_F64, 1, err);
    at = 0;
    for (size_t i = 0; i < n && r == 0; i++) {
        size_t end = at + n_sums(all, &list[i]);

        ret_finite[i] = sums[count + i] == 0;
        ret_squares[i] = 0;
        for (; at < end; at++)
            ret_squares[i] += sums[at];
    }
    return r;
}

int pl_grad_norm(struct pl_optimizers *optimizers,
                 size_t first,
                 size_t n,
                 const struct pl_kernels *kernels,
                 double scale,
                 bool skips,
                 bool *ret_finite,
                 double *ret_norm,
                 double *ret_all,
                 struct pl_error *err)
{
    double squares[PL_OPTIMIZERS_MAX], total = 0, all = 0;
    struct pl_device_map map = {0};
    int r = measure(optimizers, first, n, kernels, scale, &map, err);

    if (r == 0)
        r = sum_up(optimizers, first, n, map.data, squares, ret_finite, err);
    pl_device_unmap(&map);
    for (size_t i = 0; i < n && r == 0; i++) {
        all += squares[i];
        if (ret_finite[i] || !skips)
            total += squares[i];
    }
    *ret_all = sqrt(all);
    *ret_norm = sqrt(total);
    return r;
}
