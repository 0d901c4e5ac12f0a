/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* The parameters have the precision of the numbers: x may be a bound of clamp. */
static double value(const struct pl_map_args *a, double x)
{
    const double p = (real)a->p, q = (real)a->q;

    switch (a->fn) {
    case PL_MAP_FILL:
        return p;
    case PL_MAP_EXP:
        return exp(x);
    case PL_MAP_LOG:
        return log(x);
    case PL_MAP_SQRT:
        return sqrt(x);
    case PL_MAP_RSQRT:
        return 1 / sqrt(x);
    case PL_MAP_POW:
        return pow(x, p);
    case PL_MAP_ABS:
        return fabs(x);
    case PL_MAP_CLAMP:
        return x < p ? p : x > q ? q : x;
    case PL_MAP_SOFTPLUS: /* neither e^x nor the 1 in the sum may swallow the other */
        return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    case PL_MAP_ELU:
        return x > 0 ? x : p * expm1(x);
    case PL_MAP_LEAKY:
        return x > 0 ? x : p * x;
    case PL_MAP_SIN:
        return sin(x);
    case PL_MAP_COS:
        return cos(x);
    case PL_MAP_FLOOR:
        return floor(x);
    case PL_MAP_CEIL:
        return ceil(x);
    case PL_MAP_ROUND:
        return rint(x);
    case PL_MAP_SIGN:
        return (x > 0) - (x < 0);
    case PL_MAP_ERF:
        return erf(x);
    case PL_MAP_TAN:
        return tan(x);
    }
    return 0;
}

static double slope(const struct pl_map_args *a, double x)
{
    const double p = (real)a->p, q = (real)a->q;

    switch (a->fn) {
    case PL_MAP_FILL:
        return 0;
    case PL_MAP_EXP:
        return exp(x);
    case PL_MAP_LOG:
        return 1 / x;
    case PL_MAP_SQRT:
        return 0.5 / sqrt(x);
    case PL_MAP_RSQRT:
        return -0.5 * pow(1 / sqrt(x), 3);
    case PL_MAP_POW:
        return p == 0 ? 0 : p * pow(x, p - 1);
    case PL_MAP_ABS:
        return (x > 0) - (x < 0);
    case PL_MAP_CLAMP:
        return (x > p || p == -INFINITY) && (x < q || q == INFINITY);
    case PL_MAP_SOFTPLUS:
        return 1 / (1 + exp(-x));
    case PL_MAP_ELU:
        return x <= 0 ? p * exp(x) : 1;
    case PL_MAP_LEAKY:
        return x > 0 ? 1 : p;
    case PL_MAP_SIN:
        return cos(x);
    case PL_MAP_COS:
        return -sin(x);
    case PL_MAP_FLOOR:
    case PL_MAP_CEIL:
    case PL_MAP_ROUND:
    case PL_MAP_SIGN:
        return 0;
    case PL_MAP_ERF:
        return M_2_SQRTPI * exp(-x * x);
    case PL_MAP_TAN:
        return 1 + tan(x) * tan(x);
    }
    return 0;
}

void PL_REF(map_forward)(const struct pl_map_args *a)
{
    const real *x = a->x;
    real *y = a->y;

    for (size_t i = 0; i < a->n; i++)
        y[i] = (real)value(a, x ? x[i] : 0);
}

void PL_REF(map_backward)(const struct pl_map_args *a)
{
    const real *x = a->x, *dy = a->dy;
    real *dx = a->dx;

    for (size_t i = 0; i < a->n; i++)
        dx[i] = (real)((a->dx_add ? dx[i] : 0) + dy[i] * slope(a, x[i]));
}
