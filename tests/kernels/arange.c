/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    static const struct {
        int32_t first, step;
    } ranges[] = {{0, 1}, {5, -1}, {-7, 3}, {9, 0}, {INT32_MAX - 2000, 3}, {INT32_MIN, 1}};

    for (size_t k = 0, n = 1; n < 600; k++, n += 1 + check_random(30)) {
        int32_t *y = check_labels(n, 7), *y2 = check_labels(n, 7);
        int32_t first = ranges[k % PL_COUNT(ranges)].first,
                step = ranges[k % PL_COUNT(ranges)].step;

        check_case("arange n %zu from %d by %d", n, first, step);
        ref->arange(&(struct pl_arange_args){n, first, step, y});
        got->arange(&(struct pl_arange_args){n, first, step, y2});
        for (size_t i = 0; i < n; i++) {
            check_close("ref", i, y[i], (double)first + (double)i * step, 0);
            check_close("y", i, y2[i], y[i], 0);
        }
        check_end_case();
    }
}
