/* SPDX-License-Identifier: MIT */
/* Pipelines of real ranks, beside one process or ddp on the same samples: random modules with tied
 * weights, skip connections, views and dropout, cut wherever the measured times say. */
#include "common/base/fs.h"
#include "runtime/engine/module/module.h"
#include "runtime/engine/params/shard.h"
#include "tests/engine/random_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define WIDTH 12
#define MATRICES 4
#define POOL 24
#define CHAIN_MAX 26 /* layers of the module that has nothing else */
#define VALUES (MATRICES * WIDTH * WIDTH + WIDTH * 64 + 10 * WIDTH + 2 * WIDTH)
#define VALUES_MAX (VALUES + CHAIN_MAX * WIDTH * WIDTH)
#define STEPS_MAX 64
#define JOINED 40

struct run {
    struct pl_train_options options;
    char hparams[RANDOM_HPARAMS][32];
    uint64_t seed; /* of the module */
    size_t ops;
    bool drops, norms, no_loss, branches;
    bool joins;    /* an op reads more tensors than may cross a cut */
    bool skips;    /* every other step leaves a layer out */
    size_t chain;  /* layers */
    bool emulated; /* each linear layer takes a nap forward, and one backward */
    long nap_ns;
    long slower;                               /* factor of the naps of slow_rank */
    int slow_rank;                             /* its naps are longer from step 2 on; -1: none */
    int small_rank;                            /* its emulated device has little memory; -1: none */
    uint64_t small_bytes;                      /* so much; 0: and none once the run has begun */
    void (*at_step)(struct plume_context *pl); /* in training_step; may kill the rank */
    char error[256];
    char hash[17];
    double values[VALUES_MAX]; /* of rank 0's parameters, as declared */
    uint64_t step;
    double val_loss, train_loss;
    double logged[2];      /* value "again" of the last step: sum, weight */
    size_t own[RANKS_MAX]; /* elements of the arenas that each rank has */
    uint64_t moves;
    uint64_t began[STEPS_MAX]; /* steps, on rank 0 */
    double busy_s[RANKS_MAX];  /* if the cut never moves */
};

static struct run *current;

struct net {
    plume_tensor *in, *m[MATRICES], *out, *scale, *shift;
    plume_tensor *mean, *var;
    plume_tensor *chain[CHAIN_MAX];
    unsigned calls;
};

/* ---- an emulated device: the CPU, on which a linear layer also takes a nap ---- */

static struct {
    struct pl_device dev;
    struct pl_device_ops ops;
    struct pl_kernels kernels;
    const struct pl_kernels *own;
    bool slow, small, full;
} emulated;

static void nap(void)
{
    long ns = emulated.slow ? current->slower * current->nap_ns : current->nap_ns;

    /* The emulated work; nothing waits for it. */
    clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static void linear_forward(const struct pl_linear_args *a)
{
    emulated.own->linear_forward(a);
    nap();
}

static void linear_backward(const struct pl_linear_args *a)
{
    emulated.own->linear_backward(a);
    nap();
}

static const struct pl_kernels *emulated_kernels(struct pl_device *dev, enum pl_real real)
{
    return &emulated.kernels; /* one type: f64 */
}

static void emulated_memory(struct pl_device *dev, struct pl_device_memory *ret)
{
    pl_device_cpu()->ops->memory(dev, ret);
    ret->total = emulated.small && current->small_bytes ? current->small_bytes : 1 << 30;
}

static int emulated_alloc(
    struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    if (emulated.full)
        return pl_error_set(err, -ENOMEM, "out of memory for %zu bytes of %s", bytes, what);
    return pl_device_cpu()->ops->alloc(dev, bytes, what, ret, err);
}

static struct pl_device *emulated_device(unsigned rank)
{
    emulated.own = pl_kernels_best(PL_REAL_F64);
    emulated.kernels = *emulated.own;
    emulated.kernels.linear_forward = linear_forward;
    emulated.kernels.linear_backward = linear_backward;
    emulated.dev = *pl_device_cpu();
    emulated.ops = *emulated.dev.ops;
    emulated.ops.kernels = emulated_kernels;
    emulated.ops.memory = emulated_memory;
    emulated.ops.alloc = emulated_alloc;
    emulated.small = (int)rank == current->small_rank;
    emulated.full = false;
    emulated.dev.ops = &emulated.ops;
    return &emulated.dev;
}

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;
    char name[24];

    net->in = plume_param(pl, "in", PLUME_INIT_FAN_IN, 2, (size_t[]){WIDTH, 64});
    for (size_t i = 0; i < MATRICES; i++) {
        snprintf(name, sizeof(name), "m%zu", i);
        net->m[i] = plume_param(pl, name, PLUME_INIT_FAN_IN, 2, (size_t[]){WIDTH, WIDTH});
    }
    net->out = plume_param(pl, "out", PLUME_INIT_FAN_IN, 2, (size_t[]){10, WIDTH});
    net->scale = plume_param(pl, "scale", PLUME_INIT_ONE, 1, (size_t[]){WIDTH});
    net->shift = plume_param(pl, "shift", PLUME_INIT_ZERO, 1, (size_t[]){WIDTH});
    for (size_t i = 0; i < current->chain; i++) {
        snprintf(name, sizeof(name), "c%zu", i);
        net->chain[i] = plume_param(pl, name, PLUME_INIT_FAN_IN, 2, (size_t[]){WIDTH, WIDTH});
    }
    if (current->norms) {
        net->mean = plume_buffer(pl, "mean", PLUME_INIT_ZERO, 1, (size_t[]){WIDTH});
        net->var = plume_buffer(pl, "var", PLUME_INIT_ONE, 1, (size_t[]){WIDTH});
    }
    return 0;
}

/* One more tensor of [rows, WIDTH]. Nothing mixes rows, so microbatches change no sum. */
static plume_tensor *
more(struct plume_context *pl, struct pl_rng *rng, plume_tensor **pool, size_t n)
{
    struct net *net = pl->state;
    plume_tensor *x = pool[pl_rng_below(rng, n)], *y = pool[pl_rng_below(rng, n)], *list[2];
    size_t cut = 1 + pl_rng_below(rng, WIDTH - 1);

    switch (pl_rng_below(rng, 8)) {
    case 0:
    case 1:
        return plume_linear(pl, x, net->m[pl_rng_below(rng, MATRICES)], NULL, PLUME_TANH);
    case 2:
        return plume_activate(pl, x, PLUME_GELU);
    case 3:
        return plume_layernorm(pl, x, net->scale, net->shift, 1e-3);
    case 4:
        return plume_add(pl, x, y);
    case 5:
        return plume_mul(pl, plume_activate(pl, x, PLUME_TANH), plume_scale(pl, y, 0.5, 0.1));
    case 6:
        return current->drops ? plume_dropout(pl, x, 0.3) : plume_softmax(pl, x);
    default:
        list[0] = plume_slice(pl, x, 1, cut, WIDTH - cut);
        list[1] = plume_slice(pl, y, 1, 0, cut);
        return plume_cat_along(pl, 1, 2, list);
    }
}

/* The mean of many tensors of x's shape, made in one op. */
static plume_tensor *join(struct plume_context *pl, plume_tensor *x)
{
    size_t shape[PLUME_RANK_MAX] = {0};
    plume_tensor *list[JOINED];

    pl->api->shape(x, shape);
    shape[2] = shape[1];
    shape[1] = JOINED;
    for (size_t i = 0; i < JOINED; i++)
        list[i] = plume_scale(pl, x, 0.5 + 0.1 * (double)i, 0);
    x = plume_reshape(pl, plume_cat_along(pl, 1, JOINED, list), 3, shape);
    return plume_mean(pl, x, 1, 2);
}

static plume_tensor *logits(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;
    plume_tensor *pool[POOL];
    struct pl_rng rng;
    size_t n = 0;

    pl_rng_init(&rng, current->seed, 3);
    pool[n++] = plume_linear(pl, batch->field[0], net->in, NULL, PLUME_IDENTITY);
    for (size_t i = 0; i <= current->chain; i++) {
        if (i > 0)
            pool[0] = plume_linear(pl, pool[0], net->chain[i - 1], NULL, PLUME_TANH);
        if (current->norms && i == (current->chain + 2) / 3)
            pool[0] = plume_batchnorm(pl, pool[0], net->scale, net->shift, net->mean, net->var, 0,
                                      0, PLUME_IDENTITY);
    }
    if (current->skips && pl->step % 2 == 0)
        pool[0] = plume_linear(pl, pool[0], net->m[0], NULL, PLUME_TANH);
    if (current->joins)
        pool[0] = join(pl, pool[0]);
    for (size_t i = 0; i < current->ops; i++) {
        plume_tensor *t = more(pl, &rng, pool, n);

        if (n < POOL)
            pool[n++] = t;
        else
            pool[pl_rng_below(&rng, POOL)] = t;
    }
    return plume_linear(pl, plume_add(pl, pool[n - 1], pool[pl_rng_below(&rng, n)]), net->out, NULL,
                        PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    plume_tensor *y;

    if (current->at_step)
        current->at_step(pl);
    if (pl->rank == 0 && pl->step < STEPS_MAX && !current->began[pl->step])
        current->began[pl->step] = pl_now_ns();
    emulated.slow = (int)pl->rank == current->slow_rank && pl->step >= 2;
    if (current->no_loss && pl->step == 1)
        return 0;
    y = logits(pl, batch);
    if (current->branches && net->calls++ % 2) /* dead ends and other nodes */
        plume_log(pl, "more", plume_mean(pl, plume_scale(pl, y, 2, 0), 0, 2), 1, 1);
    else if (current->branches)
        plume_log(pl, "more", plume_mean(pl, y, 0, 2), 1, 1);
    *ret_loss = plume_cross_entropy(pl, y, batch->field[1]);
    plume_log(pl, "again", *ret_loss, (double)batch->rows, (double)batch->rows);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_log(pl, "loss", plume_cross_entropy(pl, logits(pl, batch), batch->field[1]),
              (double)batch->rows, (double)batch->rows);
    return 0;
}

static int on_fit_start(struct plume_context *pl)
{
    emulated.full = emulated.small && current->small_bytes == 0;
    return 0;
}

static int ended(void *ctx, struct pl_trainer *t, struct pl_error *err)
{
    struct run *run = ctx;
    unsigned rank = t->comm->rank;
    int r = random_values(t, run->values, VALUES_MAX, err);

    run->own[rank] = t->ctx.params.own_to - t->ctx.params.own_from;
    run->busy_s[rank] = (double)t->pipe.busy_ns * 1e-9;
    if (r < 0 || rank > 0)
        return r;
    memcpy(run->hash, t->param_hash, sizeof(run->hash));
    run->step = t->state.step;
    run->moves = t->pipe.on ? t->pipe.version - 1 : 0;
    pl_lane_logged(&t->stage[PLUME_TRAIN].lanes[0], 0, run->logged);
    run->val_loss = pl_metrics_get(&t->metrics, "val_loss");
    run->train_loss = pl_metrics_get(&t->metrics, "train_loss");
    return 0;
}

static const char *train(struct pl_comm *comm, void *shared)
{
    static const struct plume_module module = {
        .struct_size = sizeof(module),
        .abi = PLUME_MODULE_ABI,
        .name = "random",
        .hparams = random_hparams,
        .state_size = sizeof(struct net),
        .configure = configure,
        .data = random_data,
        .training_step = training_step,
        .validation_step = validation_step,
        .on_fit_start = on_fit_start,
    };
    struct run *run = shared;
    struct random_run one = {&module, run->options, run->hparams, NULL, ended, run};

    current = run;
    one.options.device = run->emulated ? emulated_device(comm->rank) : on_device();
    random_train(&one, comm, run->error);
    return NULL;
}

static struct run *new_run(uint64_t seed, size_t ops)
{
    struct run *run = ranks_shared(sizeof(*run));

    run->options = pl_train_options_default();
    run->options.seed = seed;
    run->options.precision = PL_PRECISION_64;
    run->options.max_steps = 3;
    run->options.limit[PLUME_VALIDATE] = (struct pl_limit){.value = 2};
    run->options.sanity_steps = 1;
    run->seed = seed;
    run->ops = ops;
    run->slow_rank = run->small_rank = -1;
    return run;
}

static struct run *pipeline_of(const struct run *like, unsigned stages, uint64_t microbatches)
{
    struct run *run = ranks_shared(sizeof(*run));

    *run = *like;
    run->options.strategy = PL_STRATEGY_PIPELINE;
    run->options.stages = stages;
    run->options.microbatches = microbatches;
    return run;
}

static void go(struct run *run, unsigned ranks, unsigned per_node)
{
    ranks_run(ranks, per_node, train, run, 0);
}

static void assert_good(const struct run *run)
{
    if (run->error[0])
        fail_msg("seed %llu: %s", (unsigned long long)run->seed, run->error);
}

static double far(double a, double b)
{
    return fabs(a - b) / (1 + fabs(b));
}

/* Both have trained alike, within rounding. */
static void assert_alike(const struct run *a, const struct run *b, double tolerance)
{
    double most = PL_MAX(far(a->val_loss, b->val_loss), far(a->train_loss, b->train_loss));

    assert_good(a);
    assert_good(b);
    for (size_t i = 0; i < VALUES_MAX; i++)
        most = fmax(most, far(a->values[i], b->values[i]));
    if (!(most <= tolerance) || a->step != b->step)
        fail_msg("seed %llu, %u stages, %llu microbatches, %s: %g apart after %llu steps",
                 (unsigned long long)a->seed, a->options.stages,
                 (unsigned long long)a->options.microbatches,
                 a->options.pipe_order ? "gpipe" : "1f1b", most, (unsigned long long)a->step);
}

/* One random module in a random pipeline; $PLUME_TEST_PIPELINES: so many, from a seed. */
static void try_one(uint64_t seed)
{
    struct pl_rng rng;
    struct run *one, *pipe;
    unsigned pipes, stages, per_node;

    pl_rng_init(&rng, seed, 11);
    one = new_run(seed, 2 + pl_rng_below(&rng, 20));
    one->drops = pl_rng_below(&rng, 2);
    one->branches = pl_rng_below(&rng, 4) == 0;
    one->options.accumulate = 1 + pl_rng_below(&rng, 3);
    one->options.clip = pl_rng_below(&rng, 2) ? 0.3 : 0;
    one->options.optimizer = pl_rng_below(&rng, 2) ? PLUME_ADAM : PLUME_SGD;
    snprintf(one->hparams[0], 32, "batch_size=%u", 1 + (unsigned)pl_rng_below(&rng, 20));
    snprintf(one->hparams[1], 32, "lr=%g", one->options.optimizer == PLUME_ADAM ? 1e-3 : 0.05);
    pipes = 1 + (unsigned)pl_rng_below(&rng, 2);
    stages = 1 + (unsigned)pl_rng_below(&rng, 4);
    pipe = pipeline_of(one, stages, pl_rng_below(&rng, 9));
    pipe->options.pipe_order = pl_rng_below(&rng, 2) ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
    pipe->options.balance_every = pl_rng_below(&rng, 3);
    go(one, pipes, 0);
    per_node = pl_rng_below(&rng, 4) == 0 ? stages : 0;
    pipe->options.recompute = pl_rng_below(&rng, 2);
    go(pipe, pipes * stages, per_node);
    assert_alike(pipe, one, one->options.optimizer == PLUME_ADAM ? 1e-7 : 1e-9);
}

static void test_random_modules_are_those_of_one_process(void **state)
{
    const char *soak = getenv("PLUME_TEST_PIPELINES");
    unsigned long n = 8, seed = 0;

    if (soak)
        sscanf(soak, "%lu %lu", &n, &seed);
    else
        try_one(80); /* a last microbatch of one row, which needs fewer copies of views */
    for (unsigned long i = 0; i < n; i++) {
        if (soak)
            print_message("# seed %lu\n", seed + i);
        try_one(seed + i);
    }
}

/* Neither the cut between ops nor the order of microbatches changes a bit. */
static void test_cuts_and_orders_have_the_same_bits(void **state)
{
    struct run *like = new_run(3, 0), *runs[4];

    like->drops = like->norms = like->joins = true;
    like->options.precision = PL_PRECISION_32;
    for (unsigned i = 0; i < PL_COUNT(runs); i++) {
        runs[i] = pipeline_of(like, 1 + i, 3);
        runs[i]->options.pipe_order = i % 2 ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
        go(runs[i], 1 + i, 0);
        assert_good(runs[i]);
    }
    for (unsigned i = 1; i < PL_COUNT(runs); i++)
        assert_string_equal(runs[i]->hash, runs[0]->hash);
}

/* A parameter that several ops use has the same gradient wherever the measured cut is, and all of
 * them the same norm. */
static void test_deterministic_cuts_have_the_same_bits(void **state)
{
    struct run *like = new_run(3, 20), *runs[4];

    like->chain = 2;
    like->options.deterministic = true;
    like->options.clip = 0.01;
    for (unsigned i = 0; i < PL_COUNT(runs); i++) {
        runs[i] = pipeline_of(like, 1 + i, 3);
        go(runs[i], 1 + i, 0);
        assert_good(runs[i]);
        assert_string_equal(runs[i]->hash, runs[0]->hash);
    }
}

/* A step that leaves a layer out leaves its weights and their momentum alone: what an earlier batch
 * has used does not count, though microbatches of this one are still to come. */
static void test_a_layer_that_is_left_out_stays(void **state)
{
    struct run *one = new_run(6, 0), *pipe;

    one->skips = true;
    one->options.max_steps = 4;
    one->options.optimizer = PLUME_ADAM;
    snprintf(one->hparams[1], 32, "lr=1e-3");
    go(one, 1, 0);
    for (unsigned order = 0; order < 2; order++) {
        pipe = pipeline_of(one, 2, 3); /* of 6, 6 and 4 samples */
        pipe->options.pipe_order = order ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
        go(pipe, 2, 0);
        assert_alike(pipe, one, 1e-7);
    }
}

/* The last batch of an epoch is the first one whose last microbatch is shorter, and the last one of
 * its step: what the others have logged counts once. */
static void test_logged_values_are_those_of_one_process(void **state)
{
    struct run *one = new_run(7, 0), *pipe;

    one->options.max_steps = 1;
    one->options.accumulate = 3;
    snprintf(one->hparams[0], 32, "batch_size=418"); /* 418, 418 and 417 samples */
    go(one, 1, 0);
    pipe = pipeline_of(one, 2, 2);
    go(pipe, 2, 0);
    assert_alike(pipe, one, 1e-9);
    for (unsigned i = 0; i < PL_COUNT(one->logged); i++)
        assert_true(far(pipe->logged[i], one->logged[i]) <= 1e-9);
    assert_true(one->logged[1] > 1252 && one->logged[1] < 1254);
}

/* A rank has memory for its own parameters only. */
static void test_ranks_have_their_own_parameters(void **state)
{
    struct run *run = pipeline_of(new_run(5, 12), 4, 4);
    size_t all = 0;

    go(run, 8, 0);
    assert_good(run);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(run->own[i], run->own[i + 4]);
        assert_true(run->own[i] < VALUES);
        all += run->own[i];
    }
    assert_true(all >= VALUES && all < VALUES + 64); /* with gaps */
}

/* A device that becomes slow gives ops away, and what belongs to them goes along: the parameters
 * and Adam's state are those of one process. */
static void test_the_cut_moves_with_its_state(void **state)
{
    struct run *one = new_run(4, 0), *pipe;

    one->chain = 12;
    one->options.max_steps = 8;
    one->options.optimizer = PLUME_ADAM;
    one->options.clip = 0.5;
    snprintf(one->hparams[0], 32, "batch_size=8");
    snprintf(one->hparams[1], 32, "lr=1e-3");
    go(one, 1, 0);
    pipe = pipeline_of(one, 3, 2);
    pipe->emulated = true;
    pipe->nap_ns = 400000;
    pipe->slower = 10;
    pipe->slow_rank = 1;
    pipe->options.balance_every = 1;
    go(pipe, 3, 0);
    assert_alike(pipe, one, 1e-7);
    assert_true(pipe->moves >= 1);
    assert_true(pipe->own[1] < pipe->own[0] && pipe->own[1] < pipe->own[2]);
}

/* The running averages of a batch norm go along, too: validation reads them. */
static void test_the_cut_moves_with_its_buffers(void **state)
{
    struct run *stays = pipeline_of(new_run(4, 0), 3, 2), *moves;

    stays->chain = 12;
    stays->norms = true;
    stays->options.max_steps = 8;
    snprintf(stays->hparams[0], 32, "batch_size=8");
    stays->emulated = true;
    stays->nap_ns = 400000;
    moves = pipeline_of(stays, 3, 2);
    moves->slower = 10;
    moves->slow_rank = 1;
    moves->options.balance_every = 1;
    go(stays, 3, 0);
    assert_good(stays);
    go(moves, 3, 0);
    assert_alike(moves, stays, 1e-12);
    assert_true(stays->moves == 0 && moves->moves >= 1);
}

/* The cut keeps to each device's memory, whatever the times are. */
static void test_devices_may_differ_in_memory(void **state)
{
    struct run *one = new_run(4, 0), *pipe;

    one->chain = 12;
    one->options.optimizer = PLUME_ADAM;
    go(one, 1, 0);
    pipe = pipeline_of(one, 3, 2);
    pipe->emulated = true;
    pipe->small_rank = 1;
    /* A third of the node's: values, gradients and Adam's state of three layers. */
    pipe->small_bytes = (uint64_t)3 * 3 * 4 * WIDTH * WIDTH * sizeof(double);
    go(pipe, 3, 0);
    assert_alike(pipe, one, 1e-7);
    assert_true(pipe->own[1] > 0 && pipe->own[1] <= 3 * WIDTH * WIDTH);
    pipe->small_bytes = 300;
    go(pipe, 3, 0);
    if (!strstr(pipe->error, "no cut of the step's ops into 3 stages fits the devices' memory"))
        fail_msg("%s", pipe->error);
}

/* What a stage computes again it need not keep: a cut fits that would not without. */
static void test_recomputation_makes_a_cut_fit(void **state)
{
    const uint64_t tensor = 256 * WIDTH * sizeof(double); /* of a microbatch */
    struct run *one = new_run(4, 0), *pipe;

    one->chain = 12;
    snprintf(one->hparams[0], 32, "batch_size=512");
    one->options.optimizer = PLUME_ADAM;
    go(one, 1, 0);
    pipe = pipeline_of(one, 3, 2);
    pipe->emulated = true;
    pipe->small_rank = 0;
    /* Half a tensor less than the first layer's weights, which are as large as a tensor, with their
     * gradient and Adam's state, and its output of two microbatches. */
    pipe->small_bytes = 3 * (2 * tensor + tensor / 2);
    go(pipe, 3, 0);
    if (!strstr(pipe->error, "fits the devices' memory"))
        fail_msg("%s", pipe->error);
    pipe = pipeline_of(pipe, 3, 2);
    pipe->error[0] = '\0';
    pipe->options.recompute = true;
    go(pipe, 3, 0);
    assert_alike(pipe, one, 1e-7);
}

/* All others end as well, and say which rank it was. */
static void test_a_stage_without_memory_is_named(void **state)
{
    struct run *run = pipeline_of(new_run(4, 0), 3, 2);

    run->emulated = true;
    run->small_rank = 1;
    assert_true(ranks_run(3, 0, train, run, 0) < 30);
    if (!strstr(run->error, "rank 1 gave up: out of memory for"))
        fail_msg("%s", run->error);
}

static void die_at_2(struct plume_context *pl)
{
    if (pl->rank == 2 && pl->step == 1)
        raise(SIGKILL);
}

/* All others end in bounded time, and name it. */
static void test_a_lost_rank_is_named(void **state)
{
    struct run *run = pipeline_of(new_run(1, 9), 4, 4);
    double seconds;

    run->at_step = die_at_2;
    seconds = ranks_run(4, 0, train, run, 1 << 2);
    assert_true(seconds < 30);
    if (!strstr(run->error, "lost rank 2"))
        fail_msg("%s", run->error);
}

static void assert_refused(struct run *run, unsigned ranks, const char *text)
{
    go(run, ranks, 0);
    if (!strstr(run->error, text))
        fail_msg("not '%s': '%s'", text, run->error);
}

static void test_what_does_not_go_is_told(void **state)
{
    struct run *run = pipeline_of(new_run(1, 0), 8, 4);

    assert_refused(run, 8, "8 stages are more than the training step's 5 ops");
    assert_refused(pipeline_of(new_run(1, 0), 2, 4), 3, "do not make whole pipelines of 2 stages");
    run = pipeline_of(new_run(1, 0), 2, 4);
    run->no_loss = true;
    assert_refused(run, 2, "gave no loss");
    run = pipeline_of(new_run(1, 0), 2, 4);
    run->options.ema = 0.9;
    assert_refused(run, 2, "no moving average");
}

/* ---- bench/pipeline.py: four emulated devices; $PLUME_BENCH_PIPELINE: microseconds of a nap ----
 */

#define BENCH_STEPS 9
#define BENCH_LAST 2 /* steps that count */
#define BENCH_STAGES 4
#define BENCH_MICROBATCHES 64 /* so that one slow stage counts, and not the fill */
#define BENCH_BUBBLES (PL_PIPE_MICROBATCHES * BENCH_STAGES) /* as many as a run has by itself */

/* Seconds of a step. slow: the rank at half speed, or -1. */
static double
bench_run(int slow, uint64_t balance_every, unsigned microbatches, long naps, double *ret_busy)
{
    struct run *run = new_run(1, 0);
    double busy = 0;

    run->chain = CHAIN_MAX; /* with the first and last layer: 7 each */
    run->options.max_steps = BENCH_STEPS;
    run->options.limit[PLUME_VALIDATE] = (struct pl_limit){.value = 0};
    run->options.sanity_steps = 0;
    snprintf(run->hparams[0], 32, "batch_size=%u", microbatches);
    run = pipeline_of(run, BENCH_STAGES, microbatches);
    run->emulated = true;
    run->nap_ns = strtol(getenv("PLUME_BENCH_PIPELINE"), NULL, 10) * 1000 * naps;
    run->slower = 2;
    run->slow_rank = slow;
    run->options.balance_every = balance_every;
    go(run, BENCH_STAGES, 0);
    assert_good(run);
    for (unsigned i = 0; i < BENCH_STAGES; i++)
        busy = PL_MAX(busy, run->busy_s[i]);
    if (ret_busy)
        *ret_busy = busy / BENCH_STEPS;
    return (double)(run->began[BENCH_STEPS - 1] - run->began[BENCH_STEPS - 1 - BENCH_LAST]) * 1e-9 /
           BENCH_LAST;
}

static void bench(void **state)
{
    double busy, even = bench_run(-1, 0, BENCH_BUBBLES, 2, &busy);
    double equal = bench_run(1, 0, BENCH_MICROBATCHES, 1, NULL);
    double balanced = bench_run(1, 2, BENCH_MICROBATCHES, 1, NULL);

    print_message("{\"equal_s\":%.4f,\"balanced_s\":%.4f,\"bubble\":%.4f,\"formula\":%.4f}\n",
                  equal, balanced, 1 - busy / even,
                  (BENCH_STAGES - 1.0) / (BENCH_BUBBLES + BENCH_STAGES - 1));
}

int main(void)
{
    const struct CMUnitTest benches[] = {cmocka_unit_test(bench)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_modules_are_those_of_one_process),
        cmocka_unit_test(test_cuts_and_orders_have_the_same_bits),
        cmocka_unit_test(test_deterministic_cuts_have_the_same_bits),
        cmocka_unit_test(test_a_layer_that_is_left_out_stays),
        cmocka_unit_test(test_logged_values_are_those_of_one_process),
        cmocka_unit_test(test_ranks_have_their_own_parameters),
        cmocka_unit_test(test_the_cut_moves_with_its_state),
        cmocka_unit_test(test_the_cut_moves_with_its_buffers),
        cmocka_unit_test(test_devices_may_differ_in_memory),
        cmocka_unit_test(test_recomputation_makes_a_cut_fit),
        cmocka_unit_test(test_a_stage_without_memory_is_named),
        cmocka_unit_test(test_a_lost_rank_is_named),
        cmocka_unit_test(test_what_does_not_go_is_told),
    };

    if (getenv("PLUME_BENCH_PIPELINE"))
        return cmocka_run_group_tests(benches, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
