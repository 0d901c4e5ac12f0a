/* SPDX-License-Identifier: MIT */
/* The options of a training run: the trainer's side of pltrain's command line.
 *
 * Made by pl_train_options_default(). A zeroed struct is not the default: it allows no steps. */
#ifndef PL_RUNTIME_ENGINE_CONFIG_TRAIN_OPTIONS_H
#define PL_RUNTIME_ENGINE_CONFIG_TRAIN_OPTIONS_H

#include "kernels/half.h"
#include "plume/optim.h"
#include "runtime/engine/config/early_stop.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Strategies for sharing a batch and its gradients among ranks and devices; see strategy.h. */
enum pl_strategy_kind {
    PL_STRATEGY_AUTO, /* single with one device and one rank, else ddp */
    PL_STRATEGY_SINGLE,
    PL_STRATEGY_DP,
    PL_STRATEGY_DDP,
    PL_STRATEGY_DDP2,
    PL_STRATEGY_HOROVOD,
    PL_STRATEGY_SHARDED,
    PL_STRATEGY_PIPELINE,
};

/* The order in which a stage of a pipeline runs the microbatches of a batch (pipe_schedule.c). */
enum pl_pipe_order {
    PL_PIPE_1F1B,
    PL_PIPE_GPIPE,
};

/* Strategy sharded: the values of which a rank keeps its own shard only. */
enum pl_shard_kind {
    PL_SHARD_NONE,  /* not given */
    PL_SHARD_OS,    /* optimizer state */
    PL_SHARD_GRAD,  /* and gradients */
    PL_SHARD_PARAM, /* and parameters */
};

enum pl_precision {
    PL_PRECISION_32,
    PL_PRECISION_64,
    PL_PRECISION_16,
    PL_PRECISION_BF16,
};

/* The kinds of run. All but training need weights that fit the model. */
enum pl_run_kind {
    PL_RUN_TRAIN,
    PL_RUN_VALIDATE,
    PL_RUN_TEST,
    PL_RUN_PREDICT,
};

struct pl_device; /* device.h */
struct pl_xla;    /* xla.h */
struct pl_error;

/* The number of batches of a stage: all, a number, or a share in [0, 1]. */
struct pl_limit {
    bool is_share;
    double value; /* a share, or a whole number; INFINITY = all */
};

enum pl_clip {
    PL_CLIP_NORM, /* by the L2 norm over all parameters */
    PL_CLIP_VALUE,
};

#define PL_ACCUMULATE_MAX 16

#define PL_PIPE_MICROBATCHES 4 /* per stage: bubbles take less than a fifth of the time (GPipe) */
#define PL_PIPE_MICROBATCHES_MAX 255
#define PL_PIPE_BALANCE_EVERY 20

#define PL_TENSOR_PARALLEL_MAX 1024

struct pl_train_options {
    enum pl_run_kind run;
    bool json;               /* validation and test: print one object */
    const char *predictions; /* the file that they go to (array_file.h) */

    uint64_t seed;
    uint64_t max_steps; /* optimizer steps in total; UINT64_MAX = as many as the epochs give */
    uint64_t log_every; /* steps between reports; > 0 */
    FILE *out;          /* text output: of rank 0, and the hash of each rank; NULL = none */

    enum pl_half
        reduce_in; /* type in which NCCL sums gradients; PL_HALF_NONE: the gradients' own */
    bool summary;  /* of the model, before the run (summary.h) */
    bool profile;  /* of the training step, by op: on stderr, or in a file: */
    const char *profile_file; /* events of rank 0 (timeline.h); NULL = none */
    bool deterministic;       /* sums over ranks in the order of ranks (comm.h) */

    struct pl_device *device; /* holds the tensors; NULL = the CPU. Borrowed */
    struct pl_xla *xla;       /* a device that takes whole steps as programs, and then `device` is
                                 NULL; NULL = none. Borrowed */
    unsigned replicas;        /* of its program, one for each device: ranks of ddp, but in this
                                 process; 0, 1: one */
    bool recompute;           /* backward computes tensors again, to save memory (tape_again.c) */
    bool graphs;              /* capture steps as graphs and replay them, if the device can */
    enum pl_strategy_kind strategy;
    enum pl_shard_kind shard; /* with PL_STRATEGY_SHARDED; none: PL_SHARD_OS */
    bool shard_in_node;       /* each node has a copy of the model (shard_group.h) */
    unsigned tensor_parallel; /* ranks of a node that share a copy of the model; 0 or 1: none */
    unsigned stages;          /* of a pipeline; 0: as many as ranks */
    uint64_t microbatches;    /* of a batch in a pipeline; 0: PL_PIPE_MICROBATCHES per stage */
    enum pl_pipe_order pipe_order;
    uint64_t balance_every; /* steps between looks at the stages' times; 0 = the cut stays */
    unsigned devices;       /* of this process, which share a batch; on the CPU: disjoint groups of
                               threads; >= 1 */
    /* The `devices` devices, `device` first. NULL: `device` stands for all of them. Borrowed. */
    struct pl_device *const *part_devices;
    enum pl_precision precision;
    int amp_level; /* 0 to 3 = O0 to O3 */

    double max_seconds;             /* since fit began; INFINITY = no limit */
    uint64_t min_epochs;            /* early stopping waits for these epochs, */
    uint64_t min_steps;             /* and for these optimizer steps */
    struct pl_early_stop_rule stop; /* early stopping */

    const char *log_dir;        /* folder of metrics.csv and event files; NULL = none */
    const char *checkpoint_dir; /* NULL = none */
    const char *monitor;        /* value that ranks checkpoints; NULL = keep the newest */
    bool monitor_max, save_last;
    int save_top_k;                  /* see pl_retention_init() */
    bool weights_only;               /* checkpoints have no optimizer, schedule or callback state */
    const char *weights;             /* file with the initial weights (weights.h); NULL = none */
    const char *const *weights_maps; /* changes of its names; borrowed */
    size_t n_weights_maps;
    bool weights_strict; /* every parameter and buffer must be in the file, and nothing else */
    bool plain_weights;  /* the file's parameters, though it has their average (ema.h) */
    const char *resume;  /* checkpoint to resume, or "last"; NULL = none */

    /* A signal handler stores its signal here: SIGUSR1 (checkpoint, then requeue the job) or
     * another (checkpoint, then end). NULL = none. */
    const volatile sig_atomic_t *interrupt;

    /* Called on each rank after each batch; an error ends the training. NULL = none. */
    int (*on_step)(void *ctx, struct pl_device *dev, struct pl_error *err);
    void *on_step_ctx;

    uint64_t fast_dev_run;    /* run this number of batches of each stage, for one epoch; 0 = off */
    struct pl_limit limit[3]; /* index: enum plume_stage */
    struct pl_limit val_check; /* validate after this number or share of an epoch's batches */
    uint64_t val_every;        /* epochs between validations; > 0 */
    uint64_t sanity_steps;     /* validation batches before training */
    struct pl_limit overfit;   /* use the same few batches in every epoch, unshuffled; 0 = off */
    bool sync_batchnorm;       /* statistics over the batches of all ranks */
    uint64_t accumulate;       /* batches per step; > 0 */
    struct pl_accumulate {
        uint64_t epoch, n;                /* from epoch `epoch` on (0 is the first): n batches */
    } accumulate_from[PL_ACCUMULATE_MAX]; /* ascending */
    size_t n_accumulate_from;
    double clip; /* 0 = off */
    enum pl_clip clip_by;
    uint64_t average_every; /* steps between averages of the ranks' parameters (average.h); 0 = the
                               gradients are averaged in each step */
    double ema;             /* decay of the moving average of the parameters (ema.h); 0 = none */
    enum plume_optimizer_kind optimizer; /* if the module sets none */
    int prefetch;                        /* see loader.h */
};

/* The defaults: one f32 device, every batch, a validation after each epoch. */
struct pl_train_options pl_train_options_default(void);

/* Batches per step in an epoch, and the maximum over all epochs. */
uint64_t pl_accumulate_at(const struct pl_train_options *options, uint64_t epoch);
uint64_t pl_accumulate_most(const struct pl_train_options *options);

/* The number of n batches that a limit allows. A share is rounded down. */
uint64_t pl_limit_of(const struct pl_limit *limit, uint64_t n);

#endif
