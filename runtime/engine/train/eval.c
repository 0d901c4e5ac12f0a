/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/eval.h"
#include "runtime/engine/train/train_step.h"

#include <math.h>
#include <string.h>

static const char *const prefix[] = {"train_", "val_", "test_"};

const char *pl_eval_prefix(enum plume_stage stage)
{
    return prefix[stage];
}

int pl_eval_run(struct pl_trainer *t,
                enum plume_stage stage,
                uint64_t most,
                double extra[2],
                double *values,
                struct pl_error *err)
{
    struct pl_stage *s = &t->stage[stage];
    double sums[2 * PL_LOG_VALUES_MAX + 2] = {0};
    const struct plume_batch *batch;
    int r;

    r = pl_params_spread_buffers(&t->ctx.params, t->comm, err);
    if (r < 0)
        return r;
    if (s->present) {
        memset(s->logs.sum, 0, sizeof(s->logs.sum));
        for (unsigned i = 0; s->parts && i < s->parts->k; i++)
            memset(s->parts->list[i].logs.sum, 0, sizeof(s->logs.sum));
        pl_loader_begin(&s->loader, 0, 0);
        while (most-- && (batch = pl_loader_next(&s->loader)))
            if ((r = pl_train_step_trace(t, stage, batch, NULL, err)) < 0 ||
                (r = pl_train_step_forward(t, stage, NULL, err)) < 0)
                return r;
        r = pl_loader_result(&s->loader, err);
        if (r < 0)
            return r;
        for (unsigned i = 0; s->parts && i < s->parts->k; i++)
            for (size_t k = 0; k < s->logs.n; k++) {
                s->logs.sum[k][0] += s->parts->list[i].logs.sum[k][0];
                s->logs.sum[k][1] += s->parts->list[i].logs.sum[k][1];
            }
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

void pl_eval_keep(struct pl_trainer *t, enum plume_stage stage, const double *values)
{
    const struct pl_logs *logs = &t->stage[stage].logs;
    char name[PL_METRIC_NAME];

    for (size_t i = 0; i < logs->n; i++) {
        snprintf(name, sizeof(name), "%s%s", prefix[stage], logs->name[i]);
        pl_metrics_set(&t->metrics, name, values[i]);
    }
}

void pl_eval_tell(struct pl_trainer *t, enum plume_stage stage, const double *values, bool last)
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
        pl_logger_metrics(&t->logger, (int64_t)t->step, list, values, logs->n, last);
}
