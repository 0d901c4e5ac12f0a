/* SPDX-License-Identifier: MIT */
/* Averages the gradients over the ranks while backward runs. The gradient arena is cut into buckets
 * from its end, which backward finishes first. A bucket is reduced after the last node that adds to
 * it, while it is still in the cache. No helper thread runs: on a CPU the reduction needs the same
 * core. A rank does not wait there for another: it sums its range of the buckets that all ranks
 * have completed, and after the last bucket waits for the rest (pl_comm_allreduce_start()); or it
 * only posts that they are complete, if the update sums them (node_step.h). On GPUs
 * with NCCL (comm->gpu) a reduction is only started then and runs beside the rest of backward; work
 * that the device gets after the last bucket was started waits for all of them. A fused reduction
 * (horovod) has large buckets, all of them after the backward pass. Parameters that the tape does
 * not use are reduced like the others, with gradient 0 (unused_params.h). The tapes of the ranks
 * may differ: all ranks reduce the buckets in the same order.
 *
 * With shards (shard.h) a bucket is scattered: each rank gets the sums of its own shard, and the
 * rest of its gradients is undefined then. The flags of unused_params.h, which all ranks need, have
 * a bucket of their own. With PL_SHARD_GRAD the parameters' gradients exist only from the first
 * node of backward that writes to their bucket until the bucket is reduced, after each batch;
 * buckets that do not live at the same time share memory. The own part is then added to the shard.
 */
#ifndef PL_RUNTIME_ENGINE_REDUCE_REDUCER_H
#define PL_RUNTIME_ENGINE_REDUCE_REDUCER_H

#include "plume/module.h"
#include "runtime/engine/optim/optimizer.h"

#define PL_BUCKET_BYTES ((size_t)4 * 1024 * 1024)
/* For collectives that run beside backward: as in PyTorch, the first bucket is small. */
#define PL_NCCL_FIRST_BYTES ((size_t)1024 * 1024)
#define PL_NCCL_BUCKET_BYTES ((size_t)25 * 1024 * 1024)
/* With PL_SHARD_GRAD small models have smaller buckets: about so many, of at least so many bytes.
 */
#define PL_SHARD_BUCKETS 32
#define PL_SHARD_BUCKET_BYTES ((size_t)64 * 1024)
#define PL_FUSED_BYTES ((size_t)128 * 1024 * 1024) /* Horovod's HOROVOD_FUSION_THRESHOLD */

struct pl_bucket {
    size_t offset, count; /* elements of the arena */
    size_t first, n;      /* its parameters, as laid out */
    size_t ready_node;    /* complete after backward of this node; SIZE_MAX: at once */
    size_t free_node;     /* nor are its parameters read after backward of this one */
    char *memory; /* PL_SHARD_GRAD: of its gradients, and after these of their 16-bit copy */
};

/* With PL_SHARD_GRAD: the memory that the buckets share. */
struct pl_grad_places {
    char *memory;
    size_t bytes;
};

struct pl_reducer {
    struct pl_comm *comm;
    /* With shards: of the ranks that have a shard each, and of those that have the same one (NULL:
     * this rank alone). `comm` and NULL, unless set after init. */
    struct pl_comm *shards, *copies;
    struct pl_params *params;
    struct pl_bucket *buckets; /* in the order of reduction */
    size_t n, next;
    size_t *parts; /* with shards: where each rank's part of a bucket begins, and its end */
    size_t first_bytes, max_bytes; /* as given to init */
    double scale;
    bool alone; /* only scales: ranks keep their own gradients; set after init */
    bool adds;  /* PL_SHARD_GRAD: adds to the shard instead of writing it */
    /* Sums nothing: posts that a bucket is complete and its parameters are free (node_step.h). Set
     * after begin. */
    bool posts;
    struct pl_grad_places places;
    const struct pl_bucket *pending; /* its reduction was started; the own part is not taken */
    bool started;                    /* reductions run on comm->gpu; join() waits for them */
    void *stage; /* memory of the communicator for the largest bucket, if gradients are on a GPU
                    without comm->gpu; else NULL */
    enum pl_half half; /* type of sums on comm->gpu; PL_HALF_NONE: the gradients' type */
    uint16_t *low;     /* the gradient arena in that type, on params->dev */
    /* The module's own reduction instead of an allreduce; NULL = none. */
    int (*own)(struct plume_context *pl, const struct plume_bucket *bucket);
    struct plume_context *pl;
    struct pl_timeline *timeline; /* gets an event per bucket; NULL = none. Borrowed */
};

/* Plans buckets of at most max_bytes, the first of at most first_bytes; a larger parameter has its
 * own. `only`: this optimizer's parameters; NULL = all. Collective. -ENOMEM. */
int pl_reducer_init(struct pl_reducer *reducer,
                    struct pl_params *params,
                    const struct pl_optimizer *only,
                    struct pl_comm *comm,
                    size_t first_bytes,
                    size_t max_bytes,
                    struct pl_error *err);
/* From now on f32 gradients are rounded to this type, added up by comm->gpu (not NULL) and widened
 * again: this halves the bytes on the network. -ENOMEM. */
int pl_reducer_narrow(struct pl_reducer *reducer, enum pl_half half, struct pl_error *err);
void pl_reducer_finish(struct pl_reducer *reducer);

/* The parameters have moved: makes the buckets anew. For a reducer of all optimizers. Collective.
 * -ENOMEM. */
int pl_reducer_rebuild(struct pl_reducer *reducer, struct pl_error *err);

/* Call after pl_unused_params_find() returned true: finds the node that completes each bucket, and
 * places the gradients with PL_SHARD_GRAD. -ENOMEM. */
int pl_reducer_replan(struct pl_reducer *reducer, struct pl_error *err);

/* As replan, but nothing is placed: *ret is the memory of the device that the reducer will have.
 * Call replan before backward. -ENOMEM. */
int pl_reducer_measure(struct pl_reducer *reducer, size_t *ret, struct pl_error *err);

/* Call before backward. The sum over ranks is multiplied by `scale`. adds: the batch is not the
 * first of its optimizer step (matters with PL_SHARD_GRAD only). */
void pl_reducer_begin(struct pl_reducer *reducer, double scale, bool adds);

/* after_node of pl_tape_backward(): reduces complete buckets. ctx is the reducer. */
int pl_reducer_after_node(void *ctx, size_t index, struct pl_error *err);

/* stop of pl_tape_backward(): the node that completes the next bucket. 0 after the last bucket, and
 * if this is the only rank. */
size_t pl_reducer_stop(const void *ctx);

#endif
