/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/initial.h"

#include <math.h>
#include <string.h>

#define BLOCK 512 /* elements made at a time */

/* A column that is this much shorter once the others are taken out of it is drawn again. */
#define DEGENERATE 1e-8

int pl_initial_check(const struct pl_initial *initial, size_t rank, struct pl_error *err)
{
    double a = initial->a, b = initial->b;

    if (initial->kind < PLUME_INIT_ZERO || initial->kind > PLUME_INIT_ORTHOGONAL)
        return pl_error_set(err, -EINVAL,
                            "the kind of initial values %d is unknown: see plume/module.h",
                            (int)initial->kind);
    if (!isfinite(a) || !isfinite(b))
        return pl_error_set(err, -EINVAL, "the numbers of initial values must be finite");
    if (initial->kind == PLUME_INIT_NORMAL && !(b >= 0))
        return pl_error_set(err, -EINVAL,
                            "the standard deviation of initial values must not be negative, not %g",
                            b);
    if (initial->kind == PLUME_INIT_UNIFORM && !(a < b))
        return pl_error_set(err, -EINVAL, "uniform initial values need a lower and an upper limit");
    if (initial->kind >= PLUME_INIT_XAVIER_UNIFORM && rank < 2)
        return pl_error_set(err, -EINVAL,
                            "xavier and orthogonal initial values need two dimensions");
    return 0;
}

void pl_initial_put(const plume_tensor *t, void *data, size_t at, size_t n, const double *x)
{
    if (t->dtype == PLUME_F64)
        memcpy((double *)data + at, x, n * sizeof(*x));
    else
        for (size_t k = 0; k < n; k++)
            ((float *)data)[at + k] = (float)x[k];
}

/* Values that are uniform in [low, high). */
static void
put_uniform(const plume_tensor *t, double low, double high, struct pl_rng *rng, void *data)
{
    double x[BLOCK];

    for (size_t at = 0, n; at < t->count; at += n) {
        n = PL_MIN(t->count - at, (size_t)BLOCK);
        pl_rng_uniforms(rng, n, x);
        for (size_t k = 0; k < n; k++)
            x[k] = low + (high - low) * x[k];
        pl_initial_put(t, data, at, n, x);
    }
}

static void
put_normal(const plume_tensor *t, double mean, double deviation, struct pl_rng *rng, void *data)
{
    double x[BLOCK];

    for (size_t at = 0, n; at < t->count; at += n) {
        n = PL_MIN(t->count - at, (size_t)BLOCK);
        pl_rng_normals(rng, n, x);
        for (size_t k = 0; k < n; k++)
            x[k] = mean + deviation * x[k];
        pl_initial_put(t, data, at, n, x);
    }
}

/* The default of PyTorch's linear layer; its rounding is kept from release 0.1. */
static void put_fan_in(const plume_tensor *t, double root, struct pl_rng *rng, void *data)
{
    double x[BLOCK];

    for (size_t at = 0, n; at < t->count; at += n) {
        n = PL_MIN(t->count - at, (size_t)BLOCK);
        pl_rng_uniforms(rng, n, x);
        for (size_t k = 0; k < n; k++)
            x[k] = (2 * x[k] - 1) / root;
        pl_initial_put(t, data, at, n, x);
    }
}

static void put_constant(const plume_tensor *t, double value, void *data)
{
    double x[BLOCK];

    for (size_t k = 0; k < BLOCK; k++)
        x[k] = value;
    for (size_t at = 0; at < t->count; at += BLOCK)
        pl_initial_put(t, data, at, PL_MIN(t->count - at, (size_t)BLOCK), x);
}

static double dot(const double *x, const double *y, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Makes vector j of n orthogonal to those before it, of length 1. Twice: the second time takes out
 * what rounding left (Giraud, Langou and Rozloznik 2005). False if it depended on them. */
static bool orthonormalise(double *v, size_t j, size_t n)
{
    double *own = v + j * n, before = sqrt(dot(own, own, n)), length;

    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < j; i++) {
            double share = dot(v + i * n, own, n);

            for (size_t k = 0; k < n; k++)
                own[k] -= share * v[i * n + k];
        }
    length = sqrt(dot(own, own, n));
    if (!(length > DEGENERATE * before))
        return false;
    for (size_t k = 0; k < n; k++)
        own[k] /= length;
    return true;
}

/* Q of the QR decomposition of a normal matrix, with a positive diagonal of R (Saxe et al. 2014,
 * arXiv 1312.6120): rows, or columns if there are fewer, are orthonormal. */
static int put_orthogonal(
    const plume_tensor *t, double gain, struct pl_rng *rng, void *data, struct pl_error *err)
{
    size_t rows = t->shape[0], columns = t->count / rows;
    size_t m = PL_MIN(rows, columns), n = PL_MAX(rows, columns);
    _cleanup_free_ double *v = calloc(m, n * sizeof(*v));

    if (!v)
        return pl_error_nomem(err);
    for (size_t j = 0; j < m; j++)
        do
            pl_rng_normals(rng, n, v + j * n);
        while (!orthonormalise(v, j, n));
    for (size_t i = 0; i < t->count; i++) {
        double x = gain * (rows < columns ? v[i] : v[i % columns * n + i / columns]);

        pl_initial_put(t, data, i, 1, &x);
    }
    return 0;
}

int pl_initial_values(const struct pl_initial *initial,
                      const plume_tensor *t,
                      struct pl_rng *rng,
                      void *data,
                      struct pl_error *err)
{
    double fan_in = (double)(t->rank > 1 ? t->count / t->shape[0] : t->count);
    double fan_out = t->rank > 1 ? (double)t->count / (double)t->shape[1] : fan_in;
    double gain = initial->a == 0 ? 1 : initial->a, xavier = gain * sqrt(2 / (fan_in + fan_out));

    switch (initial->kind) {
    case PLUME_INIT_FAN_IN:
        put_fan_in(t, sqrt(fan_in), rng, data);
        break;
    case PLUME_INIT_HE:
        put_normal(t, 0, sqrt(2 / fan_in), rng, data);
        break;
    case PLUME_INIT_NORMAL:
        put_normal(t, initial->a, initial->b, rng, data);
        break;
    case PLUME_INIT_UNIFORM:
        put_uniform(t, initial->a, initial->b, rng, data);
        break;
    case PLUME_INIT_XAVIER_UNIFORM:
        put_uniform(t, -sqrt(3) * xavier, sqrt(3) * xavier, rng, data);
        break;
    case PLUME_INIT_XAVIER_NORMAL:
        put_normal(t, 0, xavier, rng, data);
        break;
    case PLUME_INIT_ORTHOGONAL:
        return put_orthogonal(t, gain, rng, data, err);
    case PLUME_INIT_ZERO:
    case PLUME_INIT_ONE:
        put_constant(t, initial->kind == PLUME_INIT_ONE, data);
        break;
    }
    return 0;
}
