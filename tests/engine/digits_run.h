/* SPDX-License-Identifier: MIT */
/* Training of a small module on the digits in real ranks, for tests that compare a few parameters
 * with a calculation by hand. */
#ifndef PL_TESTS_ENGINE_DIGITS_RUN_H
#define PL_TESTS_ENGINE_DIGITS_RUN_H

#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"

#define TRAINED_VALUES 5

/* The end of one rank's training. */
struct trained {
    int result; /* 0, or a negative errno with its text */
    char error[256];
    char hash[17]; /* of the parameters */
    uint64_t steps;
    double values[TRAINED_VALUES]; /* element 0 of each parameter, as declared */
};

/* A batch size of 4. */
extern const struct plume_hparam digits_hparams[];

/* The hook `data`: the images as they are, to train only. */
int digits_data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret);

/* Trains in a rank, on the device of the tests. ret: memory that the ranks share. */
void digits_train(const struct plume_module *module,
                  const struct pl_train_options *options,
                  struct pl_comm *comm,
                  struct trained *ret);

/* Fails the test unless each rank has trained without an error. */
void digits_assert_good(const struct trained *trained, unsigned ranks);

#endif
