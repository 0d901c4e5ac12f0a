/* SPDX-License-Identifier: MIT */
/* Steps that use different parameters per batch and per rank, against a calculation by hand. The
 * gradient is the mean over all ranks; a rank that did not use the parameter counts as zero. A
 * parameter that no rank has used does not change (no decay, no momentum). */
#include "tests/engine/digits_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define PARAMS 5
#define COUNT 8 /* elements of a parameter: each has a gradient of 1/8 of how it is weighted */
#define STEPS 12
#define LR 0.1
#define MOMENTUM 0.9
#define DECAY 0.01

static const char *const names[PARAMS] = {"a", "b", "c", "d", "e"};

struct run {
    struct pl_train_options options;
    enum plume_optimizer_kind kind;
    size_t bucket_bytes;
    struct trained ranks[RANKS_MAX];
};

struct net {
    plume_tensor *param[PARAMS];
    unsigned batch; /* the running one, from 1 on; 0: the dry step */
};

static struct run *current;

/* Parameters that a rank's batch uses, as bits. At first two of them, later any but the last, which
 * no rank uses; in every third batch all ranks use the same, so that some parameters are unused. */
static unsigned uses(unsigned batch, unsigned rank)
{
    uint32_t x = (batch % 3 == 0 ? batch : batch * 7 + rank) * 2654435761u;

    if (batch == 0)
        return 0x5;
    x = (x ^ x >> 15) * 2246822519u;
    return (x >> 13 & 0xf) ? x >> 13 & 0xf : 0x8;
}

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;

    for (size_t i = 0; i < PARAMS; i++)
        net->param[i] = plume_param(pl, names[i], PLUME_INIT_ONE, 1, (size_t[]){COUNT});
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    unsigned mask = uses(net->batch, pl->rank);
    plume_tensor *loss = NULL;

    /* From the last to the first, so that a parameter's place on the tape changes too. */
    for (size_t i = PARAMS; i-- > 0;) {
        plume_tensor *mean;

        if (!(mask >> i & 1))
            continue;
        mean = plume_scale(pl, plume_mean(pl, net->param[i], 0, 1), (double)(i + 1), 0);
        loss = loss ? plume_add(pl, loss, mean) : mean;
    }
    *ret_loss = loss;
    return 0;
}

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    ((struct net *)pl->state)->batch++;
    return 0;
}

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->kind = current->kind;
    ret->lr = LR;
    ret->momentum = MOMENTUM;
    ret->weight_decay = DECAY;
    return 0;
}

static int configure_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    if (current->bucket_bytes)
        ret->bucket_bytes = current->bucket_bytes;
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "branches",
    .hparams = digits_hparams,
    .state_size = sizeof(struct net),
    .configure = configure,
    .data = digits_data,
    .training_step = training_step,
    .configure_optimizers = configure_optimizers,
    .configure_ddp = configure_ddp,
    .on_train_batch_start = on_batch_start,
};

static const char *train(struct pl_comm *comm, void *shared)
{
    struct run *run = shared;
    struct plume_module own = module;

    current = run;
    if (!run->bucket_bytes) /* a module without the hook: ranks of a node sum and update at once */
        own.configure_ddp = NULL;
    digits_train(&own, &run->options, comm, &run->ranks[comm->rank]);
    return NULL;
}

/* One parameter, by hand. */
static double expect(const struct run *run, unsigned param, unsigned ranks, unsigned *ret_skipped)
{
    unsigned group = (unsigned)run->options.accumulate, steps = 0;
    double value = 1, m = 0, v = 0;

    for (unsigned step = 0; step < STEPS; step++) {
        unsigned users = 0;
        double grad, update;

        for (unsigned b = step * group + 1; b <= (step + 1) * group; b++)
            for (unsigned rank = 0; rank < ranks; rank++)
                users += uses(b, rank) >> param & 1;
        if (users == 0) {
            ++*ret_skipped;
            continue;
        }
        grad = (param + 1.0) / COUNT * users / ranks / group + DECAY * value;
        steps++;
        if (run->kind == PLUME_SGD) {
            update = m = MOMENTUM * m + grad;
        } else {
            m = 0.9 * m + 0.1 * grad;
            v = 0.999 * v + 0.001 * grad * grad;
            update = m / (1 - pow(0.9, steps)) / (sqrt(v / (1 - pow(0.999, steps))) + 1e-8);
        }
        value -= (run->options.strategy == PL_STRATEGY_HOROVOD ? LR * ranks : LR) * update;
    }
    return value;
}

static void check(unsigned ranks, unsigned per_node, const struct run *asked)
{
    struct run *run = ranks_shared(sizeof(*run));
    unsigned skipped = 0;

    *run = *asked;
    run->options.max_steps = STEPS;
    ranks_run(ranks, per_node, train, run, 0);
    digits_assert_good(run->ranks, ranks);
    for (unsigned i = 0; i < PARAMS; i++) {
        double want = expect(run, i, ranks, &skipped);

        for (unsigned rank = 0; rank < ranks; rank++)
            if (!(fabs(run->ranks[rank].values[i] - want) < 1e-5)) /* f32, 12 steps of about 1 */
                fail_msg("%u ranks, %u a node: '%s' of rank %u is %.7g, by hand %.7g", ranks,
                         per_node, names[i], rank, run->ranks[rank].values[i], want);
        if (i + 1 == PARAMS)
            assert_true(want == 1);
        else
            assert_true(want < 0.99);
    }
    assert_true(skipped > STEPS); /* not only the last parameter's */
}

static struct run ask(void)
{
    struct run run = {.options = pl_train_options_default()};

    return run;
}

static void test_on_one_rank(void **state)
{
    struct run run = ask();

    check(1, 0, &run);
    run.kind = PLUME_ADAM;
    check(1, 0, &run);
    run.options.accumulate = 2;
    check(1, 0, &run);
}

static void test_ranks_take_other_branches(void **state)
{
    static const unsigned layouts[][2] = {{2, 0}, {3, 1}, {5, 2}};
    static const size_t buckets[] = {0, 32}; /* one, or one a parameter */

    for (size_t i = 0; i < PL_COUNT(layouts); i++)
        for (size_t b = 0; b < PL_COUNT(buckets); b++)
            for (uint64_t group = 1; group <= 2; group++)
                for (int adam = 0; adam <= 1; adam++) {
                    struct run run = ask();

                    run.bucket_bytes = buckets[b];
                    run.kind = adam ? PLUME_ADAM : PLUME_SGD;
                    run.options.accumulate = group;
                    check(layouts[i][0], layouts[i][1], &run);
                }
}

static void test_under_horovod(void **state)
{
    struct run run = ask();

    run.options.strategy = PL_STRATEGY_HOROVOD;
    check(2, 0, &run);
}

/* All parts of a batch take the same branch here. */
static void test_on_devices(void **state)
{
    struct run run = ask();

    run.options.strategy = PL_STRATEGY_DP;
    run.options.devices = 2;
    check(1, 0, &run);
    run.options.strategy = PL_STRATEGY_DDP2;
    check(2, 1, &run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_one_rank),
        cmocka_unit_test(test_ranks_take_other_branches),
        cmocka_unit_test(test_under_horovod),
        cmocka_unit_test(test_on_devices),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
