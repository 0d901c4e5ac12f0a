/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/stage.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/util/crash.h"
#include "runtime/engine/util/rng.h"

#include <string.h>

#define STREAM_DROPOUT 0x64726f70u
#define STREAM_LANE 0x7475726eu

const char *pl_stage_prefix(enum plume_stage kind)
{
    static const char *const prefix[] = {"train_", "val_", "test_"};

    return prefix[kind];
}

/* For synchronised batch norm. */
static int sum_over_ranks(void *ctx, double *sums, size_t n)
{
    return pl_comm_allreduce(ctx, sums, n, PL_REAL_F64, 1, NULL);
}

int pl_lane_init(const struct pl_stage *s,
                 struct pl_lane *lane,
                 unsigned optimizer_idx,
                 struct pl_error *err)
{
    const struct pl_context *ctx = s->hooks->ctx;
    bool train = s->kind == PLUME_TRAIN;
    /* Ranks, lanes and parts (parts.c) drop different elements. */
    uint64_t seed = pl_rng_seed(s->options->seed, STREAM_DROPOUT + ctx->share);
    int r;

    if (optimizer_idx)
        seed = pl_rng_seed(seed, STREAM_LANE + optimizer_idx);
    r = pl_parts_init(&lane->parts, s->replicas, ctx->params.real, train, seed, err);
    for (unsigned i = 0; r == 0 && i < lane->parts.n_tapes; i++) {
        struct pl_tape *tape = &lane->parts.list[i].tape;

        pl_precision_tape(s->options, tape);
        if (ctx->split) {
            struct pl_tape *traced = &lane->parts.list[i].traced.whole;

            pl_tape_init(traced, tape->dev, ctx->params.real, train);
            pl_precision_tape(s->options, traced);
            traced->channels_last = false;
            traced->on_tables = false; /* an embedding is whole: its layer could not be split */
            tape->peers = ctx->split->peers;
        }
        if (ctx->split || lane->parts.n_tapes > 1) /* what passes between tapes is row-major */
            tape->channels_last = false;
        tape->on_tables = tape->on_tables && !s->options->xla; /* not measured there */
        tape->recompute = train && s->options->recompute;
        tape->graphs = s->options->graphs && !tape->recompute;
        tape->lone_norms =
            s->options->run != PL_RUN_TRAIN || (s->options->sync_batchnorm && ctx->n_shares > 1);
        lane->parts.list[i].traced.whole.lone_norms = tape->lone_norms;
        if (s->options->sync_batchnorm && train && ctx->copies->size > 1) {
            tape->allreduce = sum_over_ranks;
            tape->allreduce_ctx = ctx->copies;
        }
    }
    return r;
}

/* The dry step learns the names that the lane logs. */
static int add_lane(struct pl_stage *s, plume_tensor **ret_loss, struct pl_error *err)
{
    struct pl_lane *lanes = reallocarray(s->lanes, s->n_lanes + 1, sizeof(*lanes)), *lane;
    int r;

    if (!lanes)
        return pl_error_set(err, -ENOMEM, "out of memory");
    s->lanes = lanes;
    lane = &lanes[s->n_lanes];
    *lane = (struct pl_lane){0};
    r = pl_lane_init(s, lane, s->n_lanes, err);
    if (r < 0)
        return r;
    s->n_lanes++;
    r = pl_lane_trace(s, lane, pl_loader_dry(&s->loader), ret_loss, err);
    lane->parts.root->logs.closed = true;
    for (unsigned i = 0; i < lane->parts.n_tapes; i++)
        lane->parts.list[i].logs = lane->parts.root->logs;
    return r;
}

static int open_loader(struct pl_stage *s, const struct plume_data *data, struct pl_error *err)
{
    const struct pl_context *ctx = s->hooks->ctx;
    const struct pl_loader_options options = {
        .device = ctx->params.dev,
        .real = ctx->params.real,
        .batch_size = (size_t)pl_hparams_value(ctx->hparams, "batch_size"),
        .rank = ctx->share,
        .world_size = ctx->n_shares,
        .train = s->kind == PLUME_TRAIN,
        .keep_order = s->options->overfit.value > 0,
        .seed = s->options->seed,
        .prefetch = s->options->prefetch,
    };
    int r = pl_loader_open(&s->loader, data, &options, err);

    return r < 0 ? pl_error_wrap(err, r, "%sdata", pl_stage_prefix(s->kind)) : 0;
}

int pl_stage_open(struct pl_stage *stage,
                  enum plume_stage kind,
                  const struct pl_hooks *hooks,
                  const struct pl_train_options *options,
                  struct pl_replicas *replicas,
                  struct pl_error *err)
{
    struct plume_data data = {.struct_size = sizeof(data)};
    plume_tensor *loss = NULL;
    int r;

    *stage =
        (struct pl_stage){.kind = kind, .hooks = hooks, .options = options, .replicas = replicas};
    if (!pl_hooks_has_step(hooks, kind))
        return 0;
    pl_crash_hook("data");
    r = pl_context_result(hooks->ctx, hooks->module->data(&hooks->ctx->pub, kind, &data), "data",
                          err);
    if (r < 0)
        return r;
    if (data.n_fields == 0 && kind != PLUME_TRAIN)
        return 0;
    /* A file of predictions has a row for each sample, as Lightning's predict has. */
    if (options->run == PL_RUN_PREDICT)
        data.drop_last = 0;
    r = open_loader(stage, &data, err);
    if (r < 0)
        return r;
    stage->present = true;
    r = add_lane(stage, &loss, err);
    if (r == 0 && kind == PLUME_TRAIN && !loss)
        r = pl_error_set(err, -EINVAL, "hook training_step%s gave no loss",
                         hooks->module->training_step_end ? "_end" : "");
    return r;
}

void pl_stage_finish(struct pl_stage *stage)
{
    pl_loader_finish(&stage->loader);
    for (unsigned i = 0; i < stage->n_lanes; i++) {
        pl_parts_finish(&stage->lanes[i].parts);
        pl_reducer_finish(&stage->lanes[i].reducer);
    }
    free(stage->lanes);
    *stage = (struct pl_stage){0};
}

static void
toggle_grads(struct pl_stage *s, const struct pl_optimizers *optimizers, unsigned optimizer_idx)
{
    struct pl_context *ctx = s->hooks->ctx;

    ctx->pub.optimizer = optimizer_idx;
    for (size_t i = 0; i < ctx->params.n; i++)
        ctx->params.list[i]->tensor->wants_grad =
            pl_optimizer_has(&optimizers->list[optimizer_idx], ctx->params.list[i]);
    pl_unused_params_reset(&ctx->params);
}

int pl_stage_add_lanes(struct pl_stage *stage,
                       const struct pl_optimizers *optimizers,
                       struct pl_error *err)
{
    int r = 0;

    const struct plume_module *module = stage->hooks->module;

    if ((!module->step_per_optimizer && !module->manual_step) || optimizers->n == 1)
        return 0;
    for (unsigned i = 1; i < optimizers->n && r == 0; i++) {
        toggle_grads(stage, optimizers, i);
        r = add_lane(stage, NULL, err);
    }
    toggle_grads(stage, optimizers, 0);
    /* The first lane was traced with gradients for all parameters: drop that trace. */
    for (unsigned i = 0; i < stage->lanes[0].parts.n_tapes; i++) {
        pl_tape_begin(&stage->lanes[0].parts.list[i].tape);
        pl_tape_end(&stage->lanes[0].parts.list[i].tape);
    }
    return r;
}

void pl_stage_enter_lane(struct pl_stage *stage,
                         const struct pl_optimizers *optimizers,
                         unsigned optimizer_idx)
{
    if (stage->n_lanes > 1)
        toggle_grads(stage, optimizers, optimizer_idx);
}

uint64_t pl_stage_batches(const struct pl_stage *stage, const struct pl_loader *loader)
{
    const struct pl_train_options *o = stage->options;
    uint64_t n = pl_loader_batches(loader);

    if (o->fast_dev_run)
        return PL_MIN(n, o->fast_dev_run);
    if (o->overfit.value > 0 && stage->kind != PLUME_TEST)
        return pl_limit_of(&o->overfit, n);
    return pl_limit_of(&o->limit[stage->kind], n);
}

struct pl_tape *pl_stage_tape(const struct pl_stage *stage)
{
    return &stage->lanes[0].parts.list[0].tape;
}

const struct pl_logs *pl_stage_logs(const struct pl_stage *stage)
{
    static const struct pl_logs none;

    return stage->n_lanes ? &stage->lanes[0].parts.root->logs : &none;
}

/* The tape that hooks trace. */
static struct pl_tape *traced_tape(const struct pl_stage *s, struct pl_part *part)
{
    return s->hooks->ctx->split ? &part->traced.whole : &part->tape;
}

/* The loss on the root tape: the mean of the parts' losses, unless a hook makes it. */
static int trace_root(const struct pl_stage *s,
                      struct pl_lane *lane,
                      plume_tensor **ret_loss,
                      struct pl_error *err)
{
    const struct pl_hook_step step = {.stage = s->kind,
                                      .tape = traced_tape(s, lane->parts.root),
                                      .logs = &lane->parts.root->logs,
                                      .outputs = &lane->outputs};
    bool has_end = pl_hooks_has_step_end(s->hooks, s->kind);
    int r = pl_parts_begin_root(&lane->parts, &lane->outputs, err);

    /* With one part the hook may leave the step's loss as it is. */
    if (r == 0 && lane->outputs.list[0].part[0] && s->kind == PLUME_TRAIN &&
        (!has_end || lane->parts.n_devices == 1))
        r = pl_parts_mean(&lane->parts, &lane->outputs, ret_loss, err);
    if (r == 0 && has_end)
        r = pl_hooks_step_end(s->hooks, &step, ret_loss, err);
    return r;
}

/* The roots are the tensors that are read after the run. True if they have changed. */
static bool set_roots(struct pl_part *part, plume_tensor *loss, const struct plume_outputs *outputs)
{
    plume_tensor *roots[PL_TAPE_ROOTS_MAX];
    struct pl_split_tape *traced = &part->traced;
    size_t n = 0, before = traced->n_roots;
    bool same;

    if (loss)
        roots[n++] = loss;
    for (size_t i = 0; i < outputs->n; i++)
        if (outputs->list[i].part[0])
            roots[n++] = outputs->list[i].part[0];
    for (size_t i = 0; i < part->logs.n_pending && n < PL_TAPE_ROOTS_MAX; i++)
        roots[n++] = part->logs.pending[i].value;
    same = n == before && memcmp(roots, traced->roots, n * sizeof(*roots)) == 0;
    memcpy(traced->roots, roots, n * sizeof(*roots));
    traced->n_roots = n;
    return !same;
}

int pl_lane_split(struct pl_stage *stage,
                  struct pl_lane *lane,
                  plume_tensor **loss,
                  struct pl_error *err)
{
    const struct pl_context *ctx = stage->hooks->ctx;
    struct pl_part *part = lane->parts.root;
    unsigned number = 0;
    int r;

    if (loss && set_roots(part, *loss, &lane->outputs))
        part->traced.ready = false;
    if (!ctx->split->decided)
        return 0;
    r = pl_split_trace(ctx->split, &part->traced, &part->tape, &number, err);
    for (size_t i = 0; i < ctx->params.n && number; i++)
        if (ctx->params.list[i]->whole->number == number)
            return pl_error_set(err, r,
                                "a step uses parameter '%s' in another way than the first one, by "
                                "which --tensor-parallel has split it: leave --tensor-parallel out",
                                ctx->params.list[i]->name);
    if (r < 0 || !loss)
        return r;
    *loss = pl_split_made(&part->traced, *loss);
    for (size_t i = 0; i < lane->outputs.n; i++)
        lane->outputs.list[i].part[0] = pl_split_made(&part->traced, lane->outputs.list[i].part[0]);
    for (size_t i = 0; i < part->logs.n_pending; i++)
        part->logs.pending[i].value = pl_split_made(&part->traced, part->logs.pending[i].value);
    return 0;
}

int pl_lane_trace(struct pl_stage *stage,
                  struct pl_lane *lane,
                  const struct plume_batch *batch,
                  plume_tensor **ret_loss,
                  struct pl_error *err)
{
    struct pl_hook_step step = {.stage = stage->kind, .outputs = &lane->outputs};
    struct pl_parts *parts = &lane->parts;
    plume_tensor *loss = NULL;
    int r = 0;

    pl_parts_split(parts, batch);
    pl_outputs_begin(&lane->outputs, parts->n);
    for (unsigned i = 0; i < parts->n && r == 0; i++) {
        struct pl_part *part = &parts->list[i];

        step.tape = traced_tape(stage, part);
        step.logs = parts->root->logs.closed ? &part->logs : &parts->root->logs;
        pl_tape_begin(step.tape);
        r = pl_hooks_step(stage->hooks, &step, &part->batch, i, err);
        if (part != parts->root)
            pl_tape_end(step.tape);
    }
    if (r == 0)
        r = trace_root(stage, lane, &loss, err);
    pl_tape_end(traced_tape(stage, parts->root));
    if (r == 0 && stage->hooks->ctx->split)
        r = pl_lane_split(stage, lane, &loss, err);
    if (r == 0 && ret_loss)
        *ret_loss = loss;
    return r;
}

int pl_lane_forward(struct pl_lane *lane, plume_tensor *loss, uint64_t draw, struct pl_error *err)
{
    return pl_parts_forward(&lane->parts, &lane->outputs, loss, draw, err);
}

int pl_lane_assist(struct pl_stage *stage, struct pl_lane *lane, bool output, struct pl_error *err)
{
    plume_tensor *out = NULL;
    int r = pl_lane_trace(stage, lane, pl_loader_dry(&stage->loader), output ? &out : NULL, err);

    if (r == 0)
        r = pl_parts_prepare(&lane->parts, &lane->outputs, out, err);
    return r < 0 ? r
                 : pl_units_assist(stage->hooks->ctx->params.units, &lane->parts.units,
                                   &lane->parts.root->tape, err);
}

int pl_lane_check_labels(const struct pl_lane *lane, struct pl_error *err)
{
    const struct pl_tape *tapes[PL_PARTS_MAX + 1];
    size_t n = pl_parts_tapes(&lane->parts, tapes);
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++)
        r = pl_op_check_labels(tapes[i], err);
    return r;
}

void pl_lane_clear_logs(struct pl_lane *lane)
{
    for (unsigned i = 0; i < lane->parts.n_tapes; i++)
        memset(lane->parts.list[i].logs.sum, 0, sizeof(lane->parts.list[i].logs.sum));
}

void pl_lane_logged(const struct pl_lane *lane, size_t index, double ret[2])
{
    const struct pl_part *root = lane->parts.root;

    memcpy(ret, root->logs.sum[index], 2 * sizeof(*ret));
    for (const struct pl_part *part = lane->parts.list; part != root; part++) {
        ret[0] += part->logs.sum[index][0];
        ret[1] += part->logs.sum[index][1];
    }
}
