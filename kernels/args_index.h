/* SPDX-License-Identifier: MIT */
/* Arguments of ops that choose elements by position, or find positions: gather, top, running sums.
 * Rules for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_INDEX_H
#define PL_KERNELS_ARGS_INDEX_H

#include "kernels/anywhere.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y [outer, m, inner] at (o, j, i) is x [outer, n, inner] at (o, index, i). index is [outer, m,
 * inner], or [m] if `shared`. An index equal to `skip` gives 0 if `skips` is set; any other out of
 * [0, n) gives NaN. Backward: dx (+)= the sums of dy by index, in the order of j; what was skipped
 * or out of range adds nothing. Exact. */
struct pl_gather_args {
    size_t outer, n, m, inner;
    bool shared, skips, dx_add;
    int32_t skip;
    const int32_t *index;
    const void *x, *dy;
    void *y, *dx;
};

/* Returns the position of the index of element (o, j, i). */
PL_ANYWHERE static inline size_t
pl_gather_at(const struct pl_gather_args *a, size_t o, size_t j, size_t i)
{
    return a->shared ? j : (o * a->m + j) * a->inner + i;
}

/* index [outer, k, inner]: positions in the middle of x [outer, n, inner] of the first k <= n
 * elements in order, the largest (if `least`, the smallest) first; of equal ones the first. A NaN
 * counts as the largest of all; with nan_first it also comes first if `least`. Exact. */
struct pl_top_args {
    size_t outer, n, inner, k;
    bool least, nan_first;
    const void *x;
    int32_t *index;
};

/* True if value a comes before b, wherever they are. */
PL_ANYWHERE static inline bool pl_top_before(bool least, bool nan_first, double a, double b)
{
    bool a_nan = a != a, b_nan = b != b;

    if (a_nan || b_nan)
        return a_nan != b_nan && a_nan == (!least || nan_first);
    return least ? a < b : a > b;
}

/* y (+)= the running sums along the middle of x [outer, n, inner], the element itself included;
 * from the end if `reverse`, which is the gradient. In f64, in the order of the elements. Exact. */
struct pl_cumsum_args {
    size_t outer, n, inner;
    bool reverse, add;
    const void *x;
    void *y;
};

/* y [rows, classes] = 1 at the row's label, else 0. A label out of range gives a row of NaNs.
 * Exact. */
struct pl_one_hot_args {
    size_t rows, classes;
    const int32_t *labels;
    void *y;
};

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_INDEX(X)                                                                    \
    X(gather_forward, gather)                                                                      \
    X(gather_backward, gather)                                                                     \
    X(top, top)                                                                                    \
    X(cumsum, cumsum)                                                                              \
    X(one_hot, one_hot)

#endif
