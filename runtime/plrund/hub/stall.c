/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/stall.h"
#include "common/base/macros.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MS 1000000ull
#define PER_OCTAVE 8 /* buckets of a factor of two: p99 is right within 9 % */

int pl_stall_init(struct pl_stall *s, unsigned n_ranks, unsigned least_ms)
{
    *s = (struct pl_stall){.n = n_ranks, .least_ns = least_ms * MS};
    s->ranks = calloc(PL_MAX(n_ranks, 1u), sizeof(*s->ranks));
    for (unsigned i = 0; s->ranks && i < n_ranks; i++)
        s->ranks[i].step = -1;
    return s->ranks ? 0 : -ENOMEM;
}

void pl_stall_finish(struct pl_stall *s)
{
    free(s->ranks);
    s->ranks = NULL;
}

/* ---- what ranks report ---- */

void pl_stall_started(struct pl_stall *s, unsigned rank, uint64_t now_ns)
{
    s->ranks[rank].runs = true;
    s->ranks[rank].moved_ns = now_ns;
}

void pl_stall_ended(struct pl_stall *s, unsigned rank)
{
    s->ranks[rank].runs = false;
}

static void add_gaps(struct pl_stall *s, uint64_t gap_ns, uint64_t n)
{
    double octaves = log2((double)gap_ns / (double)MS + 1);

    s->gaps[PL_MIN((size_t)(octaves * PER_OCTAVE), (size_t)PL_STALL_BUCKETS - 1)] += n;
    s->n_gaps += n;
}

/* A report stands for several steps: of the longest time the length is known, of the others what is
 * left for them. */
static void note_gaps(struct pl_stall *s, const struct pl_stall_report *report, uint64_t elapsed_ns)
{
    uint64_t longest = report->gap_ns ? report->gap_ns : elapsed_ns;
    uint64_t others = report->moves > 1 ? report->moves - 1 : 0;
    uint64_t rest = elapsed_ns > longest && others ? (elapsed_ns - longest) / others : 0;

    add_gaps(s, longest, 1);
    if (others)
        add_gaps(s, PL_MIN(rest, longest), others);
}

bool pl_stall_report(struct pl_stall *s,
                     unsigned rank,
                     const struct pl_stall_report *report,
                     uint64_t now_ns)
{
    struct pl_stall_rank *r = &s->ranks[rank];
    bool was_paused = r->paused, moved = report->step >= 0 && report->step != r->step;

    if (report->paused >= 0)
        r->paused = report->paused;
    if (report->step > r->step) {
        /* The first time is from the start, and may have compiled. */
        if (r->n_moves > 0 && !was_paused && !r->paused && !r->held)
            note_gaps(s, report, now_ns - r->moved_ns);
        r->held = false;
        r->n_moves += PL_MAX(report->moves, (uint64_t)1);
    }
    if (moved) /* also back, to a checkpoint */
        r->step = report->step;
    if (moved || was_paused != r->paused) /* what follows a pause counts from its end */
        r->moved_ns = now_ns;
    return moved || was_paused != r->paused;
}

void pl_stall_hold(struct pl_stall *s, uint64_t now_ns)
{
    for (unsigned i = 0; i < s->n; i++) {
        s->ranks[i].moved_ns = now_ns;
        s->ranks[i].held = true;
    }
}

/* ---- limits ---- */

static uint64_t p99_ns(const struct pl_stall *s)
{
    uint64_t over = s->n_gaps / 100, seen = 0; /* as many may be longer */

    for (size_t i = PL_STALL_BUCKETS; i-- > 0;) {
        seen += s->gaps[i];
        if (seen > over)
            return (uint64_t)((exp2((double)(i + 1) / PER_OCTAVE) - 1) * (double)MS);
    }
    return 0;
}

uint64_t pl_stall_limit_ns(const struct pl_stall *s)
{
    return PL_MAX(PL_MAX(s->least_ns, PL_STALL_P99_FACTOR * p99_ns(s)), 2 * s->false_ns);
}

static bool reports(const struct pl_stall_rank *r)
{
    return r->runs && r->n_moves >= PL_STALL_MOVES_MIN;
}

static bool is_late(const struct pl_stall_rank *r, uint64_t limit_ns, uint64_t now_ns)
{
    return now_ns > r->moved_ns && now_ns - r->moved_ns > limit_ns;
}

bool pl_stall_due(const struct pl_stall *s, uint64_t now_ns)
{
    uint64_t limit = pl_stall_limit_ns(s);
    bool any = false, all = true, alone = false;

    if (!s->least_ns)
        return false;
    for (unsigned i = 0; i < s->n; i++) {
        const struct pl_stall_rank *r = &s->ranks[i];

        if (!reports(r))
            continue;
        any = true;
        all &= is_late(r, limit, now_ns);
        alone |= is_late(r, PL_STALL_ALL_FACTOR * limit, now_ns);
    }
    return any && (all || alone);
}

void pl_stall_was_wrong(struct pl_stall *s, uint64_t pause_ns)
{
    s->false_ns = PL_MAX(s->false_ns, pause_ns);
}

/* ---- probes ---- */

void pl_stall_ask(struct pl_stall *s)
{
    for (unsigned i = 0; i < s->n; i++)
        s->ranks[i].probed = false;
}

void pl_stall_probed(struct pl_stall *s, unsigned rank, struct pl_stall_probe probe)
{
    s->ranks[rank].probed = true;
    s->ranks[rank].probe = probe;
}

/* ---- the verdict ---- */

/* Sums over running ranks. */
struct view {
    unsigned running, reporting;
    unsigned classes[PL_STALL_GONE + 1];
    bool stopped, unknown, paused, counted; /* counted: all count their collectives */
    int64_t step_low, step_high, count_low, count_high;
};

static struct view look(const struct pl_stall *s)
{
    struct view v = {.step_low = INT64_MAX,
                     .step_high = -1,
                     .count_low = INT64_MAX,
                     .count_high = -1,
                     .counted = true};

    for (unsigned i = 0; i < s->n; i++) {
        const struct pl_stall_rank *r = &s->ranks[i];

        if (!r->runs)
            continue;
        v.running++;
        v.unknown |= !r->probed || r->probe.class == PL_STALL_GONE;
        if (!r->probed)
            continue;
        v.classes[r->probe.class]++;
        v.stopped |= r->probe.class == PL_STALL_STOPPED;
        v.paused |= r->paused;
        v.counted &= r->probe.collectives >= 0;
        v.count_low = PL_MIN(v.count_low, r->probe.collectives);
        v.count_high = PL_MAX(v.count_high, r->probe.collectives);
        if (!reports(r))
            continue;
        v.reporting++;
        v.step_low = PL_MIN(v.step_low, r->step);
        v.step_high = PL_MAX(v.step_high, r->step);
    }
    return v;
}

enum by { BY_COUNT, BY_STEP, BY_CLASS };

static bool is_candidate(const struct pl_stall_rank *r, const struct view *v, enum by by)
{
    if (!r->runs)
        return false;
    if (by == BY_COUNT)
        return r->probe.collectives < v->count_high;
    if (by == BY_STEP)
        return reports(r) && r->step < v->step_high;
    return r->probe.class == PL_STALL_SLEEP;
}

/* Marks the candidates. Of steps and counts only the lowest. */
static unsigned mark(const struct pl_stall *s,
                     const struct view *v,
                     enum by by,
                     bool *behind,
                     bool *ret_busy,
                     uint64_t *ret_moved_ns)
{
    unsigned n = 0;

    *ret_busy = false;
    *ret_moved_ns = 0;
    for (unsigned i = 0; i < s->n; i++) {
        const struct pl_stall_rank *r = &s->ranks[i];

        behind[i] = is_candidate(r, v, by) && (by != BY_STEP || r->step == v->step_low) &&
                    (by != BY_COUNT || r->probe.collectives == v->count_low);
        if (!behind[i])
            continue;
        n++;
        /* Of a rank that counts, only what a hook does is work that others may have to wait for. */
        *ret_busy |= r->probe.class == PL_STALL_BUSY && (by != BY_COUNT || r->probe.hook);
        *ret_moved_ns = PL_MAX(*ret_moved_ns, r->moved_ns);
    }
    return n;
}

/* The last progress of any rank that reports. */
static uint64_t last_move_ns(const struct pl_stall *s)
{
    uint64_t last = 0;

    for (unsigned i = 0; i < s->n; i++)
        if (reports(&s->ranks[i]))
            last = PL_MAX(last, s->ranks[i].moved_ns);
    return last;
}

struct pl_stall_verdict pl_stall_judge(const struct pl_stall *s, uint64_t now_ns, bool *scratch)
{
    struct pl_stall_verdict verdict = {.step = -1};
    struct view v = look(s);
    uint64_t limit = pl_stall_limit_ns(s), last = last_move_ns(s), moved;
    unsigned factor = 1, n;
    bool busy, others_go_on = now_ns < last || now_ns - last <= limit;
    enum by by;

    if (!pl_stall_due(s, now_ns) || v.running == 0)
        return verdict;
    if (v.stopped) {
        verdict.kind = PL_STALL_HELD;
        return verdict;
    }
    if (v.unknown)
        return verdict;
    verdict.step = v.reporting ? v.step_low : -1;
    by = v.counted && v.count_low < v.count_high ? BY_COUNT
         : v.step_low < v.step_high              ? BY_STEP
                                                 : BY_CLASS;
    n = mark(s, &v, by, scratch, &busy, &moved);
    /* Few that sleep tell something; if most do, it is how this program waits. */
    if (n == 0 || n == v.running || (by == BY_CLASS && n * 2 > v.running))
        n = 0;
    if (n == 0) {
        busy = v.classes[PL_STALL_BUSY] > 0;
        moved = last;
        factor = PL_STALL_ALL_FACTOR;
    }
    if (v.paused || others_go_on || busy)
        factor = PL_STALL_BUSY_FACTOR;
    if (others_go_on && n == 0)
        return verdict;
    verdict.for_ns = now_ns > moved ? now_ns - moved : 0;
    verdict.limit_ns = factor * limit;
    if (verdict.for_ns > verdict.limit_ns)
        verdict.kind = n ? PL_STALL_BEHIND : PL_STALL_ALL;
    else if (n && busy && !v.paused && !others_go_on && verdict.for_ns > limit)
        verdict.kind = PL_STALL_AT_WORK;
    else
        return verdict;
    verdict.seen = n ? by != BY_CLASS : true;
    verdict.behind = n ? scratch : NULL;
    return verdict;
}
