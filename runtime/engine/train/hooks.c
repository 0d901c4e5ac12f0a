/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/hooks.h"
#include "common/base/log.h"
#include "runtime/engine/util/crash.h"

typedef int (*eval_hook)(struct plume_context *, const struct plume_batch *);
typedef int (*eval_end_hook)(struct plume_context *, const struct plume_outputs *);

/* A test without hooks of its own uses those of validation. */
static eval_hook eval_step(const struct plume_module *module, enum plume_stage stage)
{
    return stage == PLUME_TEST && module->test_step ? module->test_step : module->validation_step;
}

static eval_end_hook eval_step_end(const struct plume_module *module, enum plume_stage stage)
{
    return stage == PLUME_TEST && module->test_step ? module->test_step_end
                                                    : module->validation_step_end;
}

static bool predicts(const struct pl_hooks *hooks, enum plume_stage stage)
{
    return hooks->predict && stage == PLUME_TEST;
}

bool pl_hooks_has_step(const struct pl_hooks *hooks, enum plume_stage stage)
{
    if (predicts(hooks, stage))
        return hooks->module->predict_step != NULL;
    return stage == PLUME_TRAIN || eval_step(hooks->module, stage);
}

bool pl_hooks_has_step_end(const struct pl_hooks *hooks, enum plume_stage stage)
{
    if (predicts(hooks, stage))
        return true;
    return stage == PLUME_TRAIN ? hooks->module->training_step_end != NULL
                                : eval_step_end(hooks->module, stage) != NULL;
}

/* Sets the position that the module reads, in steps, too. */
static void tell_position(const struct pl_hooks *hooks)
{
    hooks->ctx->pub.step = *hooks->step;
    hooks->ctx->pub.epoch = *hooks->epoch;
}

int pl_hooks_call(const struct pl_hooks *hooks,
                  int (*hook)(struct plume_context *pl),
                  const char *name,
                  struct pl_error *err)
{
    tell_position(hooks);
    if (!hook)
        return 0;
    pl_crash_hook(name); /* until pl_context_result() */
    return pl_context_result(hooks->ctx, hook(&hooks->ctx->pub), name, err);
}

int pl_hooks_batch(const struct pl_hooks *hooks,
                   int (*hook)(struct plume_context *pl, const struct plume_batch *batch),
                   const struct plume_batch *batch,
                   const char *name,
                   struct pl_error *err)
{
    tell_position(hooks);
    if (!hook || !batch)
        return 0;
    pl_crash_hook(name);
    return pl_context_result(hooks->ctx, hook(&hooks->ctx->pub, batch), name, err);
}

/* Rank 0 warns once. The result of predict_step is what is written, not an output. */
static void warn_of_outputs(const struct pl_hooks *hooks, const struct pl_hook_step *step)
{
    static const char *const names[] = {"training_step", "validation_step", "test_step"};
    bool as_validation = step->stage == PLUME_TEST && !hooks->module->test_step;
    const char *name = names[as_validation ? PLUME_VALIDATE : step->stage];
    struct pl_context *ctx = hooks->ctx;

    if (step->outputs->n < 2 || pl_hooks_has_step_end(hooks, step->stage) || ctx->pub.rank ||
        ctx->told_of_output)
        return;
    ctx->told_of_output = true;
    pl_log_warn("train", "nothing takes output '%s' of %s: the module has no %s_end",
                step->outputs->list[1].name, name, name);
}

/* name: of a hook's result. */
static void check_result(struct pl_context *ctx, const char *name, const plume_tensor *t)
{
    if (t && !ctx->error.code && !pl_context_is_of_step(ctx, t))
        pl_context_refuse(ctx, -EINVAL, "%s " PL_IS_OF_EARLIER, name);
}

int pl_hooks_step(const struct pl_hooks *hooks,
                  const struct pl_hook_step *step,
                  const struct plume_batch *batch,
                  unsigned part,
                  struct pl_error *err)
{
    static const char *const names[] = {"training_step", "validation_step", "test_step"};
    const char *name = predicts(hooks, step->stage) ? "predict_step" : names[step->stage];
    struct pl_context *ctx = hooks->ctx;
    plume_tensor *loss = NULL;
    int r;

    ctx->tape = step->tape;
    ctx->logs = step->logs;
    ctx->outputs = step->outputs;
    ctx->part = part;
    pl_crash_hook(name);
    step->logs->n_pending = 0;
    ctx->keeping = step->stage == PLUME_TRAIN;
    if (ctx->keeping) {
        ctx->kept_ready = false;
        ctx->n_kept = part ? ctx->n_kept : 0;
    }
    if (step->stage == PLUME_TRAIN)
        r = hooks->module->training_step(&ctx->pub, batch, &loss);
    else if (predicts(hooks, step->stage))
        r = hooks->module->predict_step(&ctx->pub, batch, &loss);
    else
        r = eval_step(hooks->module, step->stage)(&ctx->pub, batch);
    if (r == 0)
        check_result(ctx, step->stage == PLUME_TRAIN ? "the loss" : "the output", loss);
    ctx->tape = NULL;
    ctx->logs = NULL;
    ctx->outputs = NULL;
    ctx->keeping = false;
    pl_outputs_loss(step->outputs, part, loss);
    r = pl_context_result(ctx, r, name, err);
    if (r == 0)
        warn_of_outputs(hooks, step);
    return r;
}

/* The batch's output, of its parts. */
static int join_predictions(const struct pl_hooks *hooks,
                            const struct pl_hook_step *step,
                            plume_tensor **ret,
                            struct pl_error *err)
{
    struct pl_context *ctx = hooks->ctx;
    int r;

    if (!step->outputs->list[0].part[0])
        return pl_error_set(err, -EINVAL, "hook predict_step gave no output");
    ctx->tape = step->tape;
    ctx->logs = step->logs;
    ctx->ended = step->outputs;
    *ret = plume_whole(&ctx->pub, step->outputs, step->outputs->list[0].name);
    ctx->ended = NULL;
    ctx->tape = NULL;
    ctx->logs = NULL;
    r = pl_context_result(ctx, 0, "predict_step", err);
    return r == 0 ? pl_tape_dense(step->tape, ret, err) : r;
}

int pl_hooks_step_end(const struct pl_hooks *hooks,
                      const struct pl_hook_step *step,
                      plume_tensor **loss,
                      struct pl_error *err)
{
    static const char *const names[] = {"training_step_end", "validation_step_end",
                                        "test_step_end"};
    struct pl_context *ctx = hooks->ctx;
    int r;

    if (predicts(hooks, step->stage))
        return join_predictions(hooks, step, loss, err);
    pl_crash_hook(names[step->stage]);
    ctx->tape = step->tape;
    ctx->logs = step->logs;
    ctx->ended = step->outputs;
    if (step->stage == PLUME_TRAIN)
        r = hooks->module->training_step_end(&ctx->pub, step->outputs, loss);
    else
        r = eval_step_end(hooks->module, step->stage)(&ctx->pub, step->outputs);
    if (r == 0 && step->stage == PLUME_TRAIN)
        check_result(ctx, "the loss", *loss);
    ctx->ended = NULL;
    ctx->tape = NULL;
    ctx->logs = NULL;
    return pl_context_result(ctx, r, names[step->stage], err);
}
