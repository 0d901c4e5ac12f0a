/* SPDX-License-Identifier: MIT */
/* A run that validates, tests or predicts, and does not train. */
#include "runtime/engine/report/array_file.h"
#include "runtime/engine/train/eval.h"
#include "runtime/engine/train/predict.h"

#include <math.h>
#include <stdio.h>

static void print_json(const char *const *names, const double *values, size_t n)
{
    char text[32];

    putchar('{');
    for (size_t i = 0; i < n; i++) {
        const char *quote = isfinite(values[i]) ? "" : "\"";

        if (isfinite(values[i]))
            pl_number_text(text, values[i], true);
        else
            snprintf(text, sizeof(text), "%s",
                     isnan(values[i]) ? "nan"
                     : values[i] > 0  ? "inf"
                                      : "-inf");
        printf("%s\"%s\":%s%s%s", i ? "," : "", names[i], quote, text, quote);
    }
    puts("}");
    fflush(stdout);
}

/* On rank 0. Names are plain words (pl_name_valid()). */
static void report(struct pl_trainer *t, enum plume_stage stage, const double *values)
{
    const struct pl_logs *logs = pl_stage_logs(&t->stage[stage]);
    char names[PL_LOG_VALUES_MAX][80];
    const char *list[PL_LOG_VALUES_MAX];

    for (size_t i = 0; i < logs->n; i++) {
        snprintf(names[i], sizeof(names[i]), "%s%s", pl_stage_prefix(stage), logs->name[i]);
        list[i] = names[i];
        if (t->options->out && !t->options->json)
            fprintf(t->options->out, "%s %.4f\n", names[i], values[i]);
    }
    if (t->options->json)
        print_json(list, values, logs->n);
    if (logs->n)
        pl_logger_metrics(&t->logger, (int64_t)t->state.step, list, values, logs->n, true);
}

static int evaluate(struct pl_trainer *t, enum plume_stage stage, struct pl_error *err)
{
    const struct plume_module *m = t->module;
    bool test = stage == PLUME_TEST;
    double none[2] = {0}, values[PL_LOG_VALUES_MAX];
    int r;

    if (!t->stage[stage].present)
        return pl_error_set(err, -ENOENT, "module '%s' has no %s: a %s_step, and data for it",
                            m->name, test ? "test" : "validation", test ? "test" : "validation");
    r = pl_eval_need_batches(t, stage, err);
    if (r < 0)
        return r;
    r = pl_hooks_call(&t->hooks, test ? m->on_test_start : m->on_validation_start,
                      test ? "on_test_start" : "on_validation_start", err);
    if (r == 0)
        r = pl_eval_run(t, stage, pl_eval_batches(t, stage), none, values, err);
    if (r == 0 && t->interrupted)
        return pl_error_set(err, -EINTR, "interrupted: there is no result");
    if (r < 0)
        return r;
    pl_eval_store(t, stage, values);
    if (t->comm->rank == 0)
        report(t, stage, values);
    return pl_hooks_call(&t->hooks, test ? m->on_test_end : m->on_validation_end,
                         test ? "on_test_end" : "on_validation_end", err);
}

int pl_trainer_evaluate(struct pl_trainer *trainer, struct pl_error *err)
{
    struct pl_error own = {0};
    int r;

    err = err ? err : &own;
    if (trainer->options->run == PL_RUN_PREDICT)
        r = pl_predict(trainer, err);
    else
        r = evaluate(trainer, trainer->options->run == PL_RUN_TEST ? PLUME_TEST : PLUME_VALIDATE,
                     err);
    if (r < 0 && !(r == -EINTR && trainer->interrupted)) { /* all ranks have agreed on it */
        pl_pipe_fail(&trainer->pipe, r, err);
        pl_tensor_parallel_fail(&trainer->tp, r, err);
        pl_shard_group_fail(&trainer->group, r, err);
        pl_comm_fail(trainer->comm, r, err);
    }
    /* Barrier: a rank that exits early would look lost to the others. */
    return r < 0 ? r : pl_comm_barrier(trainer->comm, err);
}
