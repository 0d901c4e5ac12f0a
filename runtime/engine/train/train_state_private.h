/* SPDX-License-Identifier: MIT */
/* The parts of the walk over a training state (visit.h). Each saves, checks or loads, by v->pass,
 * and returns 0, -EINVAL (the checkpoint does not fit) or -ENOMEM, with a text. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAIN_STATE_PRIVATE_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAIN_STATE_PRIVATE_H

#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/train_state.h"
#include "runtime/engine/train/visit.h"

/* Tensor PREFIXNAME of a parameter, or of a slot of one: this rank has all or a part of it
 * (param_parts.h) at `own`, in device memory; with shards `span` of that, else NULL. */
int pl_train_state_visit_own(const struct pl_visit *v,
                             const struct pl_train_state *s,
                             const char *prefix,
                             const struct pl_param *p,
                             void *own,
                             const struct pl_shard_span *span);

/* The same of what is laid out as the values are. arena: from this rank's first element on. */
int pl_train_state_visit_value(const struct pl_visit *v,
                               const struct pl_train_state *s,
                               const char *prefix,
                               const struct pl_param *p,
                               const void *arena);

/* All parameters and buffers. Of weights only the parameters' average is saved in their place, if
 * there is one: it was validated. */
int pl_train_state_visit_values(const struct pl_visit *v,
                                const struct pl_train_state *s,
                                bool weights_only);

/* The slots of optimizer `index`, for example Adam's moments. */
int pl_train_state_visit_slots(const struct pl_visit *v,
                               const struct pl_train_state *s,
                               size_t index);

/* All optimizers with their slots and schedules. */
int pl_train_state_visit_optimizers(const struct pl_visit *v, const struct pl_train_state *s);

/* The loss scale. A run whose precision has none ignores a saved one; without a saved one the scale
 * starts anew, as in Lightning. scaler may be NULL. */
int pl_train_state_visit_scaler(const struct pl_visit *v, struct pl_scaler *scaler);

/* The average of the parameters. A run without an average ignores a saved one; without a saved one
 * the average starts anew. only_note: the values are in the parameters' place. */
int pl_train_state_visit_ema(const struct pl_visit *v,
                             const struct pl_train_state *s,
                             bool only_note);

#endif
