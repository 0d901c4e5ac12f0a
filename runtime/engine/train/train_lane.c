/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/train_lane.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/params/halves.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/pipe_balance.h"
#include "runtime/engine/train/xla_step.h"

#include <math.h>

static int check_loss(const struct pl_trainer *t,
                      const struct pl_lane *lane,
                      double value,
                      struct pl_error *err)
{
    int r = !isnan(value) ? 0
            : t->pipe.on  ? pl_pipe_check_labels(&t->pipe, PLUME_TRAIN, err)
                          : pl_lane_check_labels(lane, err);

    if (r < 0)
        return r;
    /* A loss scale above 1 may be the reason: the step is skipped and the scale halves. */
    if (isfinite(value) || (t->scaler.enabled && t->scaler.scale > 1))
        return 0;
    return pl_error_set(err, -EDOM,
                        "the loss is %s at step %llu of epoch %llu: try a lower learning rate, and "
                        "look for bad numbers in the data",
                        isnan(value) ? "not a number" : "infinite",
                        (unsigned long long)t->state.step + 1,
                        (unsigned long long)t->state.epoch + 1);
}

/* Finds the parameters that the planned batch has a gradient for. */
static int find_unused(struct pl_trainer *t, struct pl_lane *lane, struct pl_error *err)
{
    const struct pl_tape *tapes[PL_PARTS_MAX + 1];
    size_t n = pl_parts_tapes(&lane->parts, tapes);
    int r = 0;

    if (pl_unused_params_find(&t->ctx.params, tapes, n))
        r = pl_reducer_replan(&lane->reducer, err);
    if (r < 0)
        return r;
    return pl_unused_params_mark(&t->ctx.params, t->accumulated == 1, true, err);
}

/* The loss of a batch. It is checked while backward runs: before the first gradients go to other
 * ranks, and before the optimizer. */
struct loss_check {
    struct pl_trainer *t;
    const struct pl_lane *lane;
    unsigned optimizer_idx;
    size_t rows;
    const plume_tensor *loss;
    struct pl_device_peek peek;
    struct pl_reducer *reducer;
    bool done;
    double value;
};

static int loss_check_run(struct loss_check *check, struct pl_error *err)
{
    struct pl_trainer *t = check->t;
    int r;

    if (check->done)
        return 0;
    check->done = true;
    r = pl_tensor_peeked(check->loss, &check->peek, &check->value, err);
    if (r == 0)
        r = check_loss(t, check->lane, check->value, err);
    /* An infinite loss is of a step that is skipped: keep it out of the mean. */
    if (r == 0 && isfinite(check->value) && check->optimizer_idx == 0 &&
        pl_tensor_parallel_counts(&t->tp)) {
        t->loss_sum += check->value * (double)check->rows;
        t->loss_weight += (double)check->rows;
    }
    return r;
}

static int on_backward_node(void *ctx, size_t index, struct pl_error *err)
{
    struct loss_check *check = ctx;
    int r;

    /* Without graphs this runs after each node. While no bucket is complete, do not wait for the
     * loss. */
    if (!check->done && index > pl_reducer_stop(check->reducer))
        return 0;
    r = loss_check_run(check, err);
    return r < 0 ? r : pl_reducer_after_node(check->reducer, index, err);
}

static size_t stop_of(const void *ctx)
{
    return pl_reducer_stop(((const struct loss_check *)ctx)->reducer);
}

/* The same by the stages of a pipeline. */
static int pipe_closure(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool due,
                        double *ret_loss,
                        struct pl_error *err)
{
    const struct pl_pipe_batch what = {.batch = batch,
                                       .first = t->accumulated == 1,
                                       .due = due,
                                       .seed = t->scaler.scale,
                                       .draw = pl_trainer_draw(t)};
    double loss = 0;
    int r = pl_pipe_train(&t->pipe, &what, &loss, err);

    if (r == 0)
        r = check_loss(t, &t->stage[PLUME_TRAIN].lanes[0], loss, err);
    if (r < 0)
        return r;
    /* One rank of each pipeline counts it. */
    if (isfinite(loss) && t->pipe.stage == 0 && pl_tensor_parallel_counts(&t->tp)) {
        t->loss_sum += loss * (double)batch->rows;
        t->loss_weight += (double)batch->rows;
    }
    *ret_loss = loss;
    return 0;
}

/* The gradients of all batches of a step have one loss scale, on all ranks: that of the first. */
static float scale_of(const struct pl_trainer *t, struct pl_lane *lane)
{
    if (t->accumulated <= 1 || lane->scale == 0)
        lane->scale = t->scaler.scale;
    return lane->scale;
}

int pl_train_lane_backward(struct pl_trainer *t,
                           unsigned optimizer_idx,
                           const struct plume_batch *batch,
                           bool reduces,
                           double *ret_loss,
                           struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    struct pl_lane *lane = &stage->lanes[optimizer_idx];
    struct loss_check check = {.t = t,
                               .lane = lane,
                               .optimizer_idx = optimizer_idx,
                               .rows = batch->rows,
                               .reducer = &lane->reducer};
    struct pl_backward backward = {
        .accumulate = t->accumulated > 1 && t->strategy.shard < PL_SHARD_GRAD,
        .after_node = reduces && !t->strategy.fused ? on_backward_node : NULL,
        .ctx = &check,
        .stop = stop_of};
    uint64_t begin = pl_timeline_begin(t->timeline);
    int r = pl_lane_trace(stage, lane, batch, &backward.loss, err);

    backward.seed = scale_of(t, lane);
    pl_timeline_end(t->timeline, 0, "step", "trace", NULL, begin);
    if (r == 0 && !backward.loss && t->ctx.params.units)
        r = pl_units_assist(t->ctx.params.units, NULL, NULL, err);
    if (r == 0 && !backward.loss)
        r = pl_node_step_await(&t->node_step, err);
    if (r == 0 && !backward.loss)
        return pl_unused_params_mark(&t->ctx.params, t->accumulated == 1, false, err);
    begin = pl_timeline_begin(t->timeline);
    if (r == 0)
        r = pl_lane_forward(lane, backward.loss, pl_trainer_draw(t), err);
    pl_timeline_end(t->timeline, 0, "step", "forward", NULL, begin);
    if (r < 0)
        return r;
    check.loss = backward.loss;
    pl_tensor_peek(check.loss, t->dev, &check.peek);
    if (t->dev->ops->host) /* nothing to wait for: fail before backward */
        r = loss_check_run(&check, err);
    if (r == 0)
        r = pl_node_step_await(&t->node_step, err);
    if (r == 0)
        r = find_unused(t, lane, err);
    begin = pl_timeline_begin(t->timeline);
    if (r == 0)
        r = pl_parts_backward(&lane->parts, &lane->outputs, &t->ctx.params, &backward, err);
    pl_timeline_end(t->timeline, 0, "step", "backward", NULL, begin);
    if (r == 0)
        r = loss_check_run(&check, err);
    t->ctx.kept_ready = r == 0;
    *ret_loss = check.value;
    return r;
}

/* Gives all ranks the parameters of these n optimizers, which their owners have updated. */
static int share_values(struct pl_trainer *t, size_t first, size_t n, struct pl_error *err)
{
    size_t from = SIZE_MAX, to = 0;

    for (const struct pl_optimizer *o = &t->optimizers.list[first];
         o < &t->optimizers.list[first + n]; o++)
        for (size_t i = 0; i < o->n_ranges; i++) {
            from = PL_MIN(from, o->ranges[i].offset);
            to = PL_MAX(to, o->ranges[i].offset + o->ranges[i].count);
        }
    return from < to ? pl_shard_share_values(&t->ctx.params, t->group.shards, from, to, err) : 0;
}

/* pl_optimizers_step_some() by the loss scale that the lane's gradients have, which is an older one
 * if another lane has changed it meanwhile. */
static int step_scaled(struct pl_trainer *t, unsigned optimizer_idx, size_t n, struct pl_error *err)
{
    float now = t->scaler.scale, scale = t->stage[PLUME_TRAIN].lanes[optimizer_idx].scale;
    int r;

    if (scale > 0)
        t->scaler.scale = scale;
    r = pl_optimizers_step_some(&t->optimizers, optimizer_idx, n, t->kernels,
                                &(struct pl_clip_rule){t->options->clip_by, t->options->clip},
                                &t->scaler, NULL, err);
    if (scale > 0 && now != scale)
        t->scaler.scale = t->scaler.scale < scale ? PL_MIN(now, t->scaler.scale) : now;
    return r;
}

/* True if the module's own code may read parameters between the join of the gradients and the
 * update, which on another rank of the node may have begun. */
static bool reads_values_late(const struct plume_module *module)
{
    return module->on_after_backward || module->on_before_optimizer_step || module->manual_step;
}

/* Steps the lane's optimizer; all of them if there is one lane. */
static int optimize(struct pl_trainer *t, unsigned optimizer_idx, struct pl_error *err)
{
    size_t n = t->stage[PLUME_TRAIN].n_lanes > 1 ? 1 : t->optimizers.n;
    uint64_t begin = pl_timeline_begin(t->timeline);
    int r = pl_hooks_call(&t->hooks, t->module->on_before_optimizer_step,
                          "on_before_optimizer_step", err);
    bool halves = pl_halves_are_current(&t->ctx.params) && !t->strategy.shard;

    if (r < 0)
        return r;
    if (t->ctx.params.meets && reads_values_late(t->module))
        r = pl_comm_node_barrier(t->ctx.params.meets, err);
    if (r < 0)
        return r;
    t->ctx.params.values_version++;
    r = step_scaled(t, optimizer_idx, n, err);
    if (r == 0 && halves)
        pl_halves_follow(&t->ctx.params);
    if (r == 0)
        r = pl_precision_round(t->options, t->kernels, &t->ctx.params, err);
    if (r == 0 && t->strategy.shard && t->strategy.shard < PL_SHARD_PARAM)
        r = share_values(t, optimizer_idx, n, err);
    if (r == 0)
        r = pl_pipe_share(&t->pipe, err);
    pl_timeline_end(t->timeline, 0, "step", "optimizer", NULL, begin);
    return r;
}

/* Sums and update in one pass, instead of optimize(). */
static int optimize_apart(struct pl_trainer *t, struct pl_error *err)
{
    const struct pl_clip_rule clip = {t->options->clip_by, t->options->clip};
    uint64_t begin = pl_timeline_begin(t->timeline);
    bool used = false;
    int r = pl_node_step_run(&t->node_step, pl_clip_value(&clip), &used, err);

    if (r == 0 && used) {
        t->ctx.params.values_version++;
        r = pl_precision_round(t->options, t->kernels, &t->ctx.params, err);
    }
    pl_timeline_end(t->timeline, 0, "step", "optimizer", NULL, begin);
    return r;
}

/* The whole step is a program of its device. */
static int program_step(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool due,
                        double *ret_loss,
                        struct pl_error *err)
{
    uint64_t begin = pl_timeline_begin(t->timeline);
    double losses[PL_XLA_REPLICAS_MAX];
    int r = pl_xla_step_train(t, batch, due, losses, err);

    pl_timeline_end(t->timeline, 0, "step", "program", NULL, begin);
    for (unsigned k = 0; k < t->xla.n && r == 0; k++) {
        r = check_loss(t, pl_xla_replicas_lane(&t->xla, &t->stage[PLUME_TRAIN], k), losses[k], err);
        t->loss_sum += losses[k] * (double)batch->rows;
        t->loss_weight += (double)batch->rows;
    }
    *ret_loss = losses[0];
    return r;
}

static int check_ranks(const struct pl_trainer *t, struct pl_error *err)
{
    int r = t->ctx.copies->gpu ? pl_comm_nccl_check(t->ctx.copies->gpu, err) : 0;

    return r < 0 ? r : pl_shard_group_check(&t->group, err);
}

int pl_train_lane_optimize(struct pl_trainer *t, unsigned optimizer_idx, struct pl_error *err)
{
    bool used = false;
    int r = pl_reducer_after_node(&t->stage[PLUME_TRAIN].lanes[optimizer_idx].reducer, 0, err);

    if (r == 0)
        r = pl_unused_params_collect(&t->ctx.params, !t->strategy.reduces, &used, err);
    /* The reductions are complete: look for a lost rank before using them. */
    if (r == 0)
        r = check_ranks(t, err);
    return r == 0 && used ? optimize(t, optimizer_idx, err) : r;
}

int pl_train_lane(struct pl_trainer *t,
                  unsigned optimizer_idx,
                  const struct plume_batch *batch,
                  bool due,
                  double *ret_loss,
                  struct pl_error *err)
{
    struct pl_reducer *reducer = &t->stage[PLUME_TRAIN].lanes[optimizer_idx].reducer;
    unsigned ranks = t->strategy.average_every ? 1 : t->ctx.n_shares;
    bool reduces = due || t->strategy.shard >= PL_SHARD_GRAD, used = false;
    bool apart = due && t->node_step.comm;
    int r = 0;

    if (t->options->xla)
        return program_step(t, batch, due, ret_loss, err);
    pl_node_step_release(&t->node_step);
    /* A short last group is divided by the whole group's number too, as in Lightning. */
    pl_reducer_begin(reducer, 1.0 / (ranks * (double)pl_accumulate_at(t->options, t->state.epoch)),
                     t->accumulated > 1);
    reducer->posts = apart;
    scale_of(t, &t->stage[PLUME_TRAIN].lanes[optimizer_idx]);
    if (!batch)
        r = pl_node_step_await(&t->node_step, err);
    if (r == 0 && !batch)
        r = pl_unused_params_mark(&t->ctx.params, t->accumulated == 1, false, err);
    else if (r == 0 && t->pipe.on)
        r = pipe_closure(t, batch, due, ret_loss, err);
    else if (r == 0)
        r = pl_train_lane_backward(t, optimizer_idx, batch, reduces, ret_loss, err);
    if (r == 0 && reduces) /* buckets that are not reduced yet */
        r = pl_reducer_after_node(reducer, 0, err);
    if (r == 0 && apart)
        return optimize_apart(t, err);
    if (r == 0 && due)
        r = pl_tensor_parallel_share_flags(&t->tp, &t->ctx.params, err);
    if (r == 0 && due)
        r = pl_unused_params_collect(&t->ctx.params, !t->strategy.reduces, &used, err);
    /* The reductions are complete: look for a lost rank before using them. */
    if (r == 0 && due)
        r = check_ranks(t, err);
    if (r == 0)
        r = pl_hooks_call(&t->hooks, t->module->on_after_backward, "on_after_backward", err);
    return r == 0 && used ? optimize(t, optimizer_idx, err) : r;
}
