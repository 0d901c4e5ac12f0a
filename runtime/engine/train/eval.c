/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/eval.h"
#include "common/base/log.h"
#include "runtime/engine/train/xla_step.h"

#include <math.h>
#include <string.h>

/* A value that is not a number may be due to a label that is no class: it says nothing then. */
static int check_values(struct pl_trainer *t, const struct pl_stage *s, struct pl_error *err)
{
    for (size_t i = 0; i < pl_stage_logs(s)->n; i++) {
        double sum[2];
        int r = 0;

        pl_lane_logged(&s->lanes[0], i, sum);
        if (isnan(sum[0]))
            r = t->pipe.on ? pl_pipe_check_labels(&t->pipe, s->kind, err)
                : t->xla.n ? pl_xla_step_check_labels(t, s, err)
                           : pl_lane_check_labels(&s->lanes[0], err);
        if (r < 0)
            return pl_error_wrap(err, r, "%s%s", pl_stage_prefix(s->kind),
                                 pl_stage_logs(s)->name[i]);
    }
    return 0;
}

static int run_batch(struct pl_trainer *t,
                     struct pl_stage *s,
                     const struct plume_batch *batch,
                     struct pl_error *err)
{
    struct pl_lane *lane = &s->lanes[0];
    int r;

    if (t->pipe.on)
        return pl_pipe_evaluate(&t->pipe, s->kind, batch, pl_trainer_draw(t), err);
    if (t->options->xla)
        return pl_xla_step_evaluate(t, s, batch, err);
    r = pl_lane_trace(s, lane, batch, NULL, err);
    return r < 0 ? r : pl_lane_forward(lane, NULL, pl_trainer_draw(t), err);
}

/* With units of parameters all ranks run as many batches as the one with most: in the others, which
 * have none left, a batch is NULL. */
static int agree_on_batches(struct pl_trainer *t, uint64_t *most, struct pl_error *err)
{
    unsigned n = t->comm->size;
    _cleanup_free_ uint64_t *all = calloc(n, sizeof(*all));
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    int r;

    if (!all || !offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * sizeof(*all);
    all[t->comm->rank] = *most;
    r = pl_comm_allgather(t->comm, all, offset, err);
    for (unsigned i = 0; i < n && r == 0; i++)
        *most = PL_MAX(*most, all[i]);
    return r;
}

/* sums[2 * i], sums[2 * i + 1]: sum and weight of value i over the batches of this rank. */
static int run_batches(
    struct pl_trainer *t, struct pl_stage *s, uint64_t most, double *sums, struct pl_error *err)
{
    struct pl_lane *lane = &s->lanes[0];
    /* Ranks that run a batch together do not hear of a signal at the same one: they go on to the
     * end. */
    bool together = t->pipe.on || t->tp.on || t->ctx.params.units;
    const struct plume_batch *batch;
    uint64_t own = most;
    int r = 0;

    if (t->ctx.params.units) {
        own = most = PL_MIN(most, (uint64_t)pl_loader_batches(&s->loader));
        r = agree_on_batches(t, &most, err);
    }
    pl_lane_clear_logs(lane);
    pl_loader_begin(&s->loader, 0, 0);
    while (r == 0 && most-- && (together || !pl_trainer_signal(t))) {
        /* A share of a rank's batches may leave it fewer than it has. */
        batch = own > 0 ? pl_loader_next(&s->loader) : NULL;
        own -= own > 0;
        if (!batch && !t->ctx.params.units)
            break;
        r = batch ? run_batch(t, s, batch, err) : pl_lane_assist(s, lane, false, err);
        if (r == 0 && batch)
            r = check_values(t, s, err);
        t->eval_batch++;
    }
    t->eval_batch = 0;
    for (size_t i = 0; i < pl_stage_logs(s)->n; i++)
        pl_lane_logged(lane, i, &sums[2 * i]);
    return r < 0 ? r : pl_loader_result(&s->loader, err);
}

static const struct pl_limit *limit_of(const struct pl_train_options *o, enum plume_stage stage)
{
    return o->overfit.value > 0 && stage != PLUME_TEST ? &o->overfit : &o->limit[stage];
}

uint64_t pl_eval_batches(const struct pl_trainer *t, enum plume_stage stage)
{
    const struct pl_stage *s = &t->stage[stage];

    return s->present ? pl_stage_batches(s, &s->loader) : 0;
}

bool pl_eval_is_off(const struct pl_trainer *t, enum plume_stage stage)
{
    return !t->stage[stage].present ||
           (!t->options->fast_dev_run && limit_of(t->options, stage)->value <= 0);
}

static const char *const stage_names[] = {"training", "validation", "test"};

/* A stage that drops all of its data would seem to run. Ranks may differ by one sample: the rank
 * with most counts, so that all find the same. */
static int check_size(const struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    const struct pl_loader *l = &t->stage[stage].loader;
    size_t ranks = l->sampler.options.world_size, most = l->sampler.count;

    if (pl_eval_is_off(t, stage) || !l->data.drop_last)
        return 0;
    if (stage != PLUME_TRAIN)
        most = (l->sampler.total + ranks - 1) / ranks;
    if (most == 0 || most >= l->options.batch_size)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "the %s data has %zu sample%s%s, and the module drops a batch of fewer "
                        "than %zu: choose a smaller batch_size%s",
                        stage_names[stage], most, most == 1 ? "" : "s",
                        ranks > 1 ? " for a rank" : "", l->options.batch_size,
                        ranks > 1 ? ", or fewer ranks" : "");
}

static int check_share(const struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    const struct pl_limit *limit = limit_of(t->options, stage);
    uint64_t n = t->stage[stage].present ? pl_loader_batches(&t->stage[stage].loader) : 0;

    if (t->options->fast_dev_run || n == 0 || limit->value <= 0 || pl_limit_of(limit, n) > 0)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "a share of %g of the %llu batch%s of the %s is less than one: "
                        "give a larger share, or a number of batches",
                        limit->value, (unsigned long long)n, n == 1 ? "" : "es",
                        stage_names[stage]);
}

static int check_stage(const struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    int r = check_size(t, stage, err);

    return r < 0 ? r : check_share(t, stage, err);
}

int pl_eval_check_limits(const struct pl_trainer *t, struct pl_error *err)
{
    int r = 0;

    for (int i = PLUME_TRAIN; i <= PLUME_TEST && r == 0; i++)
        r = check_stage(t, (enum plume_stage)i, err);
    return r;
}

int pl_eval_need_batches(const struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    if (pl_eval_is_off(t, stage))
        return pl_error_set(err, -EINVAL, "option '--limit-%s-batches 0' leaves no batches",
                            stage == PLUME_TEST ? "test" : "val");
    return check_stage(t, stage, err);
}

int pl_eval_run(struct pl_trainer *t,
                enum plume_stage stage,
                uint64_t most,
                double extra[2],
                double *values,
                struct pl_error *err)
{
    struct pl_stage *s = &t->stage[stage];
    size_t n = pl_stage_logs(s)->n;
    double sums[2 * PL_LOG_VALUES_MAX + 4] = {0};
    int sig;
    int r;

    pl_rank_report_phase(t->report, stage == PLUME_TEST ? "test" : "validation");
    r = t->pipe.on        ? pl_pipe_spread_buffers(&t->pipe, err)
        : t->options->xla ? pl_xla_step_spread_buffers(t, err)
                          : pl_params_spread_buffers(&t->ctx.params, t->comm, err);

    if (r == 0 && s->present) {
        uint64_t begin = pl_timeline_begin(t->timeline);

        pl_ema_swap(&t->ema);
        r = run_batches(t, s, most, sums, err);
        pl_ema_swap(&t->ema);
        pl_timeline_end(t->timeline, 0, "run", stage == PLUME_TEST ? "test" : "validation", NULL,
                        begin);
    }
    if (r < 0)
        return r;
    if (!pl_tensor_parallel_counts(&t->tp))
        memset(sums, 0, 2 * n * sizeof(*sums));
    memcpy(sums + 2 * n, extra, 2 * sizeof(*extra));
    sig = pl_trainer_signal(t);
    sums[2 * n + 2] = sig == SIGUSR1;
    sums[2 * n + 3] = sig != 0 && sig != SIGUSR1;
    r = pl_comm_allreduce(t->comm, sums, 2 * n + 4, PL_REAL_F64, 1, err);
    pl_rank_report_phase(t->report, "");
    if (r < 0)
        return r;
    pl_trainer_interrupt(t, sums[2 * n + 2] > 0, sums[2 * n + 3] > 0);
    for (size_t i = 0; i < n; i++)
        values[i] = sums[2 * i + 1] != 0 ? sums[2 * i] / sums[2 * i + 1] : NAN;
    memcpy(extra, sums + 2 * n, 2 * sizeof(*extra));
    return 0;
}

void pl_eval_store(struct pl_trainer *t, enum plume_stage stage, const double *values)
{
    const struct pl_logs *logs = pl_stage_logs(&t->stage[stage]);
    char name[PL_METRIC_NAME];

    for (size_t i = 0; i < logs->n; i++) {
        snprintf(name, sizeof(name), "%s%s", pl_stage_prefix(stage), logs->name[i]);
        pl_metrics_set(&t->metrics, name, values[i]);
    }
}

void pl_eval_report(struct pl_trainer *t, enum plume_stage stage, const double *values, bool last)
{
    const struct pl_logs *logs = pl_stage_logs(&t->stage[stage]);
    char names[PL_LOG_VALUES_MAX][80];
    const char *list[PL_LOG_VALUES_MAX];

    if (t->comm->rank != 0)
        return;
    for (size_t i = 0; i < logs->n; i++) {
        snprintf(names[i], sizeof(names[i]), "%s%s", pl_stage_prefix(stage), logs->name[i]);
        list[i] = names[i];
        if (t->options->out)
            fprintf(t->options->out, stage == PLUME_TEST ? "%s %.4f\n" : " %s %.4f", names[i],
                    values[i]);
    }
    if (logs->n)
        pl_logger_metrics(&t->logger, (int64_t)t->state.step, list, values, logs->n, last);
}

/* True if a run sets a value of this name: train_loss, or what validation logs. */
static bool is_logged(const struct pl_trainer *t, const char *name)
{
    const char *prefix = pl_stage_prefix(PLUME_VALIDATE);
    const struct pl_logs *logs = pl_stage_logs(&t->stage[PLUME_VALIDATE]);
    size_t len = strlen(prefix);

    if (strcmp(name, "train_loss") == 0)
        return true;
    for (size_t i = 0; i < logs->n; i++)
        if (strncmp(name, prefix, len) == 0 && strcmp(name + len, logs->name[i]) == 0)
            return true;
    return false;
}

/* False if the run has epochs, and none of them has a validation. */
static bool validates_ever(const struct pl_trainer *t)
{
    uint64_t every = t->options->val_every, epoch = t->state.epoch;
    double next = (double)(epoch - epoch % every) + (double)every; /* the first with one: its end */
    double end = ceil(pl_hparams_value(t->hparams, "epochs"));

    return t->options->fast_dev_run || (double)epoch >= end || next <= end;
}

/* name: a value that `who` watches; NULL: none. */
static int
check_monitor(const struct pl_trainer *t, const char *who, const char *name, struct pl_error *err)
{
    if (name && strcmp(name, "train_loss") != 0 && t->stage[PLUME_VALIDATE].present &&
        pl_eval_is_off(t, PLUME_VALIDATE))
        return pl_error_set(err, -EINVAL,
                            "'%s' is watched, but option '--limit-val-batches 0' leaves no "
                            "validation",
                            name);
    if (name && !is_logged(t, name))
        return pl_error_set(err, -ENOENT,
                            "%s '%s', which nothing logs: validation values are called val_NAME",
                            who, name);
    if (name && strcmp(name, "train_loss") != 0 && t->comm->rank == 0 && !validates_ever(t))
        pl_log_warn("train",
                    "%s '%s', but no epoch of this run has a validation: epochs is %g, and option "
                    "'--check-val-every-n-epoch' %llu",
                    who, name, pl_hparams_value(t->hparams, "epochs"),
                    (unsigned long long)t->options->val_every);
    return 0;
}

/* True unless --max-steps ends the run before the last batch of its first epoch. */
static bool completes_epoch(const struct pl_trainer *t)
{
    uint64_t n = pl_eval_batches(t, PLUME_TRAIN), left = n - PL_MIN(t->state.batch, n);
    /* A manual_step may make fewer steps than one a batch. */
    uint64_t each = t->module->manual_step ? 1 : pl_accumulate_at(t->options, t->state.epoch);

    return t->options->fast_dev_run ||
           t->state.step + (left + each - 1) / each <= t->options->max_steps;
}

int pl_eval_check_monitors(const struct pl_trainer *t, struct pl_error *err)
{
    const char *keep = t->checkpointer.on ? t->options->monitor : NULL;
    int r = check_monitor(t, "early stopping watches", t->options->stop.monitor, err);

    if (r == 0)
        r = check_monitor(t, "checkpoints are chosen by", keep, err);
    for (size_t i = 0; i < t->optimizers.n && r == 0; i++)
        /* A run of a few steps, which measures them or tries the module, may end before the first
         * epoch does: the value need not be logged. */
        if (t->optimizers.list[i].schedule.options.kind == PLUME_PLATEAU &&
            (completes_epoch(t) || t->optimizers.list[i].schedule.options.per_step))
            r = check_monitor(t, "the learning-rate schedule watches",
                              t->optimizers.list[i].monitor, err);
    return r;
}
