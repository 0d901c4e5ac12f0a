/* SPDX-License-Identifier: MIT */
/* Trains and evaluates on devices that take whole programs (TPUs, or another PJRT plugin's). A step
 * of a recorded tape, with gradients, clipping and optimizers, is one program: it is lowered
 * (lower.h), compiled once per shape, and run. Parameters, optimizer state and buffers stay on the
 * device; a step uploads its batch and downloads the values that the run reports.
 *
 * Several devices run the same program, each as a replica with a batch and random numbers of its
 * own, as the ranks of ddp have them. A step's gradients are summed over them in the program.
 * With several hosts each has a process and its own devices, and training runs on all devices
 * together; what runs forward only is each host's own business.
 *
 * The tape, its batches and the arenas of params.h are on the host. The arenas get the device's
 * state by pl_xla_fetch() only.
 *
 *     open -> attach -> (train | forward | spread_buffers | fetch) ... -> close */
#ifndef PL_RUNTIME_ENGINE_XLA_XLA_H
#define PL_RUNTIME_ENGINE_XLA_XLA_H

#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/util/sha256.h"

struct pl_pjrt_hosts;
struct pl_xla;

struct pl_xla_options {
    const char *plugin;      /* of PJRT: a path, or what the loader finds by name */
    const char *dump;        /* file that gets each program's text, the newest last; NULL = none */
    const unsigned *devices; /* by number, of those that the plugin has here; NULL: the first */
    bool cache;              /* compiled programs in ~/.plume (program_cache.h) */
    size_t n;                /* of devices, 1 to PL_PJRT_DEVICES_MAX */
    const struct pl_pjrt_hosts *hosts; /* pjrt_table.h; NULL: there is one */
};

/* Options are borrowed. -ENOTSUP: plume-pjrt.so is missing, or the plugin is none; -ENOENT,
 * -ENODEV, -EIO. */
int pl_xla_open(const struct pl_xla_options *options, struct pl_xla **ret, struct pl_error *err);
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

/* A replica's batch, in a tape that was traced on it. */
struct pl_xla_part {
    const struct pl_tape *tape;
    const struct plume_batch *batch; /* NULL: it has none (forward only) */
    plume_tensor *const *values;     /* tensors whose first elements are reported */
};

struct pl_xla_step {
    const struct pl_xla_part *parts; /* one for each device */
    size_t n_values;                 /* of each part */
    uint64_t draw;                   /* of dropout, as the tape's `step` */
    bool sync_batchnorm;             /* its statistics are over all replicas */
    /* Training; the loss is values[0]: */
    bool first, due; /* the first batch of a step; the last one, with the update */
    double scale;    /* of the sum of the step's gradients, over all replicas */
    /* With several hosts: fails on all of them unless all are about to run the same program. A host
     * whose program is another one would wait for ever. */
    int (*agree)(void *ctx, const uint8_t hash[PL_SHA256_BYTES], struct pl_error *err);
    void *ctx;
};

/* Forward, backward and, if due, clipping and the optimizers. Counts the optimizers' steps, and the
 * steps that unused parameters miss. ret: n_values numbers of each part. -ENOTSUP names ops without
 * a lowering, or parts whose programs differ; -EINVAL, -EIO, -ENOMEM. After a failure the device's
 * state is lost. */
int pl_xla_train(struct pl_xla *x,
                 const struct pl_xla_step *step,
                 double *ret,
                 struct pl_error *err);

/* Forward only, of tapes without gradients, which may differ. ret: as pl_xla_train(), untouched for
 * parts without a batch. */
int pl_xla_forward(struct pl_xla *x,
                   const struct pl_xla_step *step,
                   double *ret,
                   struct pl_error *err);

/* Buffers of all replicas become those of the first one, which training may have set apart.
 * Collective over the hosts' comm. -EIO. */
int pl_xla_spread_buffers(struct pl_xla *x, struct pl_comm *comm, struct pl_error *err);

/* Brings parameters, optimizer state and buffers (the first replica's) to the host's arenas, if
 * the device has newer ones. -EIO. */
int pl_xla_fetch(struct pl_xla *x, struct pl_error *err);

#endif
