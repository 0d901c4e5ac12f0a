/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/slow.h"
#include "common/base/macros.h"

#include <errno.h>
#include <stdlib.h>

int pl_slow_init(struct pl_slow *s, unsigned n_ranks)
{
    *s = (struct pl_slow){.n = n_ranks};
    s->ranks = calloc(PL_MAX(n_ranks, 1u), sizeof(*s->ranks));
    s->values = calloc(PL_MAX(n_ranks, 1u), sizeof(*s->values));
    if (!s->ranks || !s->values)
        return -ENOMEM;
    pl_slow_hold(s);
    return 0;
}

void pl_slow_finish(struct pl_slow *s)
{
    free(s->ranks);
    free(s->values);
    *s = (struct pl_slow){0};
}

void pl_slow_hold(struct pl_slow *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        s->ranks[i].step = s->ranks[i].first_step = -1;
        s->ranks[i].own_us = s->ranks[i].own_n = 0;
    }
}

void pl_slow_pause(struct pl_slow *s)
{
    if (!s->own)
        pl_slow_hold(s);
}

void pl_slow_report(struct pl_slow *s, unsigned rank, int64_t step, int64_t own_us, uint64_t now_ns)
{
    struct pl_slow_rank *r = &s->ranks[rank];

    if (own_us >= 0) {
        s->own = true;
        r->own_us += (double)own_us;
        r->own_n++;
    }
    if (step < 0)
        return;
    if (r->first_step < 0 || step < r->step) {
        r->first_step = step;
        r->first_ns = now_ns;
    }
    r->step = step;
    r->at_ns = now_ns;
}

void pl_slow_ended(struct pl_slow *s, unsigned rank)
{
    s->ranks[rank].step = s->ranks[rank].first_step = -1;
}

static int by_value(const void *va, const void *vb)
{
    double a = *(const double *)va, b = *(const double *)vb;

    return a < b ? -1 : a > b;
}

/* Time of a step, in us. */
static double value_of(const struct pl_slow_rank *r, bool own)
{
    if (own)
        return r->own_us / r->own_n;
    return (double)(r->at_ns - r->first_ns) / (double)(r->step - r->first_step) / 1000;
}

static void score(struct pl_slow_rank *r, double value, double median)
{
    double factor = median > 0 ? value / median : 1;
    bool slow = factor >= (r->factor > 0 ? PL_SLOW_WELL : PL_SLOW_FACTOR) &&
                value - median >= PL_SLOW_LEAST_US;

    r->strikes = slow ? r->strikes + 1 : 0;
    r->factor = r->strikes >= 2 ? factor : 0;
}

bool pl_slow_judge(struct pl_slow *s)
{
    unsigned n = 0, n_own = 0;
    double median;

    for (unsigned i = 0; i < s->n; i++) {
        const struct pl_slow_rank *r = &s->ranks[i];

        if (r->first_step < 0)
            continue;
        if (r->step - r->first_step < PL_SLOW_STEPS_MIN)
            return false;
        n++;
        n_own += r->own_n > 0;
    }
    if (n < 2)
        return false;
    n = 0;
    for (unsigned i = 0; i < s->n; i++)
        if (s->ranks[i].first_step >= 0)
            s->values[n++] = value_of(&s->ranks[i], n_own > 0 && s->ranks[i].own_n > 0);
    if (n_own && n_own != n) { /* times of two kinds cannot be compared */
        pl_slow_hold(s);
        return false;
    }
    qsort(s->values, n, sizeof(*s->values), by_value);
    median = s->values[(n - 1) / 2];
    for (unsigned i = 0; i < s->n; i++)
        if (s->ranks[i].first_step >= 0)
            score(&s->ranks[i], value_of(&s->ranks[i], n_own > 0), median);
    pl_slow_hold(s);
    return true;
}
