/* SPDX-License-Identifier: MIT */
/* Tensor parallel ranks beside one process or ddp on the same samples: random modules of linear
 * layers and attentions, of which some can be split. */
#include "common/base/fs.h"
#include "include/plume/ops_attention.h"
#include "include/plume/ops_math.h"
#include "include/plume/ops_nn.h"
#include "runtime/engine/module/module.h"
#include "runtime/engine/params/param_parts.h"
#include "tests/engine/random_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TIME 4
#define WIDTH 24
#define HIDDEN 48
#define ODD 7
#define BLOCKS_MAX 6
#define HEADS (WIDTH / 2)
#define KEY_HEADS (HEADS / 2)
enum { REPEATED = 8, MASKED, SHAPED, N_KINDS, ROOTS = N_KINDS }; /* kinds of blocks */
#define VALUES_MAX 65536

struct run {
    struct pl_train_options options;
    char hparams[RANDOM_HPARAMS][32];
    uint64_t seed; /* of the module */
    size_t blocks;
    bool drops;
    int only;     /* the kind of all blocks; -1: random ones */
    bool changes; /* from step 1 on a layer is used in another way */
    bool reads;   /* a hook reads a parameter that is split */
    int dies;     /* this rank, in step 1; -1: none */
    char error[256];
    double values[VALUES_MAX]; /* of rank 0's parameters, as declared */
    uint64_t step;
    double val_loss, train_loss;
    size_t own[RANKS_MAX]; /* numbers of parameters that each rank has */
    struct pl_split_counts counts;
};

static struct run *current;

struct net {
    plume_tensor *in, *out, *gain, *shift;
    struct block {
        plume_tensor *up, *up_b, *gate, *down, *down_b, *packed, *odd_up, *odd_down;
        plume_tensor *qkv, *qkv_b, *project, *scale, *factor, *key, *value, *mask, *join;
    } block[BLOCKS_MAX];
};

static plume_tensor *
param(struct plume_context *pl, size_t block, const char *what, size_t out, size_t in)
{
    char name[32];

    snprintf(name, sizeof(name), "b%zu.%s", block, what);
    return plume_param(pl, name, PLUME_INIT_FAN_IN, in ? 2 : 1, (size_t[]){out, in});
}

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;
    const size_t width = WIDTH;

    net->in = plume_param(pl, "in", PLUME_INIT_FAN_IN, 2, (size_t[]){WIDTH, 64 / TIME});
    net->out = plume_param(pl, "out", PLUME_INIT_FAN_IN, 2, (size_t[]){10, WIDTH});
    net->gain = plume_param(pl, "gain", PLUME_INIT_ONE, 1, &width);
    net->shift = plume_param(pl, "shift", PLUME_INIT_ZERO, 1, &width);
    for (size_t i = 0; i < current->blocks; i++)
        net->block[i] = (struct block){
            .up = param(pl, i, "up", HIDDEN, WIDTH),
            .up_b = param(pl, i, "up_b", HIDDEN, 0),
            .gate = param(pl, i, "gate", HIDDEN, WIDTH),
            .down = param(pl, i, "down", WIDTH, HIDDEN),
            .down_b = param(pl, i, "down_b", WIDTH, 0),
            .packed = param(pl, i, "packed", 2 * HIDDEN, WIDTH),
            .odd_up = param(pl, i, "odd_up", ODD, WIDTH),
            .odd_down = param(pl, i, "odd_down", WIDTH, ODD),
            .qkv = param(pl, i, "qkv", 3 * WIDTH, WIDTH),
            .qkv_b = param(pl, i, "qkv_b", 3 * WIDTH, 0),
            .project = param(pl, i, "project", WIDTH, WIDTH),
            .scale = param(pl, i, "scale", HIDDEN, 0),
            .factor = param(pl, i, "factor", 1, 0),
            .key = param(pl, i, "key", KEY_HEADS * 2, WIDTH),
            .value = param(pl, i, "value", KEY_HEADS * 2, WIDTH),
            .mask = param(pl, i, "mask", TIME, TIME),
            .join = param(pl, i, "join", WIDTH, WIDTH),
        };
    return 0;
}

/* Ops that may stand between two layers. */
static plume_tensor *
between(struct plume_context *pl, struct pl_rng *rng, const struct block *b, plume_tensor *x)
{
    for (size_t n = pl_rng_below(rng, 3); n-- > 0;)
        switch (pl_rng_below(rng, 6)) {
        case 0:
            x = plume_activate(pl, x, PLUME_TANH);
            break;
        case 1:
            x = current->drops ? plume_dropout(pl, x, 0.3) : plume_scale(pl, x, 0.7, 0.1);
            break;
        case 2:
            x = plume_mul(pl, x, b->scale); /* a vector, repeated */
            break;
        case 3:
            x = plume_clamp(pl, x, -1, 1);
            break;
        case 4:
            x = plume_add(pl, x, plume_activate(pl, x, PLUME_SIGMOID));
            break;
        default:
            x = plume_maximum(pl, x, plume_scale(pl, x, 0.1, 0));
            break;
        }
    return x;
}

static plume_tensor *
up(struct plume_context *pl, struct pl_rng *rng, const struct block *b, plume_tensor *x)
{
    static const enum plume_activation acts[] = {PLUME_IDENTITY, PLUME_RELU, PLUME_GELU,
                                                 PLUME_GELU_TANH, PLUME_TANH};

    return plume_linear(pl, x, b->up, pl_rng_below(rng, 2) ? b->up_b : NULL,
                        acts[pl_rng_below(rng, PL_COUNT(acts))]);
}

static plume_tensor *
down(struct plume_context *pl, struct pl_rng *rng, const struct block *b, plume_tensor *x)
{
    return plume_linear(pl, x, b->down, pl_rng_below(rng, 2) ? b->down_b : NULL,
                        pl_rng_below(rng, 3) ? PLUME_IDENTITY : PLUME_RELU);
}

static plume_tensor *
attend(struct plume_context *pl, struct pl_rng *rng, const struct block *b, plume_tensor *x)
{
    plume_tensor *qkv = plume_linear(pl, x, b->qkv, b->qkv_b, PLUME_IDENTITY), *y;
    int causal = (int)pl_rng_below(rng, 2);

    if (pl_rng_below(rng, 2))
        y = plume_attention(pl, qkv, WIDTH / 2, causal);
    else
        y = plume_attention_of(pl, plume_slice(pl, qkv, 2, 0, WIDTH),
                               plume_slice(pl, qkv, 2, WIDTH, WIDTH),
                               plume_slice(pl, qkv, 2, 2 * WIDTH, WIDTH), WIDTH / 2, causal);
    if (current->drops && pl_rng_below(rng, 2))
        y = plume_dropout(pl, y, 0.2);
    return plume_linear(pl, y, b->project, NULL, PLUME_IDENTITY);
}

/* Fewer heads of keys, which may be of another length, masks of both kinds, turned or not. */
static plume_tensor *
attend_masked(struct plume_context *pl, struct pl_rng *rng, const struct block *b, plume_tensor *x)
{
    struct plume_attention_how how = {
        .heads = HEADS,
        .kv_heads = KEY_HEADS,
        .causal = (int)pl_rng_below(rng, 2),
        .scale = pl_rng_below(rng, 2) ? 0.5 : 0,
        .dropout = current->drops && pl_rng_below(rng, 2) ? 0.2 : 0,
    };
    size_t keys = 2 + pl_rng_below(rng, 2) * (TIME - 2);
    plume_tensor *from = plume_slice(pl, x, 1, 0, keys);
    plume_tensor *q = plume_linear(pl, x, b->project, NULL, PLUME_IDENTITY);
    plume_tensor *k = plume_linear(pl, from, b->key, NULL, PLUME_IDENTITY);

    if (pl_rng_below(rng, 2)) {
        q = plume_rotary(pl, q, HEADS, 0, 100, 0);
        k = plume_rotary(pl, k, KEY_HEADS, 0, 100, 0);
    }
    switch (pl_rng_below(rng, 3)) {
    case 0: /* one mask for all heads, with a gradient */
        how.mask = plume_slice(pl, b->mask, 1, 0, keys);
        how.mask_is_added = 1;
        break;
    case 1: /* some queries see nothing */
        how.mask = plume_transpose(pl, plume_causal_mask(pl, keys, TIME), 0, 1);
        break;
    default:
        break;
    }
    q = plume_attention_with(pl, q, k, plume_linear(pl, from, b->value, NULL, PLUME_IDENTITY),
                             &how);
    return plume_linear(pl, q, b->join, NULL, PLUME_IDENTITY);
}

/* Ops that keep the shape, inside of others that change it and change it back. Rows stay rows. */
static plume_tensor *
shaped(struct plume_context *pl, struct pl_rng *rng, plume_tensor *x, size_t depth)
{
    size_t shape[PLUME_RANK_MAX] = {0}, other[PLUME_RANK_MAX], order[] = {0, 1, 2, 3, 4}, back[5];
    size_t rank = pl->api->shape(x, shape), d = 1 + pl_rng_below(rng, rank - 1), n = rank;
    size_t kind = depth ? pl_rng_below(rng, 3) : 3 + pl_rng_below(rng, 4), factor;

    memcpy(other, shape, sizeof(other));
    switch (kind) {
    case 0: /* another order */
        for (size_t i = rank; i > 2; i--) {
            size_t k = 1 + pl_rng_below(rng, i - 1), last = order[i - 1];

            order[i - 1] = order[k];
            order[k] = last;
        }
        for (size_t i = 0; i < rank; i++)
            back[order[i]] = i;
        return plume_permute(pl, shaped(pl, rng, plume_permute(pl, x, order), depth - 1), back);
    case 1: /* a dimension becomes two, */
        factor = 2 + pl_rng_below(rng, 3);
        if (rank < PLUME_RANK_MAX && shape[d] % factor == 0) {
            memmove(other + d + 1, other + d, (rank - d) * sizeof(*other));
            other[d] = factor;
            other[d + 1] /= factor;
            n = rank + 1;
        }
        break;
    case 2: /* or two of them one */
        if (d + 1 < rank) {
            other[d] *= other[d + 1];
            memmove(other + d + 1, other + d + 2, (rank - d - 2) * sizeof(*other));
            n = rank - 1;
        }
        break;
    case 3:
        return plume_softmax(pl, x);
    case 4: /* of rows that know nothing of each other */
        return rank < 3 ? x
                        : plume_matmul(pl, x, plume_scale(pl, plume_matmul(pl, x, x, 1, 0), 0.1, 0),
                                       0, 0);
    case 5:
        return plume_dropout(pl, x, current->drops ? 0.2 : 0);
    default:
        return plume_activate(pl, x, PLUME_TANH);
    }
    x = shaped(pl, rng, plume_reshape(pl, x, n, other), depth - 1);
    return plume_reshape(pl, x, rank, shape);
}

static plume_tensor *
one_block(struct plume_context *pl, struct pl_rng *rng, const struct block *b, plume_tensor *x)
{
    plume_tensor *h;

    switch (current->only >= 0 ? (uint64_t)current->only : pl_rng_below(rng, N_KINDS)) {
    case 0:
    case 1: /* a gate */
        h = plume_activate(pl, plume_linear(pl, x, b->gate, NULL, PLUME_IDENTITY), PLUME_GELU);
        return down(pl, rng, b, plume_mul(pl, between(pl, rng, b, up(pl, rng, b, x)), h));
    case 2: /* the same in one layer */
        h = plume_linear(pl, x, b->packed, NULL, PLUME_IDENTITY);
        return down(pl, rng, b,
                    plume_mul(pl,
                              plume_activate(pl, plume_slice(pl, h, 2, 0, HIDDEN), PLUME_SIGMOID),
                              plume_slice(pl, h, 2, HIDDEN, HIDDEN)));
    case 3:
    case 4:
        return attend(pl, rng, b, x);
    case 5: /* twice the same layers */
        h = down(pl, rng, b, between(pl, rng, b, up(pl, rng, b, x)));
        return down(pl, rng, b, between(pl, rng, b, up(pl, rng, b, h)));
    case 6: /* not to be split */
        h = plume_linear(pl, x, b->odd_up, NULL, PLUME_TANH);
        return plume_linear(pl, h, b->odd_down, NULL, PLUME_IDENTITY);
    case SHAPED:
        h = shaped(pl, rng, up(pl, rng, b, x), 1 + pl_rng_below(rng, 4));
        return down(pl, rng, b, h);
    case MASKED:
        return attend_masked(pl, rng, b, x);
    case ROOTS: /* |x|, by squares that f16 does not have */
        h = pl_f32_scale(pl, up(pl, rng, b, x), 0x1p12, 0);
        h = plume_root(pl, pl_f32_mul(pl, h, h));
        return down(pl, rng, b, pl_f32_scale(pl, h, 0x1p-12, 0));
    case REPEATED: /* of one time, to which one number and one vector are repeated */
        h = plume_linear(pl, plume_mean(pl, x, 1, 2), b->up, NULL, PLUME_IDENTITY);
        h = plume_mul(pl, plume_add(pl, h, b->up_b), plume_exp(pl, b->factor));
        h = plume_linear(pl, plume_mul(pl, h, b->factor), b->down, NULL, PLUME_IDENTITY);
        return plume_reshape(pl, h, 3, (size_t[]){h->shape[0], 1, WIDTH});
    default: /* a sum over the split dimension: not to be split */
        h = up(pl, rng, b, x);
        return pl_rng_below(rng, 2) ? down(pl, rng, b, plume_softmax(pl, h))
                                    : down(pl, rng, b, between(pl, rng, b, h));
    }
}

static plume_tensor *logits(struct plume_context *pl, const struct plume_batch *batch)
{
    size_t rows[] = {batch->rows, TIME, 64 / TIME};
    struct net *net = pl->state;
    struct pl_rng rng;
    plume_tensor *x =
        plume_linear(pl, plume_reshape(pl, batch->field[0], 3, rows), net->in, NULL, PLUME_TANH);

    pl_rng_init(&rng, current->seed, 3);
    for (size_t i = 0; i < current->blocks; i++) {
        plume_tensor *h =
            pl_rng_below(&rng, 2) ? plume_layernorm(pl, x, net->gain, net->shift, 1e-3) : x;

        x = plume_add(pl, x, one_block(pl, &rng, &net->block[i], h));
    }
    return plume_linear(pl, plume_mean(pl, x, 1, 2), net->out, NULL, PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    plume_tensor *y = logits(pl, batch), *loss = plume_cross_entropy(pl, y, batch->field[1]);

    if (pl->step == 1 && (int)pl->rank == current->dies)
        raise(SIGKILL);
    if (current->seed % 3 == 0) /* its whole is needed: a layer less to split */
        loss = plume_add(
            pl, loss,
            plume_scale(pl, plume_mean(pl, plume_mul(pl, net->block[0].up, net->block[0].up), 0, 2),
                        0.1, 0));
    if (current->changes && pl->step > 0)
        loss = plume_add(pl, loss, plume_mean(pl, net->block[0].up, 0, 2));
    plume_log(pl, "again", loss, (double)batch->rows, (double)batch->rows);
    *ret_loss = loss;
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_log(pl, "loss", plume_cross_entropy(pl, logits(pl, batch), batch->field[1]),
              (double)batch->rows, (double)batch->rows);
    return 0;
}

static int on_fit_end(struct plume_context *pl)
{
    double values[HIDDEN * WIDTH], bias[WIDTH];

    if (!current->reads)
        return 0;
    assert_int_equal(plume_read(pl, "gain", PLUME_VALUE, WIDTH, bias), 0); /* it is whole */
    return plume_read(pl, "b0.up", PLUME_VALUE, HIDDEN * WIDTH, values);
}

static int ended(void *ctx, struct pl_trainer *t, struct pl_error *err)
{
    const struct pl_params *params = &t->ctx.params;
    struct run *run = ctx;
    int r = random_values(t, run->values, VALUES_MAX, err);

    for (size_t i = 0; i < params->n; i++)
        run->own[t->comm->rank] += pl_params_partial(params)
                                       ? pl_shard_span(params, params->list[i]).count
                                       : params->list[i]->tensor->count;
    if (r < 0 || t->comm->rank > 0)
        return r;
    run->counts = t->tp.counts;
    run->step = t->state.step;
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
        .on_fit_end = on_fit_end,
    };
    struct run *run = shared;
    struct random_run one = {&module, run->options, run->hparams, NULL, ended, run};

    current = run;
    one.options.device = on_device();
    random_train(&one, comm, run->error);
    return NULL;
}

static struct run *new_run(uint64_t seed, size_t blocks)
{
    struct run *run = ranks_shared(sizeof(*run));

    run->options = pl_train_options_default();
    run->options.seed = seed;
    run->options.precision = PL_PRECISION_64;
    run->options.max_steps = 3;
    run->options.limit[PLUME_VALIDATE] = (struct pl_limit){.value = 2};
    run->options.sanity_steps = 1;
    run->seed = seed;
    run->blocks = blocks;
    run->only = run->dies = -1;
    return run;
}

static struct run *split_of(const struct run *like, unsigned k)
{
    struct run *run = ranks_shared(sizeof(*run));

    *run = *like;
    run->options.tensor_parallel = k;
    return run;
}

static void go(struct run *run, unsigned ranks, unsigned per_node)
{
    ranks_run(ranks, per_node, train, run, 0);
}

static double far(double a, double b)
{
    return fabs(a - b) / (1 + fabs(b));
}

/* The distance between the losses and parameters of two runs. */
static double apart(const struct run *a, const struct run *b)
{
    double most = PL_MAX(far(a->val_loss, b->val_loss), far(a->train_loss, b->train_loss));

    for (size_t i = 0; i < VALUES_MAX; i++)
        most = fmax(most, far(a->values[i], b->values[i]));
    return most;
}

/* Each strategy that goes with tensor parallel has its turn. */
static void
choose_strategy(struct run *run, uint64_t seed, struct pl_rng *rng, unsigned *ret_groups)
{
    if (seed % 5 == 0)
        return;
    *ret_groups = 2 + (unsigned)pl_rng_below(rng, 2);
    if (seed % 5 == 4) {
        run->options.strategy = PL_STRATEGY_PIPELINE;
        run->options.stages = 2;
        run->options.microbatches = 1 + pl_rng_below(rng, 4);
        run->options.pipe_order = pl_rng_below(rng, 2) ? PL_PIPE_GPIPE : PL_PIPE_1F1B;
        run->options.balance_every = pl_rng_below(rng, 2);
        return;
    }
    run->options.strategy = PL_STRATEGY_SHARDED;
    run->options.shard = (enum pl_shard_kind)(seed % 5);
}

/* One random module on random numbers of ranks. Returns the number of layers that were split. */
static size_t try_one(uint64_t seed)
{
    struct run *one, *split;
    unsigned k, groups, stages;
    struct pl_rng rng;
    double most;

    pl_rng_init(&rng, seed, 12);
    one = new_run(seed, 1 + pl_rng_below(&rng, 4));
    one->drops = pl_rng_below(&rng, 2);
    one->options.accumulate = 1 + pl_rng_below(&rng, 2);
    one->options.clip = pl_rng_below(&rng, 2) ? 0.3 : 0;
    one->options.ema = pl_rng_below(&rng, 3) || seed % 5 == 4 ? 0 : 0.9; /* a pipeline has none */
    one->options.optimizer = pl_rng_below(&rng, 2) ? PLUME_ADAMW : PLUME_SGD;
    snprintf(one->hparams[0], 32, "batch_size=%u", 1 + (unsigned)pl_rng_below(&rng, 20));
    snprintf(one->hparams[1], 32, "lr=%g", one->options.optimizer == PLUME_SGD ? 0.05 : 1e-3);
    groups = 1 + (unsigned)pl_rng_below(&rng, 2);
    k = 2 + (unsigned)pl_rng_below(&rng, 3);
    split = split_of(one, k);
    split->options.recompute = pl_rng_below(&rng, 2);
    choose_strategy(split, seed, &rng, &groups);
    stages = PL_MAX(split->options.stages, 1u);
    groups = stages > 1 ? groups - 1 : groups;
    go(split, groups * stages * k, groups * stages > 1 && pl_rng_below(&rng, 2) ? k : 0);
    if (strstr(split->error, "finds nothing to split"))
        return 0;
    go(one, groups, 0);
    if (one->error[0] || split->error[0])
        fail_msg("seed %llu: %s%s", (unsigned long long)seed, one->error, split->error);
    most = apart(split, one);
    if (!(most <= (one->options.optimizer == PLUME_SGD ? 1e-10 : 1e-7)) || one->step != split->step)
        fail_msg("seed %llu, %u groups of %u: %g apart after %llu steps", (unsigned long long)seed,
                 groups, k, most, (unsigned long long)split->step);
    assert_true(split->own[0] < one->own[0]);
    return split->counts.split_linears;
}

static void test_random_modules_are_those_of_one_process(void **state)
{
    const char *soak = getenv("PLUME_TEST_TENSOR_PARALLEL");
    unsigned long n = 8, seed = 0;
    size_t layers = 0;

    if (soak)
        sscanf(soak, "%lu %lu", &n, &seed);
    for (unsigned long i = 0; i < n; i++) {
        if (soak)
            print_message("# seed %lu\n", seed + i);
        layers += try_one(seed + i);
    }
    assert_true(layers > n);
}

/* Of 2 blocks of a kind, beside the first and the last layer: what 2 ranks split of it. */
static void test_each_pattern_is_found(void **state)
{
    static const struct {
        int kind;
        size_t linears, attentions;
    } cases[] = {{0, 6, 0}, {2, 4, 0}, {3, 4, 2}, {5, 8, 0}, {MASKED, 8, 0}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct run *run = split_of(new_run(1, 2), 2);

        run->only = cases[i].kind;
        go(run, 2, 0);
        assert_string_equal(run->error, "");
        assert_int_equal(run->counts.split_linears, cases[i].linears);
        assert_int_equal(run->counts.split_attentions, cases[i].attentions);
        assert_int_equal(run->counts.indivisible, 0);
    }
}

/* One number that is multiplied with all columns has the gradients of all ranks' parts, and a
 * vector is repeated for a single sample, too: the last batch has one. */
static void test_what_is_repeated_has_all_gradients(void **state)
{
    struct run *one = new_run(1, 1), *split;

    one->only = REPEATED;
    one->options.max_steps = 2;
    snprintf(one->hparams[0], 32, "batch_size=1252"); /* of 1253 */
    split = split_of(one, 2);
    go(split, 2, 0);
    go(one, 1, 0);
    assert_string_equal(one->error, "");
    assert_string_equal(split->error, "");
    assert_int_equal(one->step, 2);
    assert_int_equal(split->counts.split_linears, 2);
    assert_true(apart(split, one) < 1e-10);
}

/* Ops that run in f32 at O2 do so for the ranks' parts, too. */
static void test_parts_run_in_the_type_of_the_whole(void **state)
{
    struct run *one = new_run(1, 2), *split;

    one->only = ROOTS;
    one->options.precision = PL_PRECISION_16;
    one->options.amp_level = 2;
    split = split_of(one, 2);
    go(split, 2, 0);
    go(one, 1, 0);
    assert_string_equal(one->error, "");
    assert_string_equal(split->error, "");
    assert_int_equal(split->counts.split_linears, 4);
    if (!isfinite(one->val_loss) || !isfinite(split->val_loss) || !(apart(split, one) < 0.01))
        fail_msg("losses %g and %g, %g apart", one->val_loss, split->val_loss, apart(split, one));
}

static void test_sizes_that_do_not_divide_stay_whole(void **state)
{
    struct run *run = split_of(new_run(1, 2), 5);

    run->only = 3; /* 12 heads of 2 */
    go(run, 5, 0);
    assert_non_null(strstr(run->error, "finds nothing to split"));
    run = split_of(new_run(2, 4), 2); /* 7 columns in some blocks, the rest is split */
    run->only = 6;
    go(run, 2, 0);
    assert_non_null(strstr(run->error, "finds nothing to split"));
}

/* A module that goes on in another way than its dry step is told so, by the parameter's name. */
static void test_a_step_of_another_pattern_is_refused(void **state)
{
    struct run *run = split_of(new_run(1, 1), 2);

    run->only = 0;
    run->changes = true;
    go(run, 2, 0);
    assert_non_null(strstr(run->error, "'b0.up' in another way"));
}

static void test_a_hook_cannot_read_a_part(void **state)
{
    struct run *run = split_of(new_run(1, 1), 2);

    run->only = 0;
    run->reads = true;
    go(run, 2, 0);
    assert_non_null(strstr(run->error, "read 'b0.up': with --tensor-parallel"));
}

static void test_a_lost_rank_is_named(void **state)
{
    struct run *run = split_of(new_run(1, 1), 2);

    run->only = 0;
    run->dies = 1;
    ranks_run(4, 0, train, run, 1u << 1);
    assert_non_null(strstr(run->error, "rank 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_modules_are_those_of_one_process),
        cmocka_unit_test(test_each_pattern_is_found),
        cmocka_unit_test(test_what_is_repeated_has_all_gradients),
        cmocka_unit_test(test_parts_run_in_the_type_of_the_whole),
        cmocka_unit_test(test_sizes_that_do_not_divide_stay_whole),
        cmocka_unit_test(test_a_step_of_another_pattern_is_refused),
        cmocka_unit_test(test_a_hook_cannot_read_a_part),
        cmocka_unit_test(test_a_lost_rank_is_named),
    };

    return cmocka_run_group_tests_name("tensor_parallel", tests, NULL, NULL);
}
