/* SPDX-License-Identifier: MIT */
/* Gradients of all ranks become their mean while backward still runs: the gradient arena is cut
 * into buckets from its end (what backward finishes first), and a bucket is reduced as soon as the
 * last node that adds to it is done, while it is still in the cache. There is no helper thread:
 * on a CPU the reduction needs the same core. Strategies differ in whom they ask; with one rank
 * (single) there is nothing to do, with several (ddp) the communicator spans all. */
#ifndef PL_RUNTIME_ENGINE_REDUCER_H
#define PL_RUNTIME_ENGINE_REDUCER_H

#include "runtime/engine/params.h"

#define PL_BUCKET_BYTES ((size_t)4 * 1024 * 1024)

struct pl_bucket {
    size_t offset, count; /* elements of the arena */
    size_t ready_node;    /* complete when backward is done with this node; SIZE_MAX: at once */
};

struct pl_reducer {
    struct pl_comm *comm;
    struct pl_params *params;
    struct pl_bucket *buckets; /* in the order of reduction */
    size_t n, next;
};

/* Plans buckets of at most max_bytes, or one parameter where that is larger. -ENOMEM. */
int pl_reducer_init(struct pl_reducer *reducer,
                    struct pl_params *params,
                    struct pl_comm *comm,
                    size_t max_bytes,
                    struct pl_error *err);
void pl_reducer_finish(struct pl_reducer *reducer);

/* Before backward. */
void pl_reducer_begin(struct pl_reducer *reducer);

/* For pl_tape_backward(); ctx is the reducer. */
int pl_reducer_after_node(void *ctx, size_t index, struct pl_error *err);

#endif
