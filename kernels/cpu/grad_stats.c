/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"
#include "kernels/pool/pool.h"

#include <math.h>

struct stats {
    float *grad;
    float scale;
    size_t chunk;
    double squares[PL_GRAD_STATS_CHUNKS];
};

/* Squares of f32 are exact in f64, and their sum cannot overflow: it is finite if and only if all
 * elements are. */
static void body(void *ctx, size_t begin, size_t end)
{
    struct stats *s = ctx;
    double lane[PL_GRAD_STATS_LANES] = {0};
    float *grad = s->grad, scale = s->scale;
    size_t i = begin;

    if (scale != 1)
        for (; i + PL_GRAD_STATS_LANES <= end; i += PL_GRAD_STATS_LANES)
            for (size_t k = 0; k < PL_GRAD_STATS_LANES; k++) {
                float g = grad[i + k] * scale;

                grad[i + k] = g;
                lane[k] += (double)g * (double)g;
            }
    else
        for (; i + PL_GRAD_STATS_LANES <= end; i += PL_GRAD_STATS_LANES)
            for (size_t k = 0; k < PL_GRAD_STATS_LANES; k++)
                lane[k] += (double)grad[i + k] * (double)grad[i + k];
    for (size_t k = 0; i < end; i++, k++) {
        grad[i] = grad[i] * scale;
        lane[k] += (double)grad[i] * (double)grad[i];
    }
    for (size_t half = PL_GRAD_STATS_LANES / 2; half > 0; half /= 2)
        for (size_t k = 0; k < half; k++)
            lane[k] += lane[k + half];
    s->squares[begin / s->chunk] = lane[0];
}

void PL_CPU(grad_stats)(const struct pl_grad_stats_args *a)
{
    struct stats s = {
        .grad = a->grad, .scale = (float)a->scale, .chunk = pl_grad_stats_chunk(a->n)};
    double squares = 0;

    pl_pool_parallel(a->n, s.chunk, body, &s);
    for (size_t i = 0; i * s.chunk < a->n; i++)
        squares += s.squares[i];
    *a->ret_squares = squares;
    if (a->total) {
        *a->total += squares;
        *a->ret_factor = pl_clip_to(a->limit, sqrt(*a->total));
    }
    *a->ret_finite = isfinite(squares);
}
