/* SPDX-License-Identifier: MIT */
/* Two optimizers with a lane each, as in a generative adversarial network, against a calculation by
 * hand. The losses of g and d depend on both; each step of d sees the new g. */
#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define COUNT 8
#define STEPS 10
#define LR_G 0.05 /* Adam */
#define LR_D 0.2  /* SGD with momentum */
#define MOMENTUM 0.5

struct run {
    struct pl_train_options options;
    bool end;  /* training_step_end makes the losses and also uses g and d */
    bool rest; /* d has no loss in every other batch on all ranks, in each third on rank 0 */
    char error[256];
    char calls[1024];
    double g[RANKS_MAX], d[RANKS_MAX];
};

struct net {
    plume_tensor *g, *d;
    unsigned batch; /* from 1 on; 0: the dry step */
};

static struct run *current;

static bool rests(const struct run *run, unsigned batch, unsigned rank)
{
    return run->rest && batch > 0 && (batch % 2 == 0 || (batch % 3 == 0 && rank == 0));
}

static void say(char word, unsigned optimizer)
{
    size_t len = strlen(current->calls);

    if (len + 3 < sizeof(current->calls))
        snprintf(current->calls + len, 4, "%c%u ", word, optimizer);
}

static const struct plume_hparam hparams[] = {{"batch_size", "4", 1, 65536, 1, NULL}, {0}};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;

    net->g = plume_param(pl, "g", PLUME_INIT_ONE, 1, (size_t[]){COUNT});
    net->d = plume_param(pl, "d", PLUME_INIT_ONE, 1, (size_t[]){COUNT});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 1;
    ret->field[0].array = plume_open_npy(pl, "digits/train-images.npy");
    ret->field[0].dtype = PLUME_F32;
    return 0;
}

static plume_tensor *mean_product(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_mean(pl, plume_mul(pl, a, b), 0, 1);
}

/* gd + 0.15 gg for g; dd - 0.5 gd for d; of rank r times r + 1. */
static plume_tensor *loss_of(struct plume_context *pl, plume_tensor *gd)
{
    struct net *net = pl->state;
    plume_tensor *own, *loss;

    if (pl->optimizer == 0) {
        own = plume_scale(pl, mean_product(pl, net->g, net->g), 0.15, 0);
        loss = plume_add(pl, gd, own);
    } else {
        own = mean_product(pl, net->d, net->d);
        loss = plume_sub(pl, own, plume_scale(pl, gd, 0.5, 0));
    }
    return plume_scale(pl, loss, pl->rank + 1.0, 0);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;
    plume_tensor *gd = mean_product(pl, net->g, net->d);

    say('s', pl->optimizer);
    if (pl->optimizer == 1 && rests(current, net->batch, pl->rank))
        return 0;
    if (current->end)
        plume_output(pl, "gd", gd);
    else
        *ret_loss = loss_of(pl, gd);
    return 0;
}

static int
training_step_end(struct plume_context *pl, const struct plume_outputs *out, plume_tensor **ret)
{
    plume_tensor *gd = plume_whole(pl, out, "gd");

    *ret = loss_of(pl, plume_parts(pl, out) > 1 ? plume_mean(pl, gd, 0, 1) : gd);
    return 0;
}

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    ((struct net *)pl->state)->batch++;
    return 0;
}

static int on_after_backward(struct plume_context *pl)
{
    say('b', pl->optimizer);
    return 0;
}

static int on_before_optimizer_step(struct plume_context *pl)
{
    say('o', pl->optimizer);
    return 0;
}

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_optimizer *d = plume_add_optimizer(pl);

    ret->kind = PLUME_ADAM;
    ret->lr = LR_G;
    ret->weight_decay = d->weight_decay = 0;
    ret->prefixes = "g";
    d->lr = LR_D;
    d->momentum = MOMENTUM;
    d->prefixes = "d";
    return 0;
}

static const char *train(struct pl_comm *comm, void *shared)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct run *run = shared;
    struct pl_train_options options = run->options; /* a copy: each rank sets its device */
    const struct plume_module module = {
        .struct_size = sizeof(struct plume_module),
        .abi = PLUME_MODULE_ABI,
        .name = "adversaries",
        .hparams = hparams,
        .state_size = sizeof(struct net),
        .configure = configure,
        .data = data,
        .training_step = training_step,
        .training_step_end = run->end ? training_step_end : NULL,
        .configure_optimizers = configure_optimizers,
        .on_train_batch_start = on_batch_start,
        .on_after_backward = on_after_backward,
        .on_before_optimizer_step = on_before_optimizer_step,
        .step_per_optimizer = 1,
    };
    struct pl_trainer trainer;
    struct pl_hparams h;
    struct pl_error err = {0};
    int r;

    current = run;
    r = pl_hparams_init(&h, module.hparams, &err);
    options.device = on_device();
    if (r == 0)
        r = pl_trainer_init(&trainer, &module, &h, &options, comm, &report, &err);
    if (r == 0) {
        r = pl_trainer_fit(&trainer, &err);
        run->g[comm->rank] = on_device_scalar(trainer.ctx.params.list[0]->tensor);
        run->d[comm->rank] = on_device_scalar(trainer.ctx.params.list[1]->tensor);
        if (r == 0 && trainer.state.step != STEPS)
            r = pl_error_set(&err, -EINVAL, "%u steps", (unsigned)trainer.state.step);
        pl_trainer_finish(&trainer);
    }
    if (r < 0)
        snprintf(run->error, sizeof(run->error), "%s", pl_error_text(&err));
    pl_hparams_finish(&h);
    return NULL;
}

/* All elements are equal. */
static void by_hand(const struct run *run, unsigned ranks, double *ret_g, double *ret_d)
{
    double g = 1, d = 1, m = 0, v = 0, velocity = 0, grad;
    unsigned group = (unsigned)run->options.accumulate;

    for (unsigned step = 1; step <= STEPS; step++) {
        double before = g;
        bool any = false;

        grad = (d + 0.3 * g) / COUNT * (ranks + 1) / 2;
        m = 0.9 * m + 0.1 * grad;
        v = 0.999 * v + 0.001 * grad * grad;
        g -= LR_G * (m / (1 - pow(0.9, step))) / (sqrt(v / (1 - pow(0.999, step))) + 1e-8);
        grad = 0;
        for (unsigned b = (step - 1) * group + 1; b <= step * group; b++)
            for (unsigned rank = 0; rank < ranks; rank++)
                if (!rests(run, b, rank)) { /* g has made its step in the last batch only */
                    grad += (2 * d - 0.5 * (b == step * group ? g : before)) / COUNT * (rank + 1);
                    any = true;
                }
        if (!any)
            continue;
        velocity = MOMENTUM * velocity + grad / ranks / group;
        d -= LR_D * velocity;
    }
    *ret_g = g;
    *ret_d = d;
}

static struct run *check(unsigned ranks, unsigned per_node, const struct run *asked)
{
    struct run *run = ranks_shared(sizeof(*run));
    double g, d;

    *run = *asked;
    run->options.max_steps = STEPS;
    ranks_run(ranks, per_node, train, run, 0);
    if (run->error[0])
        fail_msg("%s", run->error);
    by_hand(run, ranks, &g, &d);
    assert_true(g < 0.8 && d < 0.95);
    for (unsigned i = 0; i < ranks; i++)
        if (!(fabs(run->g[i] - g) < 1e-5 && fabs(run->d[i] - d) < 1e-5)) /* f32, ten steps */
            fail_msg("%u ranks, %u a node: rank %u has %.7g and %.7g, by hand %.7g and %.7g", ranks,
                     per_node, i, run->g[i], run->d[i], g, d);
    return run;
}

static struct run ask(uint64_t accumulate, bool end, bool rest)
{
    struct run run = {.options = pl_train_options_default(), .end = end, .rest = rest};

    run.options.accumulate = accumulate;
    return run;
}

static void test_turns_come_in_order(void **state)
{
    struct run run = ask(1, false, false), *ran;

    ran = check(1, 0, &run);
    /* After the dry steps. */
    assert_int_equal(strncmp(ran->calls, "s0 s1 s0 b0 o0 s1 b1 o1 s0 b0 o0 s1 b1 o1 ", 42), 0);
    run = ask(2, false, true); /* the first group: 1 and 2 */
    ran = check(1, 0, &run);
    assert_int_equal(strncmp(ran->calls, "s0 s1 s0 b0 s1 b1 s0 b0 o0 s1 b1 o1 s0 ", 39), 0);
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

            run.options.strategy = PL_STRATEGY_DP;
            run.options.devices = 2;
            check(1, 0, &run);
            run.options.strategy = PL_STRATEGY_DDP2;
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
