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
 * One part's tapes, logs and outputs look like a stage's, which has them without devices. */
#ifndef PL_RUNTIME_ENGINE_PARTS_H
#define PL_RUNTIME_ENGINE_PARTS_H

#include "runtime/engine/context.h"

/* A part of a batch and its tape. */
struct pl_part {
    struct pl_tape tape;
    struct pl_logs logs;
    plume_tensor fields[PLUME_FIELDS_MAX]; /* slices of the whole batch's */
    struct plume_batch batch;
    void *grads; /* NULL for the first part, which has the parameters' own */
    struct pl_error err;
};

struct pl_parts {
    unsigned k, n; /* devices; parts of the running batch */
    struct pl_part *list;
    struct pl_tape root;
};

/* dev, real and training as for pl_tape_init(). Gradient arenas come with the first batch. -ENOMEM.
 */
int pl_parts_create(unsigned k,
                    struct pl_device *dev,
                    enum pl_real real,
                    bool training,
                    uint64_t seed,
                    struct pl_parts **ret,
                    struct pl_error *err);
void pl_parts_destroy(struct pl_parts *parts); /* NULL is fine */

/* Cuts a batch; sets n. */
void pl_parts_split(struct pl_parts *parts, const struct plume_batch *batch);

/* Between tracing the parts and the root: what changed below makes the root new. */
void pl_parts_begin_root(struct pl_parts *parts);

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
