/* SPDX-License-Identifier: MIT */
/* Runs of the loop in real ranks, on a linear model of the digits, for test-fit.c and
 * test-strategies.c. A test changes the run's options and hooks, and checks the results. */
#ifndef PL_TESTS_ENGINE_FIT_RUN_H
#define PL_TESTS_ENGINE_FIT_RUN_H

#include "runtime/engine/module/module.h"
#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"

#define FIT_COUNT (10 * 64 + 10)
#define FIT_TRAIN_SAMPLES 1253

/* One run: its options and its results (the parameters are rank 0's). */
struct fit_run {
    struct pl_train_options options;
    char hparams[4][32];
    bool norm;   /* the rows of the images are normalised as channels */
    bool far;    /* and are whole numbers just below 2^24 */
    bool uneven; /* rank 1 has the validation data only */
    bool few;    /* validation has one sample */
    bool drop;   /* the loss depends on dropout alone */
    struct plume_module module;
    char error[256];
    char stopped[8]; /* the signal at which it reports that it has stopped; a test writes this */
    char hash[17];
    char events[4096];
    float params[FIT_COUNT];
    uint64_t step, epoch;
    double world_sum;
    unsigned parts;
    double val_loss;
};

struct fit_net {
    plume_tensor *w, *b;
    plume_tensor *bn[4]; /* weight, bias, mean, variance */
};

extern struct fit_run *fit_current; /* in a rank: its run */

/* Shared by the ranks. */
struct fit_run *fit_new_run(void);
/* Call in a rank. Failures are kept in run->error. */
const char *fit_train(struct pl_comm *comm, void *run);
void fit_go(struct fit_run *run, unsigned ranks, unsigned per_node);

void fit_assert_good(const struct fit_run *run);
/* The largest difference of two parameters; both runs must be good. */
double fit_distance(const struct fit_run *a, const struct fit_run *b);

/* Appends each hook to run->events. */
void fit_hear(struct fit_run *run);
/* Number of `word` in the events. */
int fit_count(const struct fit_run *run, const char *word);

struct pl_limit fit_batches(double n);
struct pl_limit fit_share(double x);

/* The run's hooks, for those of a test that do more. */
int fit_configure(struct plume_context *pl);
int fit_training_step(struct plume_context *pl,
                      const struct plume_batch *batch,
                      plume_tensor **ret_loss);
plume_tensor *fit_forward(struct plume_context *pl, const struct plume_batch *batch);

/* A run that stops after `cut` steps and saves last.ckpt in dir, and then goes on from it to the
 * end that its other options give. Both must succeed; the caller removes dir/last.ckpt. */
void fit_go_cut(struct fit_run *run, unsigned ranks, const char *dir, uint64_t cut);

#endif
