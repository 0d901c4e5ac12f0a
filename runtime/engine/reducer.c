/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reducer.h"

int pl_reducer_init(struct pl_reducer *reducer,
                    struct pl_params *params,
                    struct pl_comm *comm,
                    size_t max_bytes,
                    struct pl_error *err)
{
    size_t max = max_bytes / pl_real_size(params->real), end = params->count;
    struct pl_bucket *buckets = calloc(params->n + 1, sizeof(*buckets));
    size_t n = 0;

    if (!buckets)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (size_t i = params->n; i-- > 0;) {
        const struct pl_param *p = params->order[i];
        struct pl_bucket *b = n ? &buckets[n - 1] : NULL;

        if (!b || b->count + (b->offset - p->offset) > max) {
            b = &buckets[n++];
            *b = (struct pl_bucket){.offset = end, .ready_node = SIZE_MAX};
        }
        b->count += b->offset - p->offset;
        b->offset = end = p->offset;
        b->ready_node = PL_MIN(b->ready_node, p->first_node);
    }
    *reducer =
        (struct pl_reducer){.comm = comm, .params = params, .buckets = buckets, .n = n, .next = n};
    return 0;
}

void pl_reducer_finish(struct pl_reducer *reducer)
{
    free(reducer->buckets);
    *reducer = (struct pl_reducer){0};
}

void pl_reducer_begin(struct pl_reducer *reducer)
{
    reducer->next = 0;
}

int pl_reducer_after_node(void *ctx, size_t index, struct pl_error *err)
{
    struct pl_reducer *red = ctx;
    size_t size = pl_real_size(red->params->real);

    while (red->next < red->n && red->buckets[red->next].ready_node >= index) {
        const struct pl_bucket *b = &red->buckets[red->next++];
        int r = pl_comm_allreduce(red->comm, (char *)red->params->grads + b->offset * size,
                                  b->count, red->params->real, 1.0 / red->comm->size, err);

        if (r < 0)
            return r;
    }
    return 0;
}
