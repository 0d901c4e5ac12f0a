/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* Nothing is computed but a half. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t n,
                enum pl_choose op,
                enum fill fill)
{
    float *x = check_floats(n, fill), *z = check_floats(n, fill);
    const float *w = check_floats(n, fill), *dy = check_floats(n, FILL_RANDOM);
    float *y = check_floats(n, FILL_RANDOM), *y2 = check_floats(n, FILL_RANDOM);
    float *d[3], *d2[3];
    struct pl_choose_args a = {.n = n,
                               .op = op,
                               .da_add = check_random(2),
                               .db_add = check_random(2),
                               .dc_add = check_random(2),
                               .a = x,
                               .b = z,
                               .c = op == PL_CHOOSE_WHERE ? w : NULL,
                               .dy = dy,
                               .y = y};

    for (size_t i = 0; i < n; i++) { /* equal ones, zeros and NaNs, each alone and together */
        if (check_random(3) == 0)
            x[i] = z[i];
        if (check_random(6) == 0)
            x[i] = check_random(2) ? 0 : NAN;
        if (check_random(9) == 0)
            z[i] = NAN;
    }
    for (size_t k = 0; k < 3; k++) {
        d[k] = check_floats(n, FILL_RANDOM);
        d2[k] = check_copy(d[k], n);
    }
    check_case("choose n %zu op %d fill %d", n, (int)op, (int)fill);
    ref->choose_forward(&a);
    a.da = d[0];
    a.db = d[1];
    a.dc = op == PL_CHOOSE_WHERE ? d[2] : NULL;
    if (op <= PL_CHOOSE_WHERE)
        ref->choose_backward(&a);
    a.y = y2;
    a.da = d2[0];
    a.db = d2[1];
    a.dc = op == PL_CHOOSE_WHERE ? d2[2] : NULL;
    got->choose_forward(&a);
    if (op <= PL_CHOOSE_WHERE)
        got->choose_backward(&a);
    check_same("y", y2, y, n);
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < n; i++)
            check_close("gradient", 10000 * k + i, d2[k][i], d[k][i], 2 * CHECK_EPS * 2);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (int op = PL_CHOOSE_MAX; op <= PL_CHOOSE_NE; op++) {
        for (size_t n = 1; n < 70; n += check_step())
            for (int fill = 0; fill < FILL_COUNT; fill++)
                one(ref, got, n, (enum pl_choose)op, (enum fill)fill);
        one(ref, got, 20001, (enum pl_choose)op, FILL_RANDOM);
    }
}
