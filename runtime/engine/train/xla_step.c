/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/xla_step.h"
#include "common/base/env.h"
#include "runtime/engine/xla/lower.h"
#include "runtime/engine/xla/xla.h"

#include <string.h>

/* The first thing that the run asks for and that cannot be had; NULL: none. */
static const char *refused(const struct pl_trainer *t)
{
    const struct pl_train_options *o = t->options;
    const struct plume_module *m = t->module;
    const char *profile = pl_env(PL_ENV_PLUME_PROFILE);

    return t->comm->size > 1                 ? "several ranks: start one process"
           : t->strategy.shard || t->pipe.on ? "strategies that share out the model"
           : o->devices > 1                  ? "batches that are split among devices"
           : t->strategy.average_every       ? "--average-every"
           : o->precision == PL_PRECISION_64 || o->precision == PL_PRECISION_16
               ? "a precision other than 32 and bf16"
           : o->precision == PL_PRECISION_BF16 && o->amp_level > 1 ? "--amp-level O2 or O3"
           : o->run == PL_RUN_PREDICT                              ? "--predict: predict on the CPU"
           : o->ema > 0                                            ? "--ema"
           : o->summary                                            ? "--summary"
           : o->profile                                            ? "--profile"
           : profile && *profile && strcmp(profile, "0") != 0      ? "$PLUME_PROFILE"
           : o->deterministic                                      ? "--deterministic"
           : m->step_per_optimizer       ? "a module whose optimizers take turns"
           : m->manual_step              ? "a module that makes its optimizer steps itself"
           : m->on_after_backward        ? "hook on_after_backward"
           : m->on_before_optimizer_step ? "hook on_before_optimizer_step"
           : m->configure_ddp            ? "hook configure_ddp"
                                         : NULL;
}

static int fetch(void *ctx, struct pl_error *err)
{
    return pl_xla_fetch(ctx, err);
}

int pl_xla_step_open(struct pl_trainer *t, struct pl_error *err)
{
    const struct pl_clip_rule clip = {t->options->clip_by, t->options->clip};
    const char *what = t->options->xla ? refused(t) : NULL;
    int r = 0;

    if (!t->options->xla)
        return 0;
    if (what)
        return pl_error_set(err, -ENOTSUP, "an XLA device does not take this yet: %s", what);
    for (size_t s = 0; s < PL_COUNT(t->stage) && r == 0; s++)
        if (t->stage[s].present)
            r = pl_lower_check(pl_stage_tape(&t->stage[s]), err);
    if (r == 0)
        r = pl_xla_attach(t->options->xla, &t->ctx.params, &t->optimizers, &clip, err);
    if (r < 0)
        return r;
    t->ctx.params.fetch = fetch;
    t->ctx.params.fetch_ctx = t->options->xla;
    return 0;
}

/* The tensors that the step reports, and their number: the loss if there is one, then the logged
 * values. */
static size_t
values_of(const struct pl_lane *lane, plume_tensor *loss, plume_tensor *ret[PL_TAPE_ROOTS_MAX])
{
    const struct pl_logs *logs = &lane->parts.root->logs;
    size_t n = 0;

    if (loss)
        ret[n++] = loss;
    for (size_t i = 0; i < logs->n_pending; i++)
        ret[n++] = logs->pending[i].value;
    return n;
}

/* values: of the pending ones, in their order. */
static void collect(struct pl_logs *logs, const double *values)
{
    for (size_t i = 0; i < logs->n_pending; i++) {
        const struct pl_log_pending *p = &logs->pending[i];

        logs->sum[p->index][0] += p->factor * values[i];
        logs->sum[p->index][1] += p->weight;
    }
}

int pl_xla_step_train(struct pl_trainer *t,
                      const struct plume_batch *batch,
                      bool due,
                      double *ret_loss,
                      struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    struct pl_lane *lane = &stage->lanes[0];
    plume_tensor *loss = NULL, *tensors[PL_TAPE_ROOTS_MAX];
    double values[PL_TAPE_ROOTS_MAX];
    struct pl_xla_step step = {
        .tape = &lane->parts.root->tape,
        .batch = batch,
        .values = tensors,
        .draw = pl_trainer_draw(t),
        .first = t->accumulated == 1,
        .due = due,
        .scale = 1.0 / (double)pl_accumulate_at(t->options, t->state.epoch),
    };
    int r = pl_lane_trace(stage, lane, batch, &loss, err);

    if (r == 0 && !loss)
        return pl_error_set(err, -ENOTSUP,
                            "an XLA device does not take this yet: a training_step without a loss");
    if (r < 0)
        return r;
    step.n_values = values_of(lane, loss, tensors);
    r = pl_xla_train(t->options->xla, &step, values, err);
    if (r < 0)
        return r;
    *ret_loss = values[0];
    collect(&lane->parts.root->logs, values + 1);
    for (size_t i = 0; due && i < PL_PARAMS_SIGNALS; i++)
        t->ctx.params.heard[i] |= t->ctx.params.signal[i];
    return 0;
}

int pl_xla_step_evaluate(struct pl_trainer *t,
                         struct pl_stage *stage,
                         const struct plume_batch *batch,
                         struct pl_error *err)
{
    struct pl_lane *lane = &stage->lanes[0];
    plume_tensor *tensors[PL_TAPE_ROOTS_MAX];
    double values[PL_TAPE_ROOTS_MAX];
    struct pl_xla_step step = {.tape = &lane->parts.root->tape,
                               .batch = batch,
                               .values = tensors,
                               .draw = pl_trainer_draw(t)};
    int r = pl_lane_trace(stage, lane, batch, NULL, err);

    if (r < 0)
        return r;
    step.n_values = values_of(lane, NULL, tensors);
    r = pl_xla_forward(t->options->xla, &step, values, err);
    if (r == 0)
        collect(&lane->parts.root->logs, values);
    return r;
}
