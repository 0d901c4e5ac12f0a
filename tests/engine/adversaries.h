/* SPDX-License-Identifier: MIT */
/* Two optimizers that train against each other, as in a generative adversarial network: Adam for
 * g, SGD with momentum for d. test-lanes.c lets the trainer make their steps, test-manual.c makes
 * them itself; both compare with the calculation by hand that is here, too. */
#ifndef PL_TESTS_ENGINE_ADVERSARIES_H
#define PL_TESTS_ENGINE_ADVERSARIES_H

#include "tests/engine/digits_run.h"

#define ADVERSARIES_COUNT 8 /* elements of each, which stay equal */
#define ADVERSARIES_STEPS 10

/* State of the module. */
struct adversaries {
    plume_tensor *g, *d;
    unsigned batch; /* from 1 on; 0: the dry step */
    bool huge;      /* g's gradients overflow once they are scaled */
};

/* In memory that the ranks share. */
struct adversaries_run {
    struct pl_train_options options;
    char calls[1024]; /* a letter and the optimizer: s step, b backward, o before the optimizer */
    struct trained ranks[RANKS_MAX];
};

/* Parameters, data, optimizers and the hooks that say b and o; a test adds its step. */
struct plume_module adversaries_module(void);

/* Call in a rank. */
void adversaries_train(struct adversaries_run *run,
                       const struct plume_module *module,
                       struct pl_comm *comm);

void adversaries_say(char word, unsigned optimizer);

/* The mean of g d. */
plume_tensor *adversaries_product(struct plume_context *pl);
/* The running optimizer's loss: gd + 0.15 gg for g; dd - 0.5 gd for d; of rank r times r + 1. */
plume_tensor *adversaries_loss(struct plume_context *pl, plume_tensor *gd);

/* The same by hand, for one element. */
struct adversaries_hand {
    double g, d;
    double m, v, velocity;
    unsigned g_steps;
};

struct adversaries_hand adversaries_hand_begin(void);
void adversaries_hand_g(struct adversaries_hand *hand, unsigned ranks);
/* grad: mean over the ranks. */
void adversaries_hand_d(struct adversaries_hand *hand, double grad);

/* Fails the test unless all ranks have made all steps and ended with these values. */
void adversaries_check(const struct adversaries_run *run,
                       unsigned ranks,
                       unsigned per_node,
                       const struct adversaries_hand *want);

#endif
