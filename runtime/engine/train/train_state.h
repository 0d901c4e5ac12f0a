/* SPDX-License-Identifier: MIT */
/* What of a training run goes into a checkpoint and comes back from one (checklist 4.4):
 *
 *   keys     version, module, epoch, global_step, loops {batches, samples}, sampler {seed},
 *            hyper_parameters, callbacks, and unless only weights are kept optimizer_states,
 *            lr_schedulers (lists, one entry an optimizer), amp_scaling_state; an optimizer's
 *            "missed" are steps that parameters were left out of, by name
 *   tensors  state_dict/NAME, optimizer_states/I/SLOT/NAME, extras/NAME (the module's own, u8)
 *
 * Everything goes by name and the position by samples, so that world size, layout and real type
 * may differ on resume. Random numbers need no state beyond the seed, the epoch and the step: all
 * generators are counters of these. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_STATE_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_STATE_H

#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/optim/optimizer.h"

struct pl_state {
    const char *module;
    struct pl_params *params;
    const struct pl_buffer *buffers;
    size_t n_buffers;
    struct pl_optimizers *optimizers; /* NULL: weights only, when loading */
    struct pl_scaler *scaler;         /* may be NULL */
    const struct pl_hparams *hparams; /* saved, not loaded */
    uint64_t seed;                    /* saved; loading another one is an error */
    uint64_t epoch, global_step;
    uint64_t batches;          /* of the running epoch that are done, on this rank */
    uint64_t samples;          /* the same of all ranks */
    uint64_t samples_per_step; /* batch size times world size, to turn one into the other */
    char *callbacks;           /* a JSON object; may be NULL. Loading makes a new string: caller
                                  frees */
};

/* Puts the state into an empty checkpoint. -ENOMEM, -EINVAL. */
int pl_train_state_save(const struct pl_state *state,
                        bool weights_only,
                        struct pl_checkpoint *ret,
                        struct pl_error *err);

/* Takes the state out; sets values, buffers, optimizers, scaler, epoch, global_step, batches,
 * samples and callbacks. Where optimizers is NULL, values and buffers only. -EINVAL names what does
 * not fit (nothing is changed then). */
int pl_train_state_load(struct pl_state *state,
                        const struct pl_checkpoint *checkpoint,
                        struct pl_error *err);

#endif
