/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void
one(const struct pl_kernels *ref, const struct pl_kernels *got, size_t n, enum fill fill)
{
    const float *x = check_floats(n, fill), *z = check_floats(n, fill);
    float *loss = check_floats(1, FILL_RANDOM), *loss2 = check_floats(1, FILL_RANDOM);
    float *da = check_floats(n, FILL_RANDOM), *da2 = check_copy(da, n);
    float *db = check_floats(n, FILL_RANDOM), *db2 = check_copy(db, n);
    struct pl_mse_args a = {.n = n,
                            .da_add = check_random(2),
                            .db_add = check_random(2),
                            .a = x,
                            .b = z,
                            .dloss = check_floats(1, FILL_RANDOM),
                            .loss = loss,
                            .da = da,
                            .db = db};

    check_case("mse n %zu fill %d", n, (int)fill);
    ref->mse_forward(&a);
    ref->mse_backward(&a);
    a.loss = loss2;
    a.da = da2;
    a.db = db2;
    got->mse_forward(&a);
    got->mse_backward(&a);
    check_close("loss", 0, *loss2, *loss, 2 * CHECK_EPS * fabs(*loss)); /* f64 sums on both sides */
    for (size_t i = 0; i < n; i++) {
        check_close("da", i, da2[i], da[i], 8 * CHECK_EPS * (4 + fabs(da[i])));
        check_close("db", i, db2[i], db[i], 8 * CHECK_EPS * (4 + fabs(db[i])));
    }
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 90; n++)
        for (int fill = 0; fill <= FILL_DENORM; fill++)
            one(ref, got, n, (enum fill)fill);
    one(ref, got, 100001, FILL_RANDOM);
}
