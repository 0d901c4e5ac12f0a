/* SPDX-License-Identifier: MIT */
/* Places lifetimes in one block of memory: from the largest to the smallest, each takes the lowest
 * gap that is free during its life ("greedy by size", Pisarchyk and Lee, arXiv 2001.03288). */
#include "runtime/engine/tape/tape_memory.h"
#include "common/base/macros.h"
#include "runtime/engine/util/bump.h"

#include <stdlib.h>

size_t pl_lifetimes_add(struct pl_lifetimes *p, size_t bytes, size_t from, size_t to)
{
    if (bytes == 0)
        return SIZE_MAX;
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 256;
        struct pl_lifetime *list = reallocarray(p->list, cap, sizeof(*list));

        if (!list) {
            p->bad = true;
            return SIZE_MAX;
        }
        p->list = list;
        p->cap = cap;
    }
    bytes = (bytes + PL_BUMP_ALIGN - 1) & ~(size_t)(PL_BUMP_ALIGN - 1);
    p->list[p->n] = (struct pl_lifetime){bytes, from, to, 0};
    return p->n++;
}

static int larger_first(const void *a, const void *b)
{
    const struct pl_lifetime *x = *(const struct pl_lifetime *const *)a,
                             *y = *(const struct pl_lifetime *const *)b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x < y ? -1 : x > y;
}

static int lower_first(const void *a, const void *b)
{
    const struct pl_lifetime *x = *(const struct pl_lifetime *const *)a,
                             *y = *(const struct pl_lifetime *const *)b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The lowest gap of `bytes` between the n blocks of `busy`, which are sorted by offset. */
static size_t lowest_gap(struct pl_lifetime *const *busy, size_t n, size_t bytes)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        if (busy[i]->offset >= at + bytes)
            break;
        at = PL_MAX(at, busy[i]->offset + busy[i]->bytes);
    }
    return at;
}

size_t pl_lifetimes_set(struct pl_lifetimes *p, bool spread)
{
    _cleanup_free_ struct pl_lifetime **order =
        calloc(PL_MAX(p->n, (size_t)1), sizeof(struct pl_lifetime *));
    _cleanup_free_ struct pl_lifetime **busy =
        calloc(PL_MAX(p->n, (size_t)1), sizeof(struct pl_lifetime *));
    size_t total = 0;

    if (!order || !busy)
        return SIZE_MAX;
    for (size_t i = 0; i < p->n; i++)
        order[i] = &p->list[i];
    qsort(order, p->n, sizeof(struct pl_lifetime *), larger_first);
    for (size_t i = 0; i < p->n; i++) {
        size_t n_busy = 0;

        for (size_t k = 0; k < i; k++)
            if (spread || (order[k]->from <= order[i]->to && order[i]->from <= order[k]->to))
                busy[n_busy++] = order[k];
        qsort(busy, n_busy, sizeof(struct pl_lifetime *), lower_first);
        order[i]->offset = lowest_gap(busy, n_busy, order[i]->bytes);
        total = PL_MAX(total, order[i]->offset + order[i]->bytes);
    }
    return total;
}
