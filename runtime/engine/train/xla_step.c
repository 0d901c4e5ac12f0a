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

    return (o->replicas > 1 || t->comm->size > 1) && t->strategy.kind != PL_STRATEGY_DDP
               ? "several devices with another strategy than ddp"
           : t->strategy.shard || t->pipe.on ? "strategies that share out the model"
           : o->devices > 1                  ? "batches that are split among devices"
           : o->average_every && (o->replicas > 1 || t->comm->size > 1) ? "--average-every"
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
    return pl_xla_replicas_open(&t->xla, PL_MAX(t->options->replicas, 1u), t->stage, &t->ctx, err);
}

int pl_xla_step_spread_buffers(struct pl_trainer *t, struct pl_error *err)
{
    return pl_xla_spread_buffers(t->options->xla, t->comm, err);
}

int pl_xla_step_check_labels(struct pl_trainer *t,
                             const struct pl_stage *stage,
                             struct pl_error *err)
{
    int r = 0;

    for (unsigned k = 0; k < t->xla.n && r == 0; k++)
        r = pl_lane_check_labels(pl_xla_replicas_lane(&t->xla, stage, k), err);
    return r;
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

/* values: of the pending ones of a lane, in their order; they count in the stage's sums. */
static void collect(const struct pl_lane *lane, struct pl_logs *sums, const double *values)
{
    const struct pl_logs *logs = &lane->parts.root->logs;

    for (size_t i = 0; i < logs->n_pending; i++) {
        const struct pl_log_pending *p = &logs->pending[i];

        sums->sum[p->index][0] += p->factor * values[i];
        sums->sum[p->index][1] += p->weight;
    }
}

/* The inputs and results of the replicas' programs. */
struct traced {
    struct pl_xla_part parts[PL_XLA_REPLICAS_MAX];
    plume_tensor *tensors[PL_XLA_REPLICAS_MAX][PL_TAPE_ROOTS_MAX];
    double values[PL_XLA_REPLICAS_MAX * PL_TAPE_ROOTS_MAX];
};

/* Traces the hooks on each replica's batch. *ret_n: the number of values of each. */
static int trace(struct pl_trainer *t,
                 struct pl_stage *stage,
                 const struct plume_batch *batch,
                 struct traced *ret,
                 size_t *ret_n,
                 struct pl_error *err)
{
    bool training = stage->kind == PLUME_TRAIN;
    int r = pl_xla_replicas_follow(&t->xla, stage, err);

    for (unsigned k = 0; k < t->xla.n && r == 0; k++) {
        struct pl_lane *lane = pl_xla_replicas_lane(&t->xla, stage, k);
        plume_tensor *loss = NULL;
        size_t n;

        ret->parts[k] =
            (struct pl_xla_part){.tape = &lane->parts.root->tape,
                                 .batch = pl_xla_replicas_batch(&t->xla, stage, batch, k),
                                 .values = ret->tensors[k]};
        if (!ret->parts[k].batch && !training)
            continue;
        r = pl_lane_trace(stage, lane, ret->parts[k].batch, training ? &loss : NULL, err);
        if (r == 0 && training && !loss)
            return pl_error_set(
                err, -ENOTSUP,
                "an XLA device does not take this yet: a training_step without a loss");
        if (r < 0)
            return r;
        n = values_of(lane, loss, ret->tensors[k]);
        if (k && n != *ret_n)
            return pl_error_set(err, -ENOTSUP,
                                "the steps of replicas 0 and %u log other values, and XLA devices "
                                "run one program",
                                k);
        *ret_n = n;
    }
    return r;
}

/* The message of each host before a training step. */
struct words {
    uint8_t hash[PL_SHA256_BYTES]; /* of its program */
    bool signal[PL_PARAMS_SIGNALS];
};

struct agreement {
    struct pl_trainer *t;
    bool due;
};

/* The hosts' programs are alike; if the step is due, each hears the others' signals. */
static int agree(void *ctx, const uint8_t hash[PL_SHA256_BYTES], struct pl_error *err)
{
    const struct agreement *a = ctx;
    const struct pl_trainer *t = a->t;
    struct pl_params *params = &a->t->ctx.params;
    unsigned n = t->comm->size;
    _cleanup_free_ struct words *all = calloc(n, sizeof(*all));
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    int r;

    if (!all || !offset)
        return pl_error_nomem(err);
    memcpy(all[t->comm->rank].hash, hash, PL_SHA256_BYTES);
    memcpy(all[t->comm->rank].signal, params->signal, sizeof(params->signal));
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * sizeof(*all);
    r = pl_comm_allgather(t->comm, all, offset, err);
    for (unsigned i = 0; i < n && r == 0; i++) {
        if (memcmp(all[i].hash, all[0].hash, PL_SHA256_BYTES) != 0)
            return pl_error_set(err, -ENOTSUP,
                                "the training steps of ranks 0 and %u differ, and XLA devices run "
                                "one program: a step must not depend on the batch's contents, or "
                                "on how often it was called",
                                i);
        for (size_t k = 0; k < PL_PARAMS_SIGNALS; k++)
            params->heard[k] |= a->due && all[i].signal[k];
    }
    return r;
}

int pl_xla_step_train(struct pl_trainer *t,
                      const struct plume_batch *batch,
                      bool due,
                      double *losses,
                      struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    _cleanup_free_ struct traced *traced = calloc(1, sizeof(*traced));
    struct pl_xla_step step = {
        .draw = pl_trainer_draw(t),
        .sync_batchnorm = t->options->sync_batchnorm,
        .first = t->accumulated == 1,
        .due = due,
        .agree = t->comm->size > 1 ? agree : NULL,
        .ctx = &(struct agreement){t, due},
        .scale = 1.0 / (t->ctx.n_shares * (double)pl_accumulate_at(t->options, t->state.epoch)),
    };
    int r = traced ? trace(t, stage, batch, traced, &step.n_values, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    step.parts = traced->parts;
    r = pl_xla_train(t->options->xla, &step, traced->values, err);
    if (r < 0)
        return r;
    for (unsigned k = 0; k < t->xla.n; k++)
        losses[k] = traced->values[k * step.n_values];
    /* As elsewhere, those of the first rank are logged. */
    collect(&stage->lanes[0], &stage->lanes[0].parts.root->logs, traced->values + 1);
    for (size_t i = 0; due && t->comm->size == 1 && i < PL_PARAMS_SIGNALS; i++)
        t->ctx.params.heard[i] |= t->ctx.params.signal[i];
    return 0;
}

int pl_xla_step_evaluate(struct pl_trainer *t,
                         struct pl_stage *stage,
                         const struct plume_batch *batch,
                         struct pl_error *err)
{
    _cleanup_free_ struct traced *traced = calloc(1, sizeof(*traced));
    struct pl_xla_step step = {.draw = pl_trainer_draw(t)};
    int r = traced ? trace(t, stage, batch, traced, &step.n_values, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    step.parts = traced->parts;
    r = pl_xla_forward(t->options->xla, &step, traced->values, err);
    for (unsigned k = 0; k < t->xla.n && r == 0; k++)
        if (traced->parts[k].batch)
            collect(pl_xla_replicas_lane(&t->xla, stage, k), &stage->lanes[0].parts.root->logs,
                    &traced->values[k * step.n_values]);
    return r;
}
