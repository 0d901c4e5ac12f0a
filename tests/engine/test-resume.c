/* SPDX-License-Identifier: MIT */
/* All strategies and precisions on a small net and synthetic samples: with the same samples per
 * step they train alike; an interrupted and resumed run ends with the bits of a whole one; and a
 * run may resume from the checkpoint of any other. */
#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"
#include "tests/lib/on_device.h"
#include "tests/lib/tmpdir.h"
#include "tests/lib/today.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define SAMPLES 96
#define FEATURES 16
#define HIDDEN 80 /* so that there are two blocks of shards */
#define CLASSES 4
#define COUNT (HIDDEN * (FEATURES + 1) + CLASSES * (HIDDEN + 1))
#define STEPS 14 /* of 16 samples: more than two epochs of 6 */
#define CUT 9    /* in the second */

/* Sixteen samples per step, the same ones in every layout. */
static const struct layout {
    const char *name;
    unsigned ranks, per_node, devices, accumulate;
    enum pl_strategy_kind strategy;
    const char *batch, *lr;
    enum pl_shard_kind shard;
    bool in_node;
    unsigned stages;
} layouts[] = {
    {"single", 1, 0, 1, 1, PL_STRATEGY_SINGLE, "batch_size=16", "lr=0.1", 0, false, 0},
    {"accumulated", 1, 0, 1, 4, PL_STRATEGY_SINGLE, "batch_size=4", "lr=0.1", 0, false, 0},
    {"dp", 1, 0, 2, 1, PL_STRATEGY_DP, "batch_size=16", "lr=0.1", 0, false, 0},
    {"ddp, shm", 2, 0, 1, 1, PL_STRATEGY_DDP, "batch_size=8", "lr=0.1", 0, false, 0},
    {"ddp, tcp", 4, 1, 1, 1, PL_STRATEGY_DDP, "batch_size=4", "lr=0.1", 0, false, 0},
    {"ddp, accumulated", 2, 0, 1, 2, PL_STRATEGY_DDP, "batch_size=4", "lr=0.1", 0, false, 0},
    {"ddp2", 2, 1, 2, 1, PL_STRATEGY_DDP2, "batch_size=8", "lr=0.1", 0, false, 0},
    {"horovod", 4, 2, 1, 1, PL_STRATEGY_HOROVOD, "batch_size=4", "lr=0.025", 0, false, 0},
    {"sharded state", 2, 1, 1, 1, PL_STRATEGY_SHARDED, "batch_size=8", "lr=0.1", PL_SHARD_OS, false,
     0},
    {"sharded gradients", 4, 0, 1, 1, PL_STRATEGY_SHARDED, "batch_size=4", "lr=0.1", PL_SHARD_GRAD,
     false, 0},
    {"sharded parameters", 2, 0, 1, 2, PL_STRATEGY_SHARDED, "batch_size=4", "lr=0.1",
     PL_SHARD_PARAM, false, 0},
    {"sharded in nodes", 4, 2, 1, 1, PL_STRATEGY_SHARDED, "batch_size=4", "lr=0.1", PL_SHARD_PARAM,
     true, 0},
    {"pipeline", 3, 0, 1, 1, PL_STRATEGY_PIPELINE, "batch_size=16", "lr=0.1", 0, false, 3},
    {"two pipelines", 4, 2, 1, 1, PL_STRATEGY_PIPELINE, "batch_size=8", "lr=0.1", 0, false, 2},
};

/* tolerance: how far parameters around 1 may be from those of one f64 process after STEPS steps of
 * about 0.1 each. f32: sums of 16 in another order. 16 bits: 2^-9 and 2^-12 an operand, 14 times,
 * and with O3 of the parameters themselves, too. */
static const struct kind {
    const char *name;
    enum pl_precision precision;
    int level;
    double tolerance;
} kinds[] = {
    {"64", PL_PRECISION_64, 1, 1e-13},       {"32", PL_PRECISION_32, 1, 2e-6},
    {"16 O1", PL_PRECISION_16, 1, 4e-3},     {"16 O2", PL_PRECISION_16, 2, 4e-3},
    {"16 O3", PL_PRECISION_16, 3, 2e-2},     {"bf16 O1", PL_PRECISION_BF16, 1, 3e-2},
    {"bf16 O2", PL_PRECISION_BF16, 2, 3e-2}, {"bf16 O3", PL_PRECISION_BF16, 3, 0.15},
};

#define LAYOUTS PL_COUNT(layouts)
/* A run's threads do the same in all precisions, and wherever its checkpoint is from. */
#ifdef __SANITIZE_THREAD__
#define KINDS ((size_t)3)
#define FROM_STEP 4
#else
#define KINDS PL_COUNT(kinds)
#define FROM_STEP 1
#endif

/* The layouts with the most ranks leave precisions to others, whose tests have all of them
 * (test-units.c, test-pipeline.c). */
static size_t kinds_of(const struct layout *l)
{
    return l->in_node || l->stages || l->shard == PL_SHARD_GRAD ? 2 : KINDS;
}

struct shared {
    char dir[64];
    size_t layout;
    double values[LAYOUTS][KINDS][COUNT];
};

struct net {
    plume_tensor *w[2], *b[2];
};

static bool drops; /* with dropout: a resumed run must continue its random numbers */

static const struct plume_hparam hparams[] = {{"lr", "0.1", 0, 1e6, 0, NULL},
                                              {"momentum", "0.875", 0, 1, 0, NULL},
                                              {"epochs", "9", 0, 1e6, 1, NULL},
                                              {"batch_size", "16", 1, 65536, 1, NULL},
                                              {0}};

static int configure(struct plume_context *pl)
{
    static const size_t width[] = {FEATURES, HIDDEN, CLASSES};
    static const char *const names[] = {"w0", "b0", "w1", "b1"};
    struct net *net = pl->state;

    for (size_t i = 0; i < 2; i++) {
        net->w[i] =
            plume_param(pl, names[2 * i], PLUME_INIT_FAN_IN, 2, (size_t[]){width[i + 1], width[i]});
        net->b[i] = plume_param(pl, names[2 * i + 1], PLUME_INIT_ZERO, 1, &width[i + 1]);
    }
    return 0;
}

/* The class is the quarter of the features with larger values. */
static int fill(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t real_size)
{
    for (size_t i = 0; i < FEATURES; i++) {
        /* exact in bf16 */
        double value = (double)((index * 37 + i * 11) % 64) / 64 + (i / 4 == index % CLASSES);

        if (real_size == sizeof(double))
            ((double *)out[0])[i] = value;
        else
            ((float *)out[0])[i] = (float)value;
    }
    *(int32_t *)out[1] = (int32_t)(index % CLASSES);
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 2;
    ret->field[0].dtype = PLUME_F32;
    ret->field[1].dtype = PLUME_I32;
    ret->rank[0] = 1;
    ret->shape[0][0] = FEATURES;
    ret->length = SAMPLES;
    ret->fill = fill;
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    plume_tensor *h = plume_linear(pl, batch->field[0], net->w[0], net->b[0], PLUME_TANH);

    if (drops)
        h = plume_dropout(pl, h, 0.25);
    h = plume_linear(pl, h, net->w[1], net->b[1], PLUME_IDENTITY);
    *ret_loss = plume_cross_entropy(pl, h, batch->field[1]);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(module),
    .abi = PLUME_MODULE_ABI,
    .name = "quarters",
    .hparams = hparams,
    .state_size = sizeof(struct net),
    .configure = configure,
    .data = data,
    .training_step = training_step,
};

struct job {
    const struct layout *layout;
    const struct kind *kind;
    uint64_t steps;
    const char *save, *resume; /* a folder, a file; NULL = none */
};

/* Trains; returns the parameters and their hash. */
static int train(
    struct pl_comm *comm, const struct job *job, double *ret, char *ret_hash, struct pl_error *err)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct pl_train_options options = pl_train_options_default();
    const struct layout *l = job->layout;
    struct pl_trainer t;
    struct pl_hparams h;
    size_t at = 0;
    int r;

    options.seed = 7;
    options.device = on_device();
    options.strategy = l->strategy;
    options.shard = l->shard;
    options.shard_in_node = l->in_node;
    options.stages = l->stages;
    options.microbatches = l->stages ? 4 : 0;
    options.devices = l->devices;
    options.accumulate = l->accumulate;
    options.precision = job->kind->precision;
    options.amp_level = job->kind->level;
    options.max_steps = job->steps;
    options.checkpoint_dir = job->save;
    options.save_last = job->save != NULL;
    options.save_top_k = 0;
    options.resume = job->resume;
    r = pl_hparams_init(&h, hparams, err);
    if (r == 0)
        r = pl_hparams_set(&h, l->batch, err);
    if (r == 0)
        r = pl_hparams_set(&h, l->lr, err);
    if (r == 0)
        r = pl_trainer_init(&t, &module, &h, &options, comm, &report, err);
    if (r == 0) {
        if (t.scaler.scale > 1024) /* a first scale with which nothing overflows */
            t.scaler.scale = 1024;
        r = pl_trainer_fit(&t, err);
        for (size_t i = 0; r == 0 && i < t.ctx.params.n; i++) {
            const struct pl_param *p = t.ctx.params.list[i];
            double whole[COUNT]; /* of either type */

            r = pl_params_partial(&t.ctx.params)
                    ? pl_shard_gather(&t.ctx.params, t.pipe.on ? t.pipe.comm : t.group.shards, p,
                                      pl_shard_part(&t.ctx.params, p, t.ctx.params.values), whole,
                                      err)
                    : pl_device_download(t.dev, whole, p->tensor->data,
                                         p->tensor->count * pl_dtype_size(p->tensor->dtype), err);
            for (size_t k = 0; r == 0 && k < p->tensor->count; k++)
                ret[at++] = p->tensor->dtype == PLUME_F64 ? whole[k] : (double)((float *)whole)[k];
        }
        if (r == 0 && (t.state.step != job->steps || t.scaler.skipped))
            r = pl_error_set(err, -EINVAL, "made %d steps and skipped %d", (int)t.state.step,
                             (int)t.scaler.skipped);
        memcpy(ret_hash, t.param_hash, sizeof(t.param_hash));
        pl_trainer_finish(&t);
    }
    pl_hparams_finish(&h);
    return r;
}

static const char *complain(const struct job *job, const char *what)
{
    static char text[256];

    snprintf(text, sizeof(text), "%s, %s: %s", job->layout->name, job->kind->name, what);
    return text;
}

static void checkpoint_of(char *ret, size_t size, const char *dir, size_t layout, size_t kind)
{
    snprintf(ret, size, "%s/%zu-%zu", dir, layout, kind);
}

static double distance(const double *a, const double *b)
{
    double far = 0;

    for (size_t i = 0; i < COUNT; i++)
        far = fmax(far, fabs(a[i] - b[i]));
    return far;
}

/* In every precision: the whole run, then the same cut and resumed, with dropout; then without it
 * the run that others are compared with, and a checkpoint for them. */
static const char *cut_and_resume(struct pl_comm *comm, void *arg)
{
    struct shared *shared = arg;
    const struct layout *l = &layouts[shared->layout];

    for (size_t k = 0; k < kinds_of(l); k++) {
        char dir[96], file[128], whole_hash[17], hash[17];
        double whole[COUNT], values[COUNT];
        struct job job = {l, &kinds[k], STEPS, NULL, NULL};
        struct pl_error err = {0};
        int r;

        drops = true;
        checkpoint_of(dir, sizeof(dir), shared->dir, shared->layout, k);
        snprintf(file, sizeof(file), "%s/last.ckpt", dir);
        r = train(comm, &job, whole, whole_hash, &err);
        if (r == 0)
            r = train(comm, &(struct job){l, &kinds[k], CUT, dir, NULL}, values, hash, &err);
        if (r == 0 && strcmp(hash, whole_hash) == 0)
            return complain(&job, "nothing happened after the cut");
        if (r == 0)
            r = train(comm, &(struct job){l, &kinds[k], STEPS, NULL, file}, values, hash, &err);
        if (r == 0 && (strcmp(hash, whole_hash) != 0 || distance(values, whole) > 0))
            return complain(&job, "the resumed run is not the whole one");
        drops = false;
        if (r == 0)
            r = train(comm, &job, whole, hash, &err);
        if (r == 0)
            r = train(comm, &(struct job){l, &kinds[k], CUT, dir, NULL}, values, whole_hash, &err);
        if (r < 0)
            return complain(&job, pl_error_text(&err));
        if (comm->rank == 0)
            memcpy(shared->values[shared->layout][k], whole, sizeof(whole));
    }
    return NULL;
}

/* From the checkpoints of all layouts, and of single in all precisions. A checkpoint brings its
 * learning rate along, which horovod multiplies, so horovod goes on from its own only. */
static const char *go_on(struct pl_comm *comm, void *arg)
{
    struct shared *shared = arg;

    for (size_t from = 0; from < LAYOUTS + KINDS; from++) {
        size_t layout = from < LAYOUTS ? from : 0, kind = from < LAYOUTS ? 1 : from - LAYOUTS;

        if ((from % FROM_STEP || !today(from, 3)) && from != shared->layout)
            continue;
        if ((layouts[layout].strategy == PL_STRATEGY_HOROVOD) !=
            (layouts[shared->layout].strategy == PL_STRATEGY_HOROVOD))
            continue;
        if (from >= LAYOUTS && kinds_of(&layouts[shared->layout]) < KINDS)
            continue;
        /* into f64 and f32 */
        for (size_t to = 0; to < (kinds_of(&layouts[layout]) < KINDS ? 1 : 2); to++) {
            struct job job = {&layouts[shared->layout], &kinds[to], STEPS, NULL, NULL};
            double values[COUNT], far;
            char dir[96], file[128], hash[17];
            struct pl_error err = {0};

            checkpoint_of(dir, sizeof(dir), shared->dir, layout, kind);
            snprintf(file, sizeof(file), "%s/last.ckpt", dir);
            job.resume = file;
            if (train(comm, &job, values, hash, &err) < 0)
                return complain(&job, pl_error_text(&err));
            far = distance(values, shared->values[0][0]);
            if (!(far <= fmax(kinds[kind].tolerance, kinds[to].tolerance))) {
                snprintf(err.text, sizeof(err.text), "resumed from %s, %s it is %g off",
                         layouts[layout].name, kinds[kind].name, far);
                return complain(&job, pl_error_text(&err));
            }
        }
    }
    return NULL;
}

static struct shared *shared;

static int set_up(void **state)
{
    today(0, 1); /* before there are ranks */
    shared = ranks_shared(sizeof(*shared));
    return tmpdir_make(shared->dir, sizeof(shared->dir));
}

static int tear_down(void **state)
{
    return tmpdir_remove(shared->dir);
}

static void test_a_cut_run_is_the_whole_one(void **state)
{
    for (size_t i = 0; i < LAYOUTS; i++) {
        shared->layout = i;
        ranks_run(layouts[i].ranks, layouts[i].per_node, cut_and_resume, shared, 0);
    }
}

static void test_the_same_samples_train_alike(void **state)
{
    for (size_t k = 0; k < KINDS; k++) {
        double worst = 0;

        for (size_t i = 0; i < LAYOUTS; i++) {
            double far = distance(shared->values[i][k], shared->values[0][0]);

            if (k >= kinds_of(&layouts[i]))
                continue;
            worst = fmax(worst, far);
            if (!(far <= kinds[k].tolerance))
                fail_msg("%s, %s: %g off", layouts[i].name, kinds[k].name, far);
            if (kinds[k].tolerance > 1e-3)
                assert_true(far > 1e-5); /* the run did use 16 bits */
        }
        print_message("# %s: %.2g off at most\n", kinds[k].name, worst);
    }
}

static void test_a_checkpoint_goes_on_anywhere(void **state)
{
    for (size_t i = 0; i < LAYOUTS; i++) {
        shared->layout = i;
        ranks_run(layouts[i].ranks, layouts[i].per_node, go_on, shared, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_cut_run_is_the_whole_one),
        cmocka_unit_test(test_the_same_samples_train_alike),
        cmocka_unit_test(test_a_checkpoint_goes_on_anywhere),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
