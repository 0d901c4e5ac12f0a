/* SPDX-License-Identifier: MIT */
/* --average-every P: ranks train for P optimizer steps on their own, then all get the mean of their
 * parameters (local SGD: Stich 2019, arXiv 1805.09767). The optimizers' state is averaged with
 * them, so that all ranks are alike after it and a checkpoint has the whole state; the optimizers'
 * step numbers become those of rank 0. Before each validation and checkpoint, and at the end of an
 * epoch and of the run, the ranks average too. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_AVERAGE_H
#define PL_RUNTIME_ENGINE_TRAIN_AVERAGE_H

#include "runtime/engine/train/trainer.h"

/* Call after each optimizer step. Collective. */
int pl_average_step(struct pl_trainer *t, struct pl_error *err);

/* Averages if there was a step since the last time. All ranks have made the same number of steps.
 * Collective. */
int pl_average_now(struct pl_trainer *t, struct pl_error *err);

#endif
