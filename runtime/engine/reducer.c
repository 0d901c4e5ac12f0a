/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reducer.h"

int pl_reducer_init(struct pl_reducer *reducer,
                    struct pl_params *params,
                    const struct pl_optimizer *only,
                    struct pl_comm *comm,
                    size_t max_bytes,
                    struct pl_error *err)
{
    size_t max = max_bytes / pl_real_size(params->real), n = 1, end = params->flags;
    struct pl_bucket *buckets = calloc(params->n + 1, sizeof(*buckets)), *b = buckets;

    if (!buckets)
        return pl_error_set(err, -ENOMEM, "out of memory");
    *b = (struct pl_bucket){.offset = params->flags, .count = params->count - params->flags};
    for (size_t i = params->n; i-- > 0; end = params->order[i]->offset) {
        const struct pl_param *p = params->order[i];

        if (only && !pl_optimizer_has(only, p))
            continue;
        if (b->offset != end || (b->n && b->count + (end - p->offset) > max)) {
            b = &buckets[n++];
            *b = (struct pl_bucket){.offset = end};
        }
        b->count += end - p->offset;
        b->offset = p->offset;
        b->first = i;
        b->n++;
    }
    *reducer =
        (struct pl_reducer){.comm = comm, .params = params, .buckets = buckets, .n = n, .next = n};
    pl_reducer_replan(reducer);
    return 0;
}

void pl_reducer_replan(struct pl_reducer *reducer)
{
    for (size_t i = 0; i < reducer->n; i++) {
        struct pl_bucket *b = &reducer->buckets[i];

        b->ready_node = SIZE_MAX;
        for (size_t k = b->first; k < b->first + b->n; k++)
            b->ready_node = PL_MIN(b->ready_node, reducer->params->order[k]->first_node);
    }
}

void pl_reducer_finish(struct pl_reducer *reducer)
{
    free(reducer->buckets);
    *reducer = (struct pl_reducer){0};
}

void pl_reducer_begin(struct pl_reducer *reducer, double scale)
{
    reducer->next = 0;
    reducer->scale = scale;
}

static int reduce(struct pl_reducer *red, const struct pl_bucket *b, struct pl_error *err)
{
    size_t size = pl_real_size(red->params->real);
    char *grads = (char *)red->params->grads + b->offset * size;
    struct plume_bucket own = {
        .struct_size = sizeof(own),
        .index = (unsigned)(b - red->buckets),
        .real_bytes = size,
        .count = b->count,
        .grads = grads,
        .scale = red->scale,
    };
    int r;

    if (!red->own)
        return pl_comm_allreduce(red->comm, grads, b->count, red->params->real, red->scale, err);
    r = red->own(red->pl, &own);
    return r < 0 ? pl_error_errno(err, r, "the module's own reduction failed") : 0;
}

int pl_reducer_after_node(void *ctx, size_t index, struct pl_error *err)
{
    struct pl_reducer *red = ctx;
    int r = 0;

    while (r == 0 && red->next < red->n && red->buckets[red->next].ready_node >= index)
        r = reduce(red, &red->buckets[red->next++], err);
    return r;
}
