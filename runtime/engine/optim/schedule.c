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

static void fill_more(struct plume_schedule_more *m)
{
    const struct plume_schedule_more preset = {.power = 1,
                                               .t_mult = 1,
                                               .pct_start = 0.3,
                                               .div_factor = 25,
                                               .final_div_factor = 1e4,
                                               .base_momentum = 0.85,
                                               .max_momentum = 0.95};

    m->power = m->power == 0 ? preset.power : m->power;
    m->t_mult = m->t_mult == 0 ? preset.t_mult : m->t_mult;
    m->pct_start = m->pct_start == 0 ? preset.pct_start : m->pct_start == -1 ? 0 : m->pct_start;
    m->div_factor = m->div_factor == 0 ? preset.div_factor : m->div_factor;
    m->final_div_factor = m->final_div_factor == 0 ? preset.final_div_factor : m->final_div_factor;
    m->base_momentum = m->base_momentum == 0 ? preset.base_momentum : m->base_momentum;
    m->max_momentum = m->max_momentum == 0 ? preset.max_momentum : m->max_momentum;
}

static bool needs_t_max(enum plume_schedule_kind kind)
{
    return kind == PLUME_COSINE || kind == PLUME_POLYNOMIAL || kind == PLUME_RESTARTS ||
           kind == PLUME_ONE_CYCLE;
}

static const char *wrong_cycle(const struct plume_schedule *o, const struct plume_schedule_more *m)
{
    double peak = m->pct_start * (double)o->t_max - 1;

    if (!(m->pct_start >= 0 && m->pct_start <= 1))
        return "pct_start must be in [0, 1]";
    if (!(m->div_factor > 0) || !(m->final_div_factor > 0))
        return "div_factor and final_div_factor must be positive";
    if (!(m->base_momentum >= 0 && m->base_momentum < 1) ||
        !(m->max_momentum >= 0 && m->max_momentum < 1))
        return "base_momentum and max_momentum must be in [0, 1)";
    /* The phases would have no length; torch.optim divides by zero then. */
    if (peak == 0 || peak >= (double)(o->t_max - 1) ||
        (m->three_phase && 2 * peak >= (double)(o->t_max - 1)))
        return "t_max and pct_start leave a phase of the cycle without steps";
    return NULL;
}

static const char *wrong_more(const struct plume_schedule *o, const struct plume_schedule_more *m)
{
    if (needs_t_max(o->kind) && o->t_max <= 0)
        return "t_max must be positive";
    if (o->kind == PLUME_POLYNOMIAL && !(m->power > 0 && isfinite(m->power)))
        return "power must be positive";
    if (o->kind == PLUME_RESTARTS && m->t_mult < 1)
        return "t_mult must be at least 1";
    return o->kind == PLUME_ONE_CYCLE ? wrong_cycle(o, m) : NULL;
}

static int check(const struct plume_schedule *o,
                 const struct plume_schedule_more *more,
                 double base,
                 struct pl_error *err)
{
    const char *wrong = wrong_more(o, more);

    if (o->kind < PLUME_CONSTANT || o->kind > PLUME_ONE_CYCLE)
        return pl_error_set(err, -EINVAL, "the schedule's kind %d is unknown: see plume/module.h",
                            (int)o->kind);
    if (!(base >= 0) || !isfinite(base))
        return pl_error_set(err, -EINVAL,
                            "the learning rate must be finite and not negative, not %g", base);
    if (o->warmup < 0)
        wrong = "warmup must not be negative";
    else if (!(o->warmup_from > 0 && o->warmup_from <= 1))
        wrong = "warmup_from must be in (0, 1]";
    else if (!isfinite(o->gamma))
        wrong = "gamma must be finite";
    else if (o->kind == PLUME_STEP_LR && o->step_size <= 0)
        wrong = "step_size must be positive";
    else if (o->kind == PLUME_PLATEAU && !(o->factor > 0 && o->factor < 1))
        wrong = "factor must be in (0, 1)";
    for (size_t i = 1; i < PLUME_MILESTONES_MAX && o->milestone[i]; i++)
        if (o->milestone[i] < o->milestone[i - 1])
            wrong = "milestones must ascend";
    return wrong ? pl_error_set(err, -EINVAL, "the learning-rate schedule's %s", wrong) : 0;
}

/* Between two values, as OneCycleLR; share 0 is the first. */
static double between(bool linear, double from, double to, double share)
{
    return linear ? (to - from) * share + from : to + (from - to) / 2 * (1 + cos(M_PI * share));
}

/* OneCycleLR.get_lr(): at step t of the cycle the value that is `low` at its start, `high` at its
 * peak and `end` at its end. */
static double one_cycle(const struct pl_schedule *s, double t, double low, double high, double end)
{
    const struct plume_schedule_more *m = &s->more;
    double last = (double)s->options.t_max - 1, peak = m->pct_start * (last + 1) - 1;
    double down = m->three_phase ? 2 * peak : last; /* where the second phase ends */

    if (t > last + 1) /* PyTorch ends the run here */
        return end;
    if (t <= peak)
        return between(m->linear, low, high, t / peak);
    if (m->three_phase && t <= down)
        return between(m->linear, high, low, (t - peak) / (down - peak));
    if (m->three_phase)
        return between(m->linear, low, end, (t - down) / (last - down));
    return between(m->linear, high, end, (t - peak) / (last - peak));
}

/* Position t in a cosine that begins again, as a share of its present turn. */
static double restarted(const struct pl_schedule *s, double t)
{
    double turn = (double)s->options.t_max;

    if (s->more.t_mult == 1)
        return fmod(t, turn) / turn;
    while (t >= turn) {
        t -= turn;
        turn *= (double)s->more.t_mult;
    }
    return t / turn;
}

static double cosine(const struct pl_schedule *s, double share)
{
    return s->options.eta_min + (s->base - s->options.eta_min) * (1 + cos(M_PI * share)) / 2;
}

static double after_warmup(const struct pl_schedule *s, double t)
{
    const struct plume_schedule *o = &s->options;
    double passed = 0, low;

    switch (o->kind) {
    case PLUME_STEP_LR:
        return s->base * pow(o->gamma, floor(t / (double)o->step_size));
    case PLUME_MULTI_STEP:
        for (size_t i = 0; i < PLUME_MILESTONES_MAX && o->milestone[i]; i++)
            passed += (double)o->milestone[i] <= t;
        return s->base * pow(o->gamma, passed);
    case PLUME_COSINE:
        return cosine(s, t / (double)o->t_max);
    case PLUME_RESTARTS:
        return cosine(s, restarted(s, t));
    case PLUME_EXPONENTIAL:
        return s->base * pow(o->gamma, t);
    case PLUME_POLYNOMIAL:
        return s->base * pow(1 - fmin(t, (double)o->t_max) / (double)o->t_max, s->more.power);
    case PLUME_ONE_CYCLE:
        low = s->base / s->more.div_factor;
        return one_cycle(s, t, low, s->base, low / s->more.final_div_factor);
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
                     const struct plume_schedule_more *more,
                     double base,
                     struct pl_error *err)
{
    struct pl_schedule s = {.options = *options, .plain = base, .factor = 1, .base = base};
    int r;

    if (more)
        s.more = *more;
    fill_defaults(&s.options);
    fill_more(&s.more);
    r = check(&s.options, &s.more, base, err);
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
    else if (!isnan(value))
        step_plateau(schedule, value);
}

double pl_schedule_momentum(const struct pl_schedule *schedule, double plain)
{
    const struct plume_schedule_more *m = &schedule->more;
    double t = warming(schedule) ? 0 : (double)(schedule->t - (uint64_t)schedule->options.warmup);

    if (schedule->options.kind != PLUME_ONE_CYCLE || !m->cycle_momentum)
        return plain;
    return one_cycle(schedule, t, m->max_momentum, m->base_momentum, m->max_momentum);
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
    s.more = schedule->more;
    s.factor = schedule->factor;
    s.base = s.plain * s.factor;
    if (s.options.kind != PLUME_PLATEAU || warming(&s))
        s.lr = rate_at(&s);
    else if (s.factor != saved->factor)
        s.lr = saved->lr / saved->factor * s.factor;
    *schedule = s;
}
