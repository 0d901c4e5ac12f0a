/* SPDX-License-Identifier: MIT */
/* Bound by the exponentials: five per element forward, one backward. Some columns at a time, so
 * that what is not there is a row of zeros, and no loop has a branch. */
#include "kernels/cpu/vmath.h"
#include "kernels/pool/pool.h"

#define GRAIN 2048
#define COLUMNS 256

static const float zeros[COLUMNS];

static const float *from(const void *p, size_t at)
{
    return p ? (const float *)p + at : zeros;
}

/* Gate `part` of some columns, the first of which is at `at` of a gate's row. */
static void gate_of(const struct pl_lstm_args *a, size_t row, size_t at, size_t count, size_t part)
{
    size_t column = part * a->hidden + at, place = row * 4 * a->hidden + column;
    const float *restrict x = (const float *)a->x + row * a->x_row + column;
    const float *restrict hx = from(a->hx, place);
    float *restrict gate = (float *)a->gates + place;

    if (part == 2)
        for (size_t k = 0; k < count; k++)
            gate[k] = pl_tanh(x[k] + hx[k]);
    else
        for (size_t k = 0; k < count; k++)
            gate[k] = pl_sigmoid(x[k] + hx[k]);
}

static void state_of(const struct pl_lstm_args *a, size_t row, size_t at, size_t count)
{
    size_t n = a->hidden;
    const float *restrict gate = (const float *)a->gates + row * 4 * n + at;
    const float *restrict before = from(a->c_before, row * n + at);
    float *restrict c = (float *)a->c + row * n + at, *restrict h = (float *)a->h + row * n + at;
    float *restrict y = (float *)a->y + row * a->y_row + at;

    PL_INDEPENDENT
    for (size_t k = 0; k < count; k++) {
        c[k] = gate[n + k] * before[k] + gate[k] * gate[2 * n + k];
        y[k] = h[k] = gate[3 * n + k] * pl_tanh(c[k]);
    }
}

/* dz in place of the gates; before_grad gets the gradient of c_before. */
static void gates_back(
    const struct pl_lstm_args *a, size_t row, size_t at, size_t count, float *restrict before_grad)
{
    size_t n = a->hidden;
    float *gates = (float *)a->gates + row * 4 * n + at;
    float *restrict gi = gates, *restrict gf = gates + n;
    float *restrict gg = gates + 2 * n, *restrict go = gates + 3 * n;
    const float *restrict before = from(a->c_before, row * n + at);
    const float *restrict c = (const float *)a->c + row * n + at;
    const float *restrict dy = (const float *)a->dy + row * a->y_row + at;
    const float *restrict dh = from(a->dh, row * n + at), *restrict dc = from(a->dc, row * n + at);

    PL_INDEPENDENT
    for (size_t k = 0; k < count; k++) {
        float i = gi[k], f = gf[k], g = gg[k], o = go[k], t = pl_tanh(c[k]);
        float d = dy[k] + dh[k], cell = d * o * (1 - t * t) + dc[k];

        gi[k] = cell * g * i * (1 - i);
        gf[k] = cell * before[k] * f * (1 - f);
        gg[k] = cell * i * (1 - g * g);
        go[k] = d * t * o * (1 - o);
        before_grad[k] = cell * f;
    }
}

static void put(float *restrict to, const float *restrict from, size_t count, bool add)
{
    if (!add)
        memcpy(to, from, count * sizeof(*to));
    else
        for (size_t k = 0; k < count; k++)
            to[k] += from[k];
}

static void forward(void *ctx, size_t begin, size_t end)
{
    const struct pl_lstm_args *a = ctx;

    for (size_t row = begin; row < end; row++)
        for (size_t at = 0; at < a->hidden; at += COLUMNS) {
            size_t count = a->hidden - at < COLUMNS ? a->hidden - at : COLUMNS;

            for (size_t part = 0; part < 4; part++)
                gate_of(a, row, at, count, part);
            state_of(a, row, at, count);
        }
}

static void backward(void *ctx, size_t begin, size_t end)
{
    const struct pl_lstm_args *a = ctx;
    float before_grad[COLUMNS];
    size_t n = a->hidden;

    for (size_t row = begin; row < end; row++)
        for (size_t at = 0; at < n; at += COLUMNS) {
            size_t count = n - at < COLUMNS ? n - at : COLUMNS;

            gates_back(a, row, at, count, before_grad);
            put((float *)a->dc_before + row * n + at, before_grad, count, a->dc_before_add);
            for (size_t part = 0; part < 4 && a->dx; part++)
                put((float *)a->dx + row * a->x_row + part * n + at,
                    (const float *)a->gates + (row * 4 + part) * n + at, count, a->dx_add);
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
