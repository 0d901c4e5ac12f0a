/* SPDX-License-Identifier: MIT */
#include "runtime/engine/trainer.h"
#include "common/base/fs.h"
#include "common/base/log.h"

#include <math.h>
#include <string.h>

static const char *const prefix[] = {"train_", "val_", "test_"};

typedef int (*eval_hook)(struct plume_context *, const struct plume_batch *);

static eval_hook hook_of(const struct pl_trainer *t, enum plume_stage stage)
{
    if (stage == PLUME_TEST && t->module->test_step)
        return t->module->test_step;
    return t->module->validation_step;
}

/* Calls the hook of a stage on a batch. ret_loss is set in training only. */
static int run_step(struct pl_trainer *t,
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

static int open_stage(struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    struct plume_data data = {.struct_size = sizeof(data)};
    struct pl_stage *s = &t->stage[stage];
    plume_tensor *loss = NULL;
    int r;

    if (stage != PLUME_TRAIN && !hook_of(t, stage))
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
        return pl_error_wrap(err, r, "%sdata", prefix[stage]);
    s->present = true;
    pl_tape_init(&s->tape, t->kernels, stage == PLUME_TRAIN);
    s->tape.dry = true;
    r = run_step(t, stage, pl_loader_dry(&s->loader), &loss, err);
    s->tape.dry = false;
    s->logs.closed = true;
    return r;
}

static int set_optimizer(struct pl_trainer *t, struct pl_error *err)
{
    t->optimizer = (struct plume_optimizer){
        .struct_size = sizeof(t->optimizer),
        .lr = pl_hparams_value(t->hparams, "lr"),
        .momentum = pl_hparams_value(t->hparams, "momentum"),
        .weight_decay = pl_hparams_value(t->hparams, "weight_decay"),
    };
    if (!t->module->configure_optimizers)
        return 0;
    return pl_context_result(&t->ctx, t->module->configure_optimizers(&t->ctx.pub, &t->optimizer),
                             "configure_optimizers", err);
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
        r = set_optimizer(t, err);
    if (r == 0)
        r = pl_params_layout(params, &t->stage[PLUME_TRAIN].tape, t->comm, err);
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
    pl_context_finish(&trainer->ctx);
}

static double scalar(const plume_tensor *t)
{
    return t->dtype == PLUME_F64 ? *(const double *)t->data : *(const float *)t->data;
}

static int train_batch(struct pl_trainer *t, const struct plume_batch *batch, struct pl_error *err)
{
    plume_tensor *loss = NULL;
    double value;
    int r = run_step(t, PLUME_TRAIN, batch, &loss, err);

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
    if (r == 0)
        r = pl_params_sgd(&t->ctx.params, t->kernels, &t->optimizer, err);
    if (r < 0)
        return r;
    t->step++;
    if (t->step % t->options->log_every == 0)
        pl_report_metrics(t->report, (int64_t)t->step, (const char *const[]){"loss", "epoch"},
                          (double[]){value, (double)t->epoch + 1}, 2);
    return 0;
}

/* Runs a stage's batches of this rank and adds up what all ranks logged, with `extra` (two numbers)
 * behind it. values[i] is the result of logs.name[i]. */
static int evaluate(struct pl_trainer *t,
                    enum plume_stage stage,
                    double extra[2],
                    double *values,
                    struct pl_error *err)
{
    struct pl_stage *s = &t->stage[stage];
    double sums[2 * PL_LOG_VALUES_MAX + 2] = {0};
    const struct plume_batch *batch;
    int r;

    if (s->present) {
        memset(s->logs.sum, 0, sizeof(s->logs.sum));
        pl_loader_begin(&s->loader, 0);
        while ((batch = pl_loader_next(&s->loader)))
            if ((r = run_step(t, stage, batch, NULL, err)) < 0)
                return r;
        memcpy(sums, s->logs.sum, s->logs.n * sizeof(s->logs.sum[0]));
    }
    memcpy(sums + 2 * s->logs.n, extra, 2 * sizeof(*extra));
    r = pl_comm_allreduce(t->comm, sums, 2 * s->logs.n + 2, PL_REAL_F64, 1, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < s->logs.n; i++)
        values[i] = sums[2 * i + 1] != 0 ? sums[2 * i] / sums[2 * i + 1] : NAN;
    memcpy(extra, sums + 2 * s->logs.n, 2 * sizeof(*extra));
    return 0;
}

/* Rank 0 tells what a stage came to. */
static void
tell(struct pl_trainer *t,
     enum plume_stage stage,
     const double *values,
     void (*send)(struct pl_report *, int64_t, const char *const *, const double *, size_t))
{
    const struct pl_logs *logs = &t->stage[stage].logs;
    char names[PL_LOG_VALUES_MAX][80];
    const char *list[PL_LOG_VALUES_MAX];

    if (t->comm->rank != 0)
        return;
    for (size_t i = 0; i < logs->n; i++) {
        snprintf(names[i], sizeof(names[i]), "%s%s", prefix[stage], logs->name[i]);
        list[i] = names[i];
        if (t->options->out)
            fprintf(t->options->out, stage == PLUME_TEST ? "%s %.4f\n" : " %s %.4f", names[i],
                    values[i]);
    }
    if (logs->n)
        send(t->report, (int64_t)t->step, list, values, logs->n);
}

static int end_epoch(struct pl_trainer *t, struct pl_error *err)
{
    double loss[2] = {t->loss_sum, t->loss_weight}, values[PL_LOG_VALUES_MAX];
    double seconds = (double)(pl_now_ns() - t->epoch_ns) * 1e-9;
    int r = evaluate(t, PLUME_VALIDATE, loss, values, err);

    if (r < 0)
        return r;
    t->epoch++;
    if (t->comm->rank == 0 && t->options->out)
        fprintf(t->options->out, "epoch %llu/%g step %llu loss %.4f", (unsigned long long)t->epoch,
                pl_hparams_value(t->hparams, "epochs"), (unsigned long long)t->step,
                loss[0] / loss[1]); /* of all ranks by now */
    tell(t, PLUME_VALIDATE, values, pl_report_metrics);
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
        if ((r = train_batch(t, batch, err)) < 0)
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
        r = evaluate(t, PLUME_TEST, none, values, err);
    if (r < 0)
        return r;
    tell(t, PLUME_TEST, values, pl_report_final);
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
