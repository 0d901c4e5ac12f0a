/* SPDX-License-Identifier: MIT */
/* A module that drives its optimizers itself (manual_step), as a generative adversarial network
 * does, against a calculation by hand: d makes two steps for one of g, the second by two backward
 * passes, and g rests in every other batch. */
#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 8
#define STEPS 10
#define LR_G 0.05 /* Adam */
#define LR_D 0.2  /* SGD with momentum */
#define MOMENTUM 0.5

struct run {
    struct pl_train_options options;
    bool lazy;         /* nothing happens in every other batch: it is no step */
    bool between;      /* of d's first backward pass and step: a step of g that is skipped */
    const char *wrong; /* what the module does wrongly */
    char error[256];
    char calls[1024];
    double g[RANKS_MAX], d[RANKS_MAX];
};

struct net {
    plume_tensor *g, *d;
    unsigned batch; /* from 1 on; 0: the dry step */
    bool huge;      /* g's gradients overflow once they are scaled */
};

static struct run *current;

static void say(char word, unsigned optimizer)
{
    size_t len = strlen(current->calls);

    if (len + 3 < sizeof(current->calls))
        snprintf(current->calls + len, 4, "%c%u ", word, optimizer);
}

static const struct plume_hparam hparams[] = {{"batch_size", "4", 1, 65536, 1, NULL}, {0}};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;

    net->g = plume_param(pl, "g", PLUME_INIT_ONE, 1, (size_t[]){COUNT});
    net->d = plume_param(pl, "d", PLUME_INIT_ONE, 1, (size_t[]){COUNT});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 1;
    ret->field[0].array = plume_open_npy(pl, "digits/train-images.npy");
    ret->field[0].dtype = PLUME_F32;
    return 0;
}

static plume_tensor *mean_product(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_mean(pl, plume_mul(pl, a, b), 0, 1);
}

/* gd + 0.15 gg for g; dd - 0.5 gd for d; of rank r times r + 1. */
static plume_tensor *loss_of(struct plume_context *pl, plume_tensor *gd)
{
    struct net *net = pl->state;
    plume_tensor *own, *loss;

    if (pl->optimizer == 0) {
        own = plume_scale(pl, mean_product(pl, net->g, net->g), 0.15, 0);
        loss = plume_scale(pl, plume_add(pl, gd, own), net->huge ? 1e35 : 1, 0);
    } else {
        own = mean_product(pl, net->d, net->d);
        loss = plume_sub(pl, own, plume_scale(pl, gd, 0.5, 0));
    }
    return plume_scale(pl, loss, pl->rank + 1.0, 0);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;

    say('s', pl->optimizer);
    *ret_loss = loss_of(pl, mean_product(pl, net->g, net->d));
    return 0;
}

static bool is_wrong(const char *how)
{
    return current->wrong && strcmp(current->wrong, how) == 0;
}

/* The loss scale halves. */
static int skip_g(struct plume_context *pl)
{
    struct net *net = pl->state;
    int r;

    net->huge = true;
    r = plume_backward(pl, 0, NULL);
    net->huge = false;
    return r == 0 ? plume_optimizer_step(pl, 0) : r;
}

/* d's loss is that of the values that it has now. */
static int train_d(struct plume_context *pl, unsigned passes)
{
    double g[COUNT], d[COUNT], loss, want;
    int r = plume_read(pl, "g", PLUME_VALUE, COUNT, g);

    if (r == 0)
        r = plume_read(pl, "d", PLUME_VALUE, COUNT, d);
    while (r == 0 && passes--) {
        r = plume_backward(pl, 1, &loss);
        want = (d[0] * d[0] - 0.5 * g[0] * d[0]) * (pl->rank + 1.0);
        if (r == 0 && fabs(loss - want) > 1e-5)
            return plume_fail(pl, -EINVAL, "the loss is another one");
        if (r == 0 && current->between && ((struct net *)pl->state)->batch == 1)
            r = skip_g(pl);
    }
    return r == 0 ? plume_optimizer_step(pl, 1) : r;
}

static int manual_step(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;
    bool even = net->batch % 2 == 0;
    int r;

    if (is_wrong("step"))
        return plume_optimizer_step(pl, 0);
    if (is_wrong("optimizer"))
        return plume_backward(pl, 2, NULL);
    if (is_wrong("op"))
        return plume_relu(pl, net->g) ? 0 : 0;
    if (is_wrong("ignored"))
        plume_optimizer_step(pl, 1);
    if (current->lazy && !even)
        return 0;
    r = train_d(pl, 1);
    if (r == 0)
        r = train_d(pl, 2);
    if (r < 0 || !even)
        return r;
    r = plume_backward(pl, 0, NULL);
    if (r == 0)
        r = plume_zero_grad(pl, 0);
    if (r == 0)
        r = plume_backward(pl, 0, NULL);
    return r == 0 ? plume_optimizer_step(pl, 0) : r;
}

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    ((struct net *)pl->state)->batch++;
    return is_wrong("early") ? plume_backward(pl, 0, NULL) : 0;
}

static int on_after_backward(struct plume_context *pl)
{
    say('b', pl->optimizer);
    return 0;
}

static int on_before_optimizer_step(struct plume_context *pl)
{
    say('o', pl->optimizer);
    return 0;
}

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_optimizer *d = plume_add_optimizer(pl);

    ret->kind = PLUME_ADAM;
    ret->lr = LR_G;
    ret->weight_decay = d->weight_decay = 0;
    ret->prefixes = "g";
    d->lr = LR_D;
    d->momentum = MOMENTUM;
    d->prefixes = "d";
    return 0;
}

static const char *train(struct pl_comm *comm, void *shared)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct run *run = shared;
    struct pl_train_options options = run->options; /* a copy: each rank sets its device */
    const struct plume_module module = {
        .struct_size = sizeof(struct plume_module),
        .abi = PLUME_MODULE_ABI,
        .name = "adversaries",
        .hparams = hparams,
        .state_size = sizeof(struct net),
        .configure = configure,
        .data = data,
        .training_step = training_step,
        .configure_optimizers = configure_optimizers,
        .on_train_batch_start = on_batch_start,
        .on_after_backward = on_after_backward,
        .on_before_optimizer_step = on_before_optimizer_step,
        .manual_step = manual_step,
    };
    struct pl_trainer trainer;
    struct pl_hparams h;
    struct pl_error err = {0};
    int r;

    current = run;
    r = pl_hparams_init(&h, module.hparams, &err);
    options.device = on_device();
    if (r == 0)
        r = pl_trainer_init(&trainer, &module, &h, &options, comm, &report, &err);
    if (r == 0) {
        r = pl_trainer_fit(&trainer, &err);
        run->g[comm->rank] = on_device_scalar(trainer.ctx.params.list[0]->tensor);
        run->d[comm->rank] = on_device_scalar(trainer.ctx.params.list[1]->tensor);
        if (r == 0 && trainer.state.step != STEPS)
            r = pl_error_set(&err, -EINVAL, "%u steps", (unsigned)trainer.state.step);
        pl_trainer_finish(&trainer);
    }
    if (r < 0)
        snprintf(run->error, sizeof(run->error), "%s", pl_error_text(&err));
    pl_hparams_finish(&h);
    return NULL;
}

static double slope_of_d(double g, double d, unsigned ranks)
{
    return (2 * d - 0.5 * g) / COUNT * (ranks + 1) / 2;
}

/* All elements are equal. */
static void by_hand(const struct run *run, unsigned ranks, double *ret_g, double *ret_d)
{
    double g = 1, d = 1, m = 0, v = 0, velocity = 0, grad;
    unsigned g_steps = 0;

    for (unsigned step = 1; step <= STEPS; step++) {
        for (unsigned passes = 1; passes <= 2; passes++) {
            velocity = MOMENTUM * velocity + passes * slope_of_d(g, d, ranks);
            d -= LR_D * velocity;
        }
        if (!run->lazy && step % 2)
            continue;
        g_steps++;
        grad = (d + 0.3 * g) / COUNT * (ranks + 1) / 2;
        m = 0.9 * m + 0.1 * grad;
        v = 0.999 * v + 0.001 * grad * grad;
        g -= LR_G * (m / (1 - pow(0.9, g_steps))) / (sqrt(v / (1 - pow(0.999, g_steps))) + 1e-8);
    }
    *ret_g = g;
    *ret_d = d;
}

static struct run *check(unsigned ranks, unsigned per_node, const struct run *asked)
{
    struct run *run = ranks_shared(sizeof(*run));
    double g, d;

    *run = *asked;
    run->options.max_steps = STEPS;
    ranks_run(ranks, per_node, train, run, 0);
    if (run->error[0])
        fail_msg("%s", run->error);
    by_hand(run, ranks, &g, &d);
    assert_true(g < 0.9 && d < 0.8);
    for (unsigned i = 0; i < ranks; i++)
        if (!(fabs(run->g[i] - g) < 1e-5 && fabs(run->d[i] - d) < 1e-5)) /* f32, ten steps */
            fail_msg("%u ranks, %u a node: rank %u has %.7g and %.7g, by hand %.7g and %.7g", ranks,
                     per_node, i, run->g[i], run->d[i], g, d);
    return run;
}

static void test_steps_are_those_of_the_module(void **state)
{
    static const unsigned layouts[][2] = {{1, 0}, {2, 0}, {3, 1}, {5, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++)
        for (int lazy = 0; lazy <= 1; lazy++) {
            struct run run = {.options = pl_train_options_default(), .lazy = lazy}, *ran;

            ran = check(layouts[i][0], layouts[i][1], &run);
            /* After the dry steps: the first batch, in which g rests. */
            if (layouts[i][0] == 1 && !lazy)
                assert_int_equal(strncmp(ran->calls,
                                         "s0 s1 s1 b1 o1 s1 b1 s1 b1 o1 s1 b1 o1 s1 b1 s1 b1 o1 ",
                                         54),
                                 0);
        }
}

static void test_all_strategies(void **state)
{
    static const enum pl_strategy_kind kinds[] = {PL_STRATEGY_DP, PL_STRATEGY_DDP2,
                                                  PL_STRATEGY_SHARDED};

    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        struct run run = {.options = pl_train_options_default()};

        run.options.strategy = kinds[i];
        run.options.devices = kinds[i] == PL_STRATEGY_SHARDED ? 1 : 2;
        check(i ? 2 : 1, 1, &run);
    }
}

/* What waits for a step was scaled by the scale before. */
static void test_the_loss_scale_changes_between(void **state)
{
    for (unsigned ranks = 1; ranks <= 2; ranks++) {
        struct run run = {.options = pl_train_options_default(), .between = true};

        run.options.precision = PL_PRECISION_16;
        check(ranks, 0, &run);
    }
}

static void test_what_is_wrong_is_told(void **state)
{
    static const struct {
        const char *wrong, *text;
    } cases[] = {
        {"step", "hook manual_step: optimizer 0 has no gradients: call plume_backward() first"},
        {"ignored", "hook manual_step: optimizer 1 has no gradients: call plume_backward() first"},
        {"optimizer", "hook manual_step: there is no optimizer 2: the module has 2"},
        {"op", "hook manual_step: activation: ops may only be called in a step"},
        {"early", "hook on_train_batch_start: plume_backward: only in manual_step"},
        {"accumulate", "--accumulate cannot be with a module that makes its optimizer steps itself "
                       "(manual_step)"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct run *run = ranks_shared(sizeof(*run));

        *run = (struct run){.options = pl_train_options_default(), .wrong = cases[i].wrong};
        run->options.max_steps = STEPS;
        run->options.accumulate = strcmp(cases[i].wrong, "accumulate") == 0 ? 2 : 1;
        ranks_run(1, 0, train, run, 0);
        assert_string_equal(run->error, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_those_of_the_module),
        cmocka_unit_test(test_all_strategies),
        cmocka_unit_test(test_the_loss_scale_changes_between),
        cmocka_unit_test(test_what_is_wrong_is_told),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
