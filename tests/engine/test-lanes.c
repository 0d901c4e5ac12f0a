/* SPDX-License-Identifier: MIT */
/* Two optimizers with a lane each, as in a generative adversarial network, against a calculation by
 * hand. The losses of g and d depend on both; each step of d sees the new g. */
#include "tests/engine/adversaries.h"
#include "tests/lib/on_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct run {
    struct adversaries_run common;
    bool end;  /* training_step_end makes the losses and also uses g and d */
    bool rest; /* d has no loss in every other batch on all ranks, in each third on rank 0 */
};

static struct run *current;

static bool rests(const struct run *run, unsigned batch, unsigned rank)
{
    return run->rest && batch > 0 && (batch % 2 == 0 || (batch % 3 == 0 && rank == 0));
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct adversaries *net = pl->state;
    plume_tensor *gd = adversaries_product(pl);

    adversaries_say('s', pl->optimizer);
    if (pl->optimizer == 1 && rests(current, net->batch, pl->rank))
        return 0;
    if (current->end)
        plume_output(pl, "gd", gd);
    else
        *ret_loss = adversaries_loss(pl, gd);
    return 0;
}

static int
training_step_end(struct plume_context *pl, const struct plume_outputs *out, plume_tensor **ret)
{
    plume_tensor *gd = plume_whole(pl, out, "gd");

    *ret = adversaries_loss(pl, plume_parts(pl, out) > 1 ? plume_mean(pl, gd, 0, 1) : gd);
    return 0;
}

static const char *train(struct pl_comm *comm, void *shared)
{
    struct plume_module module = adversaries_module();
    struct run *run = shared;

    module.training_step = training_step;
    module.training_step_end = run->end ? training_step_end : NULL;
    module.step_per_optimizer = 1;
    current = run;
    adversaries_train(&run->common, &module, comm);
    return NULL;
}

static struct adversaries_hand by_hand(const struct run *run, unsigned ranks)
{
    struct adversaries_hand hand = adversaries_hand_begin();
    unsigned group = (unsigned)run->common.options.accumulate;

    for (unsigned step = 1; step <= ADVERSARIES_STEPS; step++) {
        double before = hand.g, grad = 0;
        bool any = false;

        adversaries_hand_g(&hand, ranks);
        for (unsigned b = (step - 1) * group + 1; b <= step * group; b++)
            for (unsigned rank = 0; rank < ranks; rank++)
                if (!rests(run, b, rank)) { /* g has made its step in the last batch only */
                    double g = b == step * group ? hand.g : before;

                    grad += (2 * hand.d - 0.5 * g) / ADVERSARIES_COUNT * (rank + 1);
                    any = true;
                }
        if (any)
            adversaries_hand_d(&hand, grad / ranks / group);
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
    assert_true(want.g < 0.8 && want.d < 0.95);
    adversaries_check(&run->common, ranks, per_node, &want);
    return run;
}

static struct run ask(uint64_t accumulate, bool end, bool rest)
{
    struct run run = {.common.options = pl_train_options_default(), .end = end, .rest = rest};

    run.common.options.accumulate = accumulate;
    return run;
}

static void test_turns_come_in_order(void **state)
{
    struct run run = ask(1, false, false), *ran;

    ran = check(1, 0, &run);
    /* After the dry steps. */
    assert_int_equal(strncmp(ran->common.calls, "s0 s1 s0 b0 o0 s1 b1 o1 s0 b0 o0 s1 b1 o1 ", 42),
                     0);
    run = ask(2, false, true); /* the first group: 1 and 2 */
    ran = check(1, 0, &run);
    assert_int_equal(strncmp(ran->common.calls, "s0 s1 s0 b0 s1 b1 s0 b0 o0 s1 b1 o1 s0 ", 39), 0);
}

static void test_all_ways(void **state)
{
    static const unsigned layouts[][2] = {{1, 0}, {2, 0}, {3, 1}, {5, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++)
        for (uint64_t group = 1; group <= 2; group++)
            for (int end = 0; end <= 1; end++) {
                struct run run = ask(group, end, false);

                check(layouts[i][0], layouts[i][1], &run);
            }
}

/* Without a loss the optimizer makes no step, or one by the gradients of the other ranks. */
static void test_turns_are_skipped(void **state)
{
    for (uint64_t group = 1; group <= 3; group++) {
        struct run run = ask(group, false, true);

        check(1, 0, &run);
        check(3, 0, &run);
    }
}

static void test_on_devices(void **state)
{
    for (uint64_t group = 1; group <= 2; group++)
        for (int end = 0; end <= 1; end++) {
            struct run run = ask(group, end, false);

            run.common.options.strategy = PL_STRATEGY_DP;
            run.common.options.devices = 2;
            check(1, 0, &run);
            run.common.options.strategy = PL_STRATEGY_DDP2;
            check(2, 1, &run);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_come_in_order),
        cmocka_unit_test(test_all_ways),
        cmocka_unit_test(test_turns_are_skipped),
        cmocka_unit_test(test_on_devices),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
