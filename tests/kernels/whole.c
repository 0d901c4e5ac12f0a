/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

/* Numbers of which operations go wrong, else small ones of both signs. */
static int32_t number(void)
{
    static const int32_t special[] = {0, -1, 1, INT32_MIN, INT32_MAX, 7, -7};

    return check_random(3) ? (int32_t)check_random(41) - 20
                           : special[check_random(PL_COUNT(special))];
}

static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                enum pl_whole op,
                size_t n,
                size_t m)
{
    int32_t *a = check_labels(n, 1), *b = check_labels(m, 1);
    int32_t *y = check_labels(n, 9), *y2 = check_labels(n, 9);
    float *real = check_floats(n, FILL_RANDOM), *real2 = check_copy(real, n);
    struct pl_whole_args args = {.n = n, .m = m, .op = op, .a = a, .b = b, .y = y, .real = real};

    for (size_t i = 0; i < n; i++)
        a[i] = number();
    for (size_t i = 0; i < m; i++)
        b[i] = number();
    if (op < PL_WHOLE_LT)
        args.real = NULL;
    else
        args.y = NULL;
    check_case("whole op %d n %zu m %zu", (int)op, n, m);
    ref->whole(&args);
    if (args.y)
        args.y = y2;
    else
        args.real = real2;
    got->whole(&args);
    for (size_t i = 0; i < n && args.y; i++)
        check_close("y", i, y2[i], y[i], 0);
    if (args.real)
        check_same("real", real2, real, n);
    check_end_case();
}

/* Python's floor division and remainder, 32 bits, and what has no result. */
static void known(const struct pl_kernels *got)
{
    static const int32_t as[] = {7, -7, 7, -7, 6, INT32_MIN, INT32_MAX, 5};
    static const int32_t bs[] = {2, 2, -2, -2, -3, -1, 1, 0};
    static const int32_t want[][8] = {
        [PL_WHOLE_ADD] = {9, -5, 5, -9, 3, INT32_MAX, INT32_MIN, 5},
        [PL_WHOLE_SUB] = {5, -9, 9, -5, 9, INT32_MIN + 1, INT32_MAX - 1, 5},
        [PL_WHOLE_MUL] = {14, -14, -14, 14, -18, INT32_MIN, INT32_MAX, 0},
        [PL_WHOLE_DIV] = {3, -4, -4, 3, -2, INT32_MIN, INT32_MAX, INT32_MIN},
        [PL_WHOLE_MOD] = {1, 1, -1, -1, 0, 0, 0, INT32_MIN},
    };

    for (int op = PL_WHOLE_ADD; op <= PL_WHOLE_MOD; op++) {
        int32_t *a = check_labels(8, 1), *b = check_labels(8, 1), *y = check_labels(8, 9);

        for (size_t i = 0; i < 8; i++) {
            a[i] = as[i];
            b[i] = bs[i];
        }
        check_case("whole op %d by hand", op);
        got->whole(&(struct pl_whole_args){
            .n = 8, .m = 8, .op = (enum pl_whole)op, .a = a, .b = b, .y = y});
        for (size_t i = 0; i < 8; i++)
            check_close("y", i, y[i], want[op][i], 0);
        check_end_case();
    }
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    known(ref);
    known(got);
    for (size_t i = 0; i < check_many(200, 60); i++) {
        size_t m = check_random(3) ? 1 + check_random(40) : 1;

        one(ref, got, (enum pl_whole)check_random(PL_WHOLE_VALUE + 1), m * (1 + check_random(30)),
            m);
    }
    one(ref, got, PL_WHOLE_MOD, 30000, 10);
}
