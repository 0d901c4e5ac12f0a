/* SPDX-License-Identifier: MIT */
/* The exact cut, beside all cuts tried one by one. */
#include "runtime/engine/tape/stage_cut.h"
#include "runtime/engine/util/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define OPS 14
#define STAGES 6
#define PARAMS 5
#define CASES 3000

struct problem {
    struct pl_cut_problem p;
    double seconds[STAGES * OPS], transfer[OPS + 1], kept[OPS], entering[OPS + 1];
    double in_flight[STAGES], limit[STAGES];
    bool forbidden[OPS + 1];
    struct pl_cut_use uses[PARAMS * OPS];
};

/* Small whole numbers, so that sums are exact and equal optima occur. */
static double number(struct pl_rng *rng, unsigned limit)
{
    return (double)pl_rng_below(rng, limit);
}

static int by_op(const void *a, const void *b)
{
    size_t x = ((const struct pl_cut_use *)a)->op, y = ((const struct pl_cut_use *)b)->op;

    return (x > y) - (x < y);
}

static void add_uses(struct problem *x, struct pl_rng *rng)
{
    for (unsigned i = 0; i < PARAMS; i++) {
        double bytes = number(rng, 20), state = number(rng, 20);
        size_t last = SIZE_MAX;

        for (size_t op = 0; op < x->p.n; op++) {
            if (pl_rng_below(rng, 5))
                continue;
            if (last != SIZE_MAX)
                x->uses[last].next = op;
            x->uses[x->p.n_uses] =
                (struct pl_cut_use){op, SIZE_MAX, last == SIZE_MAX, bytes, state, i};
            last = x->p.n_uses++;
        }
    }
    qsort(x->uses, x->p.n_uses, sizeof(x->uses[0]), by_op);
}

static void make(struct problem *x, uint64_t seed)
{
    struct pl_rng rng;

    memset(x, 0, sizeof(*x));
    pl_rng_init(&rng, seed, 1);
    x->p.n = 1 + pl_rng_below(&rng, OPS);
    x->p.stages = 1 + (unsigned)pl_rng_below(&rng, x->p.n < STAGES ? x->p.n : STAGES);
    for (size_t i = 0; i < x->p.stages * x->p.n; i++)
        x->seconds[i] = number(&rng, 12);
    for (size_t i = 0; i <= x->p.n; i++) {
        x->transfer[i] = number(&rng, 4);
        x->entering[i] = number(&rng, 6);
        x->forbidden[i] = pl_rng_below(&rng, 6) == 0;
    }
    for (size_t i = 0; i < x->p.n; i++)
        x->kept[i] = number(&rng, 10);
    for (unsigned s = 0; s < x->p.stages; s++) {
        x->in_flight[s] = 1 + number(&rng, 4);
        x->limit[s] = 20 + number(&rng, 200);
    }
    x->p.seconds = x->seconds;
    x->p.transfer = pl_rng_below(&rng, 3) ? x->transfer : NULL;
    x->p.forbidden = pl_rng_below(&rng, 3) ? x->forbidden : NULL;
    x->p.kept = x->kept;
    x->p.entering = pl_rng_below(&rng, 2) ? x->entering : NULL;
    x->p.in_flight = pl_rng_below(&rng, 2) ? x->in_flight : NULL;
    x->p.limit = pl_rng_below(&rng, 3) ? x->limit : NULL;
    x->p.even = x->p.limit && pl_rng_below(&rng, 4) == 0;
    if (pl_rng_below(&rng, 2)) {
        add_uses(x, &rng);
        x->p.uses = x->uses;
    }
}

/* The slowest stage of a cut, or the fullest (`even`); INFINITY if it is not allowed. By the
 * definition, op by op. */
static double worth(const struct pl_cut_problem *p, const size_t *cut)
{
    double most = 0;

    for (unsigned s = 0; s < p->stages; s++) {
        double seconds = 0, bytes = 0;

        if (s > 0 && p->forbidden && p->forbidden[cut[s]])
            return INFINITY;
        for (size_t i = cut[s]; i < cut[s + 1]; i++) {
            seconds += p->seconds[s * p->n + i];
            bytes += p->kept[i] * (p->in_flight ? p->in_flight[s] : 1);
        }
        for (unsigned end = 0; end < 2; end++) {
            size_t at = cut[s + end];

            if (at > 0 && at < p->n)
                seconds += p->transfer ? p->transfer[at] : 0;
        }
        if (cut[s] > 0 && p->entering)
            bytes += p->entering[cut[s]] * (p->in_flight ? p->in_flight[s] : 1);
        for (size_t u = 0; u < p->n_uses; u++) {
            bool here = p->uses[u].op >= cut[s] && p->uses[u].op < cut[s + 1];

            if (here && p->uses[u].next >= cut[s + 1])
                bytes += p->uses[u].bytes;
            if (here && p->uses[u].first)
                bytes += p->uses[u].state;
        }
        if (p->even)
            seconds = bytes / p->limit[s];
        else if (p->limit && bytes > p->limit[s])
            return INFINITY;
        most = seconds > most ? seconds : most;
    }
    return most;
}

static double try_all(const struct pl_cut_problem *p, size_t *cut, unsigned stage)
{
    double best = INFINITY;

    if (stage == p->stages)
        return worth(p, cut);
    for (cut[stage] = cut[stage - 1] + 1; cut[stage] < p->n; cut[stage]++) {
        size_t at = cut[stage];
        double found = try_all(p, cut, stage + 1);

        cut[stage] = at;
        best = found < best ? found : best;
    }
    return best;
}

static void test_best_is_the_best_of_all_cuts(void **state)
{
    unsigned found = 0, none = 0;

    for (uint64_t seed = 0; seed < CASES; seed++) {
        size_t cut[STAGES + 1], all[STAGES + 1] = {0};
        struct pl_error err = {0};
        struct problem x;
        double want, got = -1;
        int r;

        make(&x, seed);
        all[x.p.stages] = x.p.n;
        want = try_all(&x.p, all, 1);
        r = pl_cut_best(&x.p, cut, &got, &err);
        if (isinf(want)) {
            if (r != -ENOSPC && r != -EINVAL)
                fail_msg("seed %llu: %d", (unsigned long long)seed, r);
            assert_true(err.text[0] != '\0');
            none++;
            continue;
        }
        if (r < 0 || got != want || worth(&x.p, cut) != want)
            fail_msg("seed %llu: %g, not %g", (unsigned long long)seed, got, want);
        found++;
    }
    assert_true(found > CASES / 3 && none > CASES / 30);
}

static void test_stages_are_told(void **state)
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        double seconds[STAGES], bytes[STAGES], most = 0, best;
        size_t cut[STAGES + 1];
        struct problem x;

        make(&x, seed);
        if (pl_cut_best(&x.p, cut, &best, NULL) < 0)
            continue;
        pl_cut_stages(&x.p, cut, seconds, bytes);
        for (unsigned s = 0; s < x.p.stages; s++) {
            if (x.p.even)
                seconds[s] = bytes[s] / x.p.limit[s];
            most = seconds[s] > most ? seconds[s] : most;
            assert_true(!x.p.limit || x.p.even || bytes[s] <= x.p.limit[s]);
        }
        assert_true(most == best);
    }
}

static void test_what_cannot_be_cut_is_told(void **state)
{
    const double seconds[] = {1, 1, 1, 1, 1, 1}, limit[] = {5, 5};
    const struct pl_cut_use use = {1, SIZE_MAX, true, 6, 0, 0};
    const bool forbidden[] = {false, true, true, false};
    struct pl_cut_problem p = {.n = 3, .stages = 4, .seconds = seconds};
    struct pl_error err = {0};
    size_t cut[5];
    double best;

    assert_int_equal(pl_cut_best(&p, cut, &best, &err), -EINVAL);
    assert_non_null(strstr(err.text, "4 stages are more than the step's 3 ops"));
    p.stages = 2;
    p.forbidden = forbidden;
    assert_int_equal(pl_cut_best(&p, cut, &best, &err), -EINVAL);
    assert_non_null(strstr(err.text, "cannot be cut into 2 stages"));
    p.forbidden = NULL;
    p.uses = &use;
    p.n_uses = 1;
    p.limit = limit;
    assert_int_equal(pl_cut_best(&p, cut, &best, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "fits the devices' memory"));
}

/* 1,000 ops in 8 stages: below 0.1 s of processor time (10 under a sanitizer). */
static void test_a_thousand_ops_are_cut_fast(void **state)
{
    enum { N = 1000, S = 8 };
    double *seconds = calloc(S * N, sizeof(*seconds)), *kept = calloc(N, sizeof(*kept));
    double *transfer = calloc(N + 1, sizeof(*transfer)), limit[S], best, took;
    struct pl_cut_use *uses = calloc(N, sizeof(*uses));
    struct pl_cut_problem p = {.n = N,
                               .stages = S,
                               .seconds = seconds,
                               .kept = kept,
                               .transfer = transfer,
                               .limit = limit,
                               .uses = uses,
                               .n_uses = N};
    size_t cut[S + 1];
    struct pl_rng rng;
    clock_t start;

    pl_rng_init(&rng, 5, 5);
    for (size_t i = 0; i < S * N; i++)
        seconds[i] = number(&rng, 1000) * 1e-6;
    for (size_t i = 0; i < N; i++) {
        kept[i] = number(&rng, 1000);
        transfer[i] = number(&rng, 100) * 1e-6;
        uses[i] = (struct pl_cut_use){i, SIZE_MAX, true, number(&rng, 1000), number(&rng, 1000), i};
    }
    for (unsigned s = 0; s < S; s++)
        limit[s] = 1e9;
    start = clock();
    assert_int_equal(pl_cut_best(&p, cut, &best, NULL), 0);
    took = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("# %.1f ms\n", took * 1e3);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    assert_true(took < 1);
#else
    assert_true(took < 0.1);
#endif
    free(seconds);
    free(kept);
    free(transfer);
    free(uses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_is_the_best_of_all_cuts),
        cmocka_unit_test(test_stages_are_told),
        cmocka_unit_test(test_what_cannot_be_cut_is_told),
        cmocka_unit_test(test_a_thousand_ops_are_cut_fast),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
