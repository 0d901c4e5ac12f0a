/* SPDX-License-Identifier: MIT */
/* Gradients of all ranks become their mean while backward still runs: the gradient arena is cut
 * into buckets from its end (what backward finishes first), and a bucket is reduced as soon as the
 * last node that adds to it is done, while it is still in the cache. There is no helper thread:
 * on a CPU the reduction needs the same core. On GPUs that NCCL joins (comm->gpu) reductions are
 * only started then, and run beside the rest of backward; what the device is asked after the last
 * bucket was started follows them all. A fused reduction (horovod) is the same with large
 * buckets, all of them after the backward pass. Parameters that the tape does not use are reduced
 * like the others; their gradients are zero (used.h). Ranks' tapes may differ: buckets are reduced
 * in the same order by all. */
#ifndef PL_RUNTIME_ENGINE_REDUCE_REDUCER_H
#define PL_RUNTIME_ENGINE_REDUCE_REDUCER_H

#include "plume/module.h"
#include "runtime/engine/optim/optimizer.h"

#define PL_BUCKET_BYTES ((size_t)4 * 1024 * 1024)
/* Where collectives run beside the backward pass: as PyTorch's, the first one early. */
#define PL_NCCL_FIRST_BYTES ((size_t)1024 * 1024)
#define PL_NCCL_BUCKET_BYTES ((size_t)25 * 1024 * 1024)
#define PL_FUSED_BYTES ((size_t)128 * 1024 * 1024) /* Horovod's HOROVOD_FUSION_THRESHOLD */

struct pl_bucket {
    size_t offset, count; /* elements of the arena */
    size_t first, n;      /* its parameters, as laid out */
    size_t ready_node;    /* complete when backward is done with this node; SIZE_MAX: at once */
};

struct pl_reducer {
    struct pl_comm *comm;
    struct pl_params *params;
    struct pl_bucket *buckets; /* in the order of reduction */
    size_t n, next;
    double scale;
    bool started; /* something on comm->gpu that nobody waits for yet */
    void *stage;  /* of the communicator; where gradients are on another device than the CPU and
                     comm->gpu is NULL: room for the largest bucket, through which it goes to the
                     other ranks */
    enum pl_half half; /* what gradients are added up in on comm->gpu; PL_HALF_NONE: their type */
    uint16_t *low;     /* the gradient arena in that type, of params->dev */
    /* The module's own, instead of the communicator's allreduce; NULL = none. */
    int (*own)(struct plume_context *pl, const struct plume_bucket *bucket);
    struct plume_context *pl;
};

/* Plans buckets of at most max_bytes, the first one of first_bytes, or one parameter where that is
 * larger. `only`: this optimizer's parameters; NULL = all. Collective. -ENOMEM. */
int pl_reducer_init(struct pl_reducer *reducer,
                    struct pl_params *params,
                    const struct pl_optimizer *only,
                    struct pl_comm *comm,
                    size_t first_bytes,
                    size_t max_bytes,
                    struct pl_error *err);
/* From now on gradients of f32 are rounded to this type, added up by comm->gpu (there is one)
 * and widened again: half of the bytes go over the wires. -ENOMEM. */
int pl_reducer_narrow(struct pl_reducer *reducer, enum pl_half half, struct pl_error *err);
void pl_reducer_finish(struct pl_reducer *reducer);

/* After pl_unused_params_find() has found something new: when buckets are complete. */
void pl_reducer_replan(struct pl_reducer *reducer);

/* Before backward. The sum over ranks is multiplied by `scale`. */
void pl_reducer_begin(struct pl_reducer *reducer, double scale);

/* For pl_tape_backward(); ctx is the reducer. */
int pl_reducer_after_node(void *ctx, size_t index, struct pl_error *err);

/* For its `stop`: the node behind which the next bucket is complete. 0 where there is none, and
 * where nobody waits for it: this rank is the only one. */
size_t pl_reducer_stop(const void *ctx);

#endif
