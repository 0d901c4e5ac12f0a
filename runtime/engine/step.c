/* SPDX-License-Identifier: MIT */
#include "runtime/engine/step.h"

#include <math.h>

typedef int (*eval_hook)(struct plume_context *, const struct plume_batch *);

static eval_hook hook_of(const struct pl_trainer *t, enum plume_stage stage)
{
    if (stage == PLUME_TEST && t->module->test_step)
        return t->module->test_step;
    return t->module->validation_step;
}

bool pl_step_has_hook(const struct pl_trainer *t, enum plume_stage stage)
{
    return stage == PLUME_TRAIN || hook_of(t, stage);
}

int pl_step_run(struct pl_trainer *t,
                enum plume_stage stage,
                const struct plume_batch *batch,
                plume_tensor **ret_loss,
                struct pl_error *err)
{
    static const char *const names[] = {"training_step", "validation_step", "test_step"};
    struct pl_stage *s = &t->stage[stage];
    plume_tensor *loss = NULL;
    int r;

    t->ctx.tape = &s->tape;
    t->ctx.logs = stage == PLUME_TRAIN ? NULL : &s->logs;
    pl_tape_begin(&s->tape);
    if (stage == PLUME_TRAIN)
        r = t->module->training_step(&t->ctx.pub, batch, &loss);
    else
        r = hook_of(t, stage)(&t->ctx.pub, batch);
    pl_tape_end(&s->tape);
    t->ctx.tape = NULL;
    t->ctx.logs = NULL;
    r = pl_context_result(&t->ctx, r, names[stage], err);
    if (r < 0 || stage != PLUME_TRAIN)
        return r;
    if (!loss)
        return pl_error_set(err, -EINVAL, "hook training_step gave no loss");
    *ret_loss = loss;
    return 0;
}

static double scalar(const plume_tensor *t)
{
    return t->dtype == PLUME_F64 ? *(const double *)t->data : *(const float *)t->data;
}

int pl_step_train(struct pl_trainer *t, const struct plume_batch *batch, struct pl_error *err)
{
    plume_tensor *loss = NULL;
    double value;
    int r = pl_step_run(t, PLUME_TRAIN, batch, &loss, err);

    if (r < 0)
        return r;
    value = scalar(loss);
    if (!isfinite(value))
        return pl_error_set(err, -EDOM,
                            "the loss is %s at step %llu of epoch %llu: try a lower learning rate, "
                            "and look for bad numbers in the data",
                            isnan(value) ? "not a number" : "infinite",
                            (unsigned long long)t->step + 1, (unsigned long long)t->epoch + 1);
    t->loss_sum += value * (double)batch->rows;
    t->loss_weight += (double)batch->rows;
    pl_params_zero_grads(&t->ctx.params);
    pl_reducer_begin(&t->reducer);
    r = pl_tape_backward(&t->stage[PLUME_TRAIN].tape, loss, pl_reducer_after_node, &t->reducer,
                         err);
    if (r < 0)
        return r;
    pl_optimizers_step(&t->optimizers, t->kernels,
                       &(struct pl_clip_rule){t->options->clip_by, t->options->clip}, NULL, NULL);
    t->step++;
    r = pl_optimizers_schedule(&t->optimizers, true, NULL, NULL, err);
    if (r < 0)
        return r;
    if (t->step % t->options->log_every == 0)
        pl_report_metrics(t->report, (int64_t)t->step, (const char *const[]){"loss", "epoch"},
                          (double[]){value, (double)t->epoch + 1}, 2);
    return 0;
}
