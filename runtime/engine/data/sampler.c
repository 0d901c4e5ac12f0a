/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/sampler.h"
#include "runtime/engine/util/rng.h"

#define STREAM_SAMPLER 0x73616d706c65u

static int check(const struct pl_sampler_options *o, struct pl_error *err)
{
    size_t total = o->list ? o->n_list : o->n;

    if (o->train && total == 0)
        return pl_error_set(err, -EINVAL, "the training data has no samples");
    for (size_t i = 0; o->list && i < o->n_list; i++)
        if (o->list[i] >= o->n)
            return pl_error_set(err, -EINVAL,
                                "the list of samples names %zu, but there are %zu (from 0 on)",
                                o->list[i], o->n);
    return 0;
}

static void shuffle(struct pl_sampler *s, uint64_t epoch)
{
    struct pl_rng rng;

    pl_rng_init(&rng, s->options.seed + epoch, STREAM_SAMPLER);
    for (size_t i = 0; i < s->total; i++) { /* Fisher and Yates, inside out */
        size_t j = (size_t)pl_rng_below(&rng, i + 1);

        s->permutation[i] = s->permutation[j];
        s->permutation[j] = i;
    }
}

static void set_epoch(struct pl_sampler *sampler, uint64_t epoch)
{
    const struct pl_sampler_options *o = &sampler->options;

    sampler->epoch = epoch;
    if (o->shuffle)
        shuffle(sampler, epoch);
    for (size_t i = 0; i < sampler->count; i++) {
        size_t at = (o->rank + i * o->world_size) % sampler->total;

        sampler->index[i] = sampler->permutation ? sampler->permutation[at]
                            : o->list            ? o->list[at]
                                                 : at;
    }
}

int pl_sampler_init(struct pl_sampler *sampler,
                    const struct pl_sampler_options *options,
                    struct pl_error *err)
{
    struct pl_sampler s = {.options = *options,
                           .total = options->list ? options->n_list : options->n};
    size_t world = options->world_size, rank = options->rank;
    int r = check(options, err);

    if (r < 0)
        return r;
    if (options->train && options->drop_tail)
        s.count = s.total / world;
    else if (options->train)
        s.count = (s.total + world - 1) / world;
    else
        s.count = rank < s.total ? (s.total - rank + world - 1) / world : 0;
    if (options->train && s.count == 0)
        return pl_error_set(err, -EINVAL, "%zu samples are too few for %zu ranks: start fewer",
                            s.total, world);
    s.options.shuffle = options->train && options->shuffle && !options->list;
    s.index = calloc(PL_MAX(s.count, (size_t)1), sizeof(*s.index));
    if (s.options.shuffle)
        s.permutation = calloc(s.total, sizeof(*s.permutation));
    if (!s.index || (s.options.shuffle && !s.permutation)) {
        pl_sampler_finish(&s);
        return pl_error_set(err, -ENOMEM, "out of memory for %zu samples", s.total);
    }
    *sampler = s;
    set_epoch(sampler, 0);
    return 0;
}

void pl_sampler_set_epoch(struct pl_sampler *sampler, uint64_t epoch)
{
    if (epoch != sampler->epoch && sampler->options.shuffle)
        set_epoch(sampler, epoch); /* each epoch has its own order */
}

void pl_sampler_finish(struct pl_sampler *sampler)
{
    free(sampler->index);
    free(sampler->permutation);
    *sampler = (struct pl_sampler){0};
}
