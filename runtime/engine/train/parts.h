/* SPDX-License-Identifier: MIT */
/* A batch in parts, on the devices of one process (strategies dp and ddp2; checklist 4.1).
 *
 * The batch is split along dimension 0 as torch.chunk does: parts of ceil(rows / k) rows, the last
 * one shorter, fewer than k where there are not rows enough. The hook is traced once a part, one
 * after another, each on a tape of its own; the tapes then run side by side, each on one device.
 * What the hook gave is gathered on a root tape: by *_step_end, or by the mean of the losses. The
 * gradients go back the same way; every part but the first writes them into an arena of its own,
 * and these are added in the order of parts, so that results do not depend on timing.
 *
 * Parts may be on devices of their own (GPUs; on the CPU all are on one, and nothing is copied).
 * The first device has the parameters, the whole batch and the root tape; the others get what they
 * read before the forward pass - parameters and buffers where these have changed, their slices of
 * the batch - and what they gave goes to the first, where stand-ins are the root's leaves. The
 * gradients of these go back, and the arenas come one after another to be added.
 *
 * One part's tapes, logs and outputs look like a stage's, which has them without devices. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PARTS_H
#define PL_RUNTIME_ENGINE_TRAIN_PARTS_H

#include "runtime/engine/module/context.h"
#include "runtime/engine/params/replicas.h"

/* Memory of one device. */
struct pl_block {
    char *memory;
    size_t bytes;
};

/* What a part on another device gave, by output, as the root tape sees it. */
struct pl_gathered {
    size_t n;
    plume_tensor *given[PL_OUTPUTS_MAX]; /* the part's own */
    plume_tensor *from[PL_OUTPUTS_MAX];  /* what leaf[] stands for: given, or what that is a view
                                            of; NULL where an earlier one does, or none is needed */
    plume_tensor leaf[PL_OUTPUTS_MAX], view[PL_OUTPUTS_MAX]; /* on the root's device */
    struct pl_block block;                                   /* leaves' data and gradients */
};

/* A part of a batch and its tape. */
struct pl_part {
    struct pl_tape tape;
    struct pl_logs logs;
    plume_tensor fields[PLUME_FIELDS_MAX]; /* slices of the whole batch's */
    struct plume_batch batch;
    void *grads; /* NULL for the first part, which has the parameters' own */
    struct pl_error err;
    /* Of a part on another device than the root: */
    const void *slices[PLUME_FIELDS_MAX]; /* fields' data in the whole batch */
    struct pl_block fields_block;         /* and on this device */
    struct pl_gathered gathered;
};

struct pl_parts {
    unsigned k, n; /* devices; parts of the running batch */
    struct pl_part *list;
    struct pl_tape root;
    struct pl_replicas *replicas;
    struct pl_block room; /* for another device's gradients, on the root's */
};

/* As many as there are replicas, which are borrowed and say where each is. real and training as for
 * pl_tape_init(). Gradient arenas come with the first batch. -E2BIG, -ENOMEM. */
int pl_parts_create(struct pl_replicas *replicas,
                    enum pl_real real,
                    bool training,
                    uint64_t seed,
                    struct pl_parts **ret,
                    struct pl_error *err);
void pl_parts_destroy(struct pl_parts *parts); /* NULL is fine */

/* Cuts a batch; sets n. */
void pl_parts_split(struct pl_parts *parts, const struct plume_batch *batch);

/* Between tracing the parts and the root: what changed below makes the root new. `outputs` become
 * what the root may read. */
void pl_parts_begin_root(struct pl_parts *parts, struct plume_outputs *outputs);

/* On the root tape: the mean of every part's loss. */
int pl_parts_mean(struct pl_parts *parts,
                  const struct plume_outputs *outputs,
                  plume_tensor **ret,
                  struct pl_error *err);

/* Plans and runs all forward. loss: the root's; NULL where no gradients are wanted. root_logs: what
 * was logged on the root tape. */
int pl_parts_forward(struct pl_parts *parts,
                     struct plume_outputs *outputs,
                     plume_tensor *loss,
                     struct pl_logs *root_logs,
                     uint64_t step,
                     struct pl_error *err);

/* Gradients of all parts, added up in params->grads; as pl_tape_backward() with `accumulate`. */
int pl_parts_backward(struct pl_parts *parts,
                      struct plume_outputs *outputs,
                      struct pl_params *params,
                      plume_tensor *loss,
                      double seed,
                      bool accumulate,
                      struct pl_error *err);

#endif
