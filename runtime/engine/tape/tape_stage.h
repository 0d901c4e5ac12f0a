/* SPDX-License-Identifier: MIT */
/* A stage of a pipeline: some contiguous ops of a traced tape, as a tape of their own. Tensors of
 * earlier ops enter it as leaves; tensors that later ops need leave it as roots. The whole tape is
 * only traced: it is never planned, and has no memory.
 *
 *     pl_tape_flow_init (of the whole tape) -> pl_stage_tape_build -> run as any tape */
#ifndef PL_RUNTIME_ENGINE_TAPE_TAPE_STAGE_H
#define PL_RUNTIME_ENGINE_TAPE_TAPE_STAGE_H

#include "runtime/engine/tape/tape.h"

/* Tensors that may cross a cut: they are roots, as are the loss and logged values. */
#define PL_STAGE_PASSES_MAX 30

/* The last uses of a whole tape's tensors. Indices are nodes; a view counts as its base. */
struct pl_tape_flow {
    size_t n;
    size_t *last_use;  /* of node i's output; i if nobody uses it */
    size_t *last_back; /* the last node whose backward adds to its gradient; SIZE_MAX: none */
    bool *back;        /* node i's backward runs */
};

/* loss: NULL, or the only start of gradients. -ENOMEM. */
int pl_tape_flow_init(struct pl_tape_flow *flow,
                      const struct pl_tape *tape,
                      const plume_tensor *loss,
                      struct pl_error *err);
void pl_tape_flow_finish(struct pl_tape_flow *flow);

/* Adds up what crosses a cut before node `at`: bytes forward, and of gradients back. Returns the
 * number of tensors. */
size_t pl_tape_crossing(const struct pl_tape *tape,
                        const struct pl_tape_flow *flow,
                        size_t at,
                        double *ret_forward,
                        double *ret_back);

/* A tensor that crosses one of the stage's ends. */
struct pl_pass {
    size_t node; /* of the whole tape: its maker */
    size_t bytes;
    bool grad; /* its gradient comes back */
    plume_tensor *t;
};

struct pl_stage_tape {
    struct pl_tape tape;
    size_t from, to; /* nodes of the whole tape */
    struct pl_pass in[PL_NODE_INPUTS_MAX], out[PL_STAGE_PASSES_MAX];
    size_t n_in, n_out;
    plume_tensor *loss; /* in this stage; NULL if it is in another one */
    char *leaves;       /* memory of the leaves */
    size_t leaves_cap;
    plume_tensor **map; /* of the whole tape's nodes while the stage is built, and after it */
    size_t n_map;
};

/* Options of pl_stage_tape_build(). */
struct pl_stage_build {
    const plume_tensor *loss; /* NULL: no gradients */
    /* To time one op: parameters become leaves too, with memory, and what the op does not use stays
     * outside. */
    bool alone;
};

/* Call before build() to set something of the stage's tape, which is of the same kind as `whole`.
 */
void pl_stage_tape_open(struct pl_stage_tape *stage, const struct pl_tape *whole);

/* Makes the nodes [from, to) of `whole` a tape, with its seed, types and settings. The tape has no
 * plan afterwards. Zeroed memory is valid, and may be built again and again. -E2BIG: too many
 * tensors cross; -ENOMEM. */
int pl_stage_tape_build(struct pl_stage_tape *stage,
                        const struct pl_tape *whole,
                        const struct pl_tape_flow *flow,
                        size_t from,
                        size_t to,
                        const struct pl_stage_build *build,
                        struct pl_error *err);
void pl_stage_tape_finish(struct pl_stage_tape *stage);

/* This stage's tensor for one of the whole tape that is made in it or enters it; NULL if it is not
 * here. Parameters and batches are themselves. */
plume_tensor *pl_stage_tape_find(const struct pl_stage_tape *stage, const plume_tensor *t);

/* True if the tensor is made in this stage. */
bool pl_stage_tape_makes(const struct pl_stage_tape *stage, const plume_tensor *t);

/* Plans: roots are what leaves the stage, its loss, and n more. -E2BIG, -ENOMEM. */
int pl_stage_tape_prepare(struct pl_stage_tape *stage,
                          plume_tensor *const *more,
                          size_t n,
                          struct pl_error *err);

#endif
