/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

#include "kernels/philox.h"

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, double p, enum fill fill)
{
    const float *x = check_floats(n, fill);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_copy(y, n);
    uint64_t draw = check_random(UINT64_MAX);
    struct pl_dropout_args a = {.n = n,
                                .p = p,
                                .key = check_random(UINT64_MAX),
                                .counter = {check_random(UINT64_MAX), check_random(UINT64_MAX)},
                                .skip = (unsigned)check_random(4),
                                .add = check_random(2),
                                .src = x,
                                .dst = y,
                                .draw = check_random(2) ? &draw : NULL};

    check_case("dropout n %zu p %g skip %u add %d draw %d fill %d", n, p, a.skip, a.add,
               a.draw != NULL, (int)fill);
    ref->dropout(&a);
    a.dst = y2;
    if (a.draw && check_random(2)) { /* the same number, given the other way */
        a.counter[1] = draw;
        a.draw = NULL;
    }
    got->dropout(&a);
    check_same("dst", y2, y, n);
    check_end_case();
}

/* A microbatch has the numbers of its rows in the batch. */
static void parts(const struct pl_kernels *got)
{
    enum { N = 1003 };
    float *x = check_floats(N, FILL_RANDOM), *y = check_floats(N, FILL_RANDOM),
          *part = check_floats(N, FILL_RANDOM);
    struct pl_dropout_args a = {.n = N, .p = 0.5, .key = 3, .counter = {9, 4}, .src = x, .dst = y};

    check_case("dropout parts");
    got->dropout(&a);
    a.dst = part;
    for (size_t at = 0, n; at < N; at += n) {
        n = 1 + check_random(300);
        n = PL_MIN(N - at, n);
        got->dropout(&(struct pl_dropout_args){.n = n,
                                               .p = 0.5,
                                               .key = 3,
                                               .counter = {9 + at / 4, 4},
                                               .skip = at % 4,
                                               .src = x + at,
                                               .dst = part + at});
    }
    check_same("dst", part, y, N);
    check_end_case();
}

/* The dropped share: n numbers have a standard deviation of sqrt(n p (1 - p)) = 137 here. */
static void share(const struct pl_kernels *got)
{
    size_t n = 100000, dropped = 0;
    float *x = check_floats(n, FILL_RANDOM), *y = check_floats(n, FILL_RANDOM);

    check_case("dropout share");
    for (size_t i = 0; i < n; i++)
        x[i] = 1;
    got->dropout(&(struct pl_dropout_args){.n = n, .p = 0.25, .key = 7, .src = x, .dst = y});
    for (size_t i = 0; i < n; i++)
        dropped += y[i] == 0;
    check_close("dropped", 0, (double)dropped, 25000, 700);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    uint32_t lanes[4];

    pl_philox(0, 0, 0, lanes); /* known answer of Random123's kat_vectors */
    check_case("philox");
    check_close("lane", 0, lanes[0], 0x6627e8d5u, 0);
    check_close("lane", 3, lanes[3], 0x9b00dbd8u, 0);
    check_end_case();
    for (size_t n = 1; n < 80; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            one(ref, got, n, (double)check_random(10) / 10, (enum fill)fill);
    one(ref, got, 10007, 0.5, FILL_RANDOM);
    share(got);
    parts(got);
}
