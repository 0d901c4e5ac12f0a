/* SPDX-License-Identifier: MIT */
#include "runtime/engine/trainer.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/eval.h"
#include "runtime/engine/step.h"

static int open_stage(struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    struct plume_data data = {.struct_size = sizeof(data)};
    struct pl_stage *s = &t->stage[stage];
    plume_tensor *loss = NULL;
    int r;

    if (stage != PLUME_TRAIN && !pl_step_has_hook(t, stage))
        return 0;
    r = pl_context_result(&t->ctx, t->module->data(&t->ctx.pub, stage, &data), "data", err);
    if (r < 0)
        return r;
    if (data.n_fields == 0 && stage != PLUME_TRAIN)
        return 0;
    r = pl_loader_init(&s->loader, &data, t->ctx.params.real,
                       (size_t)pl_hparams_value(t->hparams, "batch_size"), t->comm->rank,
                       t->comm->size, stage == PLUME_TRAIN, t->options->seed, err);
    if (r < 0)
        return pl_error_wrap(err, r, "%sdata", pl_eval_prefix(stage));
    s->present = true;
    pl_tape_init(&s->tape, t->kernels, stage == PLUME_TRAIN);
    s->tape.dry = true;
    r = pl_step_run(t, stage, pl_loader_dry(&s->loader), &loss, err);
    s->tape.dry = false;
    s->logs.closed = true;
    return r;
}

static int set_optimizers(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_context *ctx = &t->ctx;
    int r = 0;

    pl_optimizer_defaults(t->hparams, t->options->optimizer, &ctx->optimizer_defaults);
    ctx->optimizers[0] = ctx->optimizer_defaults;
    ctx->n_optimizers = 1;
    if (t->module->configure_optimizers)
        r = pl_context_result(ctx, t->module->configure_optimizers(&ctx->pub, &ctx->optimizers[0]),
                              "configure_optimizers", err);
    if (r == 0)
        r = pl_optimizers_init(&t->optimizers, &ctx->params, ctx->optimizers, ctx->n_optimizers,
                               err);
    ctx->n_optimizers = 0;
    return r;
}

static int build(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_params *params = &t->ctx.params;
    int r;

    t->ctx.configuring = true;
    r = pl_context_result(&t->ctx, t->module->configure(&t->ctx.pub), "configure", err);
    t->ctx.configuring = false;
    for (int stage = PLUME_TRAIN; stage <= PLUME_TEST && r == 0; stage++)
        r = open_stage(t, (enum plume_stage)stage, err);
    if (r == 0)
        r = pl_params_layout(params, &t->stage[PLUME_TRAIN].tape, t->comm, err);
    if (r == 0)
        r = set_optimizers(t, err);
    if (r < 0)
        return r;
    /* Every rank starts from the same seed, so these are the same numbers wherever libm is the
     * same; rank 0's count. */
    pl_params_init_values(params, t->options->seed);
    r = pl_comm_broadcast(t->comm, params->values, params->count * pl_real_size(params->real), err);
    if (r < 0)
        return r;
    return pl_reducer_init(&t->reducer, params, t->comm, PL_BUCKET_BYTES, err);
}

int pl_trainer_init(struct pl_trainer *trainer,
                    const struct plume_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_train_options *options,
                    struct pl_comm *comm,
                    struct pl_report *report,
                    struct pl_error *err)
{
    int r;

    *trainer = (struct pl_trainer){
        .module = module,
        .options = options,
        .hparams = hparams,
        .comm = comm,
        .report = report,
        .kernels = pl_kernels_best(PL_REAL_F32),
    };
    r = pl_context_init(&trainer->ctx, hparams, PL_REAL_F32, module->state_size, comm->rank,
                        comm->size, err);
    if (r < 0)
        return r;
    r = build(trainer, err);
    if (r < 0) {
        if (r != -ECONNRESET)
            pl_comm_abort(comm, pl_error_text(err));
        pl_trainer_finish(trainer);
        return r;
    }
    return 0;
}

void pl_trainer_finish(struct pl_trainer *trainer)
{
    for (size_t i = 0; i < PL_COUNT(trainer->stage); i++) {
        pl_loader_finish(&trainer->stage[i].loader);
        pl_tape_finish(&trainer->stage[i].tape);
    }
    pl_reducer_finish(&trainer->reducer);
    pl_optimizers_finish(&trainer->optimizers);
    pl_context_finish(&trainer->ctx);
}

static int end_epoch(struct pl_trainer *t, struct pl_error *err)
{
    double loss[2] = {t->loss_sum, t->loss_weight}, values[PL_LOG_VALUES_MAX];
    double seconds = (double)(pl_now_ns() - t->epoch_ns) * 1e-9;
    int r = pl_eval_run(t, PLUME_VALIDATE, loss, values, err);

    if (r < 0)
        return r;
    t->epoch++;
    if (t->comm->rank == 0 && t->options->out)
        fprintf(t->options->out, "epoch %llu/%g step %llu loss %.4f", (unsigned long long)t->epoch,
                pl_hparams_value(t->hparams, "epochs"), (unsigned long long)t->step,
                loss[0] / loss[1]); /* of all ranks by now */
    pl_eval_tell(t, PLUME_VALIDATE, values, pl_report_metrics);
    if (t->comm->rank == 0 && t->options->out) {
        fprintf(t->options->out, " (%.0f samples/s)\n", loss[1] / seconds);
        fflush(t->options->out);
    }
    return 0;
}

static int train_epoch(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_loader *loader = &t->stage[PLUME_TRAIN].loader;
    const struct plume_batch *batch;
    int r;

    t->loss_sum = t->loss_weight = 0;
    t->epoch_ns = pl_now_ns();
    pl_loader_begin(loader, t->epoch);
    while (t->step < t->options->max_steps && (batch = pl_loader_next(loader)))
        if ((r = pl_step_train(t, batch, err)) < 0)
            return r;
    return end_epoch(t, err);
}

static int fit(struct pl_trainer *t, struct pl_error *err)
{
    double epochs = pl_hparams_value(t->hparams, "epochs"), none[2] = {0};
    double values[PL_LOG_VALUES_MAX];
    int r = 0;

    while (r == 0 && (double)t->epoch < epochs && t->step < t->options->max_steps)
        r = train_epoch(t, err);
    if (r == 0)
        r = pl_eval_run(t, PLUME_TEST, none, values, err);
    if (r < 0)
        return r;
    pl_eval_tell(t, PLUME_TEST, values, pl_report_final);
    pl_params_hash(&t->ctx.params, t->param_hash);
    pl_report_fact(t->report, "param_hash", t->param_hash);
    if (t->options->out) {
        fprintf(t->options->out, "rank %u of %u: param hash %s\n", t->comm->rank, t->comm->size,
                t->param_hash);
        fflush(t->options->out);
    }
    /* Nobody goes before all are through: a closed connection would look like a loss. */
    return pl_comm_barrier(t->comm, err);
}

int pl_trainer_fit(struct pl_trainer *trainer, struct pl_error *err)
{
    struct pl_error own = {0};
    int r;

    err = err ? err : &own;
    if (trainer->comm->rank == 0) {
        char world[16];

        snprintf(world, sizeof(world), "%u", trainer->comm->size);
        pl_report_fact(trainer->report, "world_size", world);
        if (trainer->module->objective)
            pl_report_fact(trainer->report, "objective", trainer->module->objective);
    }
    r = fit(trainer, err);
    if (r < 0 && r != -ECONNRESET)
        pl_comm_abort(trainer->comm, pl_error_text(err));
    return r;
}
