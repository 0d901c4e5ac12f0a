/* SPDX-License-Identifier: MIT */
#include "tests/engine/adversaries.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LR_G 0.05
#define LR_D 0.2
#define MOMENTUM 0.5

static struct adversaries_run *current;

void adversaries_say(char word, unsigned optimizer)
{
    size_t len = strlen(current->calls);

    if (len + 3 < sizeof(current->calls))
        snprintf(current->calls + len, 4, "%c%u ", word, optimizer);
}

static int configure(struct plume_context *pl)
{
    struct adversaries *net = pl->state;

    net->g = plume_param(pl, "g", PLUME_INIT_ONE, 1, (size_t[]){ADVERSARIES_COUNT});
    net->d = plume_param(pl, "d", PLUME_INIT_ONE, 1, (size_t[]){ADVERSARIES_COUNT});
    return 0;
}

static plume_tensor *mean_product(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    return plume_mean(pl, plume_mul(pl, a, b), 0, 1);
}

plume_tensor *adversaries_product(struct plume_context *pl)
{
    struct adversaries *net = pl->state;

    return mean_product(pl, net->g, net->d);
}

plume_tensor *adversaries_loss(struct plume_context *pl, plume_tensor *gd)
{
    struct adversaries *net = pl->state;
    plume_tensor *own, *loss;

    if (pl->optimizer == 0) {
        own = plume_scale(pl, mean_product(pl, net->g, net->g), 0.15, 0);
        loss = plume_scale(pl, plume_add(pl, gd, own), net->huge ? 1e35 : 1, 0);
    } else {
        own = mean_product(pl, net->d, net->d);
        loss = plume_sub(pl, own, plume_scale(pl, gd, 0.5, 0));
    }
    return plume_scale(pl, loss, pl->rank + 1.0, 0);
}

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    ((struct adversaries *)pl->state)->batch++;
    return 0;
}

static int on_after_backward(struct plume_context *pl)
{
    adversaries_say('b', pl->optimizer);
    return 0;
}

static int on_before_optimizer_step(struct plume_context *pl)
{
    adversaries_say('o', pl->optimizer);
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

struct plume_module adversaries_module(void)
{
    return (struct plume_module){
        .struct_size = sizeof(struct plume_module),
        .abi = PLUME_MODULE_ABI,
        .name = "adversaries",
        .hparams = digits_hparams,
        .state_size = sizeof(struct adversaries),
        .configure = configure,
        .data = digits_data,
        .configure_optimizers = configure_optimizers,
        .on_train_batch_start = on_batch_start,
        .on_after_backward = on_after_backward,
        .on_before_optimizer_step = on_before_optimizer_step,
    };
}

void adversaries_train(struct adversaries_run *run,
                       const struct plume_module *module,
                       struct pl_comm *comm)
{
    struct pl_train_options options = run->options;

    current = run;
    options.max_steps = ADVERSARIES_STEPS;
    digits_train(module, &options, comm, &run->ranks[comm->rank]);
}

struct adversaries_hand adversaries_hand_begin(void)
{
    return (struct adversaries_hand){.g = 1, .d = 1};
}

void adversaries_hand_g(struct adversaries_hand *hand, unsigned ranks)
{
    double grad = (hand->d + 0.3 * hand->g) / ADVERSARIES_COUNT * (ranks + 1) / 2;
    unsigned steps = ++hand->g_steps;

    hand->m = 0.9 * hand->m + 0.1 * grad;
    hand->v = 0.999 * hand->v + 0.001 * grad * grad;
    hand->g -=
        LR_G * (hand->m / (1 - pow(0.9, steps))) / (sqrt(hand->v / (1 - pow(0.999, steps))) + 1e-8);
}

void adversaries_hand_d(struct adversaries_hand *hand, double grad)
{
    hand->velocity = MOMENTUM * hand->velocity + grad;
    hand->d -= LR_D * hand->velocity;
}

void adversaries_check(const struct adversaries_run *run,
                       unsigned ranks,
                       unsigned per_node,
                       const struct adversaries_hand *want)
{
    digits_assert_good(run->ranks, ranks);
    for (unsigned i = 0; i < ranks; i++) {
        double g = run->ranks[i].values[0], d = run->ranks[i].values[1];

        assert_int_equal(run->ranks[i].steps, ADVERSARIES_STEPS);
        if (!(fabs(g - want->g) < 1e-5 && fabs(d - want->d) < 1e-5)) /* f32, ten steps */
            fail_msg("%u ranks, %u a node: rank %u has %.7g and %.7g, by hand %.7g and %.7g", ranks,
                     per_node, i, g, d, want->g, want->d);
    }
}
