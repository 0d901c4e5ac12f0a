/* SPDX-License-Identifier: MIT */
/* The loop over epochs (doc/semantics.md 4.4): batches, validations, and the end of the run. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/params/consistency.h"
#include "runtime/engine/tape/profile.h"
#include "runtime/engine/train/average.h"
#include "runtime/engine/train/batch_text.h"
#include "runtime/engine/train/eval.h"
#include "runtime/engine/train/requeue.h"
#include "runtime/engine/train/train_step.h"

#include <math.h>
#include <string.h>

#define AGREE_S 0.5 /* between two agreements on time and signals, if steps are shorter */

/* All ranks have the same number of batches, unless the strategy allows uneven inputs; *ret = the
 * maximum. */
static int
agree_on_batches(struct pl_trainer *t, uint64_t mine, uint64_t *ret, struct pl_error *err)
{
    unsigned n = t->comm->size;
    _cleanup_free_ uint64_t *all = calloc(n, sizeof(*all));
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    int r;

    if (!all || !offset)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * sizeof(*all);
    all[t->comm->rank] = mine;
    r = pl_comm_allgather(t->comm, all, offset, err);
    if (r < 0)
        return r;
    *ret = mine;
    for (unsigned i = 0; i < n; i++) {
        if (all[i] != mine && (!t->strategy.uneven_inputs || t->module->manual_step))
            return pl_error_set(
                err, -EINVAL,
                "rank %u has %llu batches, rank %u %llu: strategy horovod lets ranks "
                "run out of batches at different times",
                t->comm->rank, (unsigned long long)mine, i, (unsigned long long)all[i]);
        *ret = PL_MAX(*ret, all[i]);
    }
    return 0;
}

/* The running epoch, or the next one, has a validation. A run that tries everything tries it. */
static bool validates(const struct pl_trainer *t)
{
    return (t->state.epoch + 1) % t->options->val_every == 0 || t->options->fast_dev_run;
}

/* Batches between validations in an epoch of n; 0 = no validation. */
static int
validation_interval(const struct pl_trainer *t, uint64_t n, uint64_t *ret, struct pl_error *err)
{
    const struct pl_limit *check = &t->options->val_check;

    if (pl_eval_is_off(t, PLUME_VALIDATE) || t->options->fast_dev_run) {
        *ret = pl_eval_is_off(t, PLUME_VALIDATE) ? 0 : n;
        return 0;
    }
    if (!check->is_share && check->value > (double)n)
        return pl_error_set(err, -EINVAL,
                            "a validation every %g batches never comes: an epoch has %llu batches; "
                            "give a share of it, such as 0.5",
                            check->value, (unsigned long long)n);
    *ret = check->is_share ? PL_MAX((uint64_t)floor(check->value * (double)n), (uint64_t)1)
                           : (uint64_t)check->value;
    return 0;
}

static void print_position(const struct pl_trainer *t)
{
    fprintf(t->options->out, "epoch %llu/%g step %llu", (unsigned long long)t->state.epoch + 1,
            t->options->fast_dev_run ? 1 : pl_hparams_value(t->hparams, "epochs"),
            (unsigned long long)t->state.step);
}

static bool prints(const struct pl_trainer *t)
{
    return t->comm->rank == 0 && t->options->out;
}

/* After a validation, or after an epoch (epoch_ended), which alone sets train_loss. */
static void check_early_stop(struct pl_trainer *t, bool epoch_ended)
{
    const struct pl_early_stop_rule *rule = &t->options->stop;

    if (!rule->monitor || (strcmp(rule->monitor, "train_loss") == 0) != epoch_ended ||
        !pl_metrics_has(&t->metrics, rule->monitor))
        return;
    /* Before the minimum of epochs and steps it has no effect, as in Lightning. */
    if (pl_early_stop_look(&t->state.stop, rule, pl_metrics_get(&t->metrics, rule->monitor)) &&
        t->state.epoch + 1 >= t->options->min_epochs && t->state.step >= t->options->min_steps) {
        t->stopping = true;
        pl_early_stop_end(&t->state.stop, rule);
    }
}

/* A checkpoint of a run that early stopping has ended: what follows its training is to be done. */
static void stay_stopped(struct pl_trainer *t)
{
    t->state.stop.ended = pl_early_stop_has_ended(&t->state.stop, &t->options->stop);
    t->stopping |= t->state.stop.ended;
    if (t->state.stop.ended && t->comm->rank == 0)
        pl_log_warn("train",
                    "early stopping has ended this run before its checkpoint was saved: to go on "
                    "with it give a larger --patience");
}

/* extra: as pl_eval_run(). */
static int validate(struct pl_trainer *t, double extra[2], double *values, struct pl_error *err)
{
    int r = pl_average_now(t, err);

    if (r == 0)
        r = pl_hooks_call(&t->hooks, t->module->on_validation_start, "on_validation_start", err);
    if (r == 0)
        r = pl_eval_run(t, PLUME_VALIDATE, pl_eval_batches(t, PLUME_VALIDATE), extra, values, err);
    if (r < 0 || t->interrupted)
        return r;
    pl_eval_store(t, PLUME_VALIDATE, values);
    r = pl_hooks_call(&t->hooks, t->module->on_validation_end, "on_validation_end", err);
    /* A run that goes on from here will not have had a validation that the end alone has caused. */
    if (r == 0 && !t->off_schedule)
        check_early_stop(t, false);
    return r;
}

static int save(struct pl_trainer *t, struct pl_error *err)
{
    int r;

    pl_rank_report_phase(t->report, "checkpoint");
    r = pl_checkpointer_save(&t->checkpointer, &t->metrics, err);
    pl_rank_report_phase(t->report, "");
    return r;
}

static int flush(struct pl_trainer *t, struct pl_error *err)
{
    pl_rank_report_phase(t->report, "checkpoint"); /* no step follows */
    return pl_checkpointer_flush(&t->checkpointer, err);
}

/* A validation inside an epoch. */
static int validate_between(struct pl_trainer *t, struct pl_error *err)
{
    double loss[2] = {t->loss_sum, t->loss_weight}, values[PL_LOG_VALUES_MAX];
    int r = validate(t, loss, values, err);

    if (r < 0 || t->interrupted)
        return r;
    memcpy(t->state.loss, loss, sizeof(loss));
    t->state.due = false;
    pl_progress_clear(&t->logger.progress);
    if (prints(t))
        print_position(t);
    pl_eval_report(t, PLUME_VALIDATE, values, false);
    if (prints(t)) {
        fputc('\n', t->options->out);
        fflush(t->options->out);
    }
    return save(t, err);
}

/* True if all ranks must agree now. The time limit and signals travel with the gradients of each
 * step (unused_params.h), unless the module reduces these, or nobody. Ranks that train alone for
 * some steps agree when they average, and after the steps that take AGREE_S. */
static bool agrees_apart(const struct pl_trainer *t)
{
    if (t->strategy.average_every)
        return t->alone_steps == 0 || t->state.step >= t->next_agree_step;
    return t->stage[PLUME_TRAIN].lanes[0].reducer.own != NULL;
}

/* All ranks agree on the time limit and on signals. */
static int agree_on_time(struct pl_trainer *t, struct pl_error *err)
{
    const bool *heard = t->ctx.params.heard;
    double sums[4], steps;
    int sig = pl_trainer_signal(t), r;

    if (t->accumulated)
        return 0;
    if (!agrees_apart(t)) {
        if (!t->strategy.average_every) {
            pl_trainer_interrupt(t, heard[PL_PARAMS_REQUEUE], heard[PL_PARAMS_END]);
            t->stopping |=
                heard[PL_PARAMS_TIME] || (t->comm->size == 1 && pl_trainer_time_is_up(t));
        }
        return 0;
    }
    steps = (double)PL_MAX(t->state.step - t->last_agree_step, (uint64_t)1);
    sums[0] = pl_trainer_time_is_up(t);
    sums[1] = (double)(pl_now_ns() - t->last_agree_ns) * 1e-9 / steps;
    sums[2] = sig == SIGUSR1;
    sums[3] = sig != 0 && sig != SIGUSR1;
    r = pl_comm_allreduce(t->comm, sums, 4, PL_REAL_F64, 1, err);
    if (r < 0)
        return r;
    pl_trainer_interrupt(t, sums[2] > 0, sums[3] > 0);
    t->stopping |= sums[0] > 0;
    steps = AGREE_S * t->comm->size / PL_MAX(sums[1], 1e-9);
    t->last_agree_step = t->state.step;
    t->last_agree_ns = pl_now_ns();
    t->next_agree_step = t->state.step + (uint64_t)PL_MIN(PL_MAX(steps, 1.0), 1e9);
    return 0;
}

static void show_progress(struct pl_trainer *t, uint64_t n)
{
    const struct pl_progress_state state = {
        .epoch = t->state.epoch + 1,
        .epochs = (uint64_t)pl_hparams_value(t->hparams, "epochs"),
        .done = t->state.batch,
        .total = n,
        .loss = t->loss_weight > 0 ? t->loss_sum / t->loss_weight : NAN,
        .samples = (t->loss_weight - t->resumed_weight) * t->ctx.n_shares / PL_MAX(t->xla.n, 1u),
        .seconds = (double)(pl_now_ns() - t->epoch_ns) * 1e-9,
    };

    if (t->comm->rank == 0)
        pl_progress_show(&t->logger.progress, &state);
}

/* The rank's own time of a step can be told from that of others where the host waits for them, in
 * collectives. A stage of a pipeline has work of its own size; tensor parallel ranks wait for each
 * other in each layer. */
static bool tells_own_time(const struct pl_trainer *t)
{
    return t->comm->size > 1 && !t->pipe.on && !t->tp.on && (t->dev->ops->host || !t->comm->gpu);
}

/* begin_ns, spent_ns: at the batch's begin. */
static void note_own_time(struct pl_trainer *t, uint64_t begin_ns, uint64_t spent_ns)
{
    if (!tells_own_time(t))
        return;
    t->own_ns += pl_now_ns() - begin_ns - (pl_comm_spent_ns() - spent_ns);
    if (t->accumulated) /* the step is not complete */
        return;
    pl_rank_report_step(t->report, t->own_ns);
    t->own_ns = 0;
}

static bool out_of_steps(const struct pl_trainer *t)
{
    return t->state.step >= t->options->max_steps ||
           (t->options->fast_dev_run && t->state.batch >= t->options->fast_dev_run);
}

/* A device's first steps find the libraries' plans, which takes many times what a step takes: the
 * profile leaves them out if a step follows. */
static void leave_out_warm_steps(struct pl_trainer *t)
{
    if (!t->warm_steps || t->state.step < t->timed_step + t->warm_steps)
        return;
    pl_profile_clear(pl_stage_tape(&t->stage[PLUME_TRAIN]));
    t->timed_step = t->state.step;
    t->timed_ns = pl_now_ns();
    t->warm_steps = 0;
}

/* True in the midst of `--accumulate`: a checkpoint has no gradients, so the group's would be lost.
 * A module that steps by hand may keep gradients for ever. */
static bool in_group(const struct pl_trainer *t)
{
    return t->accumulated > 0 && !t->module->manual_step;
}

/* The batches of an epoch. *ret_validate: a validation is due after the last one; end_epoch() runs
 * it. */
static int train_batches(struct pl_trainer *t, bool *ret_validate, struct pl_error *err)
{
    struct pl_loader *loader = &t->stage[PLUME_TRAIN].loader;
    bool this_epoch = validates(t), due;
    uint64_t mine = pl_eval_batches(t, PLUME_TRAIN), n = 0, every = 0, validated = UINT64_MAX;
    int r = agree_on_batches(t, mine, &n, err);

    t->off_schedule = false;
    if (r == 0)
        r = validation_interval(t, n, &every, err);
    this_epoch = this_epoch && every;
    t->state.due = t->state.due && this_epoch;
    if (r == 0 && t->state.due && t->state.batch < n && !out_of_steps(t)) {
        validated = t->state.batch; /* a signal has kept the run before from it */
        r = validate_between(t, err);
    }
    while (r == 0 && t->state.batch < n && !(t->stopping && t->accumulated == 0) &&
           !out_of_steps(t)) {
        uint64_t begin = pl_timeline_begin(t->timeline), begin_ns = pl_now_ns();
        uint64_t spent_ns = pl_comm_spent_ns();
        const struct plume_batch *batch = t->state.batch < mine ? pl_loader_next(loader) : NULL;
        bool last = t->state.batch + 1 == n;

        pl_timeline_end(t->timeline, 0, "run", "data", NULL, begin);
        leave_out_warm_steps(t);
        if (t->state.batch < mine && !batch)
            return pl_loader_result(loader, err);
        begin = pl_timeline_begin(t->timeline);
        r = pl_train_step_train(t, batch, last, err);
        pl_timeline_end(t->timeline, 0, "run", "batch", NULL, begin);
        t->state.batch++;
        show_progress(t, n);
        if (r == 0 && t->options->on_step)
            r = t->options->on_step(t->options->on_step_ctx, t->dev, err);
        if (r == 0)
            r = agree_on_time(t, err);
        note_own_time(t, begin_ns, spent_ns);
        t->state.due = t->state.due || (this_epoch && t->state.batch % every == 0);
        if (r == 0 && t->state.due && !in_group(t) && !last && !out_of_steps(t) &&
            !t->interrupted) {
            validated = t->state.batch;
            r = validate_between(t, err);
        }
    }
    t->epoch_incomplete = t->state.batch < n && !t->options->fast_dev_run;
    due = t->state.due || (this_epoch && t->state.batch % every == 0);
    t->off_schedule = !due;
    *ret_validate = t->state.batch != validated && /* by what has ended the training */
                    (due || (this_epoch && t->state.batch < n));
    return r;
}

/* After a signal: saves everything and, after SIGUSR1, requeues the job. */
static int interrupt(struct pl_trainer *t, struct pl_error *err)
{
    _cleanup_free_ char *path = NULL;
    double loss[2] = {t->loss_sum, t->loss_weight};
    struct pl_error own = {0};
    int r = pl_average_now(t, err);

    if (r == 0 && t->in_epoch)
        r = pl_comm_allreduce(t->comm, loss, 2, PL_REAL_F64, 1, err);
    if (r == 0 && t->in_epoch)
        memcpy(t->state.loss, loss, sizeof(loss));
    pl_rank_report_phase(t->report, "checkpoint"); /* no step follows */
    if (r == 0)
        r = pl_checkpointer_save_hpc(&t->checkpointer, &path, err);
    if (r == 0)
        r = pl_comm_barrier(t->comm, err);
    if (r < 0)
        return r;
    if (t->interrupted == SIGUSR1)
        pl_rank_report_fact(t->report, "stopped", "USR1");
    else if (pl_trainer_signal(t) == SIGTERM) /* not SIGINT, nor another rank's signal */
        pl_rank_report_fact(t->report, "stopped", "TERM");
    if (path && t->interrupted == SIGUSR1 && pl_requeue(&own) < 0)
        pl_log_warn("train", "%s", pl_error_text(&own));
    return pl_error_set(err, -EINTR,
                        path ? "interrupted at step %llu: saved '%s'" : "interrupted at step %llu",
                        (unsigned long long)t->state.step, path);
}

/* For schedules of epochs: an epoch without a validation has no new value. */
static bool find_new(void *ctx, const char *name, double *ret)
{
    const struct pl_trainer *t = ctx;

    *ret = pl_metrics_get(&t->metrics, name);
    return strcmp(name, "train_loss") == 0 || validates(t);
}

/* Checkpoints from here on have the values that were logged so far. The end of the run alone causes
 * a validation off schedule, and the mean loss of a part of an epoch. A run that goes on must not
 * see these: its plateau schedules would count them. */
static void keep_metrics(struct pl_trainer *t)
{
    t->kept = t->metrics;
    t->state.metrics = &t->kept;
}

static int end_epoch(struct pl_trainer *t, bool validating, struct pl_error *err)
{
    double loss[2] = {t->loss_sum, t->loss_weight}, values[PL_LOG_VALUES_MAX];
    double seconds = (double)(pl_now_ns() - t->epoch_ns) * 1e-9;
    int r = pl_average_now(t, err);

    if (r == 0)
        r = agree_on_time(t, err);
    if (r == 0 && t->interrupted)
        return interrupt(t, err);
    if (r < 0)
        return r;
    if (t->epoch_incomplete && t->off_schedule)
        keep_metrics(t);
    if (validating)
        r = validate(t, loss, values, err);
    else
        r = pl_comm_allreduce(t->comm, loss, 2, PL_REAL_F64, 1, err);
    if (r == 0 && t->interrupted) /* the next run validates */
        return interrupt(t, err);
    if (r < 0)
        return r;
    t->in_epoch = t->state.open = t->state.due = false;
    memcpy(t->state.loss, loss, sizeof(loss));
    if (t->epoch_incomplete && !t->off_schedule)
        keep_metrics(t);
    /* Over all ranks. */
    if (loss[1] > 0)
        pl_metrics_set(&t->metrics, "train_loss", loss[0] / loss[1]);
    if (loss[1] > 0 && !t->epoch_incomplete)
        check_early_stop(t, true);
    pl_progress_clear(&t->logger.progress);
    if (prints(t))
        print_position(t);
    if (prints(t) && loss[1] > 0)
        fprintf(t->options->out, " loss %.4f", loss[0] / loss[1]);
    if (validating)
        pl_eval_report(t, PLUME_VALIDATE, values, false);
    if (prints(t)) {
        fprintf(t->options->out, " (%.0f samples/s)\n", (loss[1] - t->resumed_weight) / seconds);
        fflush(t->options->out);
    }
    r = pl_hooks_call(&t->hooks, t->module->on_train_epoch_end, "on_train_epoch_end", err);
    if (r == 0 && t->epoch_incomplete) /* keep its position; the next run completes it */
        return save(t, err);
    if (r == 0)
        r = pl_optimizers_schedule(&t->optimizers, false, find_new, t, err);
    t->state.epoch++;
    t->state.batch = 0;
    t->state.loss[0] = t->state.loss[1] = 0;
    return r == 0 ? save(t, err) : r;
}

/* The sums of a run that goes on inside an epoch begin with those of the one before. */
static void begin_loss(struct pl_trainer *t)
{
    bool counts = t->state.batch > 0 && t->comm->rank == 0;

    t->loss_sum = counts ? t->state.loss[0] : 0;
    t->loss_weight = counts ? t->state.loss[1] : 0;
    t->resumed_weight = t->state.batch > 0 ? t->state.loss[1] : 0;
    t->in_epoch = t->state.open = true;
}

static int train_epoch(struct pl_trainer *t, struct pl_error *err)
{
    uint64_t begin = pl_timeline_begin(t->timeline);
    bool validating = false;
    int r = pl_hooks_call(&t->hooks, t->module->on_train_epoch_start, "on_train_epoch_start", err);

    if (r < 0)
        return r;
    begin_loss(t);
    t->epoch_ns = pl_now_ns();
    /* A resumed run continues inside its first epoch, which may have fewer batches now. */
    t->state.batch = PL_MIN(t->state.batch, pl_loader_batches(&t->stage[PLUME_TRAIN].loader));
    pl_loader_begin(&t->stage[PLUME_TRAIN].loader, t->state.epoch, t->state.batch);
    r = train_batches(t, &validating, err);
    if (r == 0)
        r = t->interrupted ? interrupt(t, err) : end_epoch(t, validating, err);
    pl_timeline_end(t->timeline, 0, "run", "epoch", NULL, begin);
    return r;
}

/* A few batches of validation before training, so that its errors show at once. */
static int check_sanity(struct pl_trainer *t, struct pl_error *err)
{
    double none[2] = {0}, values[PL_LOG_VALUES_MAX];
    const struct pl_train_options *o = t->options;
    uint64_t most = PL_MIN(o->sanity_steps, pl_eval_batches(t, PLUME_VALIDATE));
    int r;

    /* All ranks decide alike: one that has no batches takes part in the sums. */
    if (o->fast_dev_run || o->sanity_steps == 0 || pl_eval_is_off(t, PLUME_VALIDATE))
        return 0;
    r = pl_eval_run(t, PLUME_VALIDATE, most, none, values, err);
    return r == 0 && t->interrupted ? interrupt(t, err) : r;
}

static int test(struct pl_trainer *t, struct pl_error *err)
{
    double none[2] = {0}, values[PL_LOG_VALUES_MAX];
    int r;

    if (t->stage[PLUME_TEST].present && pl_eval_is_off(t, PLUME_TEST))
        return 0;
    r = pl_hooks_call(&t->hooks, t->module->on_test_start, "on_test_start", err);
    if (r == 0)
        r = pl_eval_run(t, PLUME_TEST, pl_eval_batches(t, PLUME_TEST), none, values, err);
    if (r == 0 && t->interrupted)
        return interrupt(t, err);
    if (r < 0)
        return r;
    pl_eval_store(t, PLUME_TEST, values);
    pl_eval_report(t, PLUME_TEST, values, true);
    return pl_hooks_call(&t->hooks, t->module->on_test_end, "on_test_end", err);
}

/* Lightning's max_steps without max_epochs has no limit of epochs: who knows that expects all
 * steps. */
static void warn_of_few_steps(const struct pl_trainer *t)
{
    const struct pl_hparam *epochs = pl_hparams_find(t->hparams, "epochs");

    if (t->comm->rank == 0 && t->options->max_steps < UINT64_MAX && !epochs->given &&
        t->state.step < t->options->max_steps && (double)t->state.epoch >= epochs->value &&
        !t->stopping && !t->options->fast_dev_run)
        pl_log_warn("train",
                    "the run ended after %llu of the %llu steps of --max-steps: epochs is %g, by "
                    "default; give --epochs",
                    (unsigned long long)t->state.step, (unsigned long long)t->options->max_steps,
                    epochs->value);
}

static int fit(struct pl_trainer *t, struct pl_error *err)
{
    double epochs = t->options->fast_dev_run ? 1 : pl_hparams_value(t->hparams, "epochs");
    int r = pl_hooks_call(&t->hooks, t->module->on_fit_start, "on_fit_start", err);

    t->fit_ns = t->last_agree_ns = pl_now_ns();
    t->next_agree_step = t->state.step + 1;
    stay_stopped(t);
    if (epochs > 0)
        pl_print_batch(t);
    if (r == 0)
        r = pl_eval_check_limits(t, err);
    if (r == 0 && epochs > 0)
        r = pl_eval_check_monitors(t, err);
    if (r == 0 && epochs > 0)
        r = check_sanity(t, err);
    /* A run that was interrupted in its last step has its last validation before it. */
    while (r == 0 && (double)t->state.epoch < epochs &&
           (t->state.step < t->options->max_steps || t->state.open) && !t->stopping)
        r = train_epoch(t, err);
    if (r == 0)
        warn_of_few_steps(t);
    if (r == 0 && epochs <= 0)
        r = pl_checkpointer_save_initial(&t->checkpointer, err);
    if (r == 0)
        r = pl_hooks_call(&t->hooks, t->module->on_fit_end, "on_fit_end", err);
    if (r == 0)
        r = test(t, err);
    if (r == 0)
        r = flush(t, err);
    if (r == 0)
        r = pl_replicas_sync(&t->replicas, err);
    if (r == 0)
        r = pl_params_hash(&t->ctx.params, t->pipe.on ? t->pipe.comm : t->group.shards,
                           t->param_hash, err);
    if (r < 0)
        return r;
    pl_rank_report_fact(t->report, "param_hash", t->param_hash);
    if (t->options->out) {
        fprintf(t->options->out, "rank %u of %u: param hash %s\n", t->comm->rank, t->comm->size,
                t->param_hash);
        fflush(t->options->out);
    }
    r = pl_agree_on_values(&t->ctx.params, t->param_hash, t->comm, err);
    /* Barrier: a rank that exits early would look lost to the others. */
    return r < 0 ? r : pl_comm_barrier(t->comm, err);
}

int pl_trainer_fit(struct pl_trainer *trainer, struct pl_error *err)
{
    struct pl_error own = {0};
    int r;

    err = err ? err : &own;
    if (trainer->comm->rank == 0) {
        char world[16];

        snprintf(world, sizeof(world), "%u", trainer->comm->size);
        pl_rank_report_fact(trainer->report, "world_size", world);
        if (trainer->module->objective)
            pl_rank_report_fact(trainer->report, "objective", trainer->module->objective);
    }
    r = fit(trainer, err);
    if (r < 0 && !(r == -EINTR && trainer->interrupted)) { /* all ranks have agreed on it */
        pl_pipe_fail(&trainer->pipe, r, err);
        pl_tensor_parallel_fail(&trainer->tp, r, err);
        pl_shard_group_fail(&trainer->group, r, err);
        pl_comm_fail(trainer->comm, r, err);
    }
    return r;
}
