/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/trainer.h"
#include "common/base/log.h"
#include "runtime/engine/optim/optimizers_alike.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/params/draw.h"
#include "runtime/engine/train/data_alike.h"
#include "runtime/engine/train/manual.h"
#include "runtime/engine/train/memory_need.h"
#include "runtime/engine/train/pipe_as.h"
#include "runtime/engine/train/weights.h"
#include "runtime/engine/train/xla_step.h"
#include "runtime/engine/util/crash.h"

static int set_optimizers(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_context *ctx = &t->ctx;
    bool together =
        t->options->run == PL_RUN_TRAIN && t->strategy.reduces && !t->strategy.average_every;
    int r = 0;

    pl_optimizer_defaults(t->hparams, t->options->optimizer, &ctx->optimizer_defaults);
    ctx->optimizers[0] = ctx->optimizer_defaults;
    ctx->n_optimizers = 1;
    pl_crash_hook("configure_optimizers");
    if (t->module->configure_optimizers)
        r = pl_context_result(ctx, t->module->configure_optimizers(&ctx->pub, &ctx->optimizers[0]),
                              "configure_optimizers", err);
    if (r == 0 && together)
        r = pl_clip_alike(&(struct pl_clip_rule){t->options->clip_by, t->options->clip}, t->comm,
                          err);
    if (r == 0 && together)
        r = pl_optimizers_alike(&ctx->params, ctx->optimizers, ctx->n_optimizers, ctx->groups,
                                ctx->n_groups, t->comm, err);
    if (r == 0)
        r = pl_optimizers_init_groups(&t->optimizers, &ctx->params, ctx->optimizers,
                                      ctx->n_optimizers, ctx->groups, ctx->n_groups, err);
    ctx->n_optimizers = ctx->n_groups = 0;
    if (r == 0)
        r = pl_optimizers_share(&t->optimizers,
                                t->strategy.shard ? t->group.shards
                                : t->pipe.on      ? t->pipe.comm
                                                  : NULL,
                                t->options->deterministic, err);
    t->optimizers.graphs = t->options->graphs && !t->options->recompute;
    if (r == 0)
        pl_optimizers_scale(&t->optimizers, t->strategy.lr_scale);
    return r;
}

/* All ranks get the optimizer state of rank 0, which may have resumed. */
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

/* Reductions that run beside backward should begin early. */
static size_t first_bucket(const struct pl_trainer *t, size_t bytes)
{
    return t->comm->gpu && !t->strategy.fused ? PL_MIN(bytes, PL_NCCL_FIRST_BYTES) : bytes;
}

static int set_reducers(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    struct plume_ddp ddp = {
        .struct_size = sizeof(ddp),
        .bucket_bytes = t->strategy.fused ? PL_FUSED_BYTES
                        : t->comm->gpu    ? PL_NCCL_BUCKET_BYTES
                                          : PL_BUCKET_BYTES,
    };
    const struct pl_params *params = &t->ctx.params;
    size_t share = params->flags * pl_real_size(params->real) / PL_SHARD_BUCKETS;
    int r = 0;

    if (t->strategy.shard >= PL_SHARD_GRAD) /* a few buckets have memory at a time */
        ddp.bucket_bytes = PL_MIN(ddp.bucket_bytes, PL_MAX(share, PL_SHARD_BUCKET_BYTES));
    pl_crash_hook("configure_ddp");
    if (t->strategy.reduces && t->module->configure_ddp)
        r = pl_context_result(&t->ctx, t->module->configure_ddp(&t->ctx.pub, &ddp), "configure_ddp",
                              err);
    if (r == 0 && t->pipe.on && ddp.reduce)
        r = pl_error_set(
            err, -EINVAL,
            "hook configure_ddp has a reduction of its own, and with strategy pipeline "
            "no rank has all gradients: choose ddp");
    if (r == 0 && t->tp.on && ddp.reduce)
        r = pl_error_set(err, -EINVAL,
                         "hook configure_ddp has a reduction of its own, and with "
                         "--tensor-parallel no rank has all gradients: leave it out");
    if (r == 0 && ddp.bucket_bytes == 0)
        r = pl_error_set(err, -EINVAL, "hook configure_ddp: buckets of 0 bytes");
    if (r == 0 && params->shard == PL_SHARD_PARAM)
        r = pl_units_init(&t->units, &t->ctx.params, t->group.shards, ddp.bucket_bytes, err);
    if (r == 0)
        r = pl_stage_add_lanes(stage, &t->optimizers, err);
    for (unsigned i = 0; i < stage->n_lanes && r == 0; i++) {
        struct pl_reducer *reducer = &stage->lanes[i].reducer;

        r = pl_reducer_init(reducer, &t->ctx.params,
                            stage->n_lanes > 1 ? &t->optimizers.list[i] : NULL,
                            t->pipe.on || t->tp.on ? t->ctx.copies : t->comm,
                            first_bucket(t, ddp.bucket_bytes), ddp.bucket_bytes, err);
        if (t->strategy.shard) {
            reducer->shards = t->group.shards;
            reducer->copies = t->group.copies;
        }
        reducer->alone = t->strategy.average_every > 0;
        reducer->own = ddp.reduce;
        reducer->pl = &t->ctx.pub;
        if (r == 0 && t->ctx.copies->gpu && t->options->reduce_in != PL_HALF_NONE)
            r = pl_reducer_narrow(reducer, t->options->reduce_in, err);
    }
    return r;
}

/* Sums and update are one pass where nothing comes between them: all ranks are on this node, no
 * hook of the module may read or change gradients before the update, and no rank measures them. */
static int set_node_step(struct pl_trainer *t, struct pl_error *err)
{
    const struct plume_module *m = t->module;
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];

    if (!t->ctx.params.by_node || pl_comm_node(t->comm) != t->comm || stage->n_lanes != 1 ||
        m->on_after_backward || m->on_before_optimizer_step || m->manual_step ||
        t->scaler.enabled ||
        pl_clip_wants_norm(&(struct pl_clip_rule){t->options->clip_by, t->options->clip}))
        return 0;
    return pl_node_step_init(&t->node_step, t->comm, &t->optimizers, &t->ctx.params,
                             &stage->lanes[0].reducer, t->kernels, err);
}

/* Runs once per node, before any rank opens data files. */
static int prepare_data(struct pl_trainer *t, struct pl_error *err)
{
    int r = 0;

    if (!t->module->prepare_data)
        return 0;
    if (t->comm->world.local_rank == 0)
        r = pl_hooks_call(&t->hooks, t->module->prepare_data, "prepare_data", err);
    return r == 0 ? pl_comm_barrier(t->comm, err) : r;
}

/* From --weights. All ranks read the same file, so rank 0 reports what did not fit. */
static int load_weights(struct pl_trainer *t, struct pl_error *err)
{
    _cleanup_free_ char *report = NULL;
    bool averaged = false;
    int r;

    if (!t->options->weights)
        return 0;
    r = pl_weights_load(&t->ctx.params, t->options, &averaged, &report, err);
    if (r == 0 && averaged && t->comm->rank == 0)
        pl_log_warn("train",
                    "'%s' has parameters and their moving average: this run takes the average "
                    "(--no-ema: the parameters)",
                    t->options->weights);
    if (r == 0 && report && t->comm->rank == 0)
        pl_log_warn("train", "'%s' does not fit everywhere: %s", t->options->weights, report);
    return r;
}

static int cut_stages(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_optimizer usual = {0};

    if (t->module->step_per_optimizer)
        return pl_error_set(err, -EINVAL,
                            "a module whose optimizers take turns (step_per_optimizer) has several "
                            "steps, and strategy pipeline cuts one: choose ddp");
    if (!t->stage[PLUME_TRAIN].present)
        return pl_error_set(err, -EINVAL,
                            "strategy pipeline cuts a training_step, which the module does not "
                            "have");
    pl_optimizer_defaults(t->hparams, t->options->optimizer, &usual.options);
    if (t->module->configure_optimizers) /* it is called later, with the parameters' places */
        usual.options.kind = PLUME_ADAM;
    t->pipe.slots_assumed = pl_optimizer_slots(&usual);
    return pl_pipe_cut_as(&t->pipe, err);
}

static int split_layers(struct pl_trainer *t, struct pl_error *err)
{
    int r;

    if (t->module->step_per_optimizer)
        return pl_error_set(err, -EINVAL,
                            "a module whose optimizers take turns (step_per_optimizer) has several "
                            "steps, and --tensor-parallel splits one: leave it out");
    r = pl_tensor_parallel_split(&t->tp, t->stage, &t->ctx.params, err);
    if (r == 0 && t->comm->rank == 0 && t->options->out && !t->options->json)
        pl_tensor_parallel_print(&t->tp, &t->ctx.params, t->options->out);
    return r;
}

static int broadcast_values(struct pl_trainer *t, struct pl_error *err)
{
    const struct pl_params *params = &t->ctx.params;

    if (params->shard == PL_SHARD_PARAM) /* they are rank 0's already */
        return 0;
    if (pl_params_drawn_together(params, t->comm) && !t->options->weights)
        return 0;
    return pl_comm_broadcast_on(t->ctx.copies, t->dev, params->values,
                                pl_params_held(params) * pl_real_size(params->real), err);
}

/* Says that the memory did not suffice even before the first step, and names options that need
 * less. */
static int tell_memory(const struct pl_trainer *t, int r, struct pl_error *err)
{
    const struct pl_params *params = &t->ctx.params;
    size_t count = 0;

    if (r != -ENOMEM)
        return r;
    for (size_t i = 0; i < params->n; i++)
        count += params->list[i]->tensor->count;
    return pl_error_wrap(err, r,
                         "%zu parameters, their gradients and the optimizers' state do not fit in "
                         "the memory of rank %u (%s)",
                         count, t->comm->rank,
                         t->pipe.on ? "more stages have smaller shares, and more microbatches "
                                      "smaller tensors"
                         : params->shard == PL_SHARD_PARAM
                             ? "more ranks have smaller shares"
                             : "--strategy sharded --shard param shares them among ranks, "
                               "--strategy pipeline the layers");
}

/* True if all ranks have the same parameters and gradients, on the host, when they update. A
 * module's hook configure_ddp may have a reduction of its own, which is known too late.
 */
static bool updates_by_node(const struct pl_trainer *t)
{
    return t->options->run == PL_RUN_TRAIN && t->strategy.reduces && !t->strategy.shard &&
           !t->strategy.average_every && !t->pipe.on && !t->tp.on && !t->options->xla &&
           t->dev->ops->host && !t->module->configure_ddp;
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
        r = pl_stage_open(&t->stage[stage], (enum plume_stage)stage, &t->hooks, t->options,
                          &t->replicas, err);
    if (r == 0)
        r = pl_data_alike(t, err);
    params->shard = t->strategy.shard;
    params->shards = t->pipe.on ? t->pipe.comm : t->group.shards;
    params->meets = updates_by_node(t) ? t->comm : NULL;
    params->evaluates = t->options->run != PL_RUN_TRAIN && t->dev->ops->host && !t->options->xla &&
                        !t->pipe.on && !t->strategy.shard;
    params->by_node = params->meets && pl_comm_node(t->comm) ? t->comm : NULL;
    if (r == 0)
        r = pl_manual_check(t, err);
    if (r == 0 && t->tp.on)
        r = split_layers(t, err);
    if (r == 0 && t->pipe.on)
        r = cut_stages(t, err);
    if (r == 0)
        r = pl_memory_check_group(t, err);
    if (r == 0)
        r = pl_params_layout(
            params, t->pipe.on ? pl_pipe_tape(&t->pipe) : pl_stage_tape(&t->stage[PLUME_TRAIN]),
            t->comm, err);
    if (r == 0 && t->pipe.on)
        r = pl_pipe_settle(&t->pipe, err);
    if (r == 0)
        r = set_optimizers(t, err);
    if (r == 0 && t->options->ema > 0 && t->options->run == PL_RUN_TRAIN)
        r = pl_ema_init(&t->ema, params, t->options->ema, err);
    if (r < 0)
        return tell_memory(t, r, err);
    /* All ranks draw the same numbers. A module's own values, and files of weights, may differ
     * between nodes: rank 0's count. */
    r = pl_params_init_values(params, t->comm, t->options->seed, err);
    if (r == 0)
        r = load_weights(t, err);
    if (r == 0)
        r = pl_precision_round(t->options, t->kernels, params, err);
    pl_precision_scaler(t->options, &t->scaler);
    params->values_version++;
    if (r == 0)
        r = broadcast_values(t, err);
    if (r < 0)
        return r;
    r = set_reducers(t, err);
    if (r == 0)
        r = set_node_step(t, err);
    if (r == 0)
        r = pl_logger_open(&t->logger, t->report, t->comm->rank == 0 ? t->options->log_dir : NULL,
                           t->comm->rank == 0 ? t->options->out : NULL, t->hparams, err);
    if (r == 0)
        r = pl_checkpointer_init(&t->checkpointer, t->options, &t->hooks, &t->state, err);
    if (t->stage[PLUME_TRAIN].present)
        t->state.samples = t->stage[PLUME_TRAIN].loader.sampler.total;
    if (r == 0)
        r = pl_checkpointer_resume(&t->checkpointer, err);
    if (r == 0 && t->strategy.kind == PL_STRATEGY_HOROVOD)
        r = broadcast_optimizers(t, err);
    if (r == 0)
        r = pl_xla_step_open(t, err);
    return r == 0 ? pl_pipe_share(&t->pipe, err) : r;
}

/* The copy of the model that rank 0 has is saved by the ranks that have it between them. */
static int set_savers(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_comm *copy = t->strategy.shard ? t->group.shards : t->pipe.on ? t->pipe.comm : NULL;
    bool first = t->strategy.shard ? copy->world_ranks[0] == t->ctx.copies->world_ranks[0]
                 : t->pipe.on      ? t->pipe.pipe == 0
                                   : t->tp.group == 0;
    int r = t->tp.on ? pl_tensor_parallel_join(&t->tp, first, copy, &copy, err) : 0;

    t->state.savers = first ? copy : NULL;
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
    r = pl_strategy_choose(options, &comm->world, comm->size, &trainer->strategy, err);
    if (r < 0)
        return r;
    r = pl_context_init(&trainer->ctx, dev, hparams, real, module->state_size, comm->rank,
                        comm->size, err);
    if (r < 0)
        return r;
    trainer->ctx.params.half_dtype = pl_precision_half(options);
    trainer->ctx.comm = trainer->ctx.copies = comm;
    comm->ordered = options->deterministic; /* before it is split */
    r = pl_tensor_parallel_open(&trainer->tp, &trainer->strategy, comm, dev, err);
    if (r == 0 && trainer->tp.on) {
        trainer->ctx.copies = trainer->tp.copies;
        trainer->ctx.share = trainer->tp.group;
        trainer->ctx.n_shares = trainer->tp.n_groups;
        trainer->ctx.split = &trainer->tp.split;
    }
    if (r == 0)
        r = pl_pipe_open(&trainer->pipe, &trainer->strategy, options, &trainer->ctx.params,
                         trainer->stage, trainer->ctx.copies, trainer->tp.peers, err);
    if (r == 0 && trainer->pipe.on) {
        trainer->ctx.copies = trainer->pipe.copies;
        trainer->ctx.share = trainer->pipe.pipe;
        trainer->ctx.n_shares = trainer->pipe.n_pipes;
    }
    if (options->xla) {
        trainer->ctx.share = comm->rank * PL_MAX(options->replicas, 1u);
        trainer->ctx.n_shares = comm->size * PL_MAX(options->replicas, 1u);
    }
    trainer->hooks = (struct pl_hooks){.module = module,
                                       .ctx = &trainer->ctx,
                                       .step = &trainer->state.step,
                                       .epoch = &trainer->state.epoch,
                                       .predict = options->run == PL_RUN_PREDICT};
    trainer->state = (struct pl_train_state){
        .module = module->name,
        .params = &trainer->ctx.params,
        .optimizers = &trainer->optimizers,
        .scaler = &trainer->scaler,
        .ema = &trainer->ema,
        .metrics = &trainer->metrics,
        .hparams = hparams,
        .seed = options->seed,
        .stop_rule = &options->stop,
        .samples_per_step =
            (uint64_t)pl_hparams_value(hparams, "batch_size") * trainer->ctx.n_shares,
    };
    if (r == 0)
        r = pl_shard_group_open(&trainer->group,
                                !trainer->strategy.shard || !options->shard_in_node ? NULL
                                : trainer->tp.on ? "groups of --tensor-parallel"
                                                 : "ranks",
                                trainer->tp.on ? trainer->tp.copies : comm, dev, err);
    if (r == 0)
        r = set_savers(trainer, err);
    if (r == 0)
        r = pl_replicas_init(&trainer->replicas, &trainer->ctx.params, options->part_devices,
                             trainer->strategy.devices, err);
    if (r == 0)
        r = build(trainer, err);
    if (r < 0) {
        pl_pipe_fail(&trainer->pipe, r, err);
        pl_tensor_parallel_fail(&trainer->tp, r, err);
        pl_shard_group_fail(&trainer->group, r, err);
        pl_comm_fail(comm, r, err);
        pl_trainer_finish(trainer);
        return r;
    }
    return 0;
}

void pl_trainer_time(struct pl_trainer *trainer, struct pl_timeline *timeline)
{
    trainer->timeline = timeline;
    trainer->optimizers.graphs = false;
    for (size_t s = 0; s < PL_COUNT(trainer->stage); s++)
        for (unsigned i = 0; i < trainer->stage[s].n_lanes; i++) {
            struct pl_lane *lane = &trainer->stage[s].lanes[i];

            lane->reducer.timeline = timeline;
            for (unsigned k = 0; k < lane->parts.n_tapes; k++) {
                lane->parts.list[k].tape.timed = true;
                lane->parts.list[k].tape.timeline = timeline;
            }
        }
}

void pl_trainer_finish(struct pl_trainer *trainer)
{
    if (trainer->pipe.on)
        pl_pipe_finish(&trainer->pipe);
    pl_xla_replicas_finish(&trainer->xla);
    for (size_t i = 0; i < PL_COUNT(trainer->stage); i++)
        pl_stage_finish(&trainer->stage[i]);
    pl_checkpointer_finish(&trainer->checkpointer);
    pl_logger_close(&trainer->logger, trainer->param_hash[0]);
    pl_ema_finish(&trainer->ema);
    pl_node_step_finish(&trainer->node_step);
    pl_optimizers_finish(&trainer->optimizers);
    pl_replicas_finish(&trainer->replicas);
    pl_units_finish(&trainer->units);
    pl_context_finish(&trainer->ctx);
    pl_shard_group_finish(&trainer->group); /* gradients may lie in its memory */
    pl_tensor_parallel_finish(&trainer->tp);
}
