/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/node_update.h"
#include "runtime/engine/comm/comm.h"

#define LINE 64 /* bytes of a cache line, which one rank writes */

int pl_node_update_alloc(struct pl_optimizer *o,
                         size_t slots,
                         const struct pl_params *params,
                         struct pl_error *err)
{
    size_t bytes = o->count * pl_real_size(params->real);
    int r = 0;

    for (size_t i = 0; i < slots && r == 0; i++)
        r = pl_comm_alloc_common(params->by_node, bytes, &o->slot[i], err);
    if (r < 0)
        return pl_error_wrap(err, r, "memory for the optimizers' state");
    /* Each rank counts its part. */
    o->lent = slots * bytes / pl_comm_node(params->by_node)->size;
    pl_device_cpu_count((int64_t)o->lent);
    return 0;
}

void pl_node_update_finish(struct pl_optimizer *o)
{
    pl_device_cpu_count(-(int64_t)o->lent);
    o->lent = 0;
}

void pl_node_update_part(const struct pl_optimizer *o,
                         const struct pl_params *params,
                         const struct pl_optimizer_range *range,
                         unsigned rank,
                         size_t *from,
                         size_t *to)
{
    const struct pl_comm *node = pl_comm_node(params->by_node);
    size_t line = LINE / pl_real_size(params->real), lines = (o->count + line - 1) / line;
    size_t begin = lines * rank / node->size * line;
    size_t end = lines * (rank + 1) / node->size * line;
    size_t at = range->state + *from - range->own, last = range->state + *to - range->own;

    begin = PL_MIN(PL_MAX(begin, at), last);
    end = PL_MAX(PL_MIN(end, last), begin);
    *to = *from + (end - at);
    *from += begin - at;
}

unsigned pl_node_update_mirrors(const struct pl_params *params, size_t from, void **mirrors)
{
    const struct pl_comm *node = pl_comm_node(params->by_node);
    const void *own = pl_params_value(params, from);
    unsigned n = 0;

    for (unsigned i = 0; i < node->size; i++)
        if (i != node->rank)
            mirrors[n++] = pl_comm_of_peer(params->by_node, own, i);
    return n;
}
