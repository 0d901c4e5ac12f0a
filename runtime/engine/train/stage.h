/* SPDX-License-Identifier: MIT */
/* A stage (training, validation, test): its batches and the lanes that they go through.
 *
 * A lane is one module step: the tapes of the parts of a batch, its outputs and, in training, the
 * reducer of its gradients. A stage has one lane. Training has one per optimizer if the module sets
 * step_per_optimizer: each batch then goes through all of them, and only the parameters of the
 * lane's optimizer want gradients (doc/semantics.md 4.4: several optimizers toggle requires_grad).
 *
 *     open -> add_lanes -> lane_trace -> lane_forward -> parts_backward -> lane_trace ... finish */
#ifndef PL_RUNTIME_ENGINE_TRAIN_STAGE_H
#define PL_RUNTIME_ENGINE_TRAIN_STAGE_H

#include "runtime/engine/config/train_options.h"
#include "runtime/engine/data/loader.h"
#include "runtime/engine/reduce/reducer.h"
#include "runtime/engine/train/hooks.h"
#include "runtime/engine/train/parts.h"

struct pl_stage;

struct pl_lane {
    struct pl_parts parts;
    struct plume_outputs outputs;
    struct pl_reducer reducer; /* training; the trainer initialises it, pl_stage_finish() ends it */
    float scale; /* training: the loss scale of the gradients that wait for a step; 0: none yet */
};

struct pl_stage {
    enum plume_stage kind;
    /* Borrowed: */
    const struct pl_hooks *hooks;
    const struct pl_train_options *options;
    struct pl_replicas *replicas;

    bool present; /* the module has a hook and data for it */
    struct pl_loader loader;
    struct pl_lane *lanes; /* one if the stage is present; in training by optimizer */
    unsigned n_lanes;
};

/* Prefix of the names that a stage logs: "val_". */
const char *pl_stage_prefix(enum plume_stage kind);

/* Asks the module for the stage's data and adds the first lane. Leaves the stage absent if the
 * module has no hook or no data for it. The stage may not be moved afterwards. Zeroed memory may be
 * finished. -EINVAL, -ENOMEM, or the result of a hook. */
int pl_stage_open(struct pl_stage *stage,
                  enum plume_stage kind,
                  const struct pl_hooks *hooks,
                  const struct pl_train_options *options,
                  struct pl_replicas *replicas,
                  struct pl_error *err);
void pl_stage_finish(struct pl_stage *stage);

/* Training: adds a lane for each optimizer after the first if the module asks for that. -ENOMEM, or
 * the result of a hook. */
int pl_stage_add_lanes(struct pl_stage *stage,
                       const struct pl_optimizers *optimizers,
                       struct pl_error *err);

/* Makes a lane the running one: only its optimizer's parameters want gradients. Does nothing if the
 * stage has one lane. */
void pl_stage_enter_lane(struct pl_stage *stage,
                         const struct pl_optimizers *optimizers,
                         unsigned optimizer_idx);

/* Batches of an epoch within the limits of the options, of the stage's loader or of another one
 * with its data. */
uint64_t pl_stage_batches(const struct pl_stage *stage, const struct pl_loader *loader);

/* Tape of the first part in the first lane: parameters are laid out in its order. */
struct pl_tape *pl_stage_tape(const struct pl_stage *stage);

/* Names that the stage logs; never NULL. */
const struct pl_logs *pl_stage_logs(const struct pl_stage *stage);

/* A lane's tapes, without a reducer. pl_parts_finish() of its parts ends it.
 * -E2BIG, -ENOMEM. */
int pl_lane_init(const struct pl_stage *stage,
                 struct pl_lane *lane,
                 unsigned optimizer_idx,
                 struct pl_error *err);

/* Traces the stage's hooks on a batch; nothing runs. *ret_loss (may be NULL) is NULL outside
 * training and if the module gave no loss; of predictions it is the output. It lives as long as the
 * tape. */
int pl_lane_trace(struct pl_stage *stage,
                  struct pl_lane *lane,
                  const struct plume_batch *batch,
                  plume_tensor **ret_loss,
                  struct pl_error *err);

/* Tensor parallel: traces what this rank runs of the step that the hooks have traced. *loss, the
 * outputs and the logged values become its tensors. loss: NULL after a dry step, of which nothing
 * is read. pl_lane_trace() calls it. -EINVAL if a split parameter is used in another way. */
int pl_lane_split(struct pl_stage *stage,
                  struct pl_lane *lane,
                  plume_tensor **loss,
                  struct pl_error *err);

/* Runs the trace and adds up the logged values. loss: of the trace, or the output. draw:
 * number of the batch, for dropout. -EIO, -ENOMEM. */
int pl_lane_forward(struct pl_lane *lane, plume_tensor *loss, uint64_t draw, struct pl_error *err);

/* With units of parameters (units.h), instead of a run forward of a stage that is not training:
 * takes part in the gathers of the ranks that have a batch. output: they predict. Collective. */
int pl_lane_assist(struct pl_stage *stage, struct pl_lane *lane, bool output, struct pl_error *err);

/* A label of the last batch that is no class is -EDOM, with a text (pl_op_check_labels()). */
int pl_lane_check_labels(const struct pl_lane *lane, struct pl_error *err);

/* Clears the sums of the logged values; adds up one value over the parts: sum and weight. */
void pl_lane_clear_logs(struct pl_lane *lane);
void pl_lane_logged(const struct pl_lane *lane, size_t index, double ret[2]);

#endif
