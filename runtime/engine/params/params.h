/* SPDX-License-Identifier: MIT */
/* The parameters of a model. They are declared in any order and then laid out in the order in which
 * rank 0's tape first uses them, on all ranks alike, in flat arenas: values and gradients, both
 * with the same offsets, in the device's memory; gradients on the CPU, and on GPUs that NCCL joins,
 * in the communicator's, where collectives are cheapest. A bucket of gradients is a slice; so is
 * what an optimizer has (optimizer.h).
 *
 *     declare ... -> layout -> init_values -> (train) -> finish */
#ifndef PL_RUNTIME_ENGINE_PARAMS_PARAMS_H
#define PL_RUNTIME_ENGINE_PARAMS_PARAMS_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/tape/tape.h"

#define PL_PARAM_ALIGN 64 /* bytes between the starts of parameters are a multiple of it */
#define PL_PARAMS_HASH 17 /* bytes of a hash, with its end */

struct pl_param {
    char *name;
    enum plume_init init;
    plume_tensor *tensor;
    size_t offset;     /* in elements, after layout */
    size_t first_node; /* index on the tape; SIZE_MAX where the tape does not use it */
    /* See unused_params.h: what this rank's tapes reach, and have reached since the last step; what
     * no rank has a gradient for; steps of its optimizer that it was left out of. */
    bool reached, used, unused;
    uint64_t missed;
};

/* A named array that is no parameter: running statistics. */
struct pl_buffer {
    char *name;
    plume_tensor *tensor;
    enum plume_init init;
};

struct pl_params {
    struct pl_device *dev; /* where all the memory is */
    enum pl_real real;
    struct pl_param **list; /* as declared */
    size_t n;
    struct pl_param **order; /* as laid out */
    size_t count;            /* elements of an arena, gaps included */
    size_t flags;            /* element of grads where the n flags of unused_params.h begin */
    uint64_t plans;          /* of the tapes that pl_unused_params_find() knows */
    void *values, *grads;
    bool owns_grads;           /* they are not the communicator's */
    struct pl_buffer *buffers; /* as declared; each tensor has memory of its own */
    size_t n_buffers;
    /* Raised by who changes the numbers there, for those who have a copy (replicas.h); from 1. */
    uint64_t values_version, buffers_version;
};

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

/* The same for a buffer: without gradient, its memory is there at once. init: zero or one. */
int pl_params_declare_buffer(struct pl_params *params,
                             const char *name,
                             enum plume_init init,
                             size_t rank,
                             const size_t *shape,
                             plume_tensor **ret,
                             struct pl_error *err);

/* Everybody takes rank 0's buffers. Collective. */
int pl_params_spread_buffers(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Lays out by rank 0's tape: what that does not use comes last, as declared. Values and gradients
 * are zero. The arenas are padded so that every rank's equal share of them is a multiple of 256
 * bytes. Collective. -EINVAL where a rank has declared something else than rank 0; -ENOMEM. */
int pl_params_layout(struct pl_params *params,
                     const struct pl_tape *tape,
                     struct pl_comm *comm,
                     struct pl_error *err);

/* Start values: depend on the seed and the place in the declaration, on nothing else. -ENOMEM. */
int pl_params_init_values(struct pl_params *params, uint64_t seed, struct pl_error *err);

/* SHA-256 of the values, as declared and without gaps: the first 16 hex digits. -EIO, -ENOMEM. */
int pl_params_hash(const struct pl_params *params, char ret[PL_PARAMS_HASH], struct pl_error *err);

#endif
