/* SPDX-License-Identifier: MIT */
/* --shard param beside ddp on the same samples: random modules with tied weights, branches that
 * differ between ranks and steps, batches without a loss and dropout, in units of any size. */
#include "common/base/fs.h"
#include "runtime/engine/module/module.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/memory_need.h"
#include "tests/engine/random_run.h"
#include "tests/lib/on_device.h"
#include "tests/lib/tmpdir.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define WIDTH 40
#define MATRICES 5
#define POOL 16
#define VALUES (MATRICES * WIDTH * WIDTH + WIDTH * 64 + 10 * WIDTH + 2 * WIDTH + WIDTH)

struct run {
    struct pl_train_options options;
    char hparams[RANDOM_HPARAMS][32];
    uint64_t seed; /* of the module */
    size_t ops, unit_bytes;
    bool drops, norms, no_loss, branches, two, groups;
    int killed;  /* this rank ends in step 2; -1: none */
    bool strays; /* all ranks but 0 look elsewhere for the checkpoints' folder */
    char error[256];
    char hash[17];
    double values[VALUES]; /* of the parameters, as declared */
    double val_loss, train_loss;
    size_t held[RANKS_MAX];                     /* elements of the values that each rank keeps */
    size_t gathered[RANKS_MAX];                 /* bytes of its units' memory */
    double planned[RANKS_MAX], peak[RANKS_MAX]; /* bytes of the device */
};

static struct run *current;

struct net {
    plume_tensor *in, *m[MATRICES], *out, *scale, *shift, *unused, *mean, *var;
};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;
    char name[8];

    if (current->strays && pl->rank && chdir("/") < 0)
        return -errno;
    net->unused = plume_param(pl, "unused", PLUME_INIT_HE, 1, (size_t[]){WIDTH});
    net->out = plume_param(pl, "out", PLUME_INIT_FAN_IN, 2, (size_t[]){10, WIDTH});
    for (size_t i = 0; i < MATRICES; i++) {
        snprintf(name, sizeof(name), "m%zu", i);
        net->m[i] = plume_param(pl, name, PLUME_INIT_FAN_IN, 2, (size_t[]){WIDTH, WIDTH});
    }
    net->in = plume_param(pl, "in", PLUME_INIT_ORTHOGONAL, 2, (size_t[]){WIDTH, 64});
    net->scale = plume_param(pl, "scale", PLUME_INIT_ONE, 1, (size_t[]){WIDTH});
    net->shift = plume_param(pl, "shift", PLUME_INIT_ZERO, 1, (size_t[]){WIDTH});
    if (current->norms) {
        net->mean = plume_buffer(pl, "mean", PLUME_INIT_ZERO, 1, (size_t[]){WIDTH});
        net->var = plume_buffer(pl, "var", PLUME_INIT_ONE, 1, (size_t[]){WIDTH});
    }
    return 0;
}

static int configure_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    ret->bucket_bytes = current->unit_bytes;
    return 0;
}

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *first)
{
    struct plume_group *group = current->groups ? plume_add_group(pl, first, "s*") : NULL;
    struct plume_optimizer *second = current->two ? plume_add_optimizer(pl) : NULL;

    if (group)
        group->lr = 0.01;
    if (second) {
        second->prefixes = "m1, m3, out";
        second->kind = PLUME_RMSPROP;
    }
    return 0;
}

static plume_tensor *
more(struct plume_context *pl, struct pl_rng *rng, plume_tensor **pool, size_t n)
{
    struct net *net = pl->state;
    plume_tensor *x = pool[pl_rng_below(rng, n)], *y = pool[pl_rng_below(rng, n)], *half[2];
    plume_tensor *m = net->m[pl_rng_below(rng, MATRICES)];

    switch (pl_rng_below(rng, 9)) {
    case 0:
    case 1:
        return plume_linear(pl, x, m, NULL, PLUME_TANH);
    case 2:
        return plume_matmul(pl, plume_activate(pl, x, PLUME_TANH), m, 0, 0);
    case 3:
        return plume_layernorm(pl, x, net->scale, net->shift, 1e-3);
    case 4:
        return plume_add(pl, x, y);
    case 5: /* views of a parameter */
        half[0] = plume_linear(pl, x, plume_slice(pl, m, 0, 0, WIDTH / 4), NULL, PLUME_TANH);
        half[1] = plume_linear(pl, y, plume_slice(pl, m, 0, WIDTH / 4, WIDTH - WIDTH / 4), NULL,
                               PLUME_IDENTITY);
        return plume_cat_along(pl, 1, 2, half);
    case 6:
        return current->drops ? plume_dropout(pl, x, 0.3) : plume_softmax(pl, x);
    case 7: /* a parameter in an op of two tensors */
        return plume_linear(pl, x, plume_mul(pl, m, plume_scale(pl, net->m[0], 0.5, 1)), NULL,
                            PLUME_TANH);
    default:
        return plume_mul(pl, plume_activate(pl, x, PLUME_TANH), plume_scale(pl, y, 0.5, 0.1));
    }
}

static plume_tensor *logits(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;
    plume_tensor *pool[POOL];
    struct pl_rng rng;
    size_t n = 0, ops = current->ops;

    pl_rng_init(&rng, current->seed, 3);
    pool[n++] = plume_linear(pl, batch->field[0], net->in, NULL, PLUME_IDENTITY);
    if (current->norms)
        pool[0] = plume_batchnorm(pl, pool[0], net->scale, net->shift, net->mean, net->var, 0, 0,
                                  PLUME_IDENTITY);
    if (current->branches) /* ranks and steps differ */
        ops = ops / 2 + (pl->rank + pl->step) % 3;
    for (size_t i = 0; i < ops; i++) {
        plume_tensor *t = more(pl, &rng, pool, n);

        if (n < POOL)
            pool[n++] = t;
        else
            pool[pl_rng_below(&rng, POOL)] = t;
    }
    return plume_linear(pl, plume_add(pl, pool[n - 1], pool[0]), net->out, NULL, PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;

    if ((int)pl->rank == current->killed && pl->step == 2)
        raise(SIGKILL);
    if (current->no_loss && pl->step > 0 && (pl->step + pl->rank) % 3 == 1)
        return 0;
    *ret_loss = plume_cross_entropy(pl, logits(pl, batch), batch->field[1]);
    /* A parameter that is a result. */
    plume_log(pl, "first", plume_slice(pl, net->scale, 0, 0, 1), 1, 1);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_log(pl, "loss", plume_cross_entropy(pl, logits(pl, batch), batch->field[1]),
              (double)batch->rows, (double)batch->rows);
    return 0;
}

static int plan(void *ctx, struct pl_trainer *t, struct pl_error *err)
{
    struct run *run = ctx;
    struct pl_memory_need need;
    int r = pl_memory_need(t, &need, err);

    run->planned[t->comm->rank] = need.all;
    return r;
}

static int ended(void *ctx, struct pl_trainer *t, struct pl_error *err)
{
    struct run *run = ctx;
    unsigned rank = t->comm->rank;
    struct pl_device_memory memory;
    int r;

    t->dev->ops->memory(t->dev, &memory);
    run->peak[rank] = (double)memory.peak;
    run->held[rank] = pl_params_held(&t->ctx.params);
    run->gathered[rank] = t->units.bytes;
    r = random_values(t, run->values, VALUES, err);
    if (r < 0 || rank > 0)
        return r;
    memcpy(run->hash, t->param_hash, sizeof(run->hash));
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
        .configure_optimizers = configure_optimizers,
        .configure_ddp = configure_ddp,
    };
    struct run *run = shared;
    struct random_run one = {&module, run->options, run->hparams, plan, ended, run};

    current = run;
    one.options.device = on_device();
    random_train(&one, comm, run->error);
    return NULL;
}

static struct run *new_run(uint64_t seed, size_t ops)
{
    struct run *run = ranks_shared(sizeof(*run));

    run->options = pl_train_options_default();
    run->options.seed = seed;
    run->options.deterministic = true;
    run->options.max_steps = 3;
    run->options.limit[PLUME_VALIDATE] = (struct pl_limit){.value = 3};
    run->options.sanity_steps = 1;
    run->seed = seed;
    run->ops = ops;
    run->unit_bytes = WIDTH * WIDTH * sizeof(float);
    run->killed = -1;
    snprintf(run->hparams[0], sizeof(run->hparams[0]), "batch_size=8");
    return run;
}

static struct run *param_of(const struct run *like)
{
    struct run *run = ranks_shared(sizeof(*run));

    *run = *like;
    run->options.strategy = PL_STRATEGY_SHARDED;
    run->options.shard = PL_SHARD_PARAM;
    return run;
}

/* Both have the same bits. */
static void assert_alike(const struct run *a, const struct run *b)
{
    size_t at = 0;

    if (a->error[0] || b->error[0])
        fail_msg("seed %llu: '%s', '%s'", (unsigned long long)a->seed, a->error, b->error);
    while (at < VALUES && a->values[at] == b->values[at])
        at++;
    if (at < VALUES)
        fail_msg("seed %llu: value %zu is %.17g, not %.17g", (unsigned long long)a->seed, at,
                 a->values[at], b->values[at]);
    if (strcmp(a->hash, b->hash) != 0 ||
        memcmp(&a->val_loss, &b->val_loss, sizeof(a->val_loss)) != 0 ||
        memcmp(&a->train_loss, &b->train_loss, sizeof(a->train_loss)) != 0)
        fail_msg("seed %llu: hash %s, losses %.17g and %.17g, not %s, %.17g, %.17g",
                 (unsigned long long)a->seed, a->hash, a->val_loss, a->train_loss, b->hash,
                 b->val_loss, b->train_loss);
}

/* Each rank has taken what was planned, within 5 %. */
static void assert_planned(const struct run *run, unsigned ranks)
{
    for (unsigned i = 0; i < ranks; i++)
        if (!(run->peak[i] > 0.95 * run->planned[i] && run->peak[i] < 1.05 * run->planned[i]))
            fail_msg("seed %llu, shards %u: rank %u took %.0f bytes, planned were %.0f",
                     (unsigned long long)run->seed, run->options.shard, i, run->peak[i],
                     run->planned[i]);
}

/* One random module; $PLUME_TEST_UNITS: so many, from a seed. */
static void try_one(uint64_t seed)
{
    static const enum pl_precision precisions[] = {
        PL_PRECISION_32, PL_PRECISION_32, PL_PRECISION_64, PL_PRECISION_BF16, PL_PRECISION_16};
    static const unsigned sizes[] = {2, 2, 3, 4, 7};
    struct run *ddp = new_run(seed, 2), *param;
    struct pl_rng rng;
    unsigned ranks, per_node, batch;

    pl_rng_init(&rng, seed, 0x756e6974);
    ddp->ops = 2 + pl_rng_below(&rng, 16);
    ddp->drops = pl_rng_below(&rng, 2);
    ddp->norms = pl_rng_below(&rng, 2);
    ddp->two = pl_rng_below(&rng, 3) == 0;
    ddp->groups = pl_rng_below(&rng, 3) == 0;
    ddp->branches = pl_rng_below(&rng, 3) == 0;
    ddp->no_loss = pl_rng_below(&rng, 4) == 0;
    ddp->unit_bytes = (size_t)256 << pl_rng_below(&rng, 8);
    ddp->options.accumulate = pl_rng_below(&rng, 3) ? 1 : 2;
    ddp->options.clip = pl_rng_below(&rng, 2) ? 0.3 : 0;
    ddp->options.ema = pl_rng_below(&rng, 2) ? 0.7 : 0;
    ddp->options.precision = precisions[pl_rng_below(&rng, PL_COUNT(precisions))];
    ddp->options.amp_level = 1 + (int)pl_rng_below(&rng, 3);
    ddp->options.sync_batchnorm = !ddp->branches && !ddp->no_loss && pl_rng_below(&rng, 2);
    ddp->options.optimizer = (enum plume_optimizer_kind)pl_rng_below(&rng, PLUME_ADAGRAD + 1);
    batch = 1 + (unsigned)pl_rng_below(&rng, 12);
    if (ddp->norms && batch == 1) /* one value per channel is refused */
        batch = 2;
    snprintf(ddp->hparams[0], 32, "batch_size=%u", batch);
    snprintf(ddp->hparams[1], 32, "lr=1e-3");
    ranks = sizes[pl_rng_below(&rng, PL_COUNT(sizes))];
    per_node = (unsigned)pl_rng_below(&rng, 3);
    param = param_of(ddp);
    param->options.shard_in_node = ranks == 4 && per_node == 2;
    param->options.recompute = pl_rng_below(&rng, 2);
    if (ddp->options.accumulate > 1) { /* shards add up in another order than ddp */
        ddp->options.strategy = PL_STRATEGY_SHARDED;
        ddp->options.shard = PL_SHARD_GRAD;
    }
    ranks_run(ranks, per_node, train, ddp, 0);
    ranks_run(ranks, per_node, train, param, 0);
    assert_alike(param, ddp);
    if (ddp->branches || ddp->no_loss) /* which no plan foresees */
        return;
    assert_planned(param, ranks);
    assert_planned(ddp, ranks);
}

static void test_random_modules_have_the_bits_of_ddp(void **state)
{
    const char *soak = getenv("PLUME_TEST_UNITS");
    unsigned long n = 6, seed = 0;

    if (soak)
        sscanf(soak, "%lu %lu", &n, &seed);
    for (unsigned long i = 0; i < n; i++) {
        if (soak)
            print_message("# seed %lu\n", seed + i);
        try_one(seed + i);
    }
}

/* Between two uses a rank has its shard, and of the others a unit or two. */
static void test_a_rank_has_a_part(void **state)
{
    struct run *run = param_of(new_run(1, 0));
    size_t all = 0;

    ranks_run(4, 0, train, run, 0);
    if (run->error[0])
        fail_msg("%s", run->error);
    for (unsigned i = 0; i < 4; i++) {
        all += run->held[i];
        assert_true(run->held[i] <= VALUES / 4 + 1024);
        assert_true(run->gathered[i] < VALUES * sizeof(float) / 2);
    }
    assert_in_range(all, VALUES - 1, VALUES + 64 * (MATRICES + 5)); /* with gaps */
}

/* Each node has a copy of the model: its ranks have halves. Sums are in another order than ddp's,
 * and in its order with --deterministic. */
static void test_each_node_has_a_copy(void **state)
{
    struct run *ddp = new_run(3, 6), *run;

    ddp->options.deterministic = false;
    ddp->options.precision = PL_PRECISION_64;
    ddp->norms = ddp->options.sync_batchnorm = true;
    ranks_run(4, 2, train, ddp, 0);
    for (unsigned kind = PL_SHARD_OS; kind <= PL_SHARD_PARAM; kind++) {
        run = param_of(ddp);
        run->options.shard = (enum pl_shard_kind)kind;
        run->options.shard_in_node = true;
        ranks_run(4, 2, train, run, 0);
        if (run->error[0])
            fail_msg("%s", run->error);
        for (size_t i = 0; i < VALUES; i++) /* f64 of about 1, after 3 steps */
            if (!(fabs(run->values[i] - ddp->values[i]) < 1e-12))
                fail_msg("%s: value %zu is %.17g, not %.17g", pl_shard_names[kind - PL_SHARD_OS], i,
                         run->values[i], ddp->values[i]);
        assert_int_equal(run->held[0], run->held[2]);
        assert_int_equal(run->held[1], run->held[3]);
    }
    assert_true(run->held[0] < VALUES / 2 + 1024);
}

static char *saved(const char *folder, size_t *ret_len)
{
    _cleanup_free_ char *path = pl_path_join(folder, "last.ckpt");
    char *text = NULL;

    assert_int_equal(pl_file_read(path, 1 << 24, &text, ret_len, NULL), 0);
    return text;
}

/* Rank 0 writes all parts if nodes have folders of their own: the same file. */
static void test_rank_0_writes_where_others_cannot(void **state)
{
    struct run *run = param_of(new_run(5, 4));
    char dir[64], here[PATH_MAX];
    _cleanup_free_ char *together = NULL, *alone = NULL;
    size_t n = 0, m = 0;

    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    assert_int_equal(chdir(dir), 0);
    run->options.optimizer = PLUME_ADAM;
    run->options.ema = 0.7;
    run->options.save_last = true;
    run->options.save_top_k = 0;
    run->options.checkpoint_dir = "together";
    ranks_run(3, 0, train, run, 0);
    run->options.checkpoint_dir = "alone";
    run->strays = true;
    ranks_run(3, 0, train, run, 0);
    if (run->error[0])
        fail_msg("%s", run->error);
    together = saved("together", &n);
    alone = saved("alone", &m);
    assert_int_equal(n, m);
    assert_memory_equal(together, alone, n);
    assert_true(n > VALUES * 4 * sizeof(float)); /* values, two slots and the average */
    assert_int_equal(chdir(here), 0);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* A rank that ends is named, and nobody waits for it. */
static void test_a_lost_rank_is_named(void **state)
{
    struct run *run = param_of(new_run(2, 6));

    run->killed = 1;
    ranks_run(3, 2, train, run, 1ull << 1);
    if (!strstr(run->error, "rank 1"))
        fail_msg("%s", run->error);
    /* Also the ranks of another node, which it shares no units with. */
    run = param_of(new_run(2, 6));
    run->killed = 3;
    run->options.shard_in_node = true;
    ranks_run(4, 2, train, run, 1ull << 3);
    if (!strstr(run->error, "rank 3"))
        fail_msg("%s", run->error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_modules_have_the_bits_of_ddp),
        cmocka_unit_test(test_a_rank_has_a_part),
        cmocka_unit_test(test_each_node_has_a_copy),
        cmocka_unit_test(test_rank_0_writes_where_others_cannot),
        cmocka_unit_test(test_a_lost_rank_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
