/* SPDX-License-Identifier: MIT */
/* The training loop of one rank. */
#ifndef PL_RUNTIME_ENGINE_TRAINER_H
#define PL_RUNTIME_ENGINE_TRAINER_H

#include "runtime/engine/comm.h"
#include "runtime/engine/context.h"
#include "runtime/engine/loader.h"
#include "runtime/engine/reducer.h"
#include "runtime/engine/report.h"
#include "runtime/engine/train_options.h"

struct pl_trainer {
    const struct plume_module *module;
    const struct pl_train_options *options;
    const struct pl_hparams *hparams;
    struct pl_comm *comm;
    struct pl_report *report;
    struct pl_context ctx;
    const struct pl_kernels *kernels;
    struct pl_optimizers optimizers;
    struct pl_reducer reducer;
    struct pl_stage {
        bool present;
        struct pl_loader loader;
        struct pl_tape tape;
        struct pl_logs logs;
    } stage[3]; /* by enum plume_stage */
    uint64_t step, epoch;
    double loss_sum, loss_weight; /* of this rank in this epoch */
    uint64_t epoch_ns;            /* when its training began, by pl_now_ns() */
    char param_hash[17];
};

/* Builds the model: configure, data, dry steps, layout, start values from rank 0. All but `trainer`
 * are borrowed until finish. Collective. */
int pl_trainer_init(struct pl_trainer *trainer,
                    const struct plume_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_train_options *options,
                    struct pl_comm *comm,
                    struct pl_report *report,
                    struct pl_error *err);

/* Trains all epochs with a validation after each, then tests. On return param_hash is set.
 * -EDOM where the loss is no number, -ECONNRESET where a rank is lost. Collective. */
int pl_trainer_fit(struct pl_trainer *trainer, struct pl_error *err);

void pl_trainer_finish(struct pl_trainer *trainer);

#endif
