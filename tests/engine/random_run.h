/* SPDX-License-Identifier: MIT */
/* Training of random modules on the digits in real ranks, for tests that compare a strategy with
 * one process or with ddp: the data, the training and its parameters in full. */
#ifndef PL_TESTS_ENGINE_RANDOM_RUN_H
#define PL_TESTS_ENGINE_RANDOM_RUN_H

#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"

#define RANDOM_HPARAMS 3

/* The training of a rank. */
struct random_run {
    const struct plume_module *module;
    struct pl_train_options options; /* with the rank's device */
    const char (*hparams)[32];       /* RANDOM_HPARAMS of "NAME=VALUE"; "" = none */
    int (*begun)(void *ctx, struct pl_trainer *trainer, struct pl_error *err); /* or NULL */
    int (*ended)(void *ctx, struct pl_trainer *trainer, struct pl_error *err);
    void *ctx;
};

/* lr 0.05, one epoch, a batch size of 16. */
extern const struct plume_hparam random_hparams[];

/* The hook `data`: images between 0 and 1 and their labels, to train and to validate. */
int random_data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret);

/* Call in a rank: trains, with begun() before the fit and ended() after one that succeeded. Writes
 * the failure of rank 0, or of another if rank 0 has none, into error. */
void random_train(const struct random_run *run, struct pl_comm *comm, char error[256]);

/* All parameters in full, as declared, whichever parts this rank has. On rank 0 the first n numbers
 * are in values. Collective. */
int random_values(const struct pl_trainer *trainer, double *values, size_t n, struct pl_error *err);

#endif
