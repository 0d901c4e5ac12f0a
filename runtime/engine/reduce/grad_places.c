/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reduce/grad_places.h"
#include "runtime/engine/tape/tape_memory.h"

/* Time counts backward's nodes from the last one that writes to a parameter. */
static size_t time_of(size_t last, size_t node)
{
    return node < last ? last - node : 0;
}

static size_t last_writer(const struct pl_params *params)
{
    size_t last = 0;

    for (size_t i = 0; i < params->n; i++)
        if (params->order[i]->first_node != SIZE_MAX)
            last = PL_MAX(last, params->order[i]->last_node);
    return last;
}

/* The time at which the first node writes to the bucket; SIZE_MAX if none does. */
static size_t written_at(const struct pl_params *params, const struct pl_bucket *b, size_t last)
{
    size_t at = SIZE_MAX;

    for (size_t k = b->first; k < b->first + b->n; k++)
        if (params->order[k]->first_node != SIZE_MAX)
            at = PL_MIN(at, time_of(last, params->order[k]->last_node));
    return at;
}

/* A bucket is reduced after those before it. */
static void add_lives(const struct pl_params *params,
                      const struct pl_bucket *buckets,
                      size_t n,
                      size_t size,
                      bool late,
                      struct pl_lifetimes *lives,
                      size_t *ret_blocks)
{
    size_t last = last_writer(params), reduced = 0;

    for (size_t i = 0; i < n; i++) {
        const struct pl_bucket *b = &buckets[i];
        size_t to;

        reduced = to = PL_MAX(reduced, time_of(last, b->ready_node));
        if (late)
            to = i + 1 < n ? PL_MAX(reduced, time_of(last, buckets[i + 1].ready_node)) : last + 1;
        ret_blocks[i] = pl_lifetimes_add(lives, b->n ? b->count * size : 0,
                                         PL_MIN(written_at(params, b, last), reduced), to);
    }
}

static int
grow(struct pl_grad_places *places, struct pl_device *dev, size_t bytes, struct pl_error *err)
{
    void *memory = NULL;
    int r;

    if (bytes <= places->bytes)
        return 0;
    pl_device_free(dev, places->memory);
    *places = (struct pl_grad_places){0};
    r = pl_device_alloc(dev, bytes, "gradients", &memory, err);
    if (r == 0)
        *places = (struct pl_grad_places){memory, bytes};
    return r;
}

size_t pl_grad_places_measure(const struct pl_params *params,
                              const struct pl_bucket *buckets,
                              size_t n,
                              size_t size,
                              bool late)
{
    _cleanup_free_ size_t *blocks = calloc(n, sizeof(*blocks));
    struct pl_lifetimes lives = {0};
    size_t bytes = SIZE_MAX;

    if (blocks)
        add_lives(params, buckets, n, size, late, &lives, blocks);
    if (blocks && !lives.bad)
        bytes = pl_lifetimes_set(&lives, false);
    free(lives.list);
    return bytes;
}

int pl_grad_places(struct pl_grad_places *places,
                   const struct pl_params *params,
                   struct pl_bucket *buckets,
                   size_t n,
                   size_t size,
                   bool late,
                   struct pl_error *err)
{
    _cleanup_free_ size_t *blocks = calloc(n, sizeof(*blocks));
    struct pl_lifetimes lives = {0};
    size_t bytes = SIZE_MAX, real_size = pl_real_size(params->real);
    int r;

    if (blocks)
        add_lives(params, buckets, n, size, late, &lives, blocks);
    if (blocks && !lives.bad)
        bytes = pl_lifetimes_set(&lives, false);
    r = bytes == SIZE_MAX ? pl_error_nomem(err) : grow(places, params->dev, bytes, err);
    for (size_t i = 0; r == 0 && i < n; i++) {
        struct pl_bucket *b = &buckets[i];

        if (!b->n)
            continue;
        b->memory = places->memory + lives.list[blocks[i]].offset;
        for (size_t k = b->first; k < b->first + b->n; k++)
            params->order[k]->tensor->grad =
                b->memory + (params->order[k]->offset - b->offset) * real_size;
    }
    free(lives.list);
    return r;
}
