/* SPDX-License-Identifier: MIT */
/* Control over how ranks work together, for modules: their own reduction of gradients, their own
 * rendezvous, and collectives on plain memory. Included by plume/module.h. */
#ifndef PL_STRATEGY_H
#define PL_STRATEGY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plume_tensor plume_tensor; /* opaque; row-major, dense */
struct plume_context;

/* The outputs of a step, for its *_step_end: with dp and ddp2 those of all parts of the (node's)
 * batch, else this rank's own, as one part. Opaque; use the functions of plume/module.h. */
struct plume_outputs;

/* A slice of this rank's gradients that is ready: count elements of the engine's real type
 * (real_bytes: 4 or 8). After the reduction it must hold scale * the sum over all ranks; scale is
 * one over the number of ranks and of accumulated batches. Slices come in the same order on all
 * ranks, from the end of the arena to its beginning. The first one ends with one flag per
 * parameter: 1 if this rank has used it, else 0. After the reduction a parameter with a flag other
 * than 0 has a gradient. */
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
    size_t bucket_bytes; /* preset; > 0 */
    /* Called instead of the engine's reduction, between ops of the backward pass. NULL: the
     * engine's reduction. All ranks must get the same bits: if their parameters differ after
     * training, the run fails. Returns 0 or a negative errno. */
    int (*reduce)(struct plume_context *pl, const struct plume_bucket *bucket);
};

/* The ranks' rendezvous; filled by init_ddp_connection. */
struct plume_connection {
    size_t struct_size;        /* set by the engine, as are the next two members */
    unsigned rank, world_size; /* this process */
    char address[256]; /* name or number of rank 0's host; preset: $MASTER_ADDR, or "127.0.0.1" */
    unsigned port; /* free on rank 0's host; preset to $MASTER_PORT, or 0. With 0 the ranks meet as
                      without this hook. */
};

/* The engine's functions; use the functions below. */
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
