/* SPDX-License-Identifier: MIT */
/* One loop per row, some columns at a time, so that what is not there is a row of zeros and no loop
 * has a branch. The rows of one time are far apart in x, y and dx: each is asked for while the one
 * before it is computed. */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#define GRAIN 2048
#define COLUMNS 256
#define LINE 16 /* floats of a cache line */

static const float zeros[COLUMNS];

static const float *from(const void *p, size_t at)
{
    return p ? (const float *)p + at : zeros;
}

/* Asks for n floats of 4 gates at `at` of a row. */
PL_INLINE void ask_for_gates(const void *p, size_t at, size_t hidden, size_t n)
{
    for (size_t part = 0; part < 4; part++)
        for (size_t k = 0; k < n; k += LINE)
            __builtin_prefetch((const float *)p + at + part * hidden + k);
}

static void forward_row(const struct pl_lstm_args *a, size_t row, size_t at, size_t count)
{
    size_t n = a->hidden, place = row * 4 * n + at;
    const float *x = (const float *)a->x + row * a->x_row + at;
    const float *hi = from(a->hx, place), *hf = from(a->hx, place + n);
    const float *hg = from(a->hx, place + 2 * n), *ho = from(a->hx, place + 3 * n);
    const float *before = from(a->c_before, row * n + at);
    float *gates = (float *)a->gates + place;
    float *c = (float *)a->c + row * n + at, *h = (float *)a->h + row * n + at;
    float *y = (float *)a->y + row * a->y_row + at;

    PL_INDEPENDENT
    for (size_t k = 0; k < count; k++) {
        float i = pl_sigmoid(x[k] + hi[k]), f = pl_sigmoid(x[n + k] + hf[k]);
        float g = pl_tanh(x[2 * n + k] + hg[k]), o = pl_sigmoid(x[3 * n + k] + ho[k]);
        float cell = f * before[k] + i * g;

        gates[k] = i;
        gates[n + k] = f;
        gates[2 * n + k] = g;
        gates[3 * n + k] = o;
        c[k] = cell;
        y[k] = h[k] = o * pl_tanh(cell);
    }
}

/* dz in place of the gates, and in dx, which may be the gates. */
PL_INLINE void backward_columns(const struct pl_lstm_args *a,
                                size_t row,
                                size_t at,
                                size_t count,
                                float *dx,
                                const bool dx_add,
                                const bool before_add)
{
    size_t n = a->hidden;
    float *gates = (float *)a->gates + row * 4 * n + at;
    float *dc_before = (float *)a->dc_before + row * n + at;
    const float *before = from(a->c_before, row * n + at);
    const float *c = (const float *)a->c + row * n + at;
    const float *dy = (const float *)a->dy + row * a->y_row + at;
    const float *dh = from(a->dh, row * n + at), *dc = from(a->dc, row * n + at);

    PL_INDEPENDENT
    for (size_t k = 0; k < count; k++) {
        float i = gates[k], f = gates[n + k], g = gates[2 * n + k], o = gates[3 * n + k];
        float t = pl_tanh(c[k]), d = dy[k] + dh[k], cell = d * o * (1 - t * t) + dc[k];
        float zi = cell * g * i * (1 - i), zf = cell * before[k] * f * (1 - f);
        float zg = cell * i * (1 - g * g), zo = d * t * o * (1 - o);

        gates[k] = zi;
        gates[n + k] = zf;
        gates[2 * n + k] = zg;
        gates[3 * n + k] = zo;
        dx[k] = dx_add ? dx[k] + zi : zi;
        dx[n + k] = dx_add ? dx[n + k] + zf : zf;
        dx[2 * n + k] = dx_add ? dx[2 * n + k] + zg : zg;
        dx[3 * n + k] = dx_add ? dx[3 * n + k] + zo : zo;
        dc_before[k] = before_add ? dc_before[k] + cell * f : cell * f;
    }
}

static void backward_row(const struct pl_lstm_args *a, size_t row, size_t at, size_t count)
{
    float *dx =
        a->dx ? (float *)a->dx + row * a->x_row + at : (float *)a->gates + row * 4 * a->hidden + at;
    bool add = a->dx && a->dx_add;

    if (add && a->dc_before_add)
        backward_columns(a, row, at, count, dx, true, true);
    else if (add)
        backward_columns(a, row, at, count, dx, true, false);
    else if (a->dc_before_add)
        backward_columns(a, row, at, count, dx, false, true);
    else
        backward_columns(a, row, at, count, dx, false, false);
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_lstm_args *a = ctx;

    for (size_t row = begin; row < end; row++)
        for (size_t at = 0; at < a->hidden; at += COLUMNS) {
            size_t count = PL_MIN(a->hidden - at, (size_t)COLUMNS);

            if (row + 1 < end)
                ask_for_gates(a->x, (row + 1) * a->x_row + at, a->hidden, count);
            forward_row(a, row, at, count);
        }
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_lstm_args *a = ctx;

    for (size_t row = begin; row < end; row++)
        for (size_t at = 0; at < a->hidden; at += COLUMNS) {
            size_t count = PL_MIN(a->hidden - at, (size_t)COLUMNS);

            if (row + 1 < end) {
                const float *dy = (const float *)a->dy + (row + 1) * a->y_row + at;

                for (size_t k = 0; k < count; k += LINE)
                    __builtin_prefetch(dy + k);
                if (a->dx)
                    ask_for_gates(a->dx, (row + 1) * a->x_row + at, a->hidden, count);
            }
            backward_row(a, row, at, count);
        }
}

void PL_CPU(lstm_forward)(const struct pl_lstm_args *a)
{
    pl_pool_parallel(a->batch, 1 + GRAIN / a->hidden, forward, (void *)a);
}

void PL_CPU(lstm_backward)(const struct pl_lstm_args *a)
{
    pl_pool_parallel(a->batch, 1 + GRAIN / a->hidden, backward, (void *)a);
}
