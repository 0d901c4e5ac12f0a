/* SPDX-License-Identifier: MIT */
#include "tests/engine/pipeline_run.h"

#include "common/base/fs.h"
#include "runtime/engine/module/module.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define POOL 24
#define JOINED 40

static struct pipeline_run *current;

struct net {
    plume_tensor *in, *m[PIPELINE_MATRICES], *out, *scale, *shift;
    plume_tensor *mean, *var;
    plume_tensor *chain[PIPELINE_CHAIN_MAX];
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

    net->in = plume_param(pl, "in", PLUME_INIT_FAN_IN, 2, (size_t[]){PIPELINE_WIDTH, 64});
    for (size_t i = 0; i < PIPELINE_MATRICES; i++) {
        snprintf(name, sizeof(name), "m%zu", i);
        net->m[i] =
            plume_param(pl, name, PLUME_INIT_FAN_IN, 2, (size_t[]){PIPELINE_WIDTH, PIPELINE_WIDTH});
    }
    net->out = plume_param(pl, "out", PLUME_INIT_FAN_IN, 2, (size_t[]){10, PIPELINE_WIDTH});
    net->scale = plume_param(pl, "scale", PLUME_INIT_ONE, 1, (size_t[]){PIPELINE_WIDTH});
    net->shift = plume_param(pl, "shift", PLUME_INIT_ZERO, 1, (size_t[]){PIPELINE_WIDTH});
    for (size_t i = 0; i < current->chain; i++) {
        snprintf(name, sizeof(name), "c%zu", i);
        net->chain[i] =
            plume_param(pl, name, PLUME_INIT_FAN_IN, 2, (size_t[]){PIPELINE_WIDTH, PIPELINE_WIDTH});
    }
    if (current->norms) {
        net->mean = plume_buffer(pl, "mean", PLUME_INIT_ZERO, 1, (size_t[]){PIPELINE_WIDTH});
        net->var = plume_buffer(pl, "var", PLUME_INIT_ONE, 1, (size_t[]){PIPELINE_WIDTH});
    }
    return 0;
}

/* One more tensor of [rows, PIPELINE_WIDTH]. Nothing mixes rows, so microbatches change no sum. */
static plume_tensor *
more(struct plume_context *pl, struct pl_rng *rng, plume_tensor **pool, size_t n)
{
    struct net *net = pl->state;
    plume_tensor *x = pool[pl_rng_below(rng, n)], *y = pool[pl_rng_below(rng, n)], *list[2];
    size_t cut = 1 + pl_rng_below(rng, PIPELINE_WIDTH - 1);

    switch (pl_rng_below(rng, 8)) {
    case 0:
    case 1:
        return plume_linear(pl, x, net->m[pl_rng_below(rng, PIPELINE_MATRICES)], NULL, PLUME_TANH);
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
        list[0] = plume_slice(pl, x, 1, cut, PIPELINE_WIDTH - cut);
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
    if (pl->rank == 0 && pl->step < PIPELINE_STEPS_MAX && !current->began[pl->step])
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
    struct pipeline_run *run = ctx;
    unsigned rank = t->comm->rank;
    int r = random_values(t, run->values, PIPELINE_VALUES_MAX, err);

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

const char *pipeline_run_train(struct pl_comm *comm, void *shared)
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
    struct pipeline_run *run = shared;
    struct random_run one = {&module, run->options, run->hparams, NULL, ended, run};

    current = run;
    one.options.device = run->emulated ? emulated_device(comm->rank) : on_device();
    random_train(&one, comm, run->error);
    return NULL;
}

struct pipeline_run *pipeline_run_new(uint64_t seed, size_t ops)
{
    struct pipeline_run *run = ranks_shared(sizeof(*run));

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

struct pipeline_run *
pipeline_run_of(const struct pipeline_run *like, unsigned stages, uint64_t microbatches)
{
    struct pipeline_run *run = ranks_shared(sizeof(*run));

    *run = *like;
    run->options.strategy = PL_STRATEGY_PIPELINE;
    run->options.stages = stages;
    run->options.microbatches = microbatches;
    return run;
}

void pipeline_run_go(struct pipeline_run *run, unsigned ranks, unsigned per_node)
{
    ranks_run(ranks, per_node, pipeline_run_train, run, 0);
}

void pipeline_run_good(const struct pipeline_run *run)
{
    if (run->error[0])
        fail_msg("seed %llu: %s", (unsigned long long)run->seed, run->error);
}

double pipeline_run_far(double a, double b)
{
    return fabs(a - b) / (1 + fabs(b));
}

void pipeline_run_alike(const struct pipeline_run *a,
                        const struct pipeline_run *b,
                        double tolerance)
{
    double most = PL_MAX(pipeline_run_far(a->val_loss, b->val_loss),
                         pipeline_run_far(a->train_loss, b->train_loss));

    pipeline_run_good(a);
    pipeline_run_good(b);
    for (size_t i = 0; i < PIPELINE_VALUES_MAX; i++)
        most = fmax(most, pipeline_run_far(a->values[i], b->values[i]));
    if (!(most <= tolerance) || a->step != b->step)
        fail_msg("seed %llu, %u stages, %llu microbatches, %s: %g apart after %llu steps",
                 (unsigned long long)a->seed, a->options.stages,
                 (unsigned long long)a->options.microbatches,
                 a->options.pipe_order ? "gpipe" : "1f1b", most, (unsigned long long)a->step);
}
