/* SPDX-License-Identifier: MIT */
/* The tape: the list of ops of one training step (or validation step).
 *
 * Ops run as they are called and are recorded the first time. From the second step on each call is
 * compared with the record: the same op on the same tensors and shapes takes the node that is
 * there, with its memory, so that nothing is planned or allocated. At the first difference the rest
 * of the tape is dropped and recorded anew (the last, shorter batch of an epoch; another branch in
 * the module). Between two changes the tape is static: gradient buckets and memory follow from it.
 *
 *     begin -> apply ... apply -> end -> backward -> begin -> ...
 *
 * A dry tape records shapes and runs nothing: so the order of parameters is known before they
 * exist. */
#ifndef PL_RUNTIME_ENGINE_TAPE_H
#define PL_RUNTIME_ENGINE_TAPE_H

#include "runtime/engine/bump.h"
#include "runtime/engine/tensor.h"

#define PL_NODE_INPUTS_MAX 3

struct pl_node {
    const struct pl_op *op;
    plume_tensor *in[PL_NODE_INPUTS_MAX]; /* NULL where an input is optional and not given */
    size_t in_count[PL_NODE_INPUTS_MAX];  /* elements when recorded */
    bool add[PL_NODE_INPUTS_MAX];         /* backward adds to this input's grad, else writes */
    int attr;                             /* the op's own, e.g. the activation */
    plume_tensor *out;
    void *aux; /* kept from forward for backward */
    struct pl_bump_mark before;
};

struct pl_op {
    const char *name;
    size_t n_in;
    void (*forward)(const struct pl_kernels *k, const struct pl_node *node);
    /* Called where out's grad is set and at least one input wants one; NULL = not differentiable.
     */
    void (*backward)(const struct pl_kernels *k, const struct pl_node *node);
    /* Floating-point operations (a multiply-add is two) of forward and of backward. */
    double (*flops)(const struct pl_node *node, bool backward);
};

struct pl_tape {
    const struct pl_kernels *kernels;
    bool want_grad;
    bool dry; /* set and cleared by the user between end and begin */
    struct pl_node *nodes;
    size_t n, cap, cursor;
    struct pl_bump bump; /* outputs, their grads, aux */
    uint64_t recordings; /* how often begin .. end changed the tape */
    bool changed;        /* by the last begin .. end */
    const plume_tensor *planned_loss;
};

void pl_tape_init(struct pl_tape *tape, const struct pl_kernels *kernels, bool want_grad);
void pl_tape_finish(struct pl_tape *tape);

void pl_tape_begin(struct pl_tape *tape);

/* Runs (unless dry) and records one op. `in` has op->n_in entries. aux_bytes is kept beside the
 * output. *ret belongs to the tape and lives until the tape changes before it. -ENOMEM, -ERANGE. */
int pl_tape_apply(struct pl_tape *tape,
                  const struct pl_op *op,
                  plume_tensor *const *in,
                  int attr,
                  enum plume_dtype dtype,
                  size_t rank,
                  const size_t *shape,
                  size_t aux_bytes,
                  plume_tensor **ret,
                  struct pl_error *err);

/* Drops what the last step had and this one did not. */
void pl_tape_end(struct pl_tape *tape);

/* Plans (after a change) and runs the gradients of loss, which must have one element and come from
 * this tape. Parameters' grads are added to. after_node, if not NULL, is called as the index of
 * each node is done, also for nodes without a gradient, from the last to 0; it may fail.
 * -EINVAL where no parameter is reached. */
int pl_tape_backward(struct pl_tape *tape,
                     plume_tensor *loss,
                     int (*after_node)(void *ctx, size_t index, struct pl_error *err),
                     void *ctx,
                     struct pl_error *err);

/* Of the whole tape as recorded. */
double pl_tape_flops(const struct pl_tape *tape, bool backward);

#endif
