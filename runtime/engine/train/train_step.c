/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/train_step.h"
#include "runtime/engine/train/average.h"
#include "runtime/engine/train/manual.h"
#include "runtime/engine/train/pipe_balance.h"
#include "runtime/engine/train/train_lane.h"

#include <stdarg.h>

/* Values that a step reports: as many as a module may log. */
struct metric_list {
    char name[PL_LOG_VALUES_MAX][80];
    const char *list[PL_LOG_VALUES_MAX];
    double value[PL_LOG_VALUES_MAX];
    size_t n;
};

static void PL_PRINTF(3, 4)
    metric_list_add(struct metric_list *metrics, double value, const char *name, ...)
{
    va_list ap;

    if (metrics->n == PL_LOG_VALUES_MAX)
        return;
    va_start(ap, name);
    vsnprintf(metrics->name[metrics->n], sizeof(metrics->name[0]), name, ap);
    va_end(ap);
    metrics->list[metrics->n] = metrics->name[metrics->n];
    metrics->value[metrics->n++] = value;
}

/* Logs this rank's losses and the values that training_step logged. */
static void report_step(struct pl_trainer *t, const double *losses)
{
    const struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    struct metric_list metrics = {0};

    for (unsigned i = 0; i < stage->n_lanes; i++) {
        const struct pl_logs *logs = &stage->lanes[i].parts.root->logs;

        if (losses[i] == PL_NO_LOSS)
            continue;
        metric_list_add(&metrics, losses[i], i ? "loss_%u" : "loss", i);
        for (size_t k = 0; k < logs->n; k++) {
            double sum[2];

            pl_lane_logged(&stage->lanes[i], k, sum);
            if (sum[1] != 0)
                metric_list_add(&metrics, sum[0] / sum[1], "train_%s", logs->name[k]);
        }
    }
    metric_list_add(&metrics, (double)t->state.epoch + 1, "epoch");
    if (metrics.n > 1)
        pl_logger_metrics(&t->logger, (int64_t)t->state.step, metrics.list, metrics.value,
                          metrics.n, false);
}

/* The batch in each lane. */
static int train_lanes(struct pl_trainer *t,
                       const struct plume_batch *batch,
                       bool due,
                       double *losses,
                       struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    int r = 0;

    t->accumulated++;
    for (unsigned i = 0; i < stage->n_lanes && r == 0; i++) {
        losses[i] = PL_NO_LOSS;
        pl_stage_enter_lane(stage, &t->optimizers, i);
        if (t->accumulated == 1)
            pl_lane_clear_logs(&stage->lanes[i]);
        r = pl_train_lane(t, i, batch, due, &losses[i], err);
    }
    pl_stage_enter_lane(stage, &t->optimizers, 0);
    return r;
}

/* For schedules of steps: before the first validation there is no value. */
static bool find_newest(void *ctx, const char *name, double *ret)
{
    *ret = pl_metrics_get(ctx, name);
    return pl_metrics_has(ctx, name);
}

int pl_train_step_train(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool last,
                        struct pl_error *err)
{
    bool due = last || t->accumulated + 1 >= pl_accumulate_at(t->options, t->state.epoch);
    double losses[PL_OPTIMIZERS_MAX];
    int sig, r;

    r = pl_hooks_batch(&t->hooks, t->module->on_train_batch_start, batch, "on_train_batch_start",
                       err);
    sig = pl_trainer_signal(t);
    t->ctx.params.signal[PL_PARAMS_REQUEUE] = sig == SIGUSR1;
    t->ctx.params.signal[PL_PARAMS_END] = sig != 0 && sig != SIGUSR1;
    t->ctx.params.signal[PL_PARAMS_TIME] = pl_trainer_time_is_up(t);
    if (r == 0 && t->module->manual_step)
        r = pl_manual_batch(t, batch, losses, &due, err);
    else if (r == 0)
        r = train_lanes(t, batch, due, losses, err);
    if (r == 0 && due) {
        t->state.step++;
        t->accumulated = 0;
        pl_ema_update(&t->ema, t->kernels);
        r = pl_average_step(t, err);
    }
    if (r == 0 && due)
        r = pl_pipe_balance(t, err);
    if (r == 0 && due) {
        r = pl_optimizers_schedule(&t->optimizers, true, find_newest, &t->metrics, err);
    }
    if (r == 0)
        r = pl_hooks_batch(&t->hooks, t->module->on_train_batch_end, batch, "on_train_batch_end",
                           err);
    if (r == 0 && due && t->state.step % t->options->log_every == 0)
        report_step(t, losses);
    return r;
}
