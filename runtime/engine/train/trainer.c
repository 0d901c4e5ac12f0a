/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/trainer.h"
#include "runtime/engine/train/eval.h"
#include "runtime/engine/train/lanes.h"
#include "runtime/engine/train/train_step.h"
#include "runtime/engine/util/crash.h"
#include "runtime/engine/util/rng.h"

#define STREAM_DROPOUT 0x64726f70u
#define STREAM_TURN 0x7475726eu

/* For synchronised batch norm. */
static int sum_over_ranks(void *ctx, double *sums, size_t n)
{
    return pl_comm_allreduce(ctx, sums, n, PL_REAL_F64, 1, NULL);
}

int pl_trainer_tapes(struct pl_trainer *t,
                     enum plume_stage stage,
                     unsigned turn,
                     struct pl_stage *s,
                     struct pl_error *err)
{
    int r;

    pl_tape_init(&s->tape, t->dev, t->ctx.params.real, stage == PLUME_TRAIN);
    /* Ranks drop different elements; so do the parts of a rank (parts.c) and
     * optimizers that take turns. */
    s->tape.seed = pl_rng_seed(t->options->seed, STREAM_DROPOUT + t->comm->rank);
    if (turn)
        s->tape.seed = pl_rng_seed(s->tape.seed, STREAM_TURN + turn);
    pl_precision_tape(t->options, &s->tape);
    s->tape.graphs = t->options->graphs;
    if (t->options->sync_batchnorm && stage == PLUME_TRAIN && t->comm->size > 1) {
        s->tape.allreduce = sum_over_ranks;
        s->tape.allreduce_ctx = t->comm;
    }
    if (t->strategy.devices > 1 &&
        (r = pl_parts_create(&t->replicas, t->ctx.params.real, stage == PLUME_TRAIN, s->tape.seed,
                             &s->parts, err)) < 0)
        return r;
    for (unsigned i = 0; s->parts && i < s->parts->k; i++) {
        pl_precision_tape(t->options, &s->parts->list[i].tape);
        s->parts->list[i].tape.graphs = t->options->graphs;
    }
    if (s->parts) {
        pl_precision_tape(t->options, &s->parts->root);
        s->parts->root.graphs = t->options->graphs;
    }
    return 0;
}

static int open_stage(struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    struct plume_data data = {.struct_size = sizeof(data)};
    struct pl_stage *s = &t->stage[stage];
    plume_tensor *loss = NULL;
    int r;

    if (stage != PLUME_TRAIN && !pl_train_step_has_hook(t, stage))
        return 0;
    pl_crash_hook("data");
    r = pl_context_result(&t->ctx, t->module->data(&t->ctx.pub, stage, &data), "data", err);
    if (r < 0)
        return r;
    if (data.n_fields == 0 && stage != PLUME_TRAIN)
        return 0;
    r = pl_loader_open(&s->loader, &data,
                       &(struct pl_loader_options){
                           .device = t->dev,
                           .real = t->ctx.params.real,
                           .batch_size = (size_t)pl_hparams_value(t->hparams, "batch_size"),
                           .rank = t->comm->rank,
                           .world_size = t->comm->size,
                           .train = stage == PLUME_TRAIN,
                           .keep_order = t->options->overfit.value > 0,
                           .seed = t->options->seed,
                           .prefetch = t->options->prefetch,
                       },
                       err);
    if (r < 0)
        return pl_error_wrap(err, r, "%sdata", pl_eval_prefix(stage));
    s->present = true;
    r = pl_trainer_tapes(t, stage, 0, s, err);
    if (r < 0)
        return r;
    r = pl_train_step_trace(t, stage, pl_loader_dry(&s->loader), &loss, err);
    s->logs.closed = true;
    for (unsigned i = 0; s->parts && i < s->parts->k; i++)
        s->parts->list[i].logs = s->logs;
    if (r == 0 && stage == PLUME_TRAIN && !loss)
        r = pl_error_set(err, -EINVAL, "hook training_step%s gave no loss",
                         t->module->training_step_end ? "_end" : "");
    return r;
}

static int set_optimizers(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_context *ctx = &t->ctx;
    int r = 0;

    pl_optimizer_defaults(t->hparams, t->options->optimizer, &ctx->optimizer_defaults);
    ctx->optimizers[0] = ctx->optimizer_defaults;
    ctx->n_optimizers = 1;
    pl_crash_hook("configure_optimizers");
    if (t->module->configure_optimizers)
        r = pl_context_result(ctx, t->module->configure_optimizers(&ctx->pub, &ctx->optimizers[0]),
                              "configure_optimizers", err);
    if (r == 0)
        r = pl_optimizers_init(&t->optimizers, &ctx->params, ctx->optimizers, ctx->n_optimizers,
                               err);
    ctx->n_optimizers = 0;
    if (r == 0)
        pl_optimizers_scale(&t->optimizers, t->strategy.rate);
    return r;
}

/* What a resumed run of rank 0 has, all have. */
static int broadcast_optimizers(struct pl_trainer *t, struct pl_error *err)
{
    size_t size = pl_real_size(t->ctx.params.real);
    int r = 0;

    for (size_t i = 0; i < t->optimizers.n && r == 0; i++) {
        struct pl_optimizer *o = &t->optimizers.list[i];

        for (size_t k = 0; k < pl_optimizer_slots(o) && r == 0; k++)
            if (o->slot[k])
                r = pl_comm_broadcast_on(t->comm, t->dev, o->slot[k], o->count * size, err);
        if (r == 0)
            r = pl_comm_broadcast(t->comm, &o->steps, sizeof(o->steps), err);
    }
    for (size_t i = 0; i < t->ctx.params.n && r == 0; i++)
        r = pl_comm_broadcast(t->comm, &t->ctx.params.list[i]->missed,
                              sizeof(t->ctx.params.list[i]->missed), err);
    return r;
}

/* Where reductions run beside backward, the sooner they begin the better. */
static size_t first_bucket(const struct pl_trainer *t, size_t bytes)
{
    return t->comm->device && !t->strategy.fused ? PL_MIN(bytes, PL_NCCL_FIRST_BYTES) : bytes;
}

static int set_reducer(struct pl_trainer *t, struct pl_error *err)
{
    struct plume_ddp ddp = {
        .struct_size = sizeof(ddp),
        .bucket_bytes = t->strategy.fused ? PL_FUSED_BYTES
                        : t->comm->device ? PL_NCCL_BUCKET_BYTES
                                          : PL_BUCKET_BYTES,
    };
    int r = 0;

    pl_crash_hook("configure_ddp");
    if (t->strategy.reduces && t->module->configure_ddp)
        r = pl_context_result(&t->ctx, t->module->configure_ddp(&t->ctx.pub, &ddp), "configure_ddp",
                              err);
    if (r == 0 && ddp.bucket_bytes == 0)
        r = pl_error_set(err, -EINVAL, "hook configure_ddp: buckets of 0 bytes");
    if (r == 0)
        r = pl_lanes_init(t, err);
    for (unsigned i = 0; i < t->n_turns && r == 0; i++) {
        struct pl_reducer *reducer = i ? &t->turns[i - 1].reducer : &t->reducer;

        r = pl_reducer_init(reducer, &t->ctx.params, t->n_turns > 1 ? &t->optimizers.list[i] : NULL,
                            t->comm, first_bucket(t, ddp.bucket_bytes), ddp.bucket_bytes, err);
        reducer->own = ddp.reduce;
        reducer->pl = &t->ctx.pub;
        if (r == 0 && t->comm->device && t->options->reduce_in != PL_HALF_NONE)
            r = pl_reducer_narrow(reducer, t->options->reduce_in, err);
    }
    return r;
}

/* Once a node; data files are not looked for before. */
static int prepare_data(struct pl_trainer *t, struct pl_error *err)
{
    int r = 0;

    if (!t->module->prepare_data)
        return 0;
    if (t->comm->place.local_rank == 0)
        r = pl_trainer_hook(t, t->module->prepare_data, "prepare_data", err);
    return r == 0 ? pl_comm_barrier(t->comm, err) : r;
}

static int build(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_params *params = &t->ctx.params;
    int r = prepare_data(t, err);

    if (r < 0)
        return r;
    t->ctx.configuring = true;
    pl_crash_hook("configure");
    r = pl_context_result(&t->ctx, t->module->configure(&t->ctx.pub), "configure", err);
    t->ctx.configuring = false;
    for (int stage = PLUME_TRAIN; stage <= PLUME_TEST && r == 0; stage++)
        r = open_stage(t, (enum plume_stage)stage, err);
    if (r == 0)
        r = pl_params_layout(params, pl_train_step_tape(t), t->comm, err);
    if (r == 0)
        r = set_optimizers(t, err);
    if (r < 0)
        return r;
    /* Every rank starts from the same seed, so these are the same numbers wherever libm is the
     * same; rank 0's count. */
    r = pl_params_init_values(params, t->options->seed, err);
    if (r == 0)
        r = pl_checkpointer_take_weights(t, err);
    if (r == 0)
        r = pl_precision_round(t->options, t->kernels, params, err);
    pl_precision_scaler(t->options, &t->scaler);
    params->values_version++;
    if (r == 0)
        r = pl_comm_broadcast_on(t->comm, t->dev, params->values,
                                 params->count * pl_real_size(params->real), err);
    if (r < 0)
        return r;
    r = set_reducer(t, err);
    if (r == 0)
        r = pl_logger_open(&t->logger, t->report, t->comm->rank == 0 ? t->options->log_dir : NULL,
                           t->comm->rank == 0 ? t->options->out : NULL, t->hparams, err);
    if (r == 0)
        r = pl_checkpointer_init(&t->keeper, t, err);
    if (r == 0)
        r = pl_checkpointer_resume(&t->keeper, t, err);
    if (r == 0 && t->strategy.kind == PL_STRATEGY_HOROVOD)
        r = broadcast_optimizers(t, err);
    return r;
}

int pl_trainer_init(struct pl_trainer *trainer,
                    const struct plume_module *module,
                    const struct pl_hparams *hparams,
                    const struct pl_train_options *options,
                    struct pl_comm *comm,
                    struct pl_rank_report *report,
                    struct pl_error *err)
{
    struct pl_device *dev = options->device ? options->device : pl_device_cpu();
    enum pl_real real = pl_precision_real(options);
    int r;

    *trainer = (struct pl_trainer){
        .module = module,
        .options = options,
        .hparams = hparams,
        .comm = comm,
        .report = report,
        .dev = dev,
        .kernels = dev->ops->kernels(dev, real),
    };
    pl_device_enter(dev);
    r = pl_strategy_choose(options, &comm->place, comm->size, &trainer->strategy, err);
    if (r < 0)
        return r;
    r = pl_context_init(&trainer->ctx, dev, hparams, real, module->state_size, comm->rank,
                        comm->size, err);
    if (r < 0)
        return r;
    trainer->ctx.comm = comm;
    comm->ordered = options->deterministic;
    r = pl_replicas_init(&trainer->replicas, &trainer->ctx.params, options->part_devices,
                         trainer->strategy.devices, err);
    if (r == 0)
        r = build(trainer, err);
    if (r < 0) {
        pl_comm_fail(comm, r, err);
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
        pl_parts_destroy(trainer->stage[i].parts);
    }
    pl_lanes_finish(trainer);
    pl_checkpointer_finish(&trainer->keeper);
    pl_logger_close(&trainer->logger, trainer->param_hash[0]);
    pl_reducer_finish(&trainer->reducer);
    pl_optimizers_finish(&trainer->optimizers);
    pl_replicas_finish(&trainer->replicas);
    pl_context_finish(&trainer->ctx);
}

int pl_trainer_hook(struct pl_trainer *trainer,
                    int (*hook)(struct plume_context *pl),
                    const char *name,
                    struct pl_error *err)
{
    trainer->ctx.pub.step = trainer->step;
    trainer->ctx.pub.epoch = trainer->epoch;
    pl_crash_hook(name);
    return hook ? pl_context_result(&trainer->ctx, hook(&trainer->ctx.pub), name, err) : 0;
}
