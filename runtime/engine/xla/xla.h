/* SPDX-License-Identifier: MIT */
/* Trains and evaluates on a device that takes whole programs (a TPU, or another PJRT plugin). A
 * step of a recorded tape, with gradients, clipping and optimizers, is one program: it is lowered
 * (lower.h), compiled once per shape, and run. Parameters, optimizer state and buffers stay on the
 * device; a step uploads its batch and downloads the values that the run reports.
 *
 * The tape, its batches and the arenas of params.h are on the host. The arenas get the device's
 * state by pl_xla_fetch() only.
 *
 *     open -> attach -> (train | forward | fetch) ... -> close */
#ifndef PL_RUNTIME_ENGINE_XLA_XLA_H
#define PL_RUNTIME_ENGINE_XLA_XLA_H

#include "runtime/engine/optim/optimizer.h"

struct pl_xla;

/* plugin: the PJRT plugin, a path or what the loader finds by name. dump: the file that gets the
 * text of each program, the newest last; NULL = none. Both are borrowed. -ENOTSUP: plume-pjrt.so is
 * missing, or the plugin is none; -ENOENT, -ENODEV, -EIO. */
int pl_xla_open(const char *plugin, const char *dump, struct pl_xla **ret, struct pl_error *err);
void pl_xla_close(struct pl_xla *x); /* NULL is ignored */

/* "cpu", "tpu" */
const char *pl_xla_platform(const struct pl_xla *x);

/* Call once the host's state is complete. All are borrowed until the last call but close; clip is
 * copied. -ENOMEM. */
int pl_xla_attach(struct pl_xla *x,
                  struct pl_params *params,
                  struct pl_optimizers *optimizers,
                  const struct pl_clip_rule *clip,
                  struct pl_error *err);

/* One batch of a traced tape. */
struct pl_xla_step {
    const struct pl_tape *tape;
    const struct plume_batch *batch;
    plume_tensor *const *values; /* tensors whose first elements are reported */
    size_t n_values;
    uint64_t draw; /* of dropout, as the tape's `step` */
    /* Training; the loss is values[0]: */
    bool first, due; /* the first batch of a step; the last one, with the update */
    double scale;    /* of the sum of the step's gradients */
};

/* Forward, backward and, if due, clipping and the optimizers. Counts the optimizers' steps, and the
 * steps that unused parameters miss. ret: n_values numbers. -ENOTSUP names ops without a lowering;
 * -EINVAL, -EIO, -ENOMEM. After a failure the device's state is lost. */
int pl_xla_train(struct pl_xla *x,
                 const struct pl_xla_step *step,
                 double *ret,
                 struct pl_error *err);

/* Forward only, of a tape without gradients. */
int pl_xla_forward(struct pl_xla *x,
                   const struct pl_xla_step *step,
                   double *ret,
                   struct pl_error *err);

/* Brings parameters, optimizer state and buffers to the host's arenas, if the device has newer
 * ones. -EIO. */
int pl_xla_fetch(struct pl_xla *x, struct pl_error *err);

#endif
