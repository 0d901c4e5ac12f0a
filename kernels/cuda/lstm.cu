/* SPDX-License-Identifier: MIT */
/* A thread has one element of the state: its four gates are in columns that neighbours read beside
 * each other. Forward reads 9 elements and writes 7, backward reads 9 and writes 9, with five
 * exponentials and one: bound by memory, or, as one time of a layer is small, by the launch; not
 * measured on a card yet. Any shape. */
#include "kernels/cuda/activation.cuh"

#define THREADS 256

namespace pl_cuda
{

namespace
{

template <class T> struct lstm_arrays {
    const T *x, *hx, *c_before, *dy, *dh, *dc;
    T *gates, *c, *h, *y, *dx, *dc_before;
};

template <class T> lstm_arrays<T> arrays_of(const struct pl_lstm_args *a)
{
    return {(const T *)a->x,  (const T *)a->hx, (const T *)a->c_before,
            (const T *)a->dy, (const T *)a->dh, (const T *)a->dc,
            (T *)a->gates,    (T *)a->c,        (T *)a->h,
            (T *)a->y,        (T *)a->dx,       (T *)a->dc_before};
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    lstm_forward_kernel(size_t n, size_t hidden, size_t x_row, size_t y_row, lstm_arrays<T> a)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, r, k;
    real<T> gate[4], c, h;

    if (at >= n)
        return;
    r = at / hidden;
    k = at % hidden;
    for (int part = 0; part < 4; part++) {
        size_t column = part * hidden + k, place = r * 4 * hidden + column;
        real<T> z = load(a.x, r * x_row + column) + load_or_zero(a.hx, place);

        gate[part] = part == 2 ? tanh(z) : sigmoid(z);
        store(a.gates, place, gate[part]);
    }
    c = gate[1] * load_or_zero(a.c_before, at) + gate[0] * gate[2];
    h = gate[3] * tanh(c);
    store(a.c, at, c);
    store(a.h, at, h);
    store(a.y, r * y_row + k, h);
}

template <class T>
__global__ void __launch_bounds__(THREADS) lstm_backward_kernel(size_t n,
                                                                size_t hidden,
                                                                size_t x_row,
                                                                size_t y_row,
                                                                bool dx_add,
                                                                bool dc_before_add,
                                                                lstm_arrays<T> a)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, r, k;
    real<T> i, f, g, o, t, dh, dc, dz[4];

    if (at >= n)
        return;
    r = at / hidden;
    k = at % hidden;
    a.gates += r * 4 * hidden + k;
    i = load(a.gates, 0);
    f = load(a.gates, hidden);
    g = load(a.gates, 2 * hidden);
    o = load(a.gates, 3 * hidden);
    t = tanh(load(a.c, at));
    dh = load(a.dy, r * y_row + k) + load_or_zero(a.dh, at);
    dc = dh * o * (1 - t * t) + load_or_zero(a.dc, at);
    dz[0] = dc * g * i * (1 - i);
    dz[1] = dc * load_or_zero(a.c_before, at) * f * (1 - f);
    dz[2] = dc * i * (1 - g * g);
    dz[3] = dh * t * o * (1 - o);
    put(a.dc_before, at, dc * f, dc_before_add);
    for (int part = 0; part < 4; part++) {
        store(a.gates, part * hidden, dz[part]);
        if (a.dx)
            put(a.dx, r * x_row + part * hidden + k, dz[part], dx_add);
    }
}

} // namespace

template <class T> void lstm_forward(const struct pl_lstm_args *a)
{
    size_t n = a->batch * a->hidden;

    PL_LAUNCH(lstm_forward_kernel<T>, ceil_div(n, THREADS), THREADS, 0, n, a->hidden, a->x_row,
              a->y_row, arrays_of<T>(a));
}

template <class T> void lstm_backward(const struct pl_lstm_args *a)
{
    size_t n = a->batch * a->hidden;

    PL_LAUNCH(lstm_backward_kernel<T>, ceil_div(n, THREADS), THREADS, 0, n, a->hidden, a->x_row,
              a->y_row, a->dx_add, a->dc_before_add, arrays_of<T>(a));
}

PL_CUDA_DEFINE(lstm_forward, lstm);
PL_CUDA_DEFINE(lstm_backward, lstm);

} // namespace pl_cuda
