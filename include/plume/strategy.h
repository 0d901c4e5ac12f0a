/* SPDX-License-Identifier: MIT */
/* How ranks work together, for modules that want a say in it: their own reduction of gradients,
 * their own meeting place, and collectives on plain memory. Included by plume/module.h. */
#ifndef PL_STRATEGY_H
#define PL_STRATEGY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plume_tensor plume_tensor; /* opaque; row-major, dense */
struct plume_context;

/* What a step gave, for its *_step_end: under dp and ddp2 that of all parts of the (node's) batch,
 * else this rank's own, as one part. Opaque; use the functions of plume/module.h. */
struct plume_outputs;

/* A slice of the gradients of this rank that is ready: count elements of the engine's real type
 * (real_bytes: 4 or 8). After the reduction it holds scale * the sum over all ranks; scale is one
 * over the ranks and over the batches that were accumulated. Slices come in the same order on all
 * ranks, from the end of the arena to its begin. The first one ends with a number a parameter, 1
 * where this rank has used it and else 0: what is not 0 after the reduction has a gradient. */
struct plume_bucket {
    size_t struct_size;
    unsigned index; /* counts from 0 in each step */
    size_t real_bytes, count;
    void *grads;
    double scale;
};

/* Filled by configure_ddp. */
struct plume_ddp {
    size_t struct_size;  /* set by the engine */
    size_t bucket_bytes; /* comes filled; more than 0 */
    /* Called instead of the engine's reduction, between ops of the backward pass. NULL: the
     * engine's. All ranks must come to the same bits: where their parameters differ after training,
     * the run fails. Returns 0 or a negative errno. */
    int (*reduce)(struct plume_context *pl, const struct plume_bucket *bucket);
};

/* Filled by init_ddp_connection: where the ranks meet. */
struct plume_connection {
    size_t struct_size;        /* set by the engine, as are: */
    unsigned rank, world_size; /* this process */
    char address[256];         /* a name or number that reaches rank 0's host; comes as
                                  $MASTER_ADDR, or "127.0.0.1" */
    unsigned port;             /* free on rank 0's host; comes as $MASTER_PORT, or 0. Left 0, the
                                  ranks meet as if there were no hook. */
};

/* What the engine offers; use the functions below. */
struct plume_dist_api {
    size_t struct_size;
    int (*allreduce)(
        struct plume_context *pl, void *buf, size_t count, size_t real_bytes, double scale);
    int (*all_gather)(struct plume_context *pl, const void *mine, size_t bytes, void *ret_all);
    int (*broadcast)(struct plume_context *pl, void *buf, size_t bytes);
    void (*output)(struct plume_context *pl, const char *name, plume_tensor *value);
    unsigned (*parts)(const struct plume_outputs *outputs);
    plume_tensor *(*whole)(struct plume_context *pl,
                           const struct plume_outputs *outputs,
                           const char *name);
    plume_tensor *(*part)(struct plume_context *pl,
                          const struct plume_outputs *outputs,
                          const char *name,
                          unsigned part);
    int (*save)(struct plume_context *pl, const char *name, const void *bytes, size_t n);
    const void *(*load)(struct plume_context *pl, const char *name, size_t *ret_n);
};

#ifdef __cplusplus
}
#endif

#endif
