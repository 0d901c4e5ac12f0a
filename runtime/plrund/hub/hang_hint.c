/* SPDX-License-Identifier: MIT */
/* Hints about ranks of programs that report no steps. */
#include "runtime/plrund/hub/hang_private.h"

#define HINT_FACTOR 30     /* of the least limit: silence before a hint */
#define HINT_CPU_PERCENT 1 /* of a processor: less is idle */

bool pl_hang_reports_steps(const struct pl_hub_hang *h)
{
    for (unsigned i = 0; i < h->stall.n; i++)
        if (h->stall.ranks[i].n_moves)
            return true;
    return false;
}

static bool is_idle(const struct pl_hub_hang *h, unsigned rank)
{
    int64_t least_s = (int64_t)(h->stall.least_ns / 1000000000) * HINT_FACTOR;

    return h->idle_ms[rank] >= least_s * 1000 && h->silent_s[rank] >= least_s;
}

bool pl_hang_hint(struct pl_hub_hang *h)
{
    unsigned n = 0, running = 0;
    bool before = h->hinted;

    h->asked_ns = 0;
    h->all = false;
    for (unsigned i = 0; i < h->stall.n; i++) {
        h->behind[i] = h->stall.ranks[i].runs && is_idle(h, i);
        running += h->stall.ranks[i].runs;
        n += h->behind[i];
    }
    h->hinted = n > 0;
    if (h->hinted == before)
        return false;
    h->all = n > 0 && n == running;
    return true;
}

void pl_hang_note_cpu(struct pl_hub_hang *h, const struct pl_msg_node_probed_item *m, uint64_t ms)
{
    int64_t before = h->cpu_ms[m->rank];

    h->silent_s[m->rank] = m->silent_s == PL_MSG_ABSENT ? -1 : m->silent_s;
    if (m->cpu_ms == PL_MSG_ABSENT)
        return;
    if (before >= 0 && (uint64_t)(m->cpu_ms - before) * 100 < HINT_CPU_PERCENT * ms)
        h->idle_ms[m->rank] += (int64_t)ms;
    else
        h->idle_ms[m->rank] = 0;
    h->cpu_ms[m->rank] = m->cpu_ms;
}
