/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/manual.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/train_lane.h"
#include "runtime/engine/util/crash.h"

static const char hook[] = "manual_step";

int pl_manual_check(const struct pl_trainer *t, struct pl_error *err)
{
    const char *what = t->options->xla                       ? "--accelerator tpu"
                       : t->pipe.on                          ? "--strategy pipeline"
                       : t->tp.on                            ? "--tensor-parallel"
                       : t->strategy.shard >= PL_SHARD_GRAD  ? "--shard grad and param"
                       : pl_accumulate_most(t->options) != 1 ? "--accumulate"
                                                             : NULL;

    if (!t->module->manual_step || !what)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "%s cannot be with a module that makes its optimizer steps itself "
                        "(manual_step)",
                        what);
}

/* Makes the optimizer's lane the running one. */
static int enter(struct pl_trainer *t, unsigned optimizer, struct pl_error *err)
{
    if (optimizer >= t->optimizers.n)
        return pl_error_set(err, -EINVAL, "there is no optimizer %u: the module has %zu", optimizer,
                            t->optimizers.n);
    pl_stage_enter_lane(&t->stage[PLUME_TRAIN], &t->optimizers, optimizer);
    return 0;
}

/* Back in the module's own hook. */
static void leave(struct pl_trainer *t)
{
    t->accumulated = 0;
    pl_stage_enter_lane(&t->stage[PLUME_TRAIN], &t->optimizers, 0);
    pl_crash_hook(hook);
}

/* The sum over ranks becomes the mean. */
static void begin(struct pl_trainer *t, unsigned optimizer)
{
    unsigned ranks = t->strategy.average_every ? 1 : t->ctx.n_shares;

    pl_reducer_begin(&t->stage[PLUME_TRAIN].lanes[optimizer].reducer, 1.0 / ranks, false);
}

static int backward(void *ctx, unsigned optimizer, double *ret_loss, struct pl_error *err)
{
    struct pl_trainer *t = ctx;
    double loss = PL_NO_LOSS;
    int r = enter(t, optimizer, err);

    if (r < 0)
        return r;
    t->accumulated = ++t->manual.pending[optimizer];
    begin(t, optimizer);
    r = pl_train_lane_backward(t, optimizer, t->manual.batch, false, &loss, err);
    t->manual.draws++;
    if (r == 0)
        r = pl_hooks_call(&t->hooks, t->module->on_after_backward, "on_after_backward", err);
    leave(t);
    t->manual.losses[optimizer] = loss;
    if (loss != PL_NO_LOSS)
        *ret_loss = loss;
    return r;
}

static int step(void *ctx, unsigned optimizer, struct pl_error *err)
{
    struct pl_trainer *t = ctx;
    int r = enter(t, optimizer, err);

    if (r == 0 && !t->manual.pending[optimizer])
        r = pl_error_set(err, -EINVAL, "optimizer %u has no gradients: call plume_backward() first",
                         optimizer);
    if (r < 0)
        return r;
    t->manual.pending[optimizer] = 0;
    t->manual.stepped = true;
    begin(t, optimizer);
    /* The flags that the other ranks get may be those of another lane. */
    r = pl_unused_params_mark(&t->ctx.params, false, false, err);
    if (r == 0)
        r = pl_train_lane_optimize(t, optimizer, err);
    leave(t);
    return r;
}

static int zero_grad(void *ctx, unsigned optimizer, struct pl_error *err)
{
    struct pl_trainer *t = ctx;
    int r = enter(t, optimizer, err);

    if (r == 0) {
        t->manual.pending[optimizer] = 0; /* the next backward pass writes all gradients */
        leave(t);
    }
    return r;
}

int pl_manual_batch(struct pl_trainer *t,
                    const struct plume_batch *batch,
                    double *losses,
                    bool *ret_stepped,
                    struct pl_error *err)
{
    static const struct pl_manual_calls calls = {backward, step, zero_grad};
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    int r;

    for (unsigned i = 0; i < stage->n_lanes; i++) {
        losses[i] = PL_NO_LOSS;
        pl_lane_clear_logs(&stage->lanes[i]);
    }
    t->manual.batch = batch;
    t->manual.losses = losses;
    t->manual.stepped = false;
    t->ctx.manual = &calls;
    t->ctx.manual_ctx = t;
    r = pl_hooks_batch(&t->hooks, t->module->manual_step, batch, hook, err);
    t->ctx.manual = NULL;
    if (t->manual.stepped)
        t->manual.draws = 0;
    *ret_stepped = t->manual.stepped;
    return r;
}
