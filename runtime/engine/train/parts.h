/* SPDX-License-Identifier: MIT */
/* The parts of a batch, one per device of the process (doc/semantics.md 4.1: dp and ddp2). A
 * process with one device has one part, the whole batch.
 *
 * The batch is split along dimension 0 as torch.chunk does: parts of ceil(rows / k) rows, the last
 * one shorter, fewer than k parts if the batch has too few rows. The hook is traced once per part,
 * one part after another, each on its own tape; the tapes then run side by side, one per device.
 * The root tape follows them: *_step_end, or the mean of the losses. With one device it is the tape
 * of the only part. The gradients go back the same way. Each part but the first writes its
 * gradients into an arena of its own; these are added in the order of the parts, so that results do
 * not depend on timing.
 *
 * Parts may be on devices with memory of their own (GPUs; CPU parts share memory). The first device
 * has the parameters, the whole batch and the root tape. dp.h copies data between devices.
 *
 *     init -> split -> (trace) -> begin_root -> (trace) -> forward -> backward -> split ... finish
 */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PARTS_H
#define PL_RUNTIME_ENGINE_TRAIN_PARTS_H

#include "runtime/engine/module/context.h"
#include "runtime/engine/ops/split.h"
#include "runtime/engine/params/replicas.h"
#include "runtime/engine/params/units.h"

/* Memory of one device. */
struct pl_block {
    char *memory;
    size_t bytes;
};

/* Outputs of a part on another device than the root tape. */
struct pl_dp_leaves {
    size_t n;
    plume_tensor *given[PL_OUTPUTS_MAX];  /* the part's own outputs */
    plume_tensor *source[PL_OUTPUTS_MAX]; /* the tensor that leaf[] copies: given[], or the base of
                                             that view. NULL: an earlier leaf copies it, or the root
                                             has it already */
    plume_tensor leaf[PL_OUTPUTS_MAX], view[PL_OUTPUTS_MAX]; /* on the root's device */
    struct pl_block block;                                   /* leaves' data and gradients */
};

/* A part of a batch and its tape. */
struct pl_part {
    struct pl_tape tape;
    struct pl_split_tape
        traced; /* tensor parallel: the tape that hooks trace; `tape` is made of it */
    struct pl_logs logs;
    struct plume_batch batch;
    plume_tensor fields[PLUME_FIELDS_MAX]; /* slices of the whole batch's fields */
    void *grads;                           /* gradient arena; NULL: the parameters' own */
    struct pl_error err;
    /* Only on another device than the root: */
    const void *slices[PLUME_FIELDS_MAX]; /* fields' data in the whole batch */
    struct pl_block fields_block;         /* copies of the slices on this device */
    struct pl_dp_leaves leaves;
};

struct pl_parts {
    unsigned n_devices, n; /* n: parts of the running batch */
    unsigned n_tapes;      /* elements of list */
    struct pl_part *list;  /* by device; then the root, if there are several devices */
    struct pl_part *root;  /* the last element */
    struct pl_replicas *replicas;
    struct pl_unit_plan units; /* of the root's tape, if the parameters have units */
    struct pl_block staging;   /* on the root's device, for another device's gradients */
};

/* One part per replica; replicas are borrowed and know the devices. real and training as for
 * pl_tape_init(). Gradient arenas are allocated with the first batch. -E2BIG, -ENOMEM. */
int pl_parts_init(struct pl_parts *parts,
                  struct pl_replicas *replicas,
                  enum pl_real real,
                  bool training,
                  uint64_t seed,
                  struct pl_error *err);
void pl_parts_finish(struct pl_parts *parts);

/* Rows [first, first + rows) of a batch, as a batch whose fields are in fields[]. */
void pl_batch_slice(const struct plume_batch *batch,
                    size_t first,
                    size_t rows,
                    plume_tensor fields[PLUME_FIELDS_MAX],
                    struct plume_batch *ret);

/* Splits a batch; sets n and each part's batch. */
void pl_parts_split(struct pl_parts *parts, const struct plume_batch *batch);

/* Call after the parts are traced and before the root is. `outputs` become tensors that the root
 * may read. -EINVAL if a part lacks an output of another. */
int pl_parts_begin_root(struct pl_parts *parts,
                        struct plume_outputs *outputs,
                        struct pl_error *err);

/* Traces the mean of the parts' losses on the root tape; one part's loss is the mean. */
int pl_parts_mean(struct pl_parts *parts,
                  const struct plume_outputs *outputs,
                  plume_tensor **ret,
                  struct pl_error *err);

/* Tapes of the running batch: the parts', then the root's. Returns their number, at most
 * PL_PARTS_MAX + 1. */
size_t pl_parts_tapes(const struct pl_parts *parts, const struct pl_tape **ret);

/* Plans the memory of the traced step; pl_parts_forward() does it, too. -E2BIG, -ENOMEM. */
int pl_parts_prepare(struct pl_parts *parts,
                     const struct plume_outputs *outputs,
                     plume_tensor *loss,
                     struct pl_error *err);

/* Plans and runs all tapes forward, then adds up the logged values. loss: the root's; NULL if no
 * gradients are wanted. draw: number of the batch, for dropout. */
int pl_parts_forward(struct pl_parts *parts,
                     struct plume_outputs *outputs,
                     plume_tensor *loss,
                     uint64_t draw,
                     struct pl_error *err);

/* Adds up the gradients of all parts in params->grads, as pl_tape_backward(); after_node and stop
 * are used with one device only. */
int pl_parts_backward(struct pl_parts *parts,
                      struct plume_outputs *outputs,
                      struct pl_params *params,
                      const struct pl_backward *what,
                      struct pl_error *err);

#endif
