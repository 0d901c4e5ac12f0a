/* SPDX-License-Identifier: MIT */
/* The training run of one rank: all its objects, and its position. trainer.c builds it, fit.c runs
 * it. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TRAINER_H
#define PL_RUNTIME_ENGINE_TRAIN_TRAINER_H

#include "common/base/fs.h"
#include "runtime/engine/reduce/node_step.h"
#include "runtime/engine/reduce/shard_group.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/report/logger.h"
#include "runtime/engine/report/rank_report.h"
#include "runtime/engine/train/checkpointer.h"
#include "runtime/engine/train/metrics.h"
#include "runtime/engine/train/pipe.h"
#include "runtime/engine/train/stage.h"
#include "runtime/engine/train/tensor_parallel.h"
#include "runtime/engine/train/xla_replicas.h"
#include "runtime/engine/util/timeline.h"

/* Manual optimization (manual.h). */
struct pl_manual {
    const struct plume_batch *batch;     /* that of the running manual_step */
    uint64_t pending[PL_OPTIMIZERS_MAX]; /* backward passes since the optimizer's last step */
    uint64_t draws;                      /* backward passes since the last counted step */
    bool stepped;                        /* an optimizer has made a step in this batch */
    double *losses;                      /* of this batch, by optimizer */
};

struct pl_trainer {
    /* Borrowed: */
    const struct plume_module *module;
    const struct pl_train_options *options;
    const struct pl_hparams *hparams;
    struct pl_comm *comm;
    struct pl_rank_report *report;
    struct pl_device *dev; /* of the parameters; parts of batches may have other devices */
    const struct pl_kernels *kernels;

    struct pl_context ctx;
    struct pl_hooks hooks;
    struct pl_replicas replicas;
    struct pl_shard_group group; /* strategy sharded; else all ranks */
    struct pl_units units;       /* of the parameters, with --shard param */
    struct pl_optimizers optimizers;
    struct pl_node_step node_step; /* comm NULL: gradients are summed before the update */
    struct pl_scaler scaler;
    struct pl_ema ema;
    struct pl_stage stage[3]; /* by enum plume_stage */
    struct pl_strategy strategy;
    struct pl_pipe pipe; /* strategy pipeline; else off */
    struct pl_tensor_parallel tp;
    struct pl_xla_replicas xla; /* of an XLA device; else none */
    struct pl_metrics metrics;  /* newest values over all ranks */
    struct pl_logger logger;
    struct pl_checkpointer checkpointer;

    struct pl_train_state state; /* the run's position, and all that checkpoints keep */
    uint64_t eval_batch;         /* index in a validation, test or prediction; else 0 */
    struct pl_manual manual;
    uint64_t alone_steps;         /* since the ranks last averaged (average.h) */
    uint64_t accumulated;         /* batches whose gradients wait for a step */
    double loss_sum, loss_weight; /* of this rank in this epoch; on rank 0 with what follows */
    double resumed_weight;        /* of the epoch's batches before the run was resumed, all ranks */
    bool in_epoch;                /* these are of the running epoch, whose end is still to come */
    bool epoch_incomplete;        /* the epoch ended before its last batch */
    struct pl_metrics
        kept;          /* of `metrics`, what a run that goes on from a cut has: see end_epoch() */
    bool off_schedule; /* the epoch's last validation is due only because training ends there */
    bool stopping;     /* train no further batch; all ranks agree */
    int interrupted;   /* signal number, 0 = none; all ranks agree */
    uint64_t fit_ns, epoch_ns; /* start times, pl_now_ns() */
    uint64_t own_ns;           /* of this step, without waiting for other ranks */
    /* --profile: the step and the time after which ops are timed, and the steps to leave out yet.
     */
    uint64_t timed_step, timed_ns, warm_steps;
    /* Steps of the next and the last agreement on time and signals, time of the last (fit.c). */
    uint64_t next_agree_step, last_agree_step, last_agree_ns;
    char param_hash[PL_PARAMS_HASH];
    struct pl_timeline *timeline; /* set after init; NULL = none. Borrowed */
};

/* Builds the model: configure, data, dry steps, layout, start values from rank 0. All arguments but
 * `trainer` are borrowed until finish. Collective. */
int pl_trainer_init(struct pl_trainer *trainer,
                    const struct plume_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_train_options *options,
                    struct pl_comm *comm,
                    struct pl_rank_report *report,
                    struct pl_error *err);

/* Number of the running batch, for random numbers: the batches of one optimizer step differ, and
 * those of one validation, test or prediction. */
static inline uint64_t pl_trainer_draw(const struct pl_trainer *t)
{
    uint64_t within = t->accumulated ? t->accumulated - 1 : 0;

    if (t->module->manual_step) /* any number of backward passes */
        return (t->state.step << 16) + t->manual.draws + (t->eval_batch << 40);
    return t->state.step * pl_accumulate_most(t->options) + within + (t->eval_batch << 40);
}

/* The signal that this rank has received; 0 = none. */
static inline int pl_trainer_signal(const struct pl_trainer *t)
{
    return t->options->interrupt ? *t->options->interrupt : 0;
}

/* True after --max-time, by this rank's clock. */
static inline bool pl_trainer_time_is_up(const struct pl_trainer *t)
{
    return (double)(pl_now_ns() - t->fit_ns) * 1e-9 >= t->options->max_seconds;
}

/* All ranks know of a signal to requeue, or of one to end: train no further batch. */
static inline void pl_trainer_interrupt(struct pl_trainer *t, bool requeue, bool end)
{
    if (requeue || end) {
        t->interrupted = requeue ? SIGUSR1 : SIGTERM;
        t->stopping = true;
    }
}

/* Trains (fit.c): epochs and validations until the options end the run; then tests. Sets
 * param_hash. -EDOM if the loss is not a number, -ECONNRESET if a rank is lost. Collective. */
int pl_trainer_fit(struct pl_trainer *trainer, struct pl_error *err);

/* Validates, tests or predicts, by options->run (evaluate.c, predict.c); trains and saves nothing.
 * Results go to options->out, or as an object to stdout, and to the logger; predictions to their
 * file. -ENOENT: the module has no such stage. Collective. */
int pl_trainer_evaluate(struct pl_trainer *trainer, struct pl_error *err);

/* The ops and phases of the run go to the timeline from now on. */
void pl_trainer_time(struct pl_trainer *trainer, struct pl_timeline *timeline);

void pl_trainer_finish(struct pl_trainer *trainer);

#endif
