/* SPDX-License-Identifier: MIT */
/* Pipelines of real ranks for tests: a random module with tied weights, skip connections, views and
 * dropout, the options of a run, and what it ends with. */
#ifndef PL_TESTS_ENGINE_PIPELINE_RUN_H
#define PL_TESTS_ENGINE_PIPELINE_RUN_H

#include "tests/engine/random_run.h"

#define PIPELINE_WIDTH 12
#define PIPELINE_MATRICES 4
#define PIPELINE_CHAIN_MAX 26 /* layers of the module that has nothing else */
#define PIPELINE_VALUES                                                                            \
    (PIPELINE_MATRICES * PIPELINE_WIDTH * PIPELINE_WIDTH + PIPELINE_WIDTH * 64 +                   \
     10 * PIPELINE_WIDTH + 2 * PIPELINE_WIDTH)
#define PIPELINE_VALUES_MAX (PIPELINE_VALUES + PIPELINE_CHAIN_MAX * PIPELINE_WIDTH * PIPELINE_WIDTH)
#define PIPELINE_STEPS_MAX 64

struct pipeline_run {
    struct pl_train_options options;
    char hparams[RANDOM_HPARAMS][32];
    uint64_t seed; /* of the module */
    size_t ops;
    bool drops, norms, no_loss, branches;
    bool joins;    /* an op reads more tensors than may cross a cut */
    bool skips;    /* every other step leaves a layer out */
    size_t chain;  /* layers */
    bool emulated; /* each linear layer takes a nap forward, and one backward */
    long nap_ns;
    long slower;                               /* factor of the naps of slow_rank */
    int slow_rank;                             /* its naps are longer from step 2 on; -1: none */
    int small_rank;                            /* its emulated device has little memory; -1: none */
    uint64_t small_bytes;                      /* so much; 0: and none once the run has begun */
    void (*at_step)(struct plume_context *pl); /* in training_step; may kill the rank */
    char error[256];
    char hash[17];
    double values[PIPELINE_VALUES_MAX]; /* of rank 0's parameters, as declared */
    uint64_t step;
    double val_loss, train_loss;
    double logged[2];      /* value "again" of the last step: sum, weight */
    size_t own[RANKS_MAX]; /* elements of the arenas that each rank has */
    uint64_t moves;
    uint64_t began[PIPELINE_STEPS_MAX]; /* steps, on rank 0 */
    double busy_s[RANKS_MAX];           /* if the cut never moves */
};

/* A run of one process with the module of this seed and so many ops; in shared memory. */
struct pipeline_run *pipeline_run_new(uint64_t seed, size_t ops);

/* The same run in a pipeline. */
struct pipeline_run *
pipeline_run_of(const struct pipeline_run *like, unsigned stages, uint64_t microbatches);

/* Trains; what ranks_run() calls in each rank, and that call. */
const char *pipeline_run_train(struct pl_comm *comm, void *shared);
void pipeline_run_go(struct pipeline_run *run, unsigned ranks, unsigned per_node);

/* Fails the test if the run has failed. */
void pipeline_run_good(const struct pipeline_run *run);

double pipeline_run_far(double a, double b);

/* Fails the test unless both have trained alike, within rounding. */
void pipeline_run_alike(const struct pipeline_run *a,
                        const struct pipeline_run *b,
                        double tolerance);

#endif
