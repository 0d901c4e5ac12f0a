/* SPDX-License-Identifier: MIT */
/* --summary: what a model is made of, before it runs. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_SUMMARY_H
#define PL_RUNTIME_ENGINE_TRAIN_SUMMARY_H

#include "runtime/engine/train/trainer.h"

/* Writes to `out`: each parameter and buffer with its shape, the ops of a training step with their
 * output and floating-point operations, and the memory that the run needs on this rank. Traces the
 * training step on a full batch and plans its memory; nothing runs. -ENOMEM, or the result of a
 * hook. */
int pl_summary_print(struct pl_trainer *trainer, FILE *out, struct pl_error *err);

#endif
