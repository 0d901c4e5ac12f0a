/* SPDX-License-Identifier: MIT */
/* Bound by memory where a vector form exists (abs, clamp, leaky, sqrt, rsqrt, exp: up to 20
 * operations an element), else by the C library's function of one number, 5 to 20 ns. */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#include <math.h>

#define GRAIN 4096

/* e^x for all x: the square of e^(x/2), which leaves the range of floats as e^x does. */
PL_INLINE float exp_any(float x)
{
    float half = pl_exp(0.5f * x);

    return half * half;
}

PL_INLINE float value(const enum pl_map fn, float x, float p, float q)
{
    switch (fn) {
    case PL_MAP_FILL:
        return p;
    case PL_MAP_EXP:
        return exp_any(x);
    case PL_MAP_LOG:
        return logf(x);
    case PL_MAP_SQRT:
        return sqrtf(x);
    case PL_MAP_RSQRT:
        return 1 / sqrtf(x);
    case PL_MAP_POW:
        return powf(x, p);
    case PL_MAP_ABS:
        return fabsf(x);
    case PL_MAP_CLAMP:
        return x < p ? p : x > q ? q : x;
    case PL_MAP_SOFTPLUS:
        return (x <= 0 ? 0 : x) + log1pf(pl_exp_nonpositive(-fabsf(x)));
    case PL_MAP_ELU:
        return x > 0 ? x : p * expm1f(x);
    case PL_MAP_LEAKY:
        return x > 0 ? x : p * x;
    case PL_MAP_SIN:
        return sinf(x);
    case PL_MAP_COS:
        return cosf(x);
    case PL_MAP_FLOOR:
        return floorf(x);
    case PL_MAP_CEIL:
        return ceilf(x);
    case PL_MAP_ROUND:
        return rintf(x);
    case PL_MAP_SIGN:
        return (float)(x > 0) - (float)(x < 0);
    case PL_MAP_ERF:
        return erff(x);
    case PL_MAP_TAN:
        return tanf(x);
    }
    return 0;
}

PL_INLINE float slope(const enum pl_map fn, float x, float p, float q)
{
    float root;

    switch (fn) {
    case PL_MAP_FILL:
        return 0;
    case PL_MAP_EXP:
        return exp_any(x);
    case PL_MAP_LOG:
        return 1 / x;
    case PL_MAP_SQRT:
        return 0.5f / sqrtf(x);
    case PL_MAP_RSQRT:
        root = 1 / sqrtf(x);
        return -0.5f * root * root * root;
    case PL_MAP_POW:
        return p == 0 ? 0 : p * powf(x, p - 1);
    case PL_MAP_ABS:
        return (float)(x > 0) - (float)(x < 0);
    case PL_MAP_CLAMP:
        return (x > p || p == -INFINITY) && (x < q || q == INFINITY) ? 1 : 0;
    case PL_MAP_SOFTPLUS:
        return 1 / (1 + exp_any(-x));
    case PL_MAP_ELU:
        return x <= 0 ? p * exp_any(x) : 1;
    case PL_MAP_LEAKY:
        return x > 0 ? 1 : p;
    case PL_MAP_SIN:
        return cosf(x);
    case PL_MAP_COS:
        return -sinf(x);
    case PL_MAP_FLOOR:
    case PL_MAP_CEIL:
    case PL_MAP_ROUND:
    case PL_MAP_SIGN:
        return 0;
    case PL_MAP_ERF:
        return (float)M_2_SQRTPI * pl_exp_nonpositive(-x * x);
    case PL_MAP_TAN:
        root = tanf(x);
        return 1 + root * root;
    }
    return 0;
}

/* A loop a function, so that the compiler makes vectors of those that have no calls. */
#define FOR_EACH_FUNCTION(run)                                                                     \
    switch (a->fn) {                                                                               \
    case PL_MAP_FILL:                                                                              \
        run(PL_MAP_FILL);                                                                          \
        break;                                                                                     \
    case PL_MAP_EXP:                                                                               \
        run(PL_MAP_EXP);                                                                           \
        break;                                                                                     \
    case PL_MAP_LOG:                                                                               \
        run(PL_MAP_LOG);                                                                           \
        break;                                                                                     \
    case PL_MAP_SQRT:                                                                              \
        run(PL_MAP_SQRT);                                                                          \
        break;                                                                                     \
    case PL_MAP_RSQRT:                                                                             \
        run(PL_MAP_RSQRT);                                                                         \
        break;                                                                                     \
    case PL_MAP_POW:                                                                               \
        run(PL_MAP_POW);                                                                           \
        break;                                                                                     \
    case PL_MAP_ABS:                                                                               \
        run(PL_MAP_ABS);                                                                           \
        break;                                                                                     \
    case PL_MAP_CLAMP:                                                                             \
        run(PL_MAP_CLAMP);                                                                         \
        break;                                                                                     \
    case PL_MAP_SOFTPLUS:                                                                          \
        run(PL_MAP_SOFTPLUS);                                                                      \
        break;                                                                                     \
    case PL_MAP_ELU:                                                                               \
        run(PL_MAP_ELU);                                                                           \
        break;                                                                                     \
    case PL_MAP_LEAKY:                                                                             \
        run(PL_MAP_LEAKY);                                                                         \
        break;                                                                                     \
    case PL_MAP_SIN:                                                                               \
        run(PL_MAP_SIN);                                                                           \
        break;                                                                                     \
    case PL_MAP_COS:                                                                               \
        run(PL_MAP_COS);                                                                           \
        break;                                                                                     \
    case PL_MAP_FLOOR:                                                                             \
        run(PL_MAP_FLOOR);                                                                         \
        break;                                                                                     \
    case PL_MAP_CEIL:                                                                              \
        run(PL_MAP_CEIL);                                                                          \
        break;                                                                                     \
    case PL_MAP_ROUND:                                                                             \
        run(PL_MAP_ROUND);                                                                         \
        break;                                                                                     \
    case PL_MAP_SIGN:                                                                              \
        run(PL_MAP_SIGN);                                                                          \
        break;                                                                                     \
    case PL_MAP_ERF:                                                                               \
        run(PL_MAP_ERF);                                                                           \
        break;                                                                                     \
    case PL_MAP_TAN:                                                                               \
        run(PL_MAP_TAN);                                                                           \
        break;                                                                                     \
    }

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_map_args *a = ctx;
    const float p = (float)a->p, q = (float)a->q;
    const float *x = a->x; /* may be y */
    float *y = a->y;

    if (a->fn == PL_MAP_FILL) {
        for (size_t i = begin; i < end; i++)
            y[i] = p;
        return;
    }
#define RUN(fn)                                                                                    \
    for (size_t i = begin; i < end; i++)                                                           \
    y[i] = value(fn, x[i], p, q)
    FOR_EACH_FUNCTION(RUN)
#undef RUN
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_map_args *a = ctx;
    const float p = (float)a->p, q = (float)a->q;
    const float *restrict x = a->x, *restrict dy = a->dy;
    float *restrict dx = a->dx;

#define RUN(fn)                                                                                    \
    if (a->dx_add)                                                                                 \
        for (size_t i = begin; i < end; i++)                                                       \
            dx[i] += dy[i] * slope(fn, x[i], p, q);                                                \
    else                                                                                           \
        for (size_t i = begin; i < end; i++)                                                       \
        dx[i] = dy[i] * slope(fn, x[i], p, q)
    FOR_EACH_FUNCTION(RUN)
#undef RUN
}

void PL_CPU(map_forward)(const struct pl_map_args *a)
{
    pl_pool_parallel(a->n, GRAIN, forward, (void *)a);
}

void PL_CPU(map_backward)(const struct pl_map_args *a)
{
    pl_pool_parallel(a->n, GRAIN, backward, (void *)a);
}
