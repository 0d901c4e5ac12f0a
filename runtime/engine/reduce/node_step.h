/* SPDX-License-Identifier: MIT */
/* Sums and update in one pass over the memory, by ranks that share it. A sum that is written to
 * every rank's gradients, and read again by the update, moves half as many bytes again as the
 * update alone. Here a rank posts that a bucket of its gradients is complete and that it reads the
 * bucket's parameters no more in this step. What all ranks have posted may be updated: the
 * gradients of all ranks are added, in the order of ranks, in a small buffer, and from there the
 * parameters of all ranks are updated. So a rank that waits for another one works meanwhile.
 *
 * Each rank has a part of the elements (node_update.h), in units. It takes its own units first, and
 * then those that the others have not taken. The bits do not depend on who takes a unit, since sums
 * and updates work element by element.
 *
 *     rank 0:  backward ... post flags, post bucket 1, ... post bucket n | units | barrier
 *     rank 1:  backward ... post flags, post bucket 1, ...  (late)       | units | barrier
 *
 * Afterwards no rank has the sums (params->apart). Who wants to read them adds them up from the
 * ranks' gradients (apart.h): these stay as they are until all ranks have called
 * pl_node_step_release(). */
#ifndef PL_RUNTIME_ENGINE_REDUCE_NODE_STEP_H
#define PL_RUNTIME_ENGINE_REDUCE_NODE_STEP_H

#include "runtime/engine/reduce/reducer.h"

#include <stdatomic.h>

struct pl_node_unit {
    struct pl_optimizer_segment segment; /* the unit's elements */
    unsigned rank;                       /* that has them */
    uint32_t post;                       /* complete when all ranks have posted so many */
};

/* A rank's units, in the order of completion. */
struct pl_node_list {
    size_t first;
    uint32_t n;
    uint32_t taken; /* before this step */
};

struct pl_node_step {
    struct pl_comm *comm; /* of all ranks, which are on one node; NULL: not in use */
    struct pl_optimizers *optimizers;
    struct pl_params *params;
    const struct pl_reducer *reducer; /* of all optimizers */
    const struct pl_kernels *kernels;
    uint32_t posts; /* of this rank so far */
    bool releasing; /* it has released the last step's gradients, and not waited for the others */
    /* Of a step: the posts before it; the units are planned; some parameter is used. */
    uint32_t before;
    bool planned, used;
    double clip;
    struct pl_node_unit *units;
    size_t n, room;
    struct pl_node_list *lists; /* by rank */
    void *taken;                /* number of units that are taken so far, by rank; common memory */
};

/* Collective over comm. All but kernels is borrowed. -ENOMEM, -ECONNRESET. */
int pl_node_step_init(struct pl_node_step *step,
                      struct pl_comm *comm,
                      struct pl_optimizers *optimizers,
                      struct pl_params *params,
                      const struct pl_reducer *reducer,
                      const struct pl_kernels *kernels,
                      struct pl_error *err);
void pl_node_step_finish(struct pl_node_step *step);

/* Call first in each training step: this rank does not read the last step's gradients any more. */
void pl_node_step_release(struct pl_node_step *step);

/* Call before writing to gradients or flags: returns when all ranks have released. -ECONNRESET. */
int pl_node_step_await(struct pl_node_step *step, struct pl_error *err);

/* Call instead of optimizers' step after the reducer has posted all buckets: sums, updates, and
 * returns when all ranks have. clip: as in struct pl_update. *ret_used is false if no rank has used
 * any parameter, which changes nothing. Collective. -ENOMEM, -ECONNRESET. */
int pl_node_step_run(struct pl_node_step *step, double clip, bool *ret_used, struct pl_error *err);

#endif
