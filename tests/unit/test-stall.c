/* SPDX-License-Identifier: MIT */
/* Finds ranks that are behind, by recorded steps and probes, and slow ranks. Times are in seconds.
 */
#include "common/base/macros.h"
#include "runtime/plrund/hub/slow.h"
#include "runtime/plrund/hub/stall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define S(s) ((uint64_t)((s)*1e9))
#define RANKS 4
#define LEAST_S 10

struct probe_row {
    enum pl_stall_class class;
    int64_t collectives; /* 0 = not known */
    bool hook;
};

struct row {
    const char *what;
    double step_s;      /* time between steps; 0 = 1 */
    int64_t lag[RANKS]; /* steps that the rank reports less than rank 0 would */
    unsigned silent;    /* ranks, as bits, that report nothing */
    unsigned paused;    /* ranks, as bits, that named a pause */
    struct probe_row probe[RANKS];
    double after_s; /* the last step */
    enum pl_stall_kind want;
    unsigned behind; /* as bits */
    bool seen;
};

#define W                                                                                          \
    {                                                                                              \
        PL_STALL_WAIT, 0                                                                           \
    }
#define Z                                                                                          \
    {                                                                                              \
        PL_STALL_SLEEP, 0                                                                          \
    }
#define B                                                                                          \
    {                                                                                              \
        PL_STALL_BUSY, 0                                                                           \
    }
#define T                                                                                          \
    {                                                                                              \
        PL_STALL_STOPPED, 0                                                                        \
    }

static const struct row rows[] = {
    {.what = "steps go on", .probe = {W, W, W, W}, .after_s = 5},
    {.what = "one rank lags, and waits",
     .lag = {0, 0, 1, 0},
     .probe = {W, W, W, W},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 4,
     .seen = true},
    {.what = "a long step: not yet",
     .step_s = 4,
     .lag = {0, 0, 1, 0},
     .probe = {W, W, W, W},
     .after_s = 19},
    {.what = "a long step",
     .step_s = 4,
     .lag = {0, 0, 1, 0},
     .probe = {W, W, W, W},
     .after_s = 24,
     .want = PL_STALL_BEHIND,
     .behind = 4,
     .seen = true},
    {.what = "two lag, one more than the other",
     .lag = {0, 1, 2, 0},
     .probe = {W, W, W, W},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 4,
     .seen = true},
    {.what = "the rank that lags computes: it may validate",
     .lag = {1, 0, 0, 0},
     .probe = {B, W, W, W},
     .after_s = 200,
     .want = PL_STALL_AT_WORK,
     .behind = 1,
     .seen = true},
    {.what = "it computes for too long",
     .lag = {1, 0, 0, 0},
     .probe = {B, W, W, W},
     .after_s = 301,
     .want = PL_STALL_BEHIND,
     .behind = 1,
     .seen = true},
    {.what = "equal steps: one sleeps, the others wait in a collective",
     .probe = {W, W, W, Z},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 8},
    {.what = "equal steps: one sleeps, the others spin in a collective",
     .probe = {B, B, B, Z},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 8},
    {.what = "only rank 0 reports, rank 2 sleeps",
     .silent = 14,
     .probe = {W, W, Z, W},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 4},
    {.what = "all wait, and none differs: not yet", .probe = {W, W, W, W}, .after_s = 55},
    {.what = "all wait, and none differs",
     .probe = {W, W, W, W},
     .after_s = 61,
     .want = PL_STALL_ALL,
     .seen = true},
    {.what = "most poll with sleeps: nothing tells them apart",
     .probe = {W, Z, Z, Z},
     .after_s = 61,
     .want = PL_STALL_ALL,
     .seen = true},
    {.what = "rank 0 saves, the others wait", .probe = {B, W, W, W}, .after_s = 200},
    {.what = "all validate", .probe = {B, B, B, B}, .after_s = 290},
    {.what = "most have validated, one still does", .probe = {W, W, B, W}, .after_s = 100},
    {.what = "all loop for ever",
     .probe = {B, B, B, B},
     .after_s = 301,
     .want = PL_STALL_ALL,
     .seen = true},
    {.what = "a named pause", .paused = 15, .probe = {W, W, W, Z}, .after_s = 290},
    {.what = "a named pause without an end",
     .paused = 15,
     .probe = {W, W, W, Z},
     .after_s = 301,
     .want = PL_STALL_BEHIND,
     .behind = 8},
    {.what = "a debugger has stopped one",
     .lag = {0, 0, 1, 0},
     .probe = {W, W, T, W},
     .after_s = 1000,
     .want = PL_STALL_HELD},
    {.what = "collectives: one has not entered",
     .probe = {{PL_STALL_WAIT, 7}, {PL_STALL_BUSY, 6}, {PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 2,
     .seen = true},
    {.what = "collectives: one computes in a hook",
     .probe =
         {{PL_STALL_WAIT, 7}, {PL_STALL_BUSY, 6, true}, {PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}},
     .after_s = 200,
     .want = PL_STALL_AT_WORK,
     .behind = 2,
     .seen = true},
    {.what = "collectives: one computes in a hook for too long",
     .probe =
         {{PL_STALL_WAIT, 7}, {PL_STALL_BUSY, 6, true}, {PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}},
     .after_s = 301,
     .want = PL_STALL_BEHIND,
     .behind = 2,
     .seen = true},
    {.what = "collectives: one hangs in a hook",
     .probe =
         {{PL_STALL_WAIT, 7}, {PL_STALL_SLEEP, 6, true}, {PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}},
     .after_s = 10.5,
     .want = PL_STALL_BEHIND,
     .behind = 2,
     .seen = true},
    {.what = "collectives: all are in the same",
     .probe = {{PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 7}},
     .after_s = 55},
    {.what = "collectives: not all count",
     .probe = {{PL_STALL_WAIT, 7}, {PL_STALL_WAIT, 6}, {PL_STALL_WAIT, 0}, {PL_STALL_WAIT, 7}},
     .after_s = 30},
};

static struct pl_stall_verdict judge_row(const struct row *row, bool *scratch)
{
    double step_s = row->step_s > 0 ? row->step_s : 1, t = 0;
    struct pl_stall_verdict v;
    struct pl_stall s;

    assert_int_equal(pl_stall_init(&s, RANKS, LEAST_S * 1000), 0);
    for (unsigned r = 0; r < RANKS; r++)
        pl_stall_started(&s, r, 0);
    for (int64_t step = 1; step <= 50; step++) {
        t += step_s;
        for (unsigned r = 0; r < RANKS; r++)
            if (step <= 50 - row->lag[r] && !(row->silent >> r & 1))
                pl_stall_report(&s, r, &(struct pl_stall_report){.step = step, .paused = -1}, S(t));
    }
    for (unsigned r = 0; r < RANKS; r++)
        if (row->paused >> r & 1)
            pl_stall_report(&s, r, &(struct pl_stall_report){.step = -1, .paused = 1}, S(t));
    pl_stall_ask(&s);
    for (unsigned r = 0; r < RANKS; r++)
        pl_stall_probed(&s, r,
                        (struct pl_stall_probe){.class = row->probe[r].class,
                                                .collectives = row->probe[r].collectives > 0
                                                                   ? row->probe[r].collectives
                                                                   : -1,
                                                .hook = row->probe[r].hook});
    v = pl_stall_judge(&s, S(t + row->after_s), scratch);
    pl_stall_finish(&s);
    return v;
}

static void test_judge_rows(void **state)
{
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        const struct row *row = &rows[i];
        bool scratch[RANKS];
        struct pl_stall_verdict v = judge_row(row, scratch);
        unsigned behind = 0;

        for (unsigned r = 0; v.behind && r < RANKS; r++)
            behind |= (unsigned)v.behind[r] << r;
        if (v.kind != row->want || behind != row->behind ||
            (v.kind >= PL_STALL_AT_WORK && v.seen != row->seen))
            fail_msg("%s: kind %d, want %d; behind %x, want %x; seen %d", row->what, v.kind,
                     row->want, behind, row->behind, v.seen);
    }
}

static void report(struct pl_stall *s, unsigned rank, int64_t step, double t)
{
    pl_stall_report(s, rank, &(struct pl_stall_report){.step = step, .paused = -1}, S(t));
}

static void test_due_at_start(void **state)
{
    struct pl_stall s;

    assert_int_equal(pl_stall_init(&s, 2, 10000), 0);
    pl_stall_started(&s, 0, S(1));
    pl_stall_started(&s, 1, S(1));
    assert_false(pl_stall_due(&s, S(100000))); /* it loads, or reports nothing */
    report(&s, 0, 1, 100000);
    report(&s, 0, 2, 100001);
    assert_false(pl_stall_due(&s, S(200000))); /* it compiles */
    for (int64_t step = 3; step <= 5; step++)
        report(&s, 0, step, 200000 + (double)step);
    assert_false(pl_stall_due(&s, S(200014)));
    pl_stall_finish(&s);
}

static void test_due_after_end(void **state)
{
    struct pl_stall s;

    assert_int_equal(pl_stall_init(&s, 1, 10000), 0);
    pl_stall_started(&s, 0, 0);
    for (int64_t step = 1; step <= 20; step++)
        report(&s, 0, step, (double)step);
    assert_true(pl_stall_due(&s, S(31)));
    pl_stall_ended(&s, 0);
    assert_false(pl_stall_due(&s, S(31)));
    pl_stall_finish(&s);
}

static void test_due_after_suspension(void **state)
{
    struct pl_stall s;

    assert_int_equal(pl_stall_init(&s, 1, 10000), 0);
    pl_stall_started(&s, 0, 0);
    for (int64_t step = 1; step <= 20; step++)
        report(&s, 0, step, (double)step);
    pl_stall_hold(&s, S(1000));
    assert_false(pl_stall_due(&s, S(1009)));
    assert_true(pl_stall_due(&s, S(1011)));
    pl_stall_finish(&s);
}

/* A false alarm of 40 s is not repeated for pauses up to 80 s. */
static void test_limit_after_false_alarm(void **state)
{
    struct pl_stall s;

    assert_int_equal(pl_stall_init(&s, 1, 10000), 0);
    assert_int_equal(pl_stall_limit_ns(&s), S(10));
    pl_stall_was_wrong(&s, S(40));
    assert_int_equal(pl_stall_limit_ns(&s), S(80));
    pl_stall_finish(&s);
}

/* 5 x p99 of the time between reports, and no more than 9 % over it. */
static void test_limit_of_long_steps(void **state)
{
    struct pl_stall s;
    double t = 0;

    assert_int_equal(pl_stall_init(&s, 1, 10000), 0);
    pl_stall_started(&s, 0, 0);
    for (int64_t step = 0; step < 1000; step++) {
        t += step % 200 == 100 ? 500 : 30; /* pauses of half a percent are not in p99 */
        report(&s, 0, step, t);
    }
    assert_true(pl_stall_limit_ns(&s) >= S(150) && pl_stall_limit_ns(&s) < S(165));
    pl_stall_finish(&s);
}

static void test_limit_zero_is_off(void **state)
{
    struct pl_stall s;

    assert_int_equal(pl_stall_init(&s, 1, 0), 0);
    pl_stall_started(&s, 0, 0);
    for (int64_t step = 0; step < 100; step++)
        report(&s, 0, step, (double)step);
    assert_false(pl_stall_due(&s, S(1e6)));
    pl_stall_finish(&s);
}

/* ---- slow ranks ---- */

static void test_slow_by_own_time(void **state)
{
    struct pl_slow s;

    assert_int_equal(pl_slow_init(&s, 4), 0);
    for (int window = 0; window < 2; window++) {
        for (int64_t i = 0; i <= 10; i++)
            for (unsigned r = 0; r < 4; r++) /* all wait for rank 2 */
                pl_slow_report(&s, r, window * 20 + i, r == 2 ? 2000 : 1000, S(i));
        assert_true(pl_slow_judge(&s));
        assert_true(s.ranks[2].factor == (window ? 2 : 0)); /* once may be chance */
    }
    assert_true(s.ranks[0].factor == 0 && s.ranks[1].factor == 0);
    for (int64_t i = 0; i <= 10; i++)
        for (unsigned r = 0; r < 4; r++)
            pl_slow_report(&s, r, 100 + i, 1000, S(i));
    assert_true(pl_slow_judge(&s));
    assert_true(s.ranks[2].factor == 0);
    pl_slow_finish(&s);
}

static void test_slow_by_steps(void **state)
{
    struct pl_slow s;

    assert_int_equal(pl_slow_init(&s, 3), 0);
    for (int window = 0; window < 2; window++) {
        for (int64_t i = 0; i <= 30; i++)
            for (unsigned r = 0; r < 3; r++)
                if (r != 1 || i % 3 == 0)
                    pl_slow_report(&s, r, window * 100 + (r == 1 ? i / 3 : i), -1, S(i));
        assert_true(pl_slow_judge(&s));
    }
    assert_true(s.ranks[1].factor > 2.9 && s.ranks[1].factor < 3.1);
    pl_slow_finish(&s);
}

/* Twice the median of a tenth of a millisecond is the noise of a busy node. */
static void test_slow_of_tiny_steps(void **state)
{
    struct pl_slow s;

    assert_int_equal(pl_slow_init(&s, 3), 0);
    for (int window = 0; window < 3; window++) {
        for (int64_t i = 0; i <= 10; i++)
            for (unsigned r = 0; r < 3; r++)
                pl_slow_report(&s, r, window * 20 + i, r == 1 ? 900 : 100, S(i));
        assert_true(pl_slow_judge(&s));
        assert_true(s.ranks[1].factor == 0);
    }
    pl_slow_finish(&s);
}

static void test_slow_needs_steps(void **state)
{
    struct pl_slow s;

    assert_int_equal(pl_slow_init(&s, 2), 0);
    for (int64_t i = 0; i < 10; i++)
        pl_slow_report(&s, 0, i, -1, S(i));
    assert_false(pl_slow_judge(&s)); /* nine of one */
    pl_slow_report(&s, 0, 10, -1, S(10));
    assert_false(pl_slow_judge(&s)); /* nobody to compare with */
    pl_slow_report(&s, 1, 1, -1, S(11));
    assert_false(pl_slow_judge(&s));
    pl_slow_ended(&s, 1);
    pl_slow_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_judge_rows),
        cmocka_unit_test(test_due_at_start),
        cmocka_unit_test(test_due_after_end),
        cmocka_unit_test(test_due_after_suspension),
        cmocka_unit_test(test_limit_after_false_alarm),
        cmocka_unit_test(test_limit_of_long_steps),
        cmocka_unit_test(test_limit_zero_is_off),
        cmocka_unit_test(test_slow_by_own_time),
        cmocka_unit_test(test_slow_by_steps),
        cmocka_unit_test(test_slow_of_tiny_steps),
        cmocka_unit_test(test_slow_needs_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
