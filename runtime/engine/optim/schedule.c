/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/schedule.h"

#include <math.h>

/* ReduceLROnPlateau ignores cuts smaller than this. */
#define PLATEAU_EPS 1e-8

static void fill_defaults(struct plume_schedule *o)
{
    if (o->warmup_from == 0)
        o->warmup_from = 1.0 / 3;
    if (o->gamma == 0)
        o->gamma = 0.1;
    if (!o->monitor)
        o->monitor = "val_loss";
    if (o->factor == 0)
        o->factor = 0.1;
    o->patience = o->patience == 0 ? 10 : PL_MAX(o->patience, 0);
    o->threshold = o->threshold == 0 ? 1e-4 : fmax(o->threshold, 0);
}

static int check(const struct plume_schedule *o, double base, struct pl_error *err)
{
    const char *wrong = NULL;

    if (o->kind < PLUME_CONSTANT || o->kind > PLUME_PLATEAU)
        return pl_error_set(err, -EINVAL, "there is no schedule %d", (int)o->kind);
    if (!(base >= 0) || !isfinite(base))
        return pl_error_set(err, -EINVAL, "a learning rate of %g is impossible", base);
    if (o->warmup < 0)
        wrong = "warmup must not be negative";
    else if (!(o->warmup_from > 0 && o->warmup_from <= 1))
        wrong = "warmup_from must be in (0, 1]";
    else if (!isfinite(o->gamma))
        wrong = "gamma must be finite";
    else if (o->kind == PLUME_STEP_LR && o->step_size <= 0)
        wrong = "step_size must be positive";
    else if (o->kind == PLUME_COSINE && o->t_max <= 0)
        wrong = "t_max must be positive";
    else if (o->kind == PLUME_PLATEAU && !(o->factor > 0 && o->factor < 1))
        wrong = "factor must be in (0, 1)";
    for (size_t i = 1; i < PLUME_MILESTONES_MAX && o->milestone[i]; i++)
        if (o->milestone[i] < o->milestone[i - 1])
            wrong = "milestones must ascend";
    return wrong ? pl_error_set(err, -EINVAL, "the learning-rate schedule's %s", wrong) : 0;
}

static double after_warmup(const struct pl_schedule *s, double t)
{
    const struct plume_schedule *o = &s->options;
    double passed = 0;

    switch (o->kind) {
    case PLUME_STEP_LR:
        return s->base * pow(o->gamma, floor(t / (double)o->step_size));
    case PLUME_MULTI_STEP:
        for (size_t i = 0; i < PLUME_MILESTONES_MAX && o->milestone[i]; i++)
            passed += (double)o->milestone[i] <= t;
        return s->base * pow(o->gamma, passed);
    case PLUME_COSINE:
        return o->eta_min + (s->base - o->eta_min) * (1 + cos(M_PI * t / (double)o->t_max)) / 2;
    case PLUME_CONSTANT:
    case PLUME_PLATEAU:
        break;
    }
    return s->base;
}

/* True while t is in the warm-up. */
static bool warming(const struct pl_schedule *s)
{
    return s->t < (uint64_t)s->options.warmup;
}

static double rate_at(const struct pl_schedule *s)
{
    const struct plume_schedule *o = &s->options;
    double done = o->warmup ? (double)s->t / (double)o->warmup : 1;

    if (warming(s))
        return s->base * (o->warmup_from + (1 - o->warmup_from) * done);
    return after_warmup(s, (double)(s->t - (uint64_t)o->warmup));
}

int pl_schedule_init(struct pl_schedule *schedule,
                     const struct plume_schedule *options,
                     double base,
                     struct pl_error *err)
{
    struct pl_schedule s = {.options = *options, .plain = base, .factor = 1, .base = base};
    int r;

    fill_defaults(&s.options);
    r = check(&s.options, base, err);
    if (r < 0)
        return r;
    s.best = s.options.maximize ? -INFINITY : INFINITY;
    s.lr = rate_at(&s);
    *schedule = s;
    return 0;
}

/* torch.optim.lr_scheduler.ReduceLROnPlateau.is_better(). */
static bool better(const struct pl_schedule *s, double value)
{
    double threshold = s->options.threshold;

    if (s->options.threshold_absolute)
        return s->options.maximize ? value > s->best + threshold : value < s->best - threshold;
    return s->options.maximize ? value > s->best * (1 + threshold)
                               : value < s->best * (1 - threshold);
}

static void step_plateau(struct pl_schedule *s, double value)
{
    double cut = fmax(s->lr * s->options.factor, s->options.min_lr);

    if (better(s, value)) {
        s->best = value;
        s->bad = 0;
    } else {
        s->bad++;
    }
    if (s->cooling > 0) {
        s->cooling--;
        s->bad = 0;
    }
    if (s->bad <= s->options.patience)
        return;
    if (s->lr - cut > PLATEAU_EPS)
        s->lr = cut;
    s->cooling = s->options.cooldown;
    s->bad = 0;
}

void pl_schedule_step(struct pl_schedule *schedule, double value)
{
    bool was_warming = warming(schedule);

    schedule->t++;
    if (schedule->options.kind != PLUME_PLATEAU || was_warming)
        schedule->lr = rate_at(schedule);
    else
        step_plateau(schedule, value);
}

void pl_schedule_scale(struct pl_schedule *schedule, double factor)
{
    schedule->factor *= factor;
    schedule->base = schedule->plain * schedule->factor;
    schedule->lr *= factor;
}

void pl_schedule_restore(struct pl_schedule *schedule, const struct pl_schedule *saved)
{
    struct pl_schedule s = *saved;

    s.options = schedule->options;
    s.factor = schedule->factor;
    s.base = s.plain * s.factor;
    if (s.options.kind != PLUME_PLATEAU || warming(&s))
        s.lr = rate_at(&s);
    else if (s.factor != saved->factor)
        s.lr = saved->lr / saved->factor * s.factor;
    *schedule = s;
}
