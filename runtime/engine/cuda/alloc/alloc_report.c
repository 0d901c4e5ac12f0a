/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/alloc/alloc_private.h"

#include <string.h>

#define HOLDERS 64 /* maximum number that is distinguished */
#define TOP 3      /* number that is named */
#define SIZE_TEXT 24

struct holder {
    const char *name;
    size_t bytes, blocks;
};

static const char *show(size_t bytes, char text[SIZE_TEXT])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    for (; value >= 1024 && unit + 1 < PL_COUNT(units); unit++)
        value /= 1024;
    snprintf(text, SIZE_TEXT, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

static void count(struct holder *list, size_t *n, const struct pl_cuda_block *b)
{
    size_t i = 0;

    while (i < *n && strcmp(list[i].name, b->holder) != 0)
        i++;
    if (i == *n) {
        if (*n == HOLDERS)
            return;
        list[(*n)++] = (struct holder){.name = b->holder};
    }
    list[i].bytes += b->bytes;
    list[i].blocks++;
}

static int by_size(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;

    return x->bytes == y->bytes ? strcmp(x->name, y->name) : x->bytes < y->bytes ? 1 : -1;
}

/* "; most is held by A (1.0 GiB in 2 blocks), B (...)". */
static void name_holders(const struct pl_cuda_alloc *alloc, char *text, size_t size)
{
    struct holder list[HOLDERS];
    size_t n = 0, len = 0;
    char bytes[SIZE_TEXT];

    text[0] = '\0';
    for (size_t i = 0; i < alloc->table_size; i++)
        for (const struct pl_cuda_block *b = alloc->table[i]; b; b = b->link_next)
            count(list, &n, b);
    qsort(list, n, sizeof(*list), by_size);
    for (size_t i = 0; i < n && i < TOP && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%s (%s in %zu block%s)",
                                i ? ", " : "; most is held by ", list[i].name,
                                show(list[i].bytes, bytes), list[i].blocks,
                                list[i].blocks == 1 ? "" : "s");
}

int pl_cuda_alloc_exhausted(struct pl_cuda_alloc *alloc,
                            size_t bytes,
                            const char *holder,
                            size_t free_bytes,
                            size_t total_bytes,
                            struct pl_error *err)
{
    const struct pl_cuda_alloc_stats *s = &alloc->stats;
    char asked[SIZE_TEXT], used[SIZE_TEXT], cached[SIZE_TEXT], left[SIZE_TEXT], all[SIZE_TEXT];
    char limit[64] = "", holders[400];

    name_holders(alloc, holders, sizeof(holders));
    if (s->limit_bytes)
        snprintf(limit, sizeof(limit), " of the limit of %s", show(s->limit_bytes, all));
    return pl_error_set(
        err, -ENOMEM,
        "out of memory on %s: %s asked for %s; in use %s%s, free in pieces %s, the device has %s "
        "of %s left%s; take a smaller batch or accumulate gradients",
        alloc->name, show(bytes, asked), holder, show(s->in_use_bytes, used), limit,
        show(s->cached_bytes, cached), show(free_bytes, left), show(total_bytes, all), holders);
}
