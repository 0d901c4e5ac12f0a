/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/train_step.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/lanes.h"
#include "runtime/engine/util/crash.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define NO_LOSS (-HUGE_VAL) /* no loss is this: it would have ended the run */

typedef int (*eval_hook)(struct plume_context *, const struct plume_batch *);

static eval_hook hook_of(const struct pl_trainer *t, enum plume_stage stage)
{
    if (stage == PLUME_TEST && t->module->test_step)
        return t->module->test_step;
    return t->module->validation_step;
}

bool pl_train_step_has_hook(const struct pl_trainer *t, enum plume_stage stage)
{
    return stage == PLUME_TRAIN || hook_of(t, stage);
}

const struct pl_tape *pl_train_step_tape(const struct pl_trainer *t)
{
    const struct pl_stage *s = &t->stage[PLUME_TRAIN];

    return s->parts ? &s->parts->list[0].tape : &s->tape;
}

static struct pl_stage *stage_of(struct pl_trainer *t, enum plume_stage stage)
{
    return stage == PLUME_TRAIN ? pl_lanes_stage(t) : &t->stage[stage];
}

typedef int (*end_hook)(struct plume_context *, const struct plume_outputs *);

static end_hook end_of(const struct pl_trainer *t, enum plume_stage stage)
{
    if (stage == PLUME_TEST && t->module->test_step)
        return t->module->test_step_end;
    return t->module->validation_step_end;
}

/* The step's hook, its ops onto `tape`. */
static int call_step(struct pl_trainer *t,
                     enum plume_stage stage,
                     struct pl_tape *tape,
                     struct pl_logs *logs,
                     const struct plume_batch *batch,
                     unsigned part,
                     struct pl_error *err)
{
    static const char *const names[] = {"training_step", "validation_step", "test_step"};
    struct pl_stage *s = stage_of(t, stage);
    plume_tensor *loss = NULL;
    int r;

    t->ctx.tape = tape;
    t->ctx.logs = logs;
    t->ctx.outputs = &s->outputs;
    t->ctx.part = part;
    pl_crash_hook(names[stage]);
    logs->n_pending = 0;
    if (stage == PLUME_TRAIN)
        r = t->module->training_step(&t->ctx.pub, batch, &loss);
    else
        r = hook_of(t, stage)(&t->ctx.pub, batch);
    t->ctx.tape = NULL;
    t->ctx.logs = NULL;
    t->ctx.outputs = NULL;
    pl_outputs_loss(&s->outputs, part, loss);
    return pl_context_result(&t->ctx, r, names[stage], err);
}

/* The hook behind it, where there is one: *loss becomes its. */
static int call_end(struct pl_trainer *t,
                    enum plume_stage stage,
                    struct pl_tape *tape,
                    plume_tensor **loss,
                    struct pl_error *err)
{
    static const char *const names[] = {"training_step_end", "validation_step_end",
                                        "test_step_end"};
    struct pl_stage *s = stage_of(t, stage);
    int r;

    if (stage == PLUME_TRAIN ? !t->module->training_step_end : !end_of(t, stage))
        return 0;
    pl_crash_hook(names[stage]);
    t->ctx.tape = tape;
    t->ctx.logs = &s->logs;
    if (stage == PLUME_TRAIN)
        r = t->module->training_step_end(&t->ctx.pub, &s->outputs, loss);
    else
        r = end_of(t, stage)(&t->ctx.pub, &s->outputs);
    t->ctx.tape = NULL;
    t->ctx.logs = NULL;
    return pl_context_result(&t->ctx, r, names[stage], err);
}

static int trace_whole(struct pl_trainer *t,
                       enum plume_stage stage,
                       const struct plume_batch *batch,
                       plume_tensor **ret_loss,
                       struct pl_error *err)
{
    struct pl_stage *s = stage_of(t, stage);
    int r;

    pl_outputs_begin(&s->outputs, 1);
    pl_tape_begin(&s->tape);
    r = call_step(t, stage, &s->tape, &s->logs, batch, 0, err);
    *ret_loss = s->outputs.list[0].part[0];
    if (r == 0)
        r = call_end(t, stage, &s->tape, ret_loss, err);
    pl_tape_end(&s->tape);
    return r;
}

static int trace_parts(struct pl_trainer *t,
                       enum plume_stage stage,
                       const struct plume_batch *batch,
                       plume_tensor **ret_loss,
                       struct pl_error *err)
{
    struct pl_stage *s = stage_of(t, stage);
    struct pl_parts *p = s->parts;
    int r = 0;

    pl_parts_split(p, batch);
    pl_outputs_begin(&s->outputs, p->n);
    for (unsigned i = 0; i < p->n && r == 0; i++) {
        struct pl_part *part = &p->list[i];

        pl_tape_begin(&part->tape);
        /* The first, dry step learns the names of what is logged. */
        r = call_step(t, stage, &part->tape, s->logs.closed ? &part->logs : &s->logs, &part->batch,
                      i, err);
        pl_tape_end(&part->tape);
    }
    s->logs.n_pending = 0;
    if (r == 0)
        r = pl_outputs_check(&s->outputs, err);
    if (r < 0)
        return r;
    pl_parts_begin_root(p, &s->outputs);
    if (stage == PLUME_TRAIN && !t->module->training_step_end && s->outputs.list[0].part[0])
        r = pl_parts_mean(p, &s->outputs, ret_loss, err);
    else
        r = call_end(t, stage, &p->root, ret_loss, err);
    pl_tape_end(&p->root);
    return r;
}

int pl_train_step_trace(struct pl_trainer *t,
                        enum plume_stage stage,
                        const struct plume_batch *batch,
                        plume_tensor **ret_loss,
                        struct pl_error *err)
{
    plume_tensor *loss = NULL;
    int r = (stage_of(t, stage)->parts ? trace_parts : trace_whole)(t, stage, batch, &loss, err);

    if (r == 0 && stage == PLUME_TRAIN)
        *ret_loss = loss;
    return r;
}

/* Counts batches, for dropout: those of one optimizer step drop different elements, too. */
static uint64_t draw(const struct pl_trainer *t)
{
    return t->step * pl_accumulate_most(t->options) + (t->gathered ? t->gathered - 1 : 0);
}

int pl_train_step_forward(struct pl_trainer *t,
                          enum plume_stage stage,
                          plume_tensor *loss,
                          struct pl_error *err)
{
    struct pl_stage *s = stage_of(t, stage);
    plume_tensor *roots[PL_LOG_VALUES_MAX + 1];
    size_t n = 0;
    int r;

    if (s->parts)
        return pl_parts_forward(s->parts, &s->outputs, loss, &s->logs, draw(t), err);
    if (loss)
        roots[n++] = loss;
    for (size_t i = 0; i < s->logs.n_pending; i++)
        roots[n++] = s->logs.pending[i].value;
    s->tape.step = draw(t);
    r = pl_tape_prepare(&s->tape, roots, n, loss ? 1 : 0, err);
    if (r == 0)
        r = pl_tape_forward(&s->tape, err);
    return r < 0 ? r : pl_logs_collect(&s->logs, s->tape.dev, t->dev, err);
}

static int check_loss(const struct pl_trainer *t, double value, struct pl_error *err)
{
    /* With a loss scale the step is skipped instead, until that cannot be the reason. */
    if (isfinite(value) || (t->scaler.enabled && t->scaler.scale > 1))
        return 0;
    return pl_error_set(err, -EDOM,
                        "the loss is %s at step %llu of epoch %llu: try a lower learning rate, and "
                        "look for bad numbers in the data",
                        isnan(value) ? "not a number" : "infinite", (unsigned long long)t->step + 1,
                        (unsigned long long)t->epoch + 1);
}

/* What the planned batch has a gradient for. */
static int look_at_use(struct pl_trainer *t, struct pl_error *err)
{
    const struct pl_stage *s = pl_lanes_stage(t);
    const struct pl_tape *tapes[PL_PARTS_MAX + 1] = {&s->tape};
    size_t n = s->parts ? 0 : 1;

    for (unsigned i = 0; s->parts && i < s->parts->n; i++)
        tapes[n++] = &s->parts->list[i].tape;
    if (s->parts)
        tapes[n++] = &s->parts->root;
    if (pl_unused_params_find(&t->ctx.params, tapes, n))
        pl_reducer_replan(pl_lanes_reducer(t));
    return pl_unused_params_mark(&t->ctx.params, t->gathered == 1, true, err);
}

/* The loss of a batch, looked at while backward is under way already: before the first gradient
 * goes to other ranks, and before the optimizer. */
struct outlook {
    struct pl_trainer *t;
    size_t rows;
    const plume_tensor *loss;
    struct pl_device_peek peek;
    struct pl_reducer *reducer;
    bool seen;
    double value;
};

static int see(struct outlook *o, struct pl_error *err)
{
    struct pl_trainer *t = o->t;
    int r;

    if (o->seen)
        return 0;
    o->seen = true;
    r = pl_tensor_peeked(o->loss, &o->peek, &o->value, err);
    if (r == 0)
        r = check_loss(t, o->value, err);
    if (r == 0 && isfinite(o->value) && t->turn == 0) { /* a skipped step: not an infinite mean */
        t->loss_sum += o->value * (double)o->rows;
        t->loss_weight += (double)o->rows;
    }
    return r;
}

static int see_and_reduce(void *ctx, size_t index, struct pl_error *err)
{
    struct outlook *o = ctx;
    int r;

    /* Without graphs it is asked behind each node: nothing is complete yet, so nothing waits. */
    if (!o->seen && index > pl_reducer_stop(o->reducer))
        return 0;
    r = see(o, err);
    return r < 0 ? r : pl_reducer_after_node(o->reducer, index, err);
}

static size_t stop_of(const void *ctx)
{
    return pl_reducer_stop(((const struct outlook *)ctx)->reducer);
}

static int run_backward(struct pl_trainer *t, struct outlook *o, bool along, struct pl_error *err)
{
    struct pl_stage *s = pl_lanes_stage(t);
    struct pl_backward backward = {.loss = (plume_tensor *)(uintptr_t)o->loss,
                                   .seed = t->scaler.scale,
                                   .accumulate = t->gathered > 1,
                                   .after_node = along ? see_and_reduce : NULL,
                                   .ctx = o,
                                   .stop = stop_of};

    if (s->parts)
        return pl_parts_backward(s->parts, &s->outputs, &t->ctx.params, backward.loss,
                                 backward.seed, backward.accumulate, err);
    return pl_tape_backward(&s->tape, &backward, err);
}

/* Forward and backward of one batch, adding to the gradients; `due`: they are reduced as well.
 * *ret_loss is set where the module gave one. */
static int closure(struct pl_trainer *t,
                   const struct plume_batch *batch,
                   bool due,
                   double *ret_loss,
                   struct pl_error *err)
{
    struct outlook o = {.t = t, .rows = batch->rows, .reducer = pl_lanes_reducer(t)};
    plume_tensor *loss = NULL;
    int r = pl_train_step_trace(t, PLUME_TRAIN, batch, &loss, err);

    if (r == 0 && !loss)
        return pl_unused_params_mark(&t->ctx.params, t->gathered == 1, false, err);
    if (r == 0)
        r = pl_train_step_forward(t, PLUME_TRAIN, loss, err);
    if (r < 0)
        return r;
    o.loss = loss;
    pl_tensor_peek(loss, t->dev, &o.peek);
    if (t->dev->ops->host) /* it is there, and backward takes as long as it takes */
        r = see(&o, err);
    if (r == 0)
        r = look_at_use(t, err);
    if (r == 0)
        r = run_backward(t, &o, due && !t->strategy.fused, err);
    if (r == 0)
        r = see(&o, err);
    *ret_loss = o.value;
    return r;
}

/* The optimizer whose turn it is, or all. */
static int optimize(struct pl_trainer *t, struct pl_error *err)
{
    size_t n = t->n_turns > 1 ? 1 : t->optimizers.n;
    int r =
        pl_trainer_hook(t, t->module->on_before_optimizer_step, "on_before_optimizer_step", err);

    if (r < 0)
        return r;
    t->ctx.params.values_version++;
    r = pl_optimizers_step_some(&t->optimizers, t->turn, n, t->kernels,
                                &(struct pl_clip_rule){t->options->clip_by, t->options->clip},
                                &t->scaler, NULL, err);
    return r < 0 ? r : pl_precision_round(t->options, t->kernels, &t->ctx.params, err);
}

/* A turn of one batch, up to the optimizer where that is due. */
static int take_turn(struct pl_trainer *t,
                     const struct plume_batch *batch,
                     bool due,
                     double *ret_loss,
                     struct pl_error *err)
{
    bool used = false;
    int r = 0;

    /* A short last group is divided by the whole group's number too, as Lightning's is. */
    pl_reducer_begin(pl_lanes_reducer(t),
                     1.0 / (t->comm->size * (double)pl_accumulate_at(t->options, t->epoch)));
    if (!batch)
        r = pl_unused_params_mark(&t->ctx.params, t->gathered == 1, false, err);
    else
        r = closure(t, batch, due, ret_loss, err);
    if (r == 0 && due) /* what is not reduced yet */
        r = pl_reducer_after_node(pl_lanes_reducer(t), 0, err);
    if (r == 0 && due)
        r = pl_unused_params_collect(&t->ctx.params, !t->strategy.reduces, &used, err);
    /* That has waited for the sums; before broken ones are made use of. */
    if (r == 0 && due && t->comm->device)
        r = pl_comm_nccl_check(t->comm->device, err);
    if (r == 0)
        r = pl_trainer_hook(t, t->module->on_after_backward, "on_after_backward", err);
    return r == 0 && used ? optimize(t, err) : r;
}

/* What a step is reported by: at most as much as one can log. */
struct told {
    char name[PL_LOG_VALUES_MAX][80];
    const char *list[PL_LOG_VALUES_MAX];
    double value[PL_LOG_VALUES_MAX];
    size_t n;
};

static void PL_PRINTF(3, 4) tell(struct told *told, double value, const char *name, ...)
{
    va_list ap;

    if (told->n == PL_LOG_VALUES_MAX)
        return;
    va_start(ap, name);
    vsnprintf(told->name[told->n], sizeof(told->name[0]), name, ap);
    va_end(ap);
    told->list[told->n] = told->name[told->n];
    told->value[told->n++] = value;
}

/* The losses, and what training_step has logged, of this rank. */
static void report_step(struct pl_trainer *t, const double *losses)
{
    struct told told = {0};

    for (unsigned i = 0; i < t->n_turns; i++) {
        const struct pl_stage *s = i ? &t->turns[i - 1].stage : &t->stage[PLUME_TRAIN];

        if (losses[i] == NO_LOSS)
            continue;
        tell(&told, losses[i], i ? "loss_%u" : "loss", i);
        for (size_t k = 0; k < s->logs.n; k++) {
            double sum = s->logs.sum[k][0], weight = s->logs.sum[k][1];

            for (unsigned p = 0; s->parts && p < s->parts->n; p++) {
                sum += s->parts->list[p].logs.sum[k][0];
                weight += s->parts->list[p].logs.sum[k][1];
            }
            if (weight != 0)
                tell(&told, sum / weight, "train_%s", s->logs.name[k]);
        }
    }
    tell(&told, (double)t->epoch + 1, "epoch");
    if (told.n > 1)
        pl_logger_metrics(&t->logger, (int64_t)t->step, told.list, told.value, told.n, false);
}

/* A group of batches begins: what is logged counts anew. */
static void forget_logs(struct pl_stage *s)
{
    memset(s->logs.sum, 0, sizeof(s->logs.sum));
    for (unsigned i = 0; s->parts && i < s->parts->k; i++)
        memset(s->parts->list[i].logs.sum, 0, sizeof(s->logs.sum));
}

static int batch_hook(struct pl_trainer *t,
                      int (*hook)(struct plume_context *, const struct plume_batch *),
                      const struct plume_batch *batch,
                      const char *name,
                      struct pl_error *err)
{
    t->ctx.pub.step = t->step;
    t->ctx.pub.epoch = t->epoch;
    pl_crash_hook(name);
    return hook && batch ? pl_context_result(&t->ctx, hook(&t->ctx.pub, batch), name, err) : 0;
}

int pl_train_step_train(struct pl_trainer *t,
                        const struct plume_batch *batch,
                        bool last,
                        struct pl_error *err)
{
    bool due = last || t->gathered + 1 >= pl_accumulate_at(t->options, t->epoch);
    double losses[PL_OPTIMIZERS_MAX];
    int r = batch_hook(t, t->module->on_train_batch_start, batch, "on_train_batch_start", err);

    t->gathered++;
    for (unsigned i = 0; i < t->n_turns && r == 0; i++) {
        losses[i] = NO_LOSS;
        pl_lanes_set(t, i);
        if (t->gathered == 1)
            forget_logs(pl_lanes_stage(t));
        r = take_turn(t, batch, due, &losses[i], err);
    }
    pl_lanes_set(t, 0);
    if (r == 0 && due) {
        t->step++;
        t->gathered = 0;
        r = pl_optimizers_schedule(&t->optimizers, true, pl_metrics_find, &t->metrics, err);
    }
    if (r == 0)
        r = batch_hook(t, t->module->on_train_batch_end, batch, "on_train_batch_end", err);
    if (r == 0 && due && t->step % t->options->log_every == 0)
        report_step(t, losses);
    return r;
}
