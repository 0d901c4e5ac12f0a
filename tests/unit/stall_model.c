/* SPDX-License-Identifier: MIT */
/* stall_model [RUNS [SEED]]: simulated jobs with noisy steps, pauses and hangs against stall.h. A
 * run fails if it has an alarm without a hang, or a hang that is not named, or named late or
 * wrongly. A run repeats by its number and the seed. The suite runs some hundred, ./dev soak stalls
 * more.
 *
 * A job is a list of segments, each with a length and with what each rank does meanwhile. Reports
 * reach the detector once a second, as from plrund; the nodes answer half a second after they are
 * asked. */
#include "common/base/macros.h"
#include "runtime/plrund/hub/stall.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 16
#define S(s) ((uint64_t)((s)*1e9))
#define LEAST_S 10.0
#define TICK_S 0.25
#define ITEM_S 1.0 /* between a node's items */
#define TICK_HUB_S 0.5
#define ANSWER_S 0.5
#define STEPS 300

enum pause {
    PAUSE_SAVE_BUSY,  /* rank 0 saves, the others wait; it reads and writes */
    PAUSE_SAVE_NAMED, /* all wait for a file system; the program has named it */
    PAUSE_VALIDATE,   /* all compute, and end one after the other */
    PAUSE_VALIDATE_0, /* rank 0 alone, before it reports its step */
    PAUSE_IDLE,       /* all wait for something outside, less than a minute */
    PAUSE_LOADER,     /* one rank reads data */
    PAUSE_HOOK,       /* one computes in a hook of its module */
    PAUSE_STOPPED,    /* a debugger stops one */
    PAUSE_SUSPENDED,  /* the whole job, and the daemons with it */
    PAUSES,
};

static const char *const pause_names[] = {"save",   "save_named", "validate", "validate_0", "idle",
                                          "loader", "hook",       "stopped",  "suspended"};

enum hang {
    HANG_NONE,
    HANG_BEHIND, /* one rank sleeps or waits before it reports the step that the others report */
    HANG_SLEEPS, /* after its report: only that it sleeps tells it from the others */
    HANG_COLLECTIVE, /* the same in a program that counts its collectives, and spins */
    HANG_HOOK,       /* the same, but it waits for ever in a hook of its module */
    HANGS,
};

struct run {
    uint64_t random;
    unsigned n;
    bool only_0; /* reports */
    bool spins;  /* waiting in a collective uses a processor */
    bool counts; /* collectives are counted */
    double step_s, noise;
    struct pl_stall s;
    bool scratch[RANKS_MAX];

    double t, next_hub, next_item, asked, step_at[RANKS_MAX];
    int64_t step[RANKS_MAX], sent[RANKS_MAX], collectives[RANKS_MAX];
    uint64_t moves[RANKS_MAX];
    double gap[RANKS_MAX];
    enum pl_stall_class class[RANKS_MAX];
    bool hook[RANKS_MAX];
    int paused; /* to report: 1, 0 or -1 */

    bool alarm, all;
    bool behind[RANKS_MAX];
    double alarm_t;
};

static uint64_t next(struct run *r)
{
    r->random += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    uint64_t z = r->random;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static double uniform(struct run *r, double low, double high)
{
    return low + (high - low) * (double)(next(r) >> 11) / 9007199254740992.0;
}

static unsigned below(struct run *r, unsigned n)
{
    return (unsigned)(next(r) % n);
}

static enum pl_stall_class waiting(const struct run *r)
{
    return r->spins ? PL_STALL_BUSY : PL_STALL_WAIT;
}

/* ---- what plrund and the hub do ---- */

static void send_items(struct run *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        struct pl_stall_report report = {
            .step = -1, .moves = r->moves[i], .gap_ns = S(r->gap[i]), .paused = r->paused};

        if (r->step[i] != r->sent[i])
            report.step = r->step[i];
        if ((report.step < 0 && r->paused < 0) || (r->only_0 && i))
            continue;
        pl_stall_report(&r->s, i, &report, S(r->t));
        r->sent[i] = r->step[i];
        r->moves[i] = 0;
        r->gap[i] = 0;
    }
    r->paused = -1;
}

static void answer(struct run *r)
{
    struct pl_stall_verdict v;

    send_items(r); /* plrund sends them before its answer */
    pl_stall_ask(&r->s);
    for (unsigned i = 0; i < r->n; i++)
        pl_stall_probed(&r->s, i,
                        (struct pl_stall_probe){.class = r->class[i],
                                                .collectives = r->counts ? r->collectives[i] : -1,
                                                .hook = r->hook[i]});
    v = pl_stall_judge(&r->s, S(r->t), r->scratch);
    if (v.kind == PL_STALL_HELD)
        pl_stall_hold(&r->s, S(r->t));
    if (v.kind != PL_STALL_BEHIND && v.kind != PL_STALL_ALL)
        return;
    r->alarm = true;
    r->all = v.kind == PL_STALL_ALL;
    r->alarm_t = r->t;
    for (unsigned i = 0; i < r->n; i++)
        r->behind[i] = v.behind && v.behind[i];
}

/* Time passes while the ranks do what r->class says; an alarm stops it. */
static void pass(struct run *r, double seconds)
{
    for (double end = r->t + seconds; r->t < end && !r->alarm;) {
        r->t = fmin(r->t + TICK_S, end);
        if (r->t >= r->next_item) {
            r->next_item = r->t + ITEM_S;
            send_items(r);
        }
        if (r->asked > 0 && r->t >= r->asked + ANSWER_S) {
            r->asked = 0;
            answer(r);
        }
        if (r->t >= r->next_hub) {
            r->next_hub = r->t + TICK_HUB_S;
            if (!(r->asked > 0) && pl_stall_due(&r->s, S(r->t)))
                r->asked = r->t;
        }
    }
}

/* ---- the job ---- */

static void set_all(struct run *r, enum pl_stall_class class)
{
    for (unsigned i = 0; i < r->n; i++)
        r->class[i] = class;
}

static void report(struct run *r, unsigned rank)
{
    if (r->step_at[rank] > 0)
        r->gap[rank] = fmax(r->gap[rank], r->t - r->step_at[rank]);
    r->step_at[rank] = r->t;
    r->step[rank]++;
    r->moves[rank]++;
}

static void report_all(struct run *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        report(r, i);
        r->collectives[i]++;
    }
}

static double noisy(struct run *r)
{
    double x = r->step_s * exp(r->noise * (uniform(r, -1, 1) + uniform(r, -1, 1)));

    return below(r, 50) ? x : x * uniform(r, 1, 3); /* a garbage collection, a full cache */
}

static void step(struct run *r)
{
    set_all(r, PL_STALL_BUSY);
    pass(r, noisy(r));
    report_all(r);
}

static void name_pause(struct run *r, bool begins)
{
    r->paused = begins;
    for (unsigned i = 0; i < r->n; i++)
        r->step_at[i] = 0; /* plrund measures no gap over it */
}

static void validate(struct run *r, double seconds)
{
    set_all(r, PL_STALL_BUSY);
    pass(r, seconds * 0.7);
    for (unsigned i = 0; i + 1 < r->n; i++) {
        r->class[i] = waiting(r);
        pass(r, seconds * 0.3 / r->n);
    }
}

static void pause_job(struct run *r, enum pause kind)
{
    double long_s = exp(uniform(r, log(2), log(280)));
    unsigned one = below(r, r->n);

    set_all(r, waiting(r));
    switch (kind) {
    case PAUSE_SAVE_BUSY:
        r->class[0] = PL_STALL_BUSY;
        pass(r, long_s);
        break;
    case PAUSE_SAVE_NAMED:
        name_pause(r, true);
        pass(r, long_s);
        name_pause(r, false);
        break;
    case PAUSE_VALIDATE:
        validate(r, long_s);
        break;
    case PAUSE_VALIDATE_0: /* the others have reported the step already */
        set_all(r, PL_STALL_BUSY);
        pass(r, noisy(r));
        for (unsigned i = 1; i < r->n; i++)
            report(r, i);
        set_all(r, waiting(r));
        r->class[0] = PL_STALL_BUSY;
        pass(r, long_s);
        report(r, 0);
        for (unsigned i = 0; i < r->n; i++)
            r->collectives[i]++;
        break;
    case PAUSE_IDLE:
        set_all(r, PL_STALL_WAIT);
        pass(r, fmin(long_s, 50));
        break;
    case PAUSE_LOADER:
        r->class[one] = PL_STALL_BUSY;
        pass(r, long_s);
        break;
    case PAUSE_HOOK: /* the others are in the next collective */
        for (unsigned i = 0; i < r->n; i++)
            r->collectives[i] += i != one;
        r->class[one] = PL_STALL_BUSY;
        r->hook[one] = true;
        pass(r, long_s);
        r->hook[one] = false;
        r->collectives[one]++;
        break;
    case PAUSE_STOPPED:
        r->class[one] = PL_STALL_STOPPED;
        pass(r, 10 * long_s);
        break;
    case PAUSE_SUSPENDED:
        r->t += 100 * long_s;
        pl_stall_hold(&r->s, S(r->t)); /* as the hub does after a tick that is late */
        break;
    case PAUSES:
        break;
    }
}

/* One that counts collectives names its pauses, as pltrain does. */
static bool fits(const struct run *r, enum pause kind)
{
    return !r->counts || kind == PAUSE_SAVE_NAMED || kind == PAUSE_VALIDATE ||
           kind == PAUSE_STOPPED || kind == PAUSE_SUSPENDED || kind == PAUSE_IDLE ||
           kind == PAUSE_HOOK;
}

static void init(struct run *r, uint64_t seed, uint64_t number)
{
    *r = (struct run){.random = seed * 1000003 + number, .paused = -1};
    next(r);
    r->n = 2 + below(r, RANKS_MAX - 1);
    r->only_0 = below(r, 4) == 0;
    r->spins = below(r, 2);
    r->counts = below(r, 3) == 0 && !r->only_0;
    r->step_s = exp(uniform(r, log(0.02), log(20)));
    r->noise = uniform(r, 0, 0.5);
    pl_stall_init(&r->s, r->n, (unsigned)(LEAST_S * 1000));
    for (unsigned i = 0; i < r->n; i++) {
        pl_stall_started(&r->s, i, S(1));
        r->step[i] = r->sent[i] = -1;
    }
    r->t = 1;
}

static void start(struct run *r)
{
    set_all(r, below(r, 2) ? PL_STALL_BUSY : PL_STALL_WAIT);
    pass(r, uniform(r, 0, 900)); /* it loads */
    step(r);
    set_all(r, below(r, 2) ? PL_STALL_BUSY : PL_STALL_WAIT);
    pass(r, uniform(r, 0, 200)); /* it compiles */
}

/* Returns the rank that hangs. */
static unsigned begin_hang(struct run *r, enum hang kind)
{
    unsigned one = below(r, r->n);

    set_all(r, PL_STALL_BUSY);
    pass(r, noisy(r));
    for (unsigned i = 0; i < r->n; i++) {
        if (i != one || kind != HANG_BEHIND)
            report(r, i);
        if (i != one)
            r->collectives[i]++;
        r->class[i] = waiting(r);
    }
    r->hook[one] = kind == HANG_HOOK;
    r->class[one] = kind == HANG_COLLECTIVE ? PL_STALL_BUSY
                    : kind == HANG_SLEEPS   ? PL_STALL_SLEEP
                                            : PL_STALL_WAIT;
    return one;
}

struct total {
    unsigned runs, pauses, hangs, wrong, fast;
    double worst_s; /* from the hang to its name, where the least limit holds */
};

static bool named_right(const struct run *r, unsigned one)
{
    for (unsigned i = 0; i < r->n; i++)
        if (r->behind[i] != (i == one))
            return false;
    return r->alarm && !r->all;
}

static void fail(struct total *sum, uint64_t number, const char *what, double value)
{
    printf("# run %llu: %s (%.2f s)\n", (unsigned long long)number, what, value);
    sum->wrong++;
}

static void simulate(uint64_t seed, uint64_t number, struct total *sum)
{
    enum hang hang;
    double hung, limit;
    struct run r;
    unsigned one;

    init(&r, seed, number);
    hang = below(&r, HANGS);
    if ((hang == HANG_BEHIND && r.only_0) ||
        ((hang == HANG_COLLECTIVE || hang == HANG_HOOK) && !r.counts))
        hang = HANG_NONE;
    start(&r);
    if (r.alarm)
        fail(sum, number, "start", r.t);
    for (unsigned i = 0; i < STEPS && !r.alarm; i++) {
        enum pause kind = below(&r, PAUSES);

        step(&r);
        if (i < 5 || below(&r, 100) || !fits(&r, kind))
            continue;
        sum->pauses++;
        pause_job(&r, kind);
        if (r.alarm)
            fail(sum, number, pause_names[kind], r.t);
    }
    sum->runs++;
    if (!r.alarm && hang != HANG_NONE) {
        sum->hangs++;
        one = begin_hang(&r, hang);
        hung = r.t;
        do
            pass(&r, ITEM_S);
        while (!r.alarm && r.t < hung + (double)pl_stall_limit_ns(&r.s) / 1e9 + 60);
        limit = (double)pl_stall_limit_ns(&r.s) / 1e9;
        if (!named_right(&r, one))
            fail(sum, number, r.alarm ? "named wrongly" : "not named", (double)hang);
        else if (r.alarm_t - hung > limit + ITEM_S + TICK_HUB_S + ANSWER_S + 4 * TICK_S)
            fail(sum, number, "named late", r.alarm_t - hung);
        if (limit <= LEAST_S && r.alarm) {
            sum->fast++;
            sum->worst_s = fmax(sum->worst_s, r.alarm_t - hung);
        }
    }
    pl_stall_finish(&r.s);
}

int main(int argc, char **argv)
{
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 400;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    struct total sum = {0};

    for (uint64_t i = 0; i < runs; i++)
        simulate(seed, i, &sum);
    printf(
        "# seed %llu: %u runs, %u pauses, %u hangs, %u wrong; of %u hangs with the least limit the "
        "last was named after %.2f s\n",
        (unsigned long long)seed, sum.runs, sum.pauses, sum.hangs, sum.wrong, sum.fast,
        sum.worst_s);
    printf("1..1\n%s 1 no false alarm, and each hang is named\n", sum.wrong ? "not ok" : "ok");
    return sum.wrong > 0;
}
