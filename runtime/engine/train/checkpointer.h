/* SPDX-License-Identifier: MIT */
/* Checkpoints of a training run: when they are written, and the one that a run begins with.
 *
 * All ranks have the same state, so rank 0 writes and all ranks read. Under strategy sharded the
 * functions that save are collective: each rank writes its shards into the file (state_parts.h). A
 * checkpoint is due after a validation, or at the end of an epoch without one; retention.h decides
 * which files stay.
 */
#ifndef PL_RUNTIME_ENGINE_TRAIN_CHECKPOINTER_H
#define PL_RUNTIME_ENGINE_TRAIN_CHECKPOINTER_H

#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "runtime/engine/checkpoint/folder_lock.h"
#include "runtime/engine/config/train_options.h"
#include "runtime/engine/train/hooks.h"
#include "runtime/engine/train/metrics.h"
#include "runtime/engine/train/train_state.h"

struct pl_checkpointer {
    /* Borrowed: */
    const struct pl_train_options *options;
    const struct pl_hooks *hooks;
    struct pl_train_state *state;

    bool on;     /* the run has a folder for checkpoints */
    bool writes; /* this rank writes them */
    struct pl_folder_lock lock;
    struct pl_retention retention;
    struct pl_ckpt_writer *writer;
};

/* Call once the state is built. Locks the folder that the options name, and sets state->retention.
 * -EBUSY: another run has the folder; -errno. */
int pl_checkpointer_init(struct pl_checkpointer *checkpointer,
                         const struct pl_train_options *options,
                         const struct pl_hooks *hooks,
                         struct pl_train_state *state,
                         struct pl_error *err);
void pl_checkpointer_finish(struct pl_checkpointer *checkpointer);

/* Sets the state from the checkpoint that resume_file.h finds, and names it on the run's output.
 * Collective. -ENOENT, -EINVAL. */
int pl_checkpointer_resume(struct pl_checkpointer *checkpointer, struct pl_error *err);

/* Call between two batches: saves if the metrics say so. Without a new value of the monitored
 * metric only last.ckpt is saved. */
int pl_checkpointer_save(struct pl_checkpointer *checkpointer,
                         struct pl_metrics *metrics,
                         struct pl_error *err);

/* Saves the state of a run that trains no epoch. */
int pl_checkpointer_save_initial(struct pl_checkpointer *checkpointer, struct pl_error *err);

/* Writes hpc_ckpt_N.ckpt, for Slurm, at once, and then removes those with a lower N. *ret_path
 * (caller frees) is NULL on ranks that do not write. */
int pl_checkpointer_save_hpc(struct pl_checkpointer *checkpointer,
                             char **ret_path,
                             struct pl_error *err);

/* Waits until all files are written. */
int pl_checkpointer_flush(struct pl_checkpointer *checkpointer, struct pl_error *err);

#endif
