/* SPDX-License-Identifier: MIT */
/* A module that drives its optimizers itself (manual_step), as a generative adversarial network
 * does, against a calculation by hand: d makes two steps for one of g, the second by two backward
 * passes, and g rests in every other batch. */
#include "tests/engine/adversaries.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct run {
    struct adversaries_run common;
    bool lazy;         /* nothing happens in every other batch: it is no step */
    bool between;      /* of d's first backward pass and step: a step of g that is skipped */
    const char *wrong; /* what the module does wrongly */
};

static struct run *current;

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    adversaries_say('s', pl->optimizer);
    *ret_loss = adversaries_loss(pl, adversaries_product(pl));
    return 0;
}

static bool is_wrong(const char *how)
{
    return current->wrong && strcmp(current->wrong, how) == 0;
}

/* The loss scale halves. */
static int skip_g(struct plume_context *pl)
{
    struct adversaries *net = pl->state;
    int r;

    net->huge = true;
    r = plume_backward(pl, 0, NULL);
    net->huge = false;
    return r == 0 ? plume_optimizer_step(pl, 0) : r;
}

/* d's loss is that of the values that it has now. */
static int train_d(struct plume_context *pl, unsigned passes)
{
    double g[ADVERSARIES_COUNT], d[ADVERSARIES_COUNT], loss, want;
    int r = plume_read(pl, "g", PLUME_VALUE, ADVERSARIES_COUNT, g);

    if (r == 0)
        r = plume_read(pl, "d", PLUME_VALUE, ADVERSARIES_COUNT, d);
    while (r == 0 && passes--) {
        r = plume_backward(pl, 1, &loss);
        want = (d[0] * d[0] - 0.5 * g[0] * d[0]) * (pl->rank + 1.0);
        if (r == 0 && fabs(loss - want) > 1e-5)
            return plume_fail(pl, -EINVAL, "the loss is another one");
        if (r == 0 && current->between && ((struct adversaries *)pl->state)->batch == 1)
            r = skip_g(pl);
    }
    return r == 0 ? plume_optimizer_step(pl, 1) : r;
}

/* Adam makes the same steps if all gradients double: only d's show that they are gone. */
static int drop_gradients(struct plume_context *pl, unsigned optimizer)
{
    int r = plume_backward(pl, optimizer, NULL);

    return r == 0 ? plume_zero_grad(pl, optimizer) : r;
}

static int manual_step(struct plume_context *pl, const struct plume_batch *batch)
{
    struct adversaries *net = pl->state;
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
    r = even ? drop_gradients(pl, 1) : 0;
    if (r == 0)
        r = train_d(pl, 1);
    if (r == 0)
        r = train_d(pl, 2);
    if (r < 0 || !even)
        return r;
    r = drop_gradients(pl, 0);
    if (r == 0)
        r = plume_backward(pl, 0, NULL);
    return r == 0 ? plume_optimizer_step(pl, 0) : r;
}

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    ((struct adversaries *)pl->state)->batch++;
    return is_wrong("early") ? plume_backward(pl, 0, NULL) : 0;
}

static const char *train(struct pl_comm *comm, void *shared)
{
    struct plume_module module = adversaries_module();
    struct run *run = shared;

    module.training_step = training_step;
    module.manual_step = manual_step;
    module.on_train_batch_start = on_batch_start;
    current = run;
    adversaries_train(&run->common, &module, comm);
    return NULL;
}

static struct adversaries_hand by_hand(const struct run *run, unsigned ranks)
{
    struct adversaries_hand hand = adversaries_hand_begin();

    for (unsigned step = 1; step <= ADVERSARIES_STEPS; step++) {
        for (unsigned passes = 1; passes <= 2; passes++) {
            double slope = (2 * hand.d - 0.5 * hand.g) / ADVERSARIES_COUNT * (ranks + 1) / 2;

            adversaries_hand_d(&hand, passes * slope);
        }
        if (run->lazy || step % 2 == 0)
            adversaries_hand_g(&hand, ranks);
    }
    return hand;
}

static struct run *check(unsigned ranks, unsigned per_node, const struct run *asked)
{
    struct run *run = ranks_shared(sizeof(*run));
    struct adversaries_hand want;

    *run = *asked;
    ranks_run(ranks, per_node, train, run, 0);
    want = by_hand(run, ranks);
    assert_true(want.g < 0.9 && want.d < 0.8);
    adversaries_check(&run->common, ranks, per_node, &want);
    return run;
}

static void test_steps_are_those_of_the_module(void **state)
{
    static const unsigned layouts[][2] = {{1, 0}, {2, 0}, {3, 1}, {5, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++)
        for (int lazy = 0; lazy <= 1; lazy++) {
            struct run run = {.common.options = pl_train_options_default(), .lazy = lazy}, *ran;

            ran = check(layouts[i][0], layouts[i][1], &run);
            /* After the dry steps: the first batch, in which g rests; then the gradients of d are
             * dropped before its steps. */
            if (layouts[i][0] == 1 && !lazy)
                assert_int_equal(strncmp(ran->common.calls,
                                         "s0 s1 s1 b1 o1 s1 b1 s1 b1 o1 "
                                         "s1 b1 s1 b1 o1 s1 b1 s1 b1 o1 ",
                                         60),
                                 0);
        }
}

static void test_all_strategies(void **state)
{
    static const enum pl_strategy_kind kinds[] = {PL_STRATEGY_DP, PL_STRATEGY_DDP2,
                                                  PL_STRATEGY_SHARDED};

    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        struct run run = {.common.options = pl_train_options_default()};

        run.common.options.strategy = kinds[i];
        run.common.options.devices = kinds[i] == PL_STRATEGY_SHARDED ? 1 : 2;
        check(i ? 2 : 1, 1, &run);
    }
}

/* Gradients that wait for a step were scaled by the scale before. */
static void test_the_loss_scale_changes_between(void **state)
{
    for (unsigned ranks = 1; ranks <= 2; ranks++) {
        struct run run = {.common.options = pl_train_options_default(), .between = true};

        run.common.options.precision = PL_PRECISION_16;
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
        {"op", "hook manual_step: relu: ops may only be called in a step"},
        {"early", "hook on_train_batch_start: plume_backward: only in manual_step"},
        {"accumulate", "--accumulate cannot be with a module that makes its optimizer steps itself "
                       "(manual_step)"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct run *run = ranks_shared(sizeof(*run));

        *run = (struct run){.common.options = pl_train_options_default(), .wrong = cases[i].wrong};
        run->common.options.accumulate = strcmp(cases[i].wrong, "accumulate") == 0 ? 2 : 1;
        ranks_run(1, 0, train, run, 0);
        assert_string_equal(run->common.ranks[0].error, cases[i].text);
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
