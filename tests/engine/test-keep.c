/* SPDX-License-Identifier: MIT */
/* Tensors of a step that the module keeps (plume_keep()), and reads after it: their values and
 * gradients are those of the formula, though other gradients share memory, or are scratch. Tensors
 * that the module keeps by itself. */
#include "tests/engine/fit_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ROWS 16
#define N (ROWS * 10)

/* loss = mean(z z) of z = a + relu(x w + b): the gradients of a and z are 2 z / N. relu's backward
 * uses the gradient of its output, which a sum shares with both, as scratch. */
static int step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct fit_net *net = pl->state;
    plume_tensor *x = batch->field[0], *a, *f, *z;

    f = plume_linear(pl, x, net->w, net->b, PLUME_RELU);
    a = plume_keep(pl, "a", plume_linear(pl, x, net->w, NULL, PLUME_IDENTITY));
    z = plume_keep(pl, "z", plume_add(pl, a, f));
    plume_keep(pl, "aside", f);
    plume_keep(pl, "labels", batch->field[1]);
    *ret_loss = plume_mean(pl, plume_mul(pl, z, z), 0, 2);
    return 0;
}

static double values[4][N];

/* scale: the loss scale is not known here, but the same for all. */
static int check(struct plume_context *pl, double tolerance)
{
    double scale = 0, size = 0;
    int r = plume_read(pl, "z", PLUME_VALUE, N, values[0]);

    if (r == 0)
        r = plume_read(pl, "z", PLUME_GRADIENT, N, values[1]);
    if (r == 0)
        r = plume_read(pl, "a", PLUME_GRADIENT, N, values[2]);
    if (r == 0)
        r = plume_read(pl, "aside", PLUME_VALUE, N, values[3]);
    for (size_t i = 0; i < N && r == 0; i++)
        if (fabs(values[0][i]) > size) {
            size = fabs(values[0][i]);
            scale = values[1][i] / (2 * values[0][i] / N);
        }
    if (r == 0 && !(size > 0 && scale > 0.999))
        return plume_fail(pl, -EINVAL, "no gradient of z");
    for (size_t i = 0; i < N && r == 0; i++) {
        double want = scale * 2 * values[0][i] / N, most = tolerance * scale * size / N;

        if (fabs(values[1][i] - want) > most || fabs(values[2][i] - want) > most ||
            values[3][i] < 0)
            return plume_fail(pl, -EINVAL, "the gradient is another one");
    }
    if (r == 0)
        r = plume_read(pl, "labels", PLUME_VALUE, ROWS, values[3]);
    for (size_t i = 0; i < ROWS && r == 0; i++)
        if (!(values[3][i] >= 0 && values[3][i] <= 9) || values[3][i] != floor(values[3][i]))
            return plume_fail(pl, -EINVAL, "a label is another one");
    return r;
}

/* Cross-entropy may write the gradient of logits over them, but not if they are kept. */
static int
classify(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    plume_tensor *logits = plume_keep(pl, "z", fit_forward(pl, batch));

    plume_keep(pl, "labels", batch->field[1]);
    *ret_loss = plume_cross_entropy(pl, logits, batch->field[1]);
    return 0;
}

/* The gradient is (softmax(z) - the label) / rows. */
static int look_at_logits(struct plume_context *pl, const struct plume_batch *batch)
{
    int r = plume_read(pl, "z", PLUME_VALUE, N, values[0]);

    if (r == 0)
        r = plume_read(pl, "z", PLUME_GRADIENT, N, values[1]);
    if (r == 0)
        r = plume_read(pl, "labels", PLUME_VALUE, ROWS, values[2]);
    for (size_t i = 0; i < ROWS && r == 0; i++) {
        double sum = 0;

        for (size_t k = 0; k < 10; k++)
            sum += exp(values[0][10 * i + k]);
        for (size_t k = 0; k < 10; k++) {
            double want = exp(values[0][10 * i + k]) / sum - ((double)k == values[2][i]);

            if (fabs(values[1][10 * i + k] - want / ROWS) > 1e-7)
                return plume_fail(pl, -EINVAL, "the gradient of a logit is another one");
        }
    }
    return r;
}

static void test_logits(void **state)
{
    struct fit_run *run = fit_new_run();

    run->options.max_steps = 3;
    run->module.training_step = classify;
    run->module.on_train_batch_end = look_at_logits;
    fit_go(run, 1, 0);
    fit_assert_good(run);
}

static double allowed;
static unsigned looks;

static int look(struct plume_context *pl)
{
    looks++;
    return check(pl, allowed);
}

static int look_at_end(struct plume_context *pl, const struct plume_batch *batch)
{
    looks++;
    return check(pl, allowed);
}

static const char *train_and_count(struct pl_comm *comm, void *ctx)
{
    struct fit_run *run = ctx;
    const char *text = fit_train(comm, run);

    if (!text && run->error[0] == 0 && looks != 3 * 4)
        snprintf(run->error, sizeof(run->error), "%u looks", looks);
    return text;
}

static void test_values_and_gradients(void **state)
{
    static const struct {
        const char *name;
        unsigned ranks, devices;
        enum pl_strategy_kind strategy;
        enum pl_shard_kind shard;
        enum pl_precision precision;
        double tolerance; /* of rounding to the type */
    } cases[] = {
        {"single", 1, 1, PL_STRATEGY_AUTO, 0, PL_PRECISION_32, 1e-6},
        {"f64", 1, 1, PL_STRATEGY_AUTO, 0, PL_PRECISION_64, 1e-14},
        {"16", 1, 1, PL_STRATEGY_AUTO, 0, PL_PRECISION_16, 1e-2},
        {"bf16", 1, 1, PL_STRATEGY_AUTO, 0, PL_PRECISION_BF16, 5e-2},
        {"ddp", 2, 1, PL_STRATEGY_AUTO, 0, PL_PRECISION_32, 1e-6},
        {"dp", 1, 2, PL_STRATEGY_DP, 0, PL_PRECISION_32, 1e-6},
        {"gradients in shards", 2, 1, PL_STRATEGY_SHARDED, PL_SHARD_GRAD, PL_PRECISION_32, 1e-6},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        allowed = cases[i].tolerance;
        looks = 0;
        run->options.max_steps = 4;
        run->options.strategy = cases[i].strategy;
        run->options.shard = cases[i].shard;
        run->options.devices = cases[i].devices;
        run->options.precision = cases[i].precision;
        run->options.recompute = i % 2; /* nothing that is kept is computed again */
        run->module.training_step = step;
        run->module.on_after_backward = look;
        run->module.on_before_optimizer_step = look;
        run->module.on_train_batch_end = look_at_end;
        ranks_run(cases[i].ranks, 0, train_and_count, run, 0);
        if (run->error[0])
            fail_msg("%s: %s", cases[i].name, run->error);
    }
}

/* ---- what cannot be ---- */

static int keep_twice(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    plume_tensor *y = plume_keep(pl, "y", fit_forward(pl, b));

    *ret = plume_cross_entropy(pl, plume_keep(pl, "y", y), b->field[1]);
    return 0;
}

static int
keep_as_parameter(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    *ret = plume_cross_entropy(pl, plume_keep(pl, "w", fit_forward(pl, b)), b->field[1]);
    return 0;
}

static int read_few(struct plume_context *pl)
{
    return plume_read(pl, "z", PLUME_VALUE, 3, values[0]);
}

static int read_aside(struct plume_context *pl)
{
    return plume_read(pl, "aside", PLUME_GRADIENT, N, values[0]);
}

static int read_labels(struct plume_context *pl)
{
    return plume_read(pl, "labels", PLUME_GRADIENT, ROWS, values[0]);
}

static int read_early(struct plume_context *pl)
{
    return plume_read(pl, "z", PLUME_VALUE, N, values[0]);
}

/* A state that goes from one batch to the next, as in a recurrent network. */
static int carry(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    static plume_tensor *last;
    plume_tensor *y = last && pl->step ? plume_scale(pl, last, 0.5, 0) : NULL;

    last = fit_forward(pl, b);
    *ret = plume_cross_entropy(pl, y ? plume_add(pl, last, y) : last, b->field[1]);
    return 0;
}

/* A constant that is made once, as one would do for a mask. Another op of the next step is where it
 * was among the ops. */
static int make_once(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    static plume_tensor *half;
    plume_tensor *y;

    if (!half)
        half = plume_full(pl, 2, (size_t[]){b->rows, 10}, 0.5);
    y = fit_forward(pl, b);
    *ret = plume_cross_entropy(pl, plume_mul(pl, y, half), b->field[1]);
    return 0;
}

static plume_tensor *validated, *validated_loss;

static int validate(struct plume_context *pl, const struct plume_batch *b)
{
    validated = fit_forward(pl, b);
    validated_loss = plume_cross_entropy(pl, validated, b->field[1]);
    plume_log(pl, "loss", validated_loss, 1, 1);
    return 0;
}

static int use_validated(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    *ret = plume_cross_entropy(pl, validated ? validated : fit_forward(pl, b), b->field[1]);
    return 0;
}

/* The loss of the step before. */
static int give_last(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    static plume_tensor *last;
    plume_tensor *y = fit_forward(pl, b);

    if (pl->step == 0)
        last = plume_cross_entropy(pl, y, b->field[1]);
    *ret = last;
    return 0;
}

/* Gives a tensor that the validation has made to each place but an op. */
static int give_validated(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    *ret =
        validated_loss ? validated_loss : plume_cross_entropy(pl, fit_forward(pl, b), b->field[1]);
    return 0;
}

static int log_validated(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    *ret = plume_cross_entropy(pl, fit_forward(pl, b), b->field[1]);
    plume_log(pl, "old", validated_loss ? validated_loss : *ret, 1, 1);
    return 0;
}

static int
output_validated(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    *ret = plume_cross_entropy(pl, fit_forward(pl, b), b->field[1]);
    plume_output(pl, "old", validated ? validated : *ret);
    return 0;
}

static int keep_validated(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret)
{
    plume_tensor *y = plume_keep(pl, "y", validated);

    *ret = plume_cross_entropy(pl, y ? y : fit_forward(pl, b), b->field[1]);
    return 0;
}

/* After the step. */
static int end_validated(struct plume_context *pl,
                         const struct plume_outputs *outputs,
                         plume_tensor **ret_loss)
{
    if (validated_loss)
        *ret_loss = validated_loss;
    return 0;
}

static int add_validated(struct plume_context *pl,
                         const struct plume_outputs *outputs,
                         plume_tensor **ret_loss)
{
    if (validated_loss)
        *ret_loss = plume_add(pl, *ret_loss, validated_loss);
    return 0;
}

static int
end_of_old(struct plume_context *pl, const struct plume_outputs *outputs, plume_tensor **ret_loss)
{
    *ret_loss = plume_whole(pl, outputs, "old");
    return 0;
}

static void test_what_cannot_be(void **state)
{
    static const struct {
        int (*step)(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret);
        int (*early)(struct plume_context *pl);
        int (*late)(struct plume_context *pl);
        int (*end)(struct plume_context *pl,
                   const struct plume_outputs *outputs,
                   plume_tensor **ret);
        enum pl_shard_kind shard;
        const char *text;
    } cases[] = {
        {keep_twice, NULL, NULL, NULL, 0, "the step keeps 'y' twice"},
        {keep_as_parameter, NULL, NULL, NULL, 0, "keep: 'w' is a bad name, a parameter's"},
        {step, NULL, read_few, NULL, 0, "read 'z': it has 160 numbers, not 3"},
        {step, NULL, read_aside, NULL, 0, "read 'aside': the loss does not depend on it"},
        {step, NULL, read_labels, NULL, 0, "read 'labels': the loss does not depend on it"},
        {step, read_early, NULL, NULL, 0, "read 'z': the step that keeps it has not run yet"},
        {step, NULL, read_few, NULL, PL_SHARD_PARAM, "it has 160 numbers, not 3"},
        {carry, NULL, NULL, NULL, 0,
         "scale: x (input 0) is the result of an op of an earlier step"},
        {make_once, NULL, NULL, NULL, 0,
         "mul: b (input 1) is the result of an op of an earlier step"},
        {use_validated, NULL, NULL, NULL, 0,
         "cross_entropy: logits (input 0) is the result of an op of"},
        {give_last, NULL, NULL, NULL, 0,
         "training_step: the loss is the result of an op of an earlier"},
        {give_validated, NULL, NULL, NULL, 0,
         "training_step: the loss is the result of an op of an"},
        {log_validated, NULL, NULL, NULL, 0,
         "log: 'old' is the result of an op of an earlier step"},
        {output_validated, NULL, NULL, end_of_old, 0,
         "output 'old' is the result of an op of an earlier step"},
        {step, NULL, NULL, end_validated, 0,
         "training_step_end: the loss is the result of an op of an"},
        {step, NULL, NULL, add_validated, 0,
         "add: b (input 1) is the result of an op of an earlier"},
        {keep_validated, NULL, NULL, NULL, 0,
         "keep: 'y' is the result of an op of an earlier step"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct fit_run *run = fit_new_run();

        run->options.max_steps = 3;
        run->module.validation_step = validate;
        run->module.training_step = cases[i].step;
        run->module.on_fit_start = cases[i].early;
        run->module.on_before_optimizer_step = cases[i].late;
        run->module.training_step_end = cases[i].end;
        if (cases[i].shard) {
            run->options.strategy = PL_STRATEGY_SHARDED;
            run->options.shard = cases[i].shard;
        }
        fit_go(run, cases[i].shard ? 2 : 1, 0);
        if (!strstr(run->error, cases[i].text))
            fail_msg("'%s' has no '%s'", run->error, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_gradients),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_what_cannot_be),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
