/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

static double chunk_squares(const real *g, size_t n)
{
    double lane[PL_GRAD_STATS_LANES] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % PL_GRAD_STATS_LANES] += (double)g[i] * (double)g[i];
    for (size_t half = PL_GRAD_STATS_LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

void PL_REF(grad_stats)(const struct pl_grad_stats_args *a)
{
    size_t chunk = pl_grad_stats_chunk(a->n);
    real *grad = a->grad, scale = (real)a->scale;
    double squares = 0;
    bool finite = true;

    for (size_t i = 0; i < a->n; i++) {
        grad[i] = grad[i] * scale;
        finite = finite && isfinite(grad[i]);
    }
    for (size_t begin = 0; begin < a->n; begin += chunk)
        squares += chunk_squares(grad + begin, a->n - begin < chunk ? a->n - begin : chunk);
    *a->ret_squares = squares;
    if (a->total) {
        *a->total += squares;
        *a->ret_factor = pl_clip_to(a->limit, sqrt(*a->total));
    }
    *a->ret_finite = finite;
}
