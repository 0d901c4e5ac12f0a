/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

struct sizes {
    size_t outer, n, m, inner;
};

/* bad: some indices are out of range, and some are the one that is skipped. */
static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, const struct sizes *s, bool bad)
{
    size_t x = s->outer * s->n * s->inner, y = s->outer * s->m * s->inner;
    bool shared = check_random(2);
    size_t n_index = shared ? s->m : y;
    int32_t *index = check_labels(n_index, s->n);
    float *out = check_floats(y, FILL_RANDOM), *out2 = check_floats(y, FILL_RANDOM);
    float *dx = check_floats(x, FILL_RANDOM), *dx2 = check_copy(dx, x);
    struct pl_gather_args a = {.outer = s->outer,
                               .n = s->n,
                               .m = s->m,
                               .inner = s->inner,
                               .shared = shared,
                               .skips = check_random(2),
                               .dx_add = check_random(2),
                               .skip = check_random(2) ? -100 : 0,
                               .index = index,
                               .x = check_floats(x, FILL_SPECIAL),
                               .dy = check_floats(y, FILL_RANDOM),
                               .y = out,
                               .dx = dx};

    for (size_t i = 0; bad && i < n_index; i++)
        if (check_random(5) == 0)
            index[i] = check_random(3) ? -100 : check_random(2) ? (int32_t)s->n : -1;
    check_case("gather outer %zu n %zu m %zu inner %zu shared %d skips %d skip %d bad %d", s->outer,
               s->n, s->m, s->inner, shared, a.skips, (int)a.skip, bad);
    ref->gather_forward(&a);
    ref->gather_backward(&a);
    a.y = out2;
    a.dx = dx2;
    got->gather_forward(&a);
    got->gather_backward(&a);
    check_same("y", out2, out, y);
    check_same("dx", dx2, dx, x); /* the same order of additions */
    check_end_case();
}

/* By hand: what is chosen, skipped and refused. */
static void known(const struct pl_kernels *got)
{
    static const float want_y[] = {30, 0, 10, 0}, want_dx[] = {4, 0, 1};
    float *x = check_floats(3, FILL_ZERO), *dy = check_floats(4, FILL_ZERO);
    float *y = check_floats(4, FILL_RANDOM), *dx = check_floats(3, FILL_RANDOM);
    int32_t *index = check_labels(4, 1);
    struct pl_gather_args a = {.outer = 1,
                               .n = 3,
                               .m = 4,
                               .inner = 1,
                               .skips = true,
                               .skip = -100,
                               .index = index,
                               .x = x,
                               .dy = dy,
                               .y = y,
                               .dx = dx};

    check_case("gather by hand");
    for (int i = 0; i < 4; i++) {
        index[i] = (int[]){2, -100, 0, 7}[i];
        dy[i] = (float)(1 << i);
    }
    for (int i = 0; i < 3; i++)
        x[i] = (float)(10 * i + 10);
    got->gather_forward(&a);
    got->gather_backward(&a);
    for (int i = 0; i < 3; i++)
        check_close("y", (size_t)i, y[i], want_y[i], 0);
    check_close("y out of range", 3, isnan(y[3]), 1, 0);
    check_same("dx", dx, want_dx, 3);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    known(ref);
    known(got);
    for (size_t i = 0; i < check_many(400, 100); i++)
        one(ref, got,
            &(struct sizes){1 + check_random(6), 1 + check_random(9), 1 + check_random(9),
                            check_random(3) ? 1 + check_random(150) : 1},
            check_random(3) == 0);
    one(ref, got, &(struct sizes){700, 11, 1, 1}, true); /* a loss */
    one(ref, got, &(struct sizes){1, 300, 200, 1}, false);
    one(ref, got, &(struct sizes){1, 40, 700, 65}, true);
}
