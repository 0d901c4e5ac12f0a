/* SPDX-License-Identifier: MIT */
/* The parameters of a model. They are declared in any order. Layout puts them in flat arenas, in
 * the order in which rank 0's tape first uses them, the same on all ranks: values and gradients,
 * with equal offsets, in device memory. Gradients on the CPU, and on GPUs joined by NCCL, are in
 * memory of the communicator, in which collectives are fastest. A bucket of gradients is a slice of
 * the arena; so is the part of an optimizer (optimizer.h).
 *
 *     declare ... -> layout -> init_values -> (train) -> finish */
#ifndef PL_RUNTIME_ENGINE_PARAMS_PARAMS_H
#define PL_RUNTIME_ENGINE_PARAMS_PARAMS_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/config/train_options.h"
#include "runtime/engine/params/initial.h"
#include "runtime/engine/tape/split_at.h"
#include "runtime/engine/tape/tape.h"

#define PL_PARAM_ALIGN 64 /* parameters start at multiples of this many bytes */
#define PL_PARAMS_HASH 17 /* bytes of a hash, with its terminator */

/* Checkpoints add a prefix, and have names of at most 255 bytes. */
#define PL_PARAM_NAME_MAX 200

/* Signals to be told to the other ranks. */
enum pl_params_signal {
    PL_PARAMS_REQUEUE,
    PL_PARAMS_END,
    PL_PARAMS_TIME, /* the time limit */
};
#define PL_PARAMS_SIGNALS 3

struct pl_param {
    char *name;
    struct pl_initial initial; /* its numbers may be set before pl_params_init_values() */
    double *given; /* owned: the initial values themselves, of the whole; NULL: by `initial` */
    plume_tensor *tensor;
    plume_tensor *whole;   /* as the module declared it: `tensor`, unless ranks have parts of it */
    struct pl_split_at at; /* where it is split (param_parts.h) */
    size_t offset;         /* in elements, after layout */
    size_t first_node; /* indices on the tape of the first and last use; SIZE_MAX and 0 if it does
                          not use it */
    size_t last_node;
    size_t read_node; /* the first node that reads it, with or without a gradient; SIZE_MAX: none */
    size_t first_use; /* first_node of the layout's tape, which stages are cut by */
    /* See unused_params.h: reached by this rank's tapes now, and since the last step; without a
     * gradient on any rank; optimizer steps that it missed. */
    bool reached, used, unused;
    bool written; /* the tape of the running batch writes the gradient */
    uint64_t missed;
    /* With stages (stages.h): those that use the parameter and do not own it, a bit each; this
     * rank's copy of the value and, after it, of the gradient. */
    uint64_t borrowers;
    void *borrowed;
};

/* A named array that is no parameter, such as running statistics. */
struct pl_buffer {
    char *name;
    plume_tensor *tensor;
    enum plume_init init;
    unsigned stage; /* with stages: the one whose ops change it */
};

/* The stages of a pipeline. A stage owns the parameters whose first use is among its ops: a range
 * of the arenas, and has no memory for the others. Zeroed: the rank has everything. */
struct pl_param_stages {
    unsigned n, own; /* 0: no stages */
    size_t *cut;     /* n + 1 nodes of the tape, for the layout; borrowed */
    size_t *bounds;  /* n + 1 elements of the arenas; set by the layout */
};

struct pl_params {
    struct pl_device *dev; /* holds all the memory */
    enum pl_real real;
    struct pl_param **list; /* as declared */
    size_t n;
    struct pl_param **order; /* as laid out */
    size_t count;            /* elements of an arena, gaps included */
    size_t flags;            /* element of grads at which the flags of unused_params.h begin */
    /* Elements whose optimizer state and update are this rank's; all, unless `sharded` (shard.h).
     */
    size_t own_from, own_to;
    enum pl_shard_kind shard; /* PL_SHARD_NONE, or what the shards have; set before the layout */
    struct pl_comm
        *shards; /* of the ranks that have a shard each; set before the layout, borrowed */
    struct pl_comm *peers; /* of the ranks that have parts of parameters (param_parts.h); NULL: none
                              has. Borrowed */
    /* The ranks of a node that have the same parameters and gradients share out the updates
     * (node_update.h): the communicator of all ranks; NULL: each rank updates everything. Set
     * before the layout, borrowed. */
    struct pl_comm *by_node;
    /* The same, but also set on a rank that is alone on its node: for pl_comm_node_barrier(). */
    struct pl_comm *meets;
    /* The gradients of the last backward pass are not summed: each rank of the node has its own,
     * and the step's are their sum times apart_scale (apart.h). */
    bool apart;
    double apart_scale;
    /* No step is ever made: neither gradients nor the optimizers' state have memory. Set before the
     * layout. */
    bool evaluates;
    struct pl_units *units; /* units.h; NULL: tensors always have their values. Borrowed */
    /* To be told to the other ranks with the next step, and what some rank has told with the last
     * one; by enum pl_params_signal. Set and read by the loop. */
    bool signal[PL_PARAMS_SIGNALS], heard[PL_PARAMS_SIGNALS];
    uint64_t plans;                /* of the tapes of the last pl_unused_params_find() */
    struct pl_param_stages stages; /* n, own and cut are set before the layout */
    /* From element values_from on. With stages and with PL_SHARD_PARAM these are the own ones. */
    void *values;
    size_t values_from;
    /* Their copies in autocast's 16-bit type (halves.h), which is set before the first step; 0:
     * none are wanted. NULL: there are none yet. */
    enum plume_dtype half_dtype;
    uint16_t *halves;
    uint64_t halves_version; /* of the values of which they are copies */
    /* Gradients from element grads_from on, and the flags. From PL_SHARD_GRAD on these are the own
     * ones, and the parameters' gradients are in buckets of the reducer. */
    void *grads, *flag_list;
    size_t grads_from;
    bool owns_grads;           /* they are not the communicator's, */
    size_t lent;               /* bytes of the communicator's that count as the CPU's */
    struct pl_buffer *buffers; /* as declared; each tensor has its own memory */
    size_t n_buffers;
    /* If a device trains by itself (xla/) and may have newer values: brings them here, and
     * optimizer state and buffers. NULL: they are here. */
    int (*fetch)(void *ctx, struct pl_error *err);
    void *fetch_ctx;
    /* Version of the values, from 1. Raised by each writer, for owners of copies (replicas.h). */
    uint64_t values_version, buffers_version;
};

/* True if each rank has gradients of its own shard only. */
static inline bool pl_params_shard_grads(const struct pl_params *params)
{
    return params->shard >= PL_SHARD_GRAD;
}

/* True if this rank lacks the values of some parameters between two steps. */
static inline bool pl_params_partial(const struct pl_params *params)
{
    return params->stages.n || params->shard == PL_SHARD_PARAM;
}

/* Elements of `values`. */
static inline size_t pl_params_held(const struct pl_params *params)
{
    return pl_params_partial(params) ? params->own_to - params->own_from : params->count;
}

/* An element of the values. */
static inline void *pl_params_value(const struct pl_params *params, size_t element)
{
    return (char *)params->values + (element - params->values_from) * pl_real_size(params->real);
}

/* True if this rank has the parameter's place in the arenas. */
static inline bool pl_param_is_own(const struct pl_params *params, const struct pl_param *p)
{
    return !params->stages.n || (p->offset >= params->own_from && p->offset < params->own_to);
}

/* A parameter's values; NULL if another stage owns it. Not with PL_SHARD_PARAM. Masters, not their
 * 16-bit copies: the arena has the parameters of all types.
 */
static inline void *pl_param_value(const struct pl_params *params, const struct pl_param *p)
{
    return pl_param_is_own(params, p) ? pl_params_value(params, p->offset) : NULL;
}

/* An element of the gradients. */
static inline void *pl_params_grad(const struct pl_params *params, size_t element)
{
    return (char *)params->grads + (element - params->grads_from) * pl_real_size(params->real);
}

/* Call before the host reads values, buffers or optimizer state. -EIO. */
static inline int pl_params_fetch(const struct pl_params *params, struct pl_error *err)
{
    return params->fetch ? params->fetch(params->fetch_ctx, err) : 0;
}

/* dev is borrowed. */
void pl_params_init(struct pl_params *params, struct pl_device *dev, enum pl_real real);
void pl_params_finish(struct pl_params *params);

/* -EEXIST for a name taken, -EINVAL for a bad name or shape, -ENOMEM. *ret is owned by params. */
int pl_params_declare(struct pl_params *params,
                      const char *name,
                      enum plume_init init,
                      size_t rank,
                      const size_t *shape,
                      plume_tensor **ret,
                      struct pl_error *err);

/* The same for a buffer, which has no gradient and gets its memory at once. init: zero or one. */
int pl_params_declare_buffer(struct pl_params *params,
                             const char *name,
                             enum plume_init init,
                             size_t rank,
                             const size_t *shape,
                             plume_tensor **ret,
                             struct pl_error *err);

/* Copies rank 0's buffers to all ranks. Collective. */
int pl_params_spread_buffers(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Lays out in the order of rank 0's tape; unused parameters come last, as declared. Values and
 * gradients are zero. The arenas are padded so that every rank's equal share is a multiple of 256
 * bytes. Collective. -EINVAL if a rank's declarations differ from rank 0's; -ENOMEM. */
int pl_params_layout(struct pl_params *params,
                     const struct pl_tape *tape,
                     struct pl_comm *comm,
                     struct pl_error *err);

/* Sets initial values, which depend only on the seed and the position in the declaration. With
 * PL_SHARD_PARAM they are rank 0's, and the call is collective over comm, which is else unused.
 * -ENOMEM. */
int pl_params_init_values(struct pl_params *params,
                          struct pl_comm *comm,
                          uint64_t seed,
                          struct pl_error *err);

/* SHA-256 of the values in order of declaration, without padding: the first 16 hex digits. comm: of
 * the ranks that have a stage or a shard of the values each, all of which call it; else unused.
 * -EIO, -ENOMEM. */
int pl_params_hash(const struct pl_params *params,
                   struct pl_comm *comm,
                   char ret[PL_PARAMS_HASH],
                   struct pl_error *err);

#endif
