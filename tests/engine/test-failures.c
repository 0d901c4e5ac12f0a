/* SPDX-License-Identifier: MIT */
/* A run fails and its process continues: descriptors, threads, slabs and memory are free
 * afterwards, and the next run in it succeeds. */
#include "kernels/pool/pool.h"
#include "runtime/pltrain/spawn_local.h"
#include "tests/engine/held.h"
#include "tests/engine/random_run.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Runs that are counted, after one that may leave what is made once. What a run leaves, a build
 * without a thread sanitizer sees ten times as fast. */
#ifdef __SANITIZE_THREAD__
#define AGAIN 1
#else
#define AGAIN 3
#endif
#define FAIL_STEP 3

enum place {
    NOWHERE,
    CONFIGURE,
    PARAMS, /* more memory than there is */
    DATA,
    SHAPE, /* the step's ops do not fit, from the fourth step on */
    STEP,
    ACTIVATIONS, /* more memory than the process may have */
    LOSS,        /* is not a number */
    BEFORE_OPTIMIZER,
    VALIDATION,
    CHECKPOINT,
    RESUME,
    LOG,
    DEATH, /* of the last rank */
};

struct scenario {
    const char *name, *words; /* part of the error's text on the failing rank */
    enum place place;
    unsigned devices; /* more than one: dp */
    enum pl_precision precision;
};

/* With a sanitizer too, malloc() returns NULL for more than it can give. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static const struct scenario *current;
static bool mine; /* this rank fails */

static bool fails(const struct plume_context *pl, enum place place)
{
    return mine && current->place == place && pl->step >= FAIL_STEP;
}

static const struct plume_hparam hparams[] = {{"lr", "0.1", 0, 1e6, 0, NULL},
                                              {"epochs", "2", 0, 1e6, 1, NULL},
                                              {"batch_size", "32", 1, 65536, 1, NULL},
                                              {0}};

struct net {
    plume_tensor *w, *b, *huge;
};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;

    net->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){10, 64});
    net->b = plume_param(pl, "b", PLUME_INIT_ZERO, 1, (size_t[]){10});
    if (mine && current->place == CONFIGURE)
        return plume_fail(pl, -EIO, "the weather is bad");
    if (current->place == PARAMS) /* all of the address space */
        net->huge =
            plume_param(pl, "huge", PLUME_INIT_ZERO, 2, (size_t[]){(size_t)1 << 23, 1 << 22});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    bool train = stage == PLUME_TRAIN;

    if (stage == PLUME_TEST)
        return 0;
    random_data(pl, stage, ret);
    if (mine && train && current->place == LOSS)
        ret->field[0].scale = 1e38;
    if (mine && !train && current->place == DATA)
        ret->field[1].array = plume_open_npy(pl, "digits/none.npy");
    return 0;
}

static plume_tensor *forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;

    return plume_cross_entropy(pl, plume_linear(pl, batch->field[0], net->w, net->b, PLUME_TANH),
                               batch->field[1]);
}

/* 640^5 numbers, of two products: more than the address space. */
static plume_tensor *beyond_all_memory(struct plume_context *pl)
{
    struct net *net = pl->state;
    plume_tensor *row = plume_reshape(pl, net->w, 2, (size_t[]){1, 640});
    plume_tensor *x = plume_reshape(pl, net->w, 2, (size_t[]){640, 1});

    x = plume_matmul(pl, x, row, 0, 0);
    x = plume_matmul(pl, plume_reshape(pl, x, 2, (size_t[]){640 * 640, 1}),
                     plume_reshape(pl, x, 2, (size_t[]){1, 640 * 640}), 0, 0);
    x = plume_matmul(pl, plume_reshape(pl, x, 2, (size_t[]){640ull * 640 * 640 * 640, 1}), row, 0,
                     0);
    return plume_mean(pl, x, 0, 2);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;

    if (fails(pl, DEATH))
        raise(SIGKILL);
    if (fails(pl, STEP))
        return plume_fail(pl, -EIO, "the weather is bad");
    *ret_loss = forward(pl, batch);
    if (fails(pl, SHAPE))
        *ret_loss = plume_linear(pl, net->w, batch->field[0], NULL, PLUME_IDENTITY);
    if (fails(pl, ACTIVATIONS))
        *ret_loss = plume_add(pl, *ret_loss, beyond_all_memory(pl));
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    if (fails(pl, VALIDATION))
        return plume_fail(pl, -EIO, "the weather is bad");
    plume_log(pl, "loss", forward(pl, batch), (double)batch->rows, (double)batch->rows);
    return 0;
}

static int before_optimizer(struct plume_context *pl)
{
    return fails(pl, BEFORE_OPTIMIZER) ? plume_fail(pl, -EIO, "the weather is bad") : 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(module),
    .abi = PLUME_MODULE_ABI,
    .name = "failures",
    .hparams = hparams,
    .state_size = sizeof(struct net),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
    .on_before_optimizer_step = before_optimizer,
};

/* One run; its failure in err. */
static int run(struct pl_comm *comm, struct pl_rank_report *report, struct pl_error *err)
{
    struct pl_train_options options = pl_train_options_default();
    struct pl_trainer trainer;
    struct pl_hparams h;
    int r;

    options.strategy = current->devices == 1 ? PL_STRATEGY_AUTO
                       : comm->size > 1      ? PL_STRATEGY_DDP2
                                             : PL_STRATEGY_DP;
    options.devices = current->devices;
    options.precision = current->precision;
    options.limit[PLUME_TRAIN].value = 5;
    options.checkpoint_dir = current->place == CHECKPOINT ? "/proc/none" : NULL;
    options.resume = current->place == RESUME ? "/proc/none" : NULL;
    options.log_dir = current->place == LOG ? "/proc/none" : NULL;
    r = pl_hparams_init(&h, hparams, err);
    if (r == 0)
        r = pl_trainer_init(&trainer, &module, &h, &options, comm, report, err);
    if (r == 0) {
        r = pl_trainer_fit(&trainer, err);
        pl_trainer_finish(&trainer);
    }
    pl_hparams_finish(&h);
    return r;
}

#define IT_RAINS "the weather is bad"

static const struct scenario alone[] = {
    {"nothing", NULL, NOWHERE, 1, PL_PRECISION_32},
    {"configure", IT_RAINS, CONFIGURE, 1, PL_PRECISION_32},
    {"parameters", "out of memory", PARAMS, 1, PL_PRECISION_32},
    {"data", "none.npy", DATA, 1, PL_PRECISION_32},
    {"shape", "shapes do not fit", SHAPE, 1, PL_PRECISION_32},
    {"step", IT_RAINS, STEP, 1, PL_PRECISION_32},
    {"step, dp", IT_RAINS, STEP, 3, PL_PRECISION_32},
    {"step, 16 bits", IT_RAINS, STEP, 2, PL_PRECISION_16},
    {"activations", "out of memory", ACTIVATIONS, 1, PL_PRECISION_32},
    {"activations, dp", "out of memory", ACTIVATIONS, 2, PL_PRECISION_32},
    {"loss", "the loss is", LOSS, 1, PL_PRECISION_32},
    {"loss, dp", "the loss is", LOSS, 2, PL_PRECISION_32},
    {"optimizer", IT_RAINS, BEFORE_OPTIMIZER, 1, PL_PRECISION_64},
    {"validation", IT_RAINS, VALIDATION, 1, PL_PRECISION_32},
    {"validation, dp", IT_RAINS, VALIDATION, 2, PL_PRECISION_32},
    {"checkpoint", "/proc/none", CHECKPOINT, 1, PL_PRECISION_32},
    {"resume", "/proc/none", RESUME, 1, PL_PRECISION_32},
    {"log", "/proc/none", LOG, 1, PL_PRECISION_32},
};

/* Fails the test if the result of a run differs from its scenario. */
static const char *wrong(int r, const struct pl_error *err)
{
    static char text[400];

    if (current->place == NOWHERE ? r == 0 : r < 0 && strstr(pl_error_text(err), current->words))
        return NULL;
    snprintf(text, sizeof(text), "%s: %s", current->name,
             r < 0 ? pl_error_text(err) : "did not fail");
    return text;
}

static void test_a_failed_run_leaves_nothing(void **state)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};

    mine = true;
    for (size_t i = 0; i < PL_COUNT(alone); i++) {
        struct held before = {0}, now;

        current = &alone[i];
        print_message("# %s\n", current->name);
        for (int k = 0; k <= AGAIN; k++) {
            struct pl_comm *comm;
            struct pl_error err = {0};

            assert_int_equal(pl_comm_self_create(0, &comm, NULL), 0);
            pl_pool_resize(2);
            const char *bad = wrong(run(comm, &report, &err), &err);

            if (bad)
                fail_msg("%s", bad);
            pl_comm_destroy(comm);
            if (k == 0)
                before = held_now();
        }
        now = held_now();
        if (held_grown(&before, &now))
            fail_msg("%s: %s", current->name, held_grown(&before, &now));
    }
}

struct team {
    unsigned ranks, per_node;
    struct scenario scenario;
};

static const struct team teams[] = {
    {3, 0, {"shm: nothing", NULL, NOWHERE, 1, PL_PRECISION_32}},
    {3, 0, {"shm: configure", IT_RAINS, CONFIGURE, 1, PL_PRECISION_32}},
    {3, 0, {"shm: parameters", "", PARAMS, 1, PL_PRECISION_32}},
    {3, 0, {"shm: step", IT_RAINS, STEP, 1, PL_PRECISION_BF16}},
    {3, 0, {"shm: loss", "the loss is", LOSS, 1, PL_PRECISION_32}},
    {3, 0, {"shm: death", "", DEATH, 1, PL_PRECISION_32}},
    {3, 1, {"tcp: step", IT_RAINS, STEP, 1, PL_PRECISION_32}},
    {3, 1, {"tcp, ddp2: optimizer", IT_RAINS, BEFORE_OPTIMIZER, 2, PL_PRECISION_32}},
    {3, 1, {"tcp: validation", IT_RAINS, VALIDATION, 1, PL_PRECISION_32}},
    {3, 1, {"tcp: death", "", DEATH, 1, PL_PRECISION_32}},
    {4, 2, {"shm and tcp: nothing", NULL, NOWHERE, 1, PL_PRECISION_32}},
    {4, 2, {"shm and tcp: data", "none.npy", DATA, 1, PL_PRECISION_32}},
    {4, 2, {"shm and tcp: activations", "out of memory", ACTIVATIONS, 1, PL_PRECISION_32}},
    {4, 2, {"shm and tcp: death", "", DEATH, 1, PL_PRECISION_32}},
};

/* A run on its own communicator; returns a text if it ended wrongly. */
static const char *run_apart(struct pl_comm *all)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    struct pl_error err = {0};
    static char text[400];
    char last[32];
    int r = pl_comm_split(all, 0, 0, &comm, &err);

    if (r < 0)
        return "cannot make a communicator";
    pl_pool_resize(2);
    r = run(comm, &report, &err);
    if (mine || current->place == NOWHERE || current->place == PARAMS)
        return wrong(r, &err);
    snprintf(last, sizeof(last), "rank %u", all->size - 1); /* the others name it */
    if (r < 0 && strstr(pl_error_text(&err), last))
        return NULL;
    snprintf(text, sizeof(text), "%s: %s", current->name,
             r < 0 ? pl_error_text(&err) : "did not fail");
    return text;
}

static const char *be_in_team(struct pl_comm *all, void *shared)
{
    const struct team *team = shared;
    struct scenario living = team->scenario;
    struct held before, now;
    const char *bad = NULL;

    mine = all->rank == all->size - 1;
    current = &living;
    if (living.place == DEATH) { /* the last rank dies once: before that another failure */
        living.place = STEP;
        living.words = IT_RAINS;
    }
    for (int k = 0; k <= AGAIN; k++) {
        if (k == AGAIN)
            current = &team->scenario;
        bad = run_apart(all);
        if (bad)
            return bad;
        if (k == 0)
            before = held_now();
    }
    now = held_now();
    return held_grown(&before, &now);
}

static void test_a_failed_run_of_ranks_leaves_nothing(void **state)
{
    for (size_t i = 0; i < PL_COUNT(teams); i++) {
        struct team *team = ranks_shared(sizeof(*team));

        *team = teams[i];
        print_message("# %s\n", team->scenario.name);
        ranks_run(team->ranks, team->per_node, be_in_team, team,
                  team->scenario.place == DEATH ? 1u << (team->ranks - 1) : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_a_failed_run_of_ranks_leaves_nothing), /* forks: no thread may exist yet */
        cmocka_unit_test(test_a_failed_run_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
