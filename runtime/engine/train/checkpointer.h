/* SPDX-License-Identifier: MIT */
/* Checkpoints of a running training: when they are written, and what a run begins with.
 *
 * All ranks have the same state, so rank 0 writes and all read. A validation (or, without one, the
 * end of an epoch) is the occasion; which files stay is best.h's business. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_CHECKPOINTER_H
#define PL_RUNTIME_ENGINE_TRAIN_CHECKPOINTER_H

#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "runtime/engine/checkpoint/retention.h"

struct pl_trainer;

struct pl_checkpointer {
    bool on;     /* there is a folder */
    bool writes; /* this rank does */
    struct pl_retention best;
    struct pl_ckpt_writer *writer;
};

/* After the trainer is built. Does nothing where the options name no folder. -errno. */
int pl_checkpointer_init(struct pl_checkpointer *checkpointer,
                         struct pl_trainer *t,
                         struct pl_error *err);
void pl_checkpointer_finish(struct pl_checkpointer *checkpointer);

/* Sets parameters and buffers from the checkpoint that the options name, if they do. -ENOENT,
 * -EINVAL. */
int pl_checkpointer_take_weights(struct pl_trainer *trainer, struct pl_error *err);

/* Sets the trainer's state from the highest hpc_ckpt_N in the folder, else from what the options
 * say (a path, or "last": last.ckpt of the folder, where it is there). Collective. -ENOENT,
 * -EINVAL. */
int pl_checkpointer_resume(struct pl_checkpointer *checkpointer,
                           struct pl_trainer *t,
                           struct pl_error *err);

/* Between two batches, `batches` of the running epoch over. */
int pl_checkpointer_save(struct pl_checkpointer *checkpointer,
                         struct pl_trainer *t,
                         uint64_t batches,
                         struct pl_error *err);

/* The one for Slurm, written at once: hpc_ckpt_N.ckpt. *ret_path (caller frees) is NULL on ranks
 * that do not write. */
int pl_checkpointer_save_hpc(struct pl_checkpointer *checkpointer,
                             struct pl_trainer *t,
                             uint64_t batches,
                             char **ret_path,
                             struct pl_error *err);

/* Waits until all is written. */
int pl_checkpointer_flush(struct pl_checkpointer *checkpointer, struct pl_error *err);

#endif
