/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

static real chosen(enum pl_choose op, real a, real b, real c)
{
    switch (op) {
    case PL_CHOOSE_MAX:
        return a > b || isnan(a) ? a : b;
    case PL_CHOOSE_MIN:
        return a < b || isnan(a) ? a : b;
    case PL_CHOOSE_WHERE:
        return a != 0 ? b : c;
    case PL_CHOOSE_LT:
        return a < b;
    case PL_CHOOSE_LE:
        return a <= b;
    case PL_CHOOSE_EQ:
        return a == b;
    case PL_CHOOSE_NE:
        return a != b;
    }
    return 0;
}

void PL_REF(choose_forward)(const struct pl_choose_args *args)
{
    const real *a = args->a, *b = args->b, *c = args->c;
    real *y = args->y;

    for (size_t i = 0; i < args->n; i++)
        y[i] = chosen(args->op, a[i], b[i], c ? c[i] : 0);
}

/* The parts of dy that the operands get. */
static void shares(enum pl_choose op, real a, real b, double ret[3])
{
    ret[0] = ret[1] = ret[2] = 0;
    if (op == PL_CHOOSE_WHERE) {
        ret[1] = a != 0;
        ret[2] = !(a != 0);
    } else if (op == PL_CHOOSE_MAX || op == PL_CHOOSE_MIN) {
        bool max = op == PL_CHOOSE_MAX;

        ret[0] = a == b ? 0.5 : !(max ? a < b : a > b);
        ret[1] = a == b ? 0.5 : !(max ? a > b : a < b);
    }
}

void PL_REF(choose_backward)(const struct pl_choose_args *args)
{
    const real *a = args->a, *b = args->b, *dy = args->dy;
    real *out[] = {args->da, args->db, args->dc};
    bool add[] = {args->da_add, args->db_add, args->dc_add};
    double share[3];

    for (size_t i = 0; i < args->n; i++) {
        shares(args->op, a[i], b[i], share);
        for (size_t k = 0; k < 3; k++)
            if (out[k]) /* a share of 0 of an infinite dy is 0 */
                out[k][i] =
                    (real)((add[k] ? out[k][i] : 0) + (share[k] > 0 ? dy[i] * share[k] : 0));
    }
}
