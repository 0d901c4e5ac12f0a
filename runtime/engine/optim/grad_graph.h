/* SPDX-License-Identifier: MIT */
/* Statistics of gradients are taken in the same way in each step, by kernels whose arguments stay
 * the same. So they are captured into a graph (device.h) after they have run twice with the same
 * arguments, and replayed from then on. The update is not: its numbers change from step to step,
 * and it is one kernel per range. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_GRAD_GRAPH_H
#define PL_RUNTIME_ENGINE_OPTIM_GRAD_GRAPH_H

#include "runtime/engine/device/device.h"

/* The graph of one such piece of work; all zero at first. */
struct pl_grad_graph {
    uint64_t *key; /* of the last run, then of the graph */
    size_t n_key;
    unsigned runs; /* with this key, without a graph */
    struct pl_device_graph *graph;
    bool refused; /* a capture has failed: no more */
};

/* Does the same as run(ctx), by replaying a graph if one has been captured. key: all that may
 * change the arguments of the kernels that run() calls; it uploads and downloads nothing. Call on
 * the device that has been entered. */
void pl_grad_graph_run(struct pl_grad_graph *graph,
                       struct pl_device *dev,
                       const uint64_t *key,
                       size_t n_key,
                       void (*run)(void *ctx),
                       void *ctx);

/* Call before the memory that the kernels use is freed. */
void pl_grad_graph_finish(struct pl_grad_graph *graph, struct pl_device *dev);

#endif
