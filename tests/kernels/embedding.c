/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t rows,
                size_t vocab,
                size_t dim,
                bool bad)
{
    const float *table = check_floats(vocab * dim, FILL_SPECIAL);
    const float *dy = check_floats(rows * dim, FILL_RANDOM);
    int32_t *ids = check_labels(rows, vocab);
    float *y = check_floats(rows * dim, FILL_RANDOM), *y2 = check_floats(rows * dim, FILL_RANDOM);
    float *d = check_floats(vocab * dim, FILL_RANDOM), *d2 = check_copy(d, vocab * dim);
    struct pl_embedding_args a = {.rows = rows,
                                  .vocab = vocab,
                                  .dim = dim,
                                  .dtable_add = check_random(2),
                                  .ids = ids,
                                  .table = table,
                                  .dy = dy,
                                  .y = y,
                                  .dtable = d};

    if (bad)
        ids[check_random(rows)] = check_random(2) ? -1 : (int32_t)vocab;
    check_case("embedding rows %zu vocab %zu dim %zu bad %d", rows, vocab, dim, bad);
    ref->embedding_forward(&a);
    ref->embedding_backward(&a);
    a.y = y2;
    a.dtable = d2;
    got->embedding_forward(&a);
    got->embedding_backward(&a);
    check_same("y", y2, y, rows * dim);
    check_same("dtable", d2, d, vocab * dim); /* the same order of additions */
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(300, 100); i++)
        one(ref, got, 1 + check_random(60), 1 + check_random(20), 1 + check_random(150),
            check_random(8) == 0);
    for (size_t i = 0; i < check_many(8, 4); i++)
        one(ref, got, 1 + check_random(60), 1 + check_random(4), 250 + check_random(300), false);
    /* Ids of one to three bytes, more rows than a block sorts at once, and all rows of one id. */
    one(ref, got, 3000, 65, 128, false);
    one(ref, got, 2500, 700, 12, true);
    one(ref, got, 1500, 70000, 3, true);
    one(ref, got, 1100, 1, 8, false);
}
