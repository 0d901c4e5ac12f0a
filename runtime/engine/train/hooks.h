/* SPDX-License-Identifier: MIT */
/* Calls of the module's hooks. A hook reads the run's step and epoch from its context; a failure
 * names the hook. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_HOOKS_H
#define PL_RUNTIME_ENGINE_TRAIN_HOOKS_H

#include "runtime/engine/module/context.h"

/* All pointers are borrowed. */
struct pl_hooks {
    const struct plume_module *module;
    struct pl_context *ctx;
    const uint64_t *step, *epoch; /* copied into the context before each hook of the loop */
    bool predict;                 /* the stage of the test calls predict_step */
};

/* Destinations of the ops, logged values and outputs of one step hook. */
struct pl_hook_step {
    enum plume_stage stage;
    struct pl_tape *tape;
    struct pl_logs *logs;
    struct plume_outputs *outputs;
};

/* Calls a hook without arguments, or with a batch. Does nothing if hook or batch is NULL. `name` is
 * the hook's, for the text of a failure. */
int pl_hooks_call(const struct pl_hooks *hooks,
                  int (*hook)(struct plume_context *pl),
                  const char *name,
                  struct pl_error *err);
int pl_hooks_batch(const struct pl_hooks *hooks,
                   int (*hook)(struct plume_context *pl, const struct plume_batch *batch),
                   const struct plume_batch *batch,
                   const char *name,
                   struct pl_error *err);

/* True if the module has a step hook, or a hook after it, for the batches of a stage. */
bool pl_hooks_has_step(const struct pl_hooks *hooks, enum plume_stage stage);
bool pl_hooks_has_step_end(const struct pl_hooks *hooks, enum plume_stage stage);

/* Traces the step hook (training_step, ...) on one part of a batch; nothing runs. The loss becomes
 * the part's output 0; so does the output of predict_step; NULL in other stages. */
int pl_hooks_step(const struct pl_hooks *hooks,
                  const struct pl_hook_step *step,
                  const struct plume_batch *batch,
                  unsigned part,
                  struct pl_error *err);

/* Traces the hook after it (training_step_end, ...), which must exist. training_step_end may
 * replace *loss. After predict_step *loss becomes the whole batch's output. */
int pl_hooks_step_end(const struct pl_hooks *hooks,
                      const struct pl_hook_step *step,
                      plume_tensor **loss,
                      struct pl_error *err);

#endif
