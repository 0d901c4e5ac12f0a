/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(200, 60); i++) {
        size_t rows = 1 + check_random(40), classes = 1 + check_random(i % 5 ? 12 : 300);
        int32_t *labels = check_labels(rows, classes);
        float *y = check_floats(rows * classes, FILL_RANDOM);
        float *y2 = check_floats(rows * classes, FILL_RANDOM);
        size_t bad = check_random(rows);

        labels[bad] = check_random(2) ? -1 : (int32_t)classes;
        check_case("one_hot rows %zu classes %zu", rows, classes);
        ref->one_hot(&(struct pl_one_hot_args){rows, classes, labels, y});
        got->one_hot(&(struct pl_one_hot_args){rows, classes, labels, y2});
        check_same("y", y2, y, rows * classes);
        for (size_t k = 0; k < rows * classes; k++)
            if (k / classes == bad)
                check_close("y of a label out of range", k, isnan(y2[k]), 1, 0);
            else
                check_close("y", k, y2[k], labels[k / classes] == (int32_t)(k % classes), 0);
        check_end_case();
    }
}
