/* SPDX-License-Identifier: MIT */
/* All ranks must have the same model and values. Ranks that choose one of two experts of equal
 * shape by their number, already in the dry step, are compared with a calculation by hand. A model
 * that differs between ranks, or parameters that drift apart, end the run with a text that names
 * it. Initial values are those of one rank, though ranks draw them together. */
#include "tests/engine/digits_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define PARAMS 4
#define COUNT 8 /* elements of a parameter: each has a gradient of 1/8 of how it is weighted */
#define STEPS 12
#define LR 0.1

enum how {
    GOOD,
    ANOTHER_SHAPE, /* this and the following: on the last rank */
    ANOTHER_NAME,
    ONE_LESS,
    ANOTHER_BUFFER,
    NO_REDUCTION, /* the module's own leaves each rank its gradients */
    ANOTHER_RATE, /* this and the following: in the last rank's optimizer */
    ANOTHER_SCHEDULE,
    MORE_STATE,
    ANOTHER_GROUP,
    ANOTHER_LIST,
    ANOTHER_CLIP, /* in the last rank's options */
    ANOTHER_SEED,
    ANOTHER_FILE, /* this and the following: in the last rank's data */
    ANOTHER_ORDER,
};

struct run {
    struct pl_train_options options;
    enum how how;
    size_t bucket_bytes;
    struct trained ranks[RANKS_MAX];
};

struct net {
    plume_tensor *param[PARAMS]; /* the gate, two experts, and one that no rank uses at first */
    unsigned batch;              /* the running one, from 1 on; 0: the dry step */
};

static struct run *current;

static const char *const names[PARAMS] = {"gate", "even", "odd", "late"};
static const double starts[PARAMS] = {1, 0, 1, 1};

/* Weight of a parameter in the rank's loss; 0: the rank does not use it. */
static double weight(unsigned param, unsigned rank, unsigned batch)
{
    switch (param) {
    case 0:
        return 3;
    case 3:
        return batch > 2 && rank % 3 == 1 ? 5 : 0;
    default:
        return rank % 2 == param - 1 ? rank + 1 : 0;
    }
}

static int configure(struct plume_context *pl)
{
    bool last = pl->rank + 1 == pl->world_size;
    enum how how = last ? current->how : GOOD;
    struct net *net = pl->state;

    for (size_t i = 0; i < PARAMS; i++) {
        size_t count = COUNT + (i == 2 && how == ANOTHER_SHAPE);
        const char *name = i == 1 && how == ANOTHER_NAME ? "uneven" : names[i];

        if (i + 1 < PARAMS || how != ONE_LESS)
            net->param[i] =
                plume_param(pl, name, starts[i] == 1 ? PLUME_INIT_ONE : PLUME_INIT_ZERO, 1, &count);
    }
    plume_buffer(pl, how == ANOTHER_BUFFER ? "variance" : "mean", PLUME_INIT_ZERO, 2,
                 (size_t[]){2, 3});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    static const size_t lists[2][3] = {{0, 1, 2}, {0, 2, 1}};
    bool last = pl->rank + 1 == pl->world_size;
    int r = digits_data(pl, stage, ret);

    if (stage == PLUME_TRAIN && current->how == ANOTHER_FILE && last)
        ret->field[0].array = plume_open_npy(pl, "digits/val-images.npy");
    if (stage == PLUME_TRAIN && current->how == ANOTHER_ORDER) {
        ret->order = lists[last];
        ret->n_order = 3;
    }
    return r;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    plume_tensor *loss = NULL;

    /* Odd ranks go backwards, so that the whole order differs. */
    for (unsigned i = 0; i < PARAMS; i++) {
        unsigned param = pl->rank % 2 ? PARAMS - 1 - i : i;
        double factor = weight(param, pl->rank, net->batch);
        plume_tensor *mean;

        if (factor == 0)
            continue;
        mean = plume_scale(pl, plume_mean(pl, net->param[param], 0, 1), factor, 0);
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
    bool last = pl->rank + 1 == pl->world_size;
    enum how how = last ? current->how : GOOD;
    struct net *net = pl->state;

    ret->kind = PLUME_SGD;
    ret->lr = how == ANOTHER_RATE ? 2 * LR : LR;
    ret->momentum = how == MORE_STATE ? 0.5 : 0;
    ret->weight_decay = 0;
    ret->schedule.gamma = how == ANOTHER_SCHEDULE ? 0.5 : 0;
    if (current->how == ANOTHER_GROUP)
        plume_add_group(pl, ret, last ? "odd" : "even")->lr = 1;
    if (current->how == ANOTHER_LIST) {
        ret->params = last ? net->param : net->param + 1;
        ret->n_params = 2;
    }
    return 0;
}

static int reduce_nothing(struct plume_context *pl, const struct plume_bucket *bucket)
{
    return 0;
}

static int configure_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    if (current->bucket_bytes)
        ret->bucket_bytes = current->bucket_bytes;
    if (current->how == NO_REDUCTION)
        ret->reduce = reduce_nothing;
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "experts",
    .hparams = digits_hparams,
    .state_size = sizeof(struct net),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .configure_optimizers = configure_optimizers,
    .configure_ddp = configure_ddp,
    .on_train_batch_start = on_batch_start,
};

static const char *train(struct pl_comm *comm, void *shared)
{
    struct run *run = shared;
    struct pl_train_options options = run->options;
    struct plume_module own = module;

    current = run;
    if (!run->bucket_bytes && run->how != NO_REDUCTION) /* ranks of a node sum and update at once */
        own.configure_ddp = NULL;
    if (run->how == ANOTHER_CLIP && comm->rank == comm->size - 1)
        options.clip = 0.25;
    if (run->how == ANOTHER_SEED && comm->rank == comm->size - 1)
        options.seed = 7;
    digits_train(&own, &options, comm, &run->ranks[comm->rank]);
    return NULL;
}

static struct run *go(unsigned ranks, unsigned per_node, const struct run *asked)
{
    struct run *run = ranks_shared(sizeof(*run));

    *run = *asked;
    run->options.max_steps = STEPS;
    ranks_run(ranks, per_node, train, run, 0);
    return run;
}

/* One parameter, by hand. */
static double expect(const struct run *run, unsigned param, unsigned ranks)
{
    double lr = run->options.strategy == PL_STRATEGY_HOROVOD ? LR * ranks : LR;
    double value = starts[param];

    for (unsigned step = 1; step <= STEPS; step++)
        for (unsigned rank = 0; rank < ranks; rank++)
            value -= lr * weight(param, rank, step) / COUNT / ranks;
    return value;
}

static void check(unsigned ranks, unsigned per_node, const struct run *asked)
{
    struct run *run = go(ranks, per_node, asked);

    digits_assert_good(run->ranks, ranks);
    for (unsigned rank = 0; rank < ranks; rank++) {
        assert_string_equal(run->ranks[rank].hash, run->ranks[0].hash);
        for (unsigned i = 0; i < PARAMS; i++) {
            double want = expect(run, i, ranks);

            if (!(fabs(run->ranks[rank].values[i] - want) < 1e-5)) /* f32, 12 steps of about 1 */
                fail_msg("%u ranks, %u a node: '%s' of rank %u is %.7g, by hand %.7g", ranks,
                         per_node, names[i], rank, run->ranks[rank].values[i], want);
        }
    }
}

static struct run ask(void)
{
    struct run run = {.options = pl_train_options_default()};

    return run;
}

static void test_experts_by_rank(void **state)
{
    static const unsigned layouts[][2] = {{2, 0}, {2, 1}, {4, 2}, {5, 1}}; /* shm, tcp, both, tcp */
    static const size_t buckets[] = {0, 32};                               /* one, or one each */

    for (size_t i = 0; i < PL_COUNT(layouts); i++)
        for (size_t b = 0; b < PL_COUNT(buckets); b++) {
            struct run run = ask();

            run.bucket_bytes = buckets[b];
            check(layouts[i][0], layouts[i][1], &run);
        }
}

static void test_experts_under_other_strategies(void **state)
{
    struct run run = ask();

    run.options.strategy = PL_STRATEGY_HOROVOD;
    check(3, 0, &run);
    run.options.strategy = PL_STRATEGY_DDP2;
    run.options.devices = 2;
    check(2, 1, &run);
}

/* All ranks end with the same text. */
static void fails(unsigned ranks, unsigned per_node, enum how how, const char *text)
{
    struct run asked = ask(), *run;

    asked.how = how;
    run = go(ranks, per_node, &asked);
    for (unsigned rank = 0; rank < ranks; rank++) {
        assert_int_not_equal(run->ranks[rank].result, 0);
        if (!strstr(run->ranks[rank].error, text))
            fail_msg("rank %u of %u says '%s', not '%s'", rank, ranks, run->ranks[rank].error,
                     text);
    }
}

static void test_models_that_differ(void **state)
{
    static const unsigned layouts[][2] = {{2, 0}, {2, 1}, {3, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++) {
        unsigned ranks = layouts[i][0], per_node = layouts[i][1];
        char text[256];

        snprintf(text, sizeof(text),
                 "rank %u declares parameter 'odd' f32[9] where rank 0 declares parameter 'odd' "
                 "f32[8]: configure must declare the same on all ranks",
                 ranks - 1);
        fails(ranks, per_node, ANOTHER_SHAPE, text);
        fails(ranks, per_node, ANOTHER_NAME,
              "declares parameter 'uneven' f32[8] where rank 0 declares parameter 'even' f32[8]");
        fails(ranks, per_node, ONE_LESS,
              "declares buffer 'mean' f32[2, 3] where rank 0 declares parameter 'late' f32[8]");
        fails(ranks, per_node, ANOTHER_BUFFER,
              "declares buffer 'variance' f32[2, 3] where rank 0 declares buffer 'mean' f32[2, 3]");
    }
}

static void test_optimizers_that_differ(void **state)
{
    static const unsigned layouts[][2] = {{2, 0}, {2, 1}, {3, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++) {
        unsigned ranks = layouts[i][0], per_node = layouts[i][1];
        char text[256];

        snprintf(text, sizeof(text),
                 "rank %u has lr 0.2 in optimizer 0 where rank 0 has lr 0.1 in optimizer 0: "
                 "configure_optimizers must give the same on all ranks",
                 ranks - 1);
        fails(ranks, per_node, ANOTHER_RATE, text);
        fails(ranks, per_node, ANOTHER_SCHEDULE, " has schedule.gamma 0.5 in optimizer 0 where ");
        fails(ranks, per_node, MORE_STATE, " has momentum 0.5 in optimizer 0 where ");
        fails(ranks, per_node, ANOTHER_GROUP, " has group 'odd' with lr 1 and weight_decay 0 in ");
        fails(ranks, per_node, ANOTHER_LIST,
              " has parameter 'gate' in optimizer 0 where rank 0 has parameter 'even' in ");
        fails(ranks, per_node, ANOTHER_CLIP,
              " has --clip 0.25 --clip-by norm where rank 0 has --clip 0 --clip-by norm: options "
              "must be the same on all ranks");
    }
}

static void test_data_that_differ(void **state)
{
    static const unsigned layouts[][2] = {{2, 0}, {2, 1}, {3, 2}};

    for (size_t i = 0; i < PL_COUNT(layouts); i++) {
        unsigned ranks = layouts[i][0], per_node = layouts[i][1];
        char text[256];

        snprintf(text, sizeof(text),
                 "rank %u has 185 samples of training data where rank 0 has 1253 samples of "
                 "training data: hook data and --seed must be the same on all ranks",
                 ranks - 1);
        fails(ranks, per_node, ANOTHER_FILE, text);
        fails(ranks, per_node, ANOTHER_ORDER, " has a list of 3 samples of training data, checks");
        fails(ranks, per_node, ANOTHER_SEED, " has --seed 7 where rank 0 has --seed 0: hook data ");
    }
}

static void test_parameters_that_drift_apart(void **state)
{
    fails(2, 0, NO_REDUCTION, "rank 1 ended with other parameters than rank 0, from 'even' on: ");
    fails(2, 1, NO_REDUCTION, "rank 1 ended with other parameters than rank 0, from 'even' on: ");
    fails(3, 2, NO_REDUCTION, "rank 1 ended with other parameters than rank 0, from 'even' on: ");
}

/* All kinds of initial values, in parameters of uneven sizes. Rank 0's count: others have other
 * numbers for some, and given values where rank 0 has none, or the other way round. */
static int configure_starts(struct plume_context *pl)
{
    static const size_t shapes[][2] = {{3, 5}, {1, 1}, {64, 33}, {9, 40}, {2, 7}};
    static const double given[6] = {1, -2, 0.5, 1e-3, 7, 9}, others[6] = {3, 3, 3, 3, 3, 3};
    struct net *net = pl->state;
    bool first = pl->rank == 0;
    char name[16];

    for (unsigned i = 0; i < 3 * (PLUME_INIT_ORTHOGONAL + 1); i++) {
        unsigned kind = i % (PLUME_INIT_ORTHOGONAL + 1);

        snprintf(name, sizeof(name), "p%u", i);
        plume_param_init(pl, name, (enum plume_init)kind, 0.5,
                         kind == 5 ? 0.75
                         : first   ? 0.02
                                   : 2,
                         2, shapes[i % PL_COUNT(shapes)]);
    }
    net->param[0] = plume_param_values(pl, "words", 1, (size_t[]){6}, first ? given : others);
    if (first)
        plume_param_values(pl, "some", 1, (size_t[]){6}, given);
    else
        plume_param_init(pl, "some", PLUME_INIT_NORMAL, 0, 1, 1, (size_t[]){6});
    if (first)
        plume_param_init(pl, "more", PLUME_INIT_NORMAL, 0, 1, 1, (size_t[]){6});
    else
        plume_param_values(pl, "more", 1, (size_t[]){6}, others);
    return 0;
}

static int
start_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = plume_mean(pl, ((struct net *)pl->state)->param[0], 0, 1);
    return 0;
}

static int move_nothing(struct plume_context *pl, struct plume_optimizer *ret)
{
    *ret = (struct plume_optimizer){.kind = PLUME_SGD};
    return 0;
}

static const struct plume_module starts_module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "starts",
    .hparams = digits_hparams,
    .state_size = sizeof(struct net),
    .configure = configure_starts,
    .data = digits_data,
    .training_step = start_step,
    .configure_optimizers = move_nothing,
};

static const char *begin(struct pl_comm *comm, void *shared)
{
    struct run *run = shared;

    digits_train(&starts_module, &run->options, comm, &run->ranks[comm->rank]);
    return NULL;
}

static void test_initial_values_are_those_of_one_rank(void **state)
{
    static const unsigned layouts[][2] = {{1, 0}, {2, 0}, {2, 1}, {3, 2}, {5, 0}, {13, 0}};
    static const enum pl_strategy_kind kinds[] = {PL_STRATEGY_AUTO, PL_STRATEGY_SHARDED};
    char hash[sizeof(((struct trained *)NULL)->hash)] = "";

    for (size_t i = 0; i < PL_COUNT(layouts); i++)
        for (size_t k = 0; k < PL_COUNT(kinds); k++) {
            struct run *run = ranks_shared(sizeof(*run));

            *run = ask();
            run->options.max_steps = 1;
            run->options.strategy = layouts[i][0] == 1 ? PL_STRATEGY_AUTO : kinds[k];
            ranks_run(layouts[i][0], layouts[i][1], begin, run, 0);
            digits_assert_good(run->ranks, layouts[i][0]);
            if (!*hash)
                memcpy(hash, run->ranks[0].hash, sizeof(hash));
            for (unsigned rank = 0; rank < layouts[i][0]; rank++)
                assert_string_equal(run->ranks[rank].hash, hash);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_initial_values_are_those_of_one_rank),
        cmocka_unit_test(test_experts_by_rank),
        cmocka_unit_test(test_experts_under_other_strategies),
        cmocka_unit_test(test_models_that_differ),
        cmocka_unit_test(test_optimizers_that_differ),
        cmocka_unit_test(test_data_that_differ),
        cmocka_unit_test(test_parameters_that_drift_apart),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
