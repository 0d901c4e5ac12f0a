/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/lower_update.h"

#include <math.h>

/* Numbers of a class. */
enum { RATE, DECAY, MOMENTUM, CORRECT };

struct pl_update_owner pl_update_owner(const struct pl_optimizers *optimizers, size_t order)
{
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct pl_optimizer *o = &optimizers->list[i];

        for (size_t k = 0; k < o->n_ranges; k++)
            if (order >= o->ranges[k].first && order - o->ranges[k].first < o->ranges[k].n)
                return (struct pl_update_owner){o, &o->ranges[k]};
    }
    return (struct pl_update_owner){0};
}

static bool is_adam(const struct plume_optimizer *o)
{
    return o->kind == PLUME_ADAM || o->kind == PLUME_ADAMW;
}

/* The formulas are those of kernels/args_optim.h. */
void pl_update_numbers(const struct pl_update_owner *owner,
                       uint64_t missed,
                       float ret[PL_UPDATE_NUMBERS])
{
    const struct pl_optimizer *optimizer = owner->optimizer;
    const struct plume_optimizer *o = &optimizer->options;
    const struct pl_group *group =
        owner->range->group ? &optimizer->groups[owner->range->group - 1] : NULL;
    const struct pl_schedule *schedule = group ? &group->schedule : &optimizer->schedule;
    double decay = group ? group->weight_decay : o->weight_decay, step, beta1;

    step = (double)(optimizer->steps - missed);
    ret[RATE] = (float)schedule->lr;
    ret[DECAY] = (float)decay;
    ret[MOMENTUM] = (float)pl_schedule_momentum(schedule, o->momentum);
    ret[CORRECT] = 1;
    if (o->kind == PLUME_ADAGRAD)
        ret[RATE] = (float)(schedule->lr / (1 + (step - 1) * o->lr_decay));
    if (!is_adam(o))
        return;
    beta1 = pl_schedule_momentum(schedule, o->beta1);
    ret[RATE] = (float)(schedule->lr / (1 - pow(beta1, step)));
    ret[MOMENTUM] = (float)(1 - beta1);
    ret[CORRECT] = (float)sqrt(1 - pow(o->beta2, step));
    if (o->kind == PLUME_ADAMW)
        ret[DECAY] = (float)(1 - schedule->lr * decay);
}

struct pl_hlo_value pl_update_factor(struct pl_hlo *h,
                                     const struct pl_clip_rule *clip,
                                     const struct pl_hlo_value *grads,
                                     size_t n)
{
    struct pl_hlo_value sum = {0}, factor, one;

    if (!pl_clip_wants_norm(clip))
        return sum;
    for (size_t i = 0; i < n; i++) {
        struct pl_hlo_value square = pl_hlo_two(h, "multiply", grads[i], grads[i]);

        square = pl_hlo_reduce(h, "add", square, (1u << square.rank) - 1);
        sum = sum.id ? pl_hlo_two(h, "add", sum, square) : square;
    }
    sum = pl_hlo_with(h, "add", pl_hlo_one(h, "sqrt", sum), 1e-6);
    factor = pl_hlo_two(h, "divide", pl_hlo_fill_like(h, sum, clip->limit), sum);
    one = pl_hlo_fill_like(h, sum, 1);
    /* A NaN stays one, so that it shows in the parameters. */
    return pl_hlo_select(h, pl_hlo_compare(h, "GE", factor, one), one, factor);
}

/* Number k of the class, in the shape of v. */
static struct pl_hlo_value
number(struct pl_hlo *h, struct pl_hlo_value numbers, size_t k, struct pl_hlo_value v)
{
    return pl_hlo_repeat(h, pl_hlo_slice(h, numbers, 0, k, 1), v);
}

static struct pl_hlo_value times(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b)
{
    return pl_hlo_two(h, "multiply", a, b);
}

static struct pl_hlo_value plus(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b)
{
    return pl_hlo_two(h, "add", a, b);
}

/* a + weight (b - a) */
static struct pl_hlo_value
lerp(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value b, struct pl_hlo_value weight)
{
    return plus(h, a, times(h, weight, pl_hlo_two(h, "subtract", b, a)));
}

/* The step that the rate multiplies. p: the parameter, decayed already if the optimizer decouples
 * that. */
static struct pl_hlo_value direction(struct pl_hlo *h,
                                     const struct pl_optimizer *optimizer,
                                     struct pl_hlo_value numbers,
                                     struct pl_hlo_value g,
                                     struct pl_hlo_value *slots)
{
    const struct plume_optimizer *o = &optimizer->options;
    struct pl_hlo_value momentum = number(h, numbers, MOMENTUM, g), d, *velocity;

    switch (o->kind) {
    case PLUME_ADAM:
    case PLUME_ADAMW:
        slots[0] = lerp(h, slots[0], g, momentum);
        slots[1] = plus(h, pl_hlo_with(h, "multiply", slots[1], o->beta2),
                        pl_hlo_with(h, "multiply", times(h, g, g), 1 - o->beta2));
        d = pl_hlo_two(h, "divide", pl_hlo_one(h, "sqrt", slots[1]),
                       number(h, numbers, CORRECT, g));
        return pl_hlo_two(h, "divide", slots[0], pl_hlo_with(h, "add", d, o->eps));
    case PLUME_RMSPROP:
        slots[0] = plus(h, pl_hlo_with(h, "multiply", slots[0], o->alpha),
                        pl_hlo_with(h, "multiply", times(h, g, g), 1 - o->alpha));
        d = slots[0];
        if (o->centered) {
            slots[1] = lerp(h, slots[1], g, pl_hlo_fill_like(h, g, 1 - o->alpha));
            d = pl_hlo_two(h, "subtract", d, times(h, slots[1], slots[1]));
        }
        d = pl_hlo_with(h, "add", pl_hlo_one(h, "sqrt", d), o->eps);
        d = pl_hlo_two(h, "divide", g, d);
        velocity = &slots[o->centered ? 2 : 1];
        if (pl_optimizer_slots(optimizer) > (o->centered ? 2u : 1u))
            d = *velocity = plus(h, times(h, momentum, *velocity), d);
        return d;
    case PLUME_ADAGRAD:
        slots[0] = plus(h, slots[0], times(h, g, g));
        d = pl_hlo_with(h, "add", pl_hlo_one(h, "sqrt", slots[0]), o->eps);
        return pl_hlo_two(h, "divide", g, d);
    case PLUME_SGD:
        if (!pl_optimizer_slots(optimizer))
            return g;
        slots[0] = plus(h, times(h, momentum, slots[0]), g);
        return o->nesterov ? plus(h, g, times(h, momentum, slots[0])) : slots[0];
    }
    return g;
}

void pl_update_lower(struct pl_hlo *h,
                     const struct pl_update_owner *owner,
                     const struct pl_clip_rule *clip,
                     struct pl_hlo_value factor,
                     struct pl_hlo_value numbers,
                     struct pl_hlo_value grad,
                     struct pl_hlo_value *value,
                     struct pl_hlo_value *slots)
{
    double limit = pl_clip_value(clip);
    struct pl_hlo_value p = *value, g = grad, step;

    if (factor.id)
        g = times(h, g, pl_hlo_repeat(h, factor, g));
    if (isfinite(limit))
        g = pl_hlo_with(h, "minimum", pl_hlo_with(h, "maximum", g, -limit), limit);
    if (owner->optimizer->options.kind == PLUME_ADAMW)
        p = times(h, p, number(h, numbers, DECAY, p));
    else
        g = plus(h, g, times(h, number(h, numbers, DECAY, p), p));
    step = direction(h, owner->optimizer, numbers, g, slots);
    *value = pl_hlo_two(h, "subtract", p, times(h, number(h, numbers, RATE, p), step));
}
