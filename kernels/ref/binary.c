/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

static real apply(enum pl_binary op, real a, real b)
{
    switch (op) {
    case PL_BINARY_ADD:
        return a + b;
    case PL_BINARY_SUB:
        return a - b;
    case PL_BINARY_MUL:
        return a * b;
    case PL_BINARY_DIV:
        return a / b;
    }
    return 0;
}

/* In f64, 1 / b may be infinite where dy / b is not. */
static double of_a(enum pl_binary op, double dy, double b)
{
    return op == PL_BINARY_MUL ? dy * b : op == PL_BINARY_DIV ? dy / b : dy;
}

static double slope_b(enum pl_binary op, double a, double b)
{
    return op == PL_BINARY_ADD   ? 1
           : op == PL_BINARY_SUB ? -1
           : op == PL_BINARY_MUL ? a
                                 : -a / b / b;
}

void PL_REF(binary_forward)(const struct pl_binary_args *a)
{
    const real *x = a->a, *z = a->b;
    real *y = a->y;

    for (size_t i = 0; i < a->n; i++)
        y[i] = apply(a->op, x[i], z[i % a->m]);
}

void PL_REF(binary_backward)(const struct pl_binary_args *a)
{
    const real *x = a->a, *z = a->b, *dy = a->dy;
    real *da = a->da, *db = a->db;

    for (size_t i = 0; da && i < a->n; i++)
        da[i] = (real)((a->da_add ? da[i] : 0) + of_a(a->op, dy[i], z[i % a->m]));
    for (size_t k = 0; db && k < a->m; k++) {
        double sum = a->db_add ? db[k] : 0;

        for (size_t i = k; i < a->n; i += a->m)
            sum += dy[i] * slope_b(a->op, x[i], z[k]);
        db[k] = (real)sum;
    }
}
