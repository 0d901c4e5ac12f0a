/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t classes,
                bool wide)
{
    enum fill fill = (enum fill)check_random(FILL_COUNT); /* zeros: ties */
    float *count = check_floats(1, FILL_RANDOM), *count2 = check_floats(1, FILL_RANDOM);
    struct pl_correct_args a = {.rows = rows,
                                .classes = classes,
                                .wide = wide,
                                .logits = check_floats(rows * classes, fill),
                                .labels = check_labels(rows, classes),
                                .count = count};

    check_case("correct rows %zu classes %zu wide %d fill %d", rows, classes, wide, fill);
    ref->correct(&a);
    a.count = count2;
    got->correct(&a);
    check_same("count", count2, count, 1);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t n = 0; n < check_many(500, 150); n++)
        one(ref, got, 1 + check_random(50), 1 + check_random(20), check_random(2));
    for (size_t n = 0; n < check_many(16, 4); n++)
        one(ref, got, 1 + check_random(3), 200 + check_random(2500), check_random(2));
    one(ref, got, 3, 9001, false);
    one(ref, got, 1999, 1, true); /* more than 16 bits can distinguish */
}
