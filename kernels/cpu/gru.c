/* SPDX-License-Identifier: MIT */
/* As lstm.c: one loop per row, some columns at a time, so that what is not there is a row of zeros
 * and no loop has a branch. */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#define GRAIN 2048
#define COLUMNS 256

static const float zeros[COLUMNS];

static const float *from(const void *p, size_t at)
{
    return p ? (const float *)p + at : zeros;
}

static void forward_row(const struct pl_gru_args *a, size_t row, size_t at, size_t count)
{
    size_t hidden = a->hidden, place = row * 3 * hidden + at;
    const float *x = (const float *)a->x + row * a->x_row + at;
    const float *hr = from(a->hx, place), *hz = from(a->hx, place + hidden);
    const float *hn = from(a->hx, place + 2 * hidden);
    const float *br = from(a->b, at), *bz = from(a->b, hidden + at);
    const float *bn = from(a->b, 2 * hidden + at);
    const float *before = from(a->h_before, row * hidden + at);
    float *gates = (float *)a->gates + place, *kept = (float *)a->kept + row * hidden + at;
    float *h = (float *)a->h + row * hidden + at, *y = (float *)a->y + row * a->y_row + at;

    PL_INDEPENDENT
    for (size_t k = 0; k < count; k++) {
        float r = pl_sigmoid(x[k] + hr[k] + br[k]);
        float z = pl_sigmoid(x[hidden + k] + hz[k] + bz[k]), own = hn[k] + bn[k];
        float n = pl_tanh(x[2 * hidden + k] + r * own);

        gates[k] = r;
        gates[hidden + k] = z;
        gates[2 * hidden + k] = n;
        kept[k] = own;
        y[k] = h[k] = (1 - z) * n + z * before[k];
    }
}

enum dx_how { NO_DX, WRITE_DX, ADD_DX };

PL_INLINE void backward_columns(const struct pl_gru_args *a,
                                size_t row,
                                size_t at,
                                size_t count,
                                const enum dx_how how,
                                const bool before_add)
{
    size_t hidden = a->hidden;
    float *gates = (float *)a->gates + row * 3 * hidden + at;
    float *dx = how == NO_DX ? NULL : (float *)a->dx + row * a->x_row + at;
    float *dh_before = (float *)a->dh_before + row * hidden + at;
    const float *before = from(a->h_before, row * hidden + at);
    const float *kept = (const float *)a->kept + row * hidden + at;
    const float *dy = (const float *)a->dy + row * a->y_row + at;
    const float *dh = from(a->dh, row * hidden + at);

    PL_INDEPENDENT
    for (size_t k = 0; k < count; k++) {
        float r = gates[k], z = gates[hidden + k], n = gates[2 * hidden + k], d = dy[k] + dh[k];
        float dn = d * (1 - z) * (1 - n * n), dz = d * (before[k] - n) * z * (1 - z);
        float dr = dn * kept[k] * r * (1 - r);

        gates[k] = dr;
        gates[hidden + k] = dz;
        gates[2 * hidden + k] = dn * r;
        if (how != NO_DX) {
            dx[k] = how == ADD_DX ? dx[k] + dr : dr;
            dx[hidden + k] = how == ADD_DX ? dx[hidden + k] + dz : dz;
            dx[2 * hidden + k] = how == ADD_DX ? dx[2 * hidden + k] + dn : dn;
        }
        dh_before[k] = before_add ? dh_before[k] + d * z : d * z;
    }
}

static void backward_row(const struct pl_gru_args *a, size_t row, size_t at, size_t count)
{
    bool add = a->dh_before_add;

    if (a->dx && a->dx_add && add)
        backward_columns(a, row, at, count, ADD_DX, true);
    else if (a->dx && a->dx_add)
        backward_columns(a, row, at, count, ADD_DX, false);
    else if (a->dx && add)
        backward_columns(a, row, at, count, WRITE_DX, true);
    else if (a->dx)
        backward_columns(a, row, at, count, WRITE_DX, false);
    else if (add)
        backward_columns(a, row, at, count, NO_DX, true);
    else
        backward_columns(a, row, at, count, NO_DX, false);
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_gru_args *a = ctx;

    for (size_t row = begin; row < end; row++)
        for (size_t at = 0; at < a->hidden; at += COLUMNS)
            forward_row(a, row, at, PL_MIN(a->hidden - at, (size_t)COLUMNS));
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_gru_args *a = ctx;

    for (size_t row = begin; row < end; row++)
        for (size_t at = 0; at < a->hidden; at += COLUMNS)
            backward_row(a, row, at, PL_MIN(a->hidden - at, (size_t)COLUMNS));
}

void PL_CPU(gru_forward)(const struct pl_gru_args *a)
{
    pl_pool_parallel(a->batch, 1 + GRAIN / a->hidden, forward, (void *)a);
}

void PL_CPU(gru_backward)(const struct pl_gru_args *a)
{
    pl_pool_parallel(a->batch, 1 + GRAIN / a->hidden, backward, (void *)a);
}
