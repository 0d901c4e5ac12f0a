/* SPDX-License-Identifier: MIT */
/* The training loop of one rank. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAINER_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAINER_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/config/train_options.h"
#include "runtime/engine/data/loader.h"
#include "runtime/engine/module/context.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/reduce/reducer.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/report/logger.h"
#include "runtime/engine/report/rank_report.h"
#include "runtime/engine/train/checkpointer.h"
#include "runtime/engine/train/metrics.h"
#include "runtime/engine/train/parts.h"

struct pl_trainer {
    const struct plume_module *module;
    const struct pl_train_options *options;
    const struct pl_hparams *hparams;
    struct pl_comm *comm;
    struct pl_rank_report *report;
    struct pl_context ctx;
    struct pl_device *dev;       /* where everything is, */
    struct pl_replicas replicas; /* but for parts of batches on devices of their own */
    const struct pl_kernels *kernels;
    struct pl_optimizers optimizers;
    struct pl_scaler scaler;
    struct pl_reducer reducer;
    struct pl_stage {
        bool present;
        struct pl_loader loader;
        struct pl_tape tape;
        struct pl_logs logs;
        struct plume_outputs outputs;
        struct pl_parts *parts; /* instead of the tape, under dp and ddp2; NULL else */
    } stage[3];                 /* by enum plume_stage */
    struct pl_turn {
        struct pl_stage stage;
        struct pl_reducer reducer;
    } * turns;              /* of the optimizers behind the first, n_turns - 1; see turns.h */
    unsigned n_turns, turn; /* 1 and 0 where all have one loss */
    struct pl_strategy strategy;
    uint64_t step, epoch;         /* optimizer steps made, epochs over */
    uint64_t batch;               /* of the running epoch: batches over */
    uint64_t gathered;            /* batches whose gradients wait for a step */
    double loss_sum, loss_weight; /* of this rank in this epoch */
    struct pl_metrics metrics;    /* newest values, those of all ranks */
    struct pl_early_stop stop;
    int interrupted; /* the signal; 0 = none. All ranks agree */
    struct pl_logger logger;
    struct pl_checkpointer keeper;
    uint64_t resume_batches;                /* of the first epoch that are over already */
    bool cut;                               /* the epoch, before its last batch */
    bool stopping;                          /* no batch more; all ranks agree */
    uint64_t fit_ns, epoch_ns;              /* when it began, by pl_now_ns() */
    uint64_t look_at, looked_at, looked_ns; /* step: see agree_on_time() */
    char param_hash[PL_PARAMS_HASH];
};

/* Builds the model: configure, data, dry steps, layout, start values from rank 0. All but `trainer`
 * are borrowed until finish. Collective. */
int pl_trainer_init(struct pl_trainer *trainer,
                    const struct plume_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_train_options *options,
                    struct pl_comm *comm,
                    struct pl_rank_report *report,
                    struct pl_error *err);

/* Makes the tapes of a stage, and of a turn (turns.h): the one, or those of the parts. -ENOMEM. */
int pl_trainer_tapes(struct pl_trainer *trainer,
                     enum plume_stage stage,
                     unsigned turn,
                     struct pl_stage *ret,
                     struct pl_error *err);

/* Calls a hook without arguments; NULL is fine. `name` for the text of a failure. */
int pl_trainer_hook(struct pl_trainer *trainer,
                    int (*hook)(struct plume_context *pl),
                    const char *name,
                    struct pl_error *err);

/* Trains (fit.c): epochs, validations and what ends them, as the options say; then tests. On return
 * param_hash is set. -EDOM where the loss is no number, -ECONNRESET where a rank is lost.
 * Collective. */
int pl_trainer_fit(struct pl_trainer *trainer, struct pl_error *err);

void pl_trainer_finish(struct pl_trainer *trainer);

#endif
