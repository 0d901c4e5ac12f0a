/* SPDX-License-Identifier: MIT */
/* What a training run is asked to do: the trainer's side of pltrain's command line.
 *
 * Made by pl_train_options_default(); a zeroed struct means something else (no steps at all). */
#ifndef PL_RUNTIME_ENGINE_CONFIG_TRAIN_OPTIONS_H
#define PL_RUNTIME_ENGINE_CONFIG_TRAIN_OPTIONS_H

#include "kernels/half.h"
#include "plume/optim.h"
#include "runtime/engine/config/early_stop.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* How ranks and devices share a batch and its gradients; the meanings stand in strategy.h. */
enum pl_strategy_kind {
    PL_STRATEGY_AUTO, /* single where there is one device and one rank, else ddp */
    PL_STRATEGY_SINGLE,
    PL_STRATEGY_DP,
    PL_STRATEGY_DDP,
    PL_STRATEGY_DDP2,
    PL_STRATEGY_HOROVOD,
};

enum pl_precision {
    PL_PRECISION_32,
    PL_PRECISION_64,
    PL_PRECISION_16,
    PL_PRECISION_BF16,
};

struct pl_device; /* device.h */

/* How many batches of a stage: all, a number, or a share of them in [0, 1]. */
struct pl_limit {
    bool is_share;
    double value; /* a share, or a whole number; INFINITY = all */
};

enum pl_clip {
    PL_CLIP_NORM, /* by the L2 norm over all parameters */
    PL_CLIP_VALUE,
};

#define PL_ACCUMULATE_MAX 16

struct pl_train_options {
    uint64_t seed;
    uint64_t max_steps; /* optimizer steps in all; UINT64_MAX = as many as the epochs have */
    uint64_t log_every; /* steps between reports; > 0 */
    FILE *out;          /* lines for people, from rank 0 and the hash from each; NULL = none */

    enum pl_half reduce_in; /* what NCCL adds up gradients in; PL_HALF_NONE: their own type */
    bool deterministic;     /* sums over ranks in their order (comm.h), wherever they are */

    struct pl_device *device; /* where tensors are; NULL = the CPU. Borrowed */
    bool graphs;              /* replay steps there, where it can */
    enum pl_strategy_kind strategy;
    unsigned devices; /* of this process, which share a batch; on the CPU: disjoint groups of its
                         threads; >= 1 */
    /* One each of `devices`, the first is `device`; NULL: all are it. Borrowed */
    struct pl_device *const *part_devices;
    enum pl_precision precision;
    int amp_level; /* 0 to 3 = O0 to O3 */

    double max_seconds;             /* since fit began; INFINITY = no limit */
    uint64_t min_epochs;            /* early stopping ends nothing before them, */
    uint64_t min_steps;             /* nor before these optimizer steps */
    struct pl_early_stop_rule stop; /* early stopping */

    const char *log_dir;        /* of metrics.csv and event files; NULL = none */
    const char *checkpoint_dir; /* NULL = none */
    const char *monitor;        /* by which checkpoints are kept; NULL = by age */
    bool monitor_max, save_last;
    int save_top_k;      /* as pl_retention_init() */
    bool weights_only;   /* checkpoints are without optimizers, schedules and callbacks */
    const char *weights; /* a checkpoint whose values training starts with; NULL = none */
    const char *resume;  /* a checkpoint, or "last"; NULL = none */

    /* Set by a signal handler: SIGUSR1 (a checkpoint, and the job is queued again) or another (a
     * checkpoint and the end); NULL = none. */
    const volatile sig_atomic_t *interrupt;

    uint64_t fast_dev_run;     /* so many batches of each stage, one epoch; 0 = off */
    struct pl_limit limit[3];  /* by enum plume_stage */
    struct pl_limit val_check; /* validate after so many batches, or this share of an epoch */
    uint64_t val_every;        /* epochs between those with a validation; > 0 */
    uint64_t sanity_steps;     /* batches of validation before training */
    struct pl_limit overfit;   /* the same few batches in every epoch, unshuffled; 0 = off */
    bool sync_batchnorm;       /* statistics over the batches of all ranks */
    uint64_t accumulate;       /* batches of a step; > 0 */
    struct pl_accumulate {
        uint64_t epoch, n;                /* from this epoch on (0 is the first) so many */
    } accumulate_from[PL_ACCUMULATE_MAX]; /* ascending */
    size_t n_accumulate_from;
    double clip; /* 0 = off */
    enum pl_clip clip_by;
    enum plume_optimizer_kind optimizer; /* where the module does not say */
    int prefetch;                        /* as in loader.h */
};

/* The defaults: one f32 device, every batch, a validation after each epoch. */
struct pl_train_options pl_train_options_default(void);

/* Batches of a step in an epoch, and in the one that has most. */
uint64_t pl_accumulate_at(const struct pl_train_options *options, uint64_t epoch);
uint64_t pl_accumulate_most(const struct pl_train_options *options);

/* How many of n batches a limit leaves: a share is rounded down. */
uint64_t pl_limit_of(const struct pl_limit *limit, uint64_t n);

#endif
