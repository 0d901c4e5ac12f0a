/* SPDX-License-Identifier: MIT */
/* The state of a training run: everything that a checkpoint keeps (doc/semantics.md 4.4).
 *
 *   keys     version, module, epoch, global_step, loops {batches, samples, open, due,
 *            loss_sum, loss_weight}, sampler {seed}, hyper_parameters; unless only weights are
 *            kept, also callbacks {early_stopping, model_checkpoint, metrics}, optimizer_states
 *            and lr_schedulers (lists with one entry per optimizer), amp_scaling_state. "missed"
 *            of an optimizer counts by name the steps that left a parameter out
 *   tensors  NAME (parameters and buffers), plume.optimizer_states/I/SLOT/NAME,
 *            plume.extras/NAME (u8, of the module)
 *
 * Tensors are found by name and the position is kept in samples, so that world size, layout and
 * real type may differ on resume. Random generators are counters of the seed, the epoch and the
 * step: they have no other state. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_STATE_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_STATE_H

#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/checkpoint/retention.h"
#include "runtime/engine/config/early_stop.h"
#include "runtime/engine/optim/ema.h"
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/train/metrics.h"
#include "runtime/engine/train/state_parts.h"

struct pl_train_state {
    /* Borrowed: */
    const char *module;
    struct pl_params *params; /* and buffers */
    struct pl_optimizers *optimizers;
    struct pl_scaler *scaler;         /* may be NULL */
    struct pl_ema *ema;               /* may be NULL, or off */
    struct pl_retention *retention;   /* NULL: the run keeps no checkpoints */
    struct pl_metrics *metrics;       /* may be NULL */
    const struct pl_hparams *hparams; /* saved, not loaded; may be NULL */
    uint64_t seed;                    /* saved; loading another one is an error */
    struct pl_comm *savers; /* of the ranks that have the state between them; NULL: rank 0 has it */
    uint64_t samples_per_step; /* batch size times world size; 0: load batches as saved */
    uint64_t samples;          /* of an epoch; 0: not known */

    /* Of `stop`: one that was saved by another rule is not loaded. NULL: any rule. */
    const struct pl_early_stop_rule *stop_rule;

    struct pl_early_stop stop;
    uint64_t step, epoch; /* completed optimizer steps and epochs */
    uint64_t batch;       /* completed batches of the running epoch on this rank */
    double loss[2];       /* of these batches on all ranks: sum and weight of train_loss */
    bool open;            /* the running epoch's end, with its validation, is still to come */
    bool due;             /* so is a validation inside the epoch, after its last batch so far */
};

/* Puts the state into an empty checkpoint; what the ranks have shards of is apart there
 * (checkpoint_parts.h). With shards all other ranks assist. -ENOMEM, -EINVAL. */
int pl_train_state_save(const struct pl_train_state *state,
                        bool weights_only,
                        struct pl_checkpoint *ret,
                        struct pl_error *err);

/* Call on all ranks but one while that one saves. -ECONNRESET, -ENOMEM. */
int pl_train_state_assist(const struct pl_train_state *state, struct pl_error *err);

/* With shards, each rank has a part of the optimizer state; in a pipeline and with PL_SHARD_PARAM,
 * of the parameters, too. Call on all ranks after save: writes these parts and waits for those of
 * the others. -errno. */
int pl_train_state_put(const struct pl_train_state *state,
                       bool weights_only,
                       struct pl_state_parts *parts,
                       struct pl_error *err);

/* Sets the state from a checkpoint. -EINVAL names the first thing that does not fit; nothing is
 * changed then. Early stopping and retention start anew if their part is not readable, or is of
 * another value. */
int pl_train_state_load(struct pl_train_state *state,
                        const struct pl_checkpoint *checkpoint,
                        struct pl_error *err);

#endif
