/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 1; n < 600; n += 1 + check_random(30)) {
        int32_t *y = check_labels(n, 7), *y2 = check_labels(n, 7);

        check_case("arange n %zu", n);
        ref->arange(&(struct pl_arange_args){n, y});
        got->arange(&(struct pl_arange_args){n, y2});
        for (size_t i = 0; i < n; i++) {
            check_close("ref", i, y[i], (double)i, 0);
            check_close("y", i, y2[i], (double)i, 0);
        }
        check_end_case();
    }
}
