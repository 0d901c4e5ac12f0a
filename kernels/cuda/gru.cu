/* SPDX-License-Identifier: MIT */
/* As lstm.cu: a thread has one element of the state. Forward reads 7 elements and writes 6, the
 * bias comes from the cache; backward reads 7 and writes 7. Bound by memory, or, as one time of a
 * layer is small, by the launch; not measured on a card yet. Any shape. */
#include "kernels/cuda/activation.cuh"

#define THREADS 256

namespace pl_cuda
{

namespace
{

template <class T> struct gru_arrays {
    const T *x, *hx, *b, *h_before, *dy, *dh;
    T *gates, *kept, *h, *y, *dx, *dh_before;
};

template <class T> gru_arrays<T> arrays_of(const struct pl_gru_args *a)
{
    return {(const T *)a->x,  (const T *)a->hx, (const T *)a->b, (const T *)a->h_before,
            (const T *)a->dy, (const T *)a->dh, (T *)a->gates,   (T *)a->kept,
            (T *)a->h,        (T *)a->y,        (T *)a->dx,      (T *)a->dh_before};
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    gru_forward_kernel(size_t n, size_t hidden, size_t x_row, size_t y_row, gru_arrays<T> a)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, row, k;
    real<T> from_x[3], from_h[3], r, z, fresh, h;

    if (at >= n)
        return;
    row = at / hidden;
    k = at % hidden;
    for (int part = 0; part < 3; part++) {
        size_t column = part * hidden + k;

        from_x[part] = load(a.x, row * x_row + column);
        from_h[part] = load_or_zero(a.hx, row * 3 * hidden + column) + load_or_zero(a.b, column);
    }
    r = sigmoid(from_x[0] + from_h[0]);
    z = sigmoid(from_x[1] + from_h[1]);
    fresh = tanh(from_x[2] + r * from_h[2]);
    h = (1 - z) * fresh + z * load_or_zero(a.h_before, at);
    a.gates += row * 3 * hidden + k;
    store(a.gates, 0, r);
    store(a.gates, hidden, z);
    store(a.gates, 2 * hidden, fresh);
    store(a.kept, at, from_h[2]);
    store(a.h, at, h);
    store(a.y, row * y_row + k, h);
}

template <class T>
__global__ void __launch_bounds__(THREADS) gru_backward_kernel(size_t n,
                                                               size_t hidden,
                                                               size_t x_row,
                                                               size_t y_row,
                                                               bool dx_add,
                                                               bool dh_before_add,
                                                               gru_arrays<T> a)
{
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, row, k;
    real<T> r, z, fresh, d, dx[3];

    if (at >= n)
        return;
    row = at / hidden;
    k = at % hidden;
    a.gates += row * 3 * hidden + k;
    r = load(a.gates, 0);
    z = load(a.gates, hidden);
    fresh = load(a.gates, 2 * hidden);
    d = load(a.dy, row * y_row + k) + load_or_zero(a.dh, at);
    dx[2] = d * (1 - z) * (1 - fresh * fresh);
    dx[1] = d * (load_or_zero(a.h_before, at) - fresh) * z * (1 - z);
    dx[0] = dx[2] * load(a.kept, at) * r * (1 - r);
    put(a.dh_before, at, d * z, dh_before_add);
    for (int part = 0; part < 3; part++) {
        store(a.gates, part * hidden, part == 2 ? dx[2] * r : dx[part]);
        if (a.dx)
            put(a.dx, row * x_row + part * hidden + k, dx[part], dx_add);
    }
}

} // namespace

template <class T> void gru_forward(const struct pl_gru_args *a)
{
    size_t n = a->batch * a->hidden;

    PL_LAUNCH(gru_forward_kernel<T>, ceil_div(n, THREADS), THREADS, 0, n, a->hidden, a->x_row,
              a->y_row, arrays_of<T>(a));
}

template <class T> void gru_backward(const struct pl_gru_args *a)
{
    size_t n = a->batch * a->hidden;

    PL_LAUNCH(gru_backward_kernel<T>, ceil_div(n, THREADS), THREADS, 0, n, a->hidden, a->x_row,
              a->y_row, a->dx_add, a->dh_before_add, arrays_of<T>(a));
}

PL_CUDA_DEFINE(gru_forward, gru);
PL_CUDA_DEFINE(gru_backward, gru);

} // namespace pl_cuda
