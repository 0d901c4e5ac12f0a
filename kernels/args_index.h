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

/* Operations of whole numbers. Modules have the numbers (plume/ops_whole.h): new ones are appended
 * after the first five, or after the rest. */
enum pl_whole {
    PL_WHOLE_ADD,
    PL_WHOLE_SUB,
    PL_WHOLE_MUL,
    PL_WHOLE_DIV, /* rounded down */
    PL_WHOLE_MOD, /* of the sign of b */
    PL_WHOLE_LT,  /* the first whose result is a real number: 1 or 0 */
    PL_WHOLE_LE,
    PL_WHOLE_EQ,
    PL_WHOLE_NE,
    PL_WHOLE_VALUE, /* a itself; b is not used */
};

/* y[i] = a[i] op b[i % m], of 32 bits, n elements; m divides n. From PL_WHOLE_LT on `real` instead
 * of y. What exceeds 32 bits loses the upper ones. By 0: INT32_MIN, which is no index. Exact. */
struct pl_whole_args {
    size_t n, m;
    enum pl_whole op;
    const int32_t *a, *b;
    int32_t *y;
    void *real;
};

PL_ANYWHERE static inline int32_t pl_whole_number(enum pl_whole op, int32_t a, int32_t b)
{
    int64_t x = a, quotient, rest;

    if (op == PL_WHOLE_ADD)
        return (int32_t)(uint32_t)(x + b);
    if (op == PL_WHOLE_SUB)
        return (int32_t)(uint32_t)(x - b);
    if (op == PL_WHOLE_MUL)
        return (int32_t)(uint32_t)(x * b);
    if (b == 0)
        return INT32_MIN;
    quotient = x / b;
    rest = x % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    return (int32_t)(uint32_t)(op == PL_WHOLE_DIV ? quotient : rest);
}

PL_ANYWHERE static inline double pl_whole_value(enum pl_whole op, int32_t a, int32_t b)
{
    if (op == PL_WHOLE_LT)
        return a < b;
    if (op == PL_WHOLE_LE)
        return a <= b;
    if (op == PL_WHOLE_EQ)
        return a == b;
    return op == PL_WHOLE_NE ? a != b : a;
}

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_INDEX(X)                                                                    \
    X(gather_forward, gather)                                                                      \
    X(gather_backward, gather)                                                                     \
    X(top, top)                                                                                    \
    X(cumsum, cumsum)                                                                              \
    X(one_hot, one_hot)                                                                            \
    X(whole, whole)

#endif
