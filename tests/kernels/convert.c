/* SPDX-License-Identifier: MIT */
/* widen and narrow; the formats themselves are checked by half.c. */
#include "tests/kernels/check.h"

#include <math.h>
#include <string.h>

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t n,
                enum pl_half type,
                enum fill fill)
{
    float *x = check_floats(n, fill), *back = check_floats(n, FILL_RANDOM);
    float *back2 = check_floats(n, FILL_ZERO);
    /* 16-bit numbers in buffers of floats, so that the guards follow them directly */
    uint16_t *h = (uint16_t *)check_floats(n, FILL_ZERO),
             *h2 = (uint16_t *)check_floats(n, FILL_ZERO);

    memcpy(back2, back, n * sizeof(*back));
    for (int add = 0; add < 2; add++) { /* to what was written before */
        struct pl_half_args a = {.n = n, .type = type, .add = add, .wide = x};

        check_case("convert n %zu type %d fill %d add %d", n, (int)type, (int)fill, add);
        a.half = h;
        ref->narrow(&a);
        a.half = h2;
        got->narrow(&a);
        for (size_t i = 0; i < n; i++)
            if (!isnan(pl_f32_of_half(type, h[i])) || !isnan(pl_f32_of_half(type, h2[i])))
                check_close("narrow", i, h2[i], h[i], 0);
        a.half = h;
        a.wide = back;
        ref->widen(&a);
        a.wide = back2;
        got->widen(&a);
        check_same("widen", back2, back, n);
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 80; n++)
        for (int fill = 0; fill < FILL_COUNT; fill++)
            for (int type = PL_HALF_BF16; type <= PL_HALF_F16; type++)
                one(ref, got, n, (enum pl_half)type, (enum fill)fill);
    one(ref, got, 70001, PL_HALF_BF16, FILL_SPECIAL); /* several chunks */
    one(ref, got, 70001, PL_HALF_F16, FILL_SPECIAL);
}
