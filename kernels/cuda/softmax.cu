/* SPDX-License-Identifier: MIT */
/* Forward reads x once and writes y, backward reads y and dy and writes dx (with `add` also reads
 * it); rows past 8192 elements are read again from the cache (rows.cuh). Three passes, maximum, sum
 * and quotient, instead of the running maximum of Milakov and Gimelshein (arXiv 1805.02867): the
 * row is in registers, and each exponential is of the final difference. 4 to 5 operations and two
 * exponentials per element. Any shape. Bound by memory; 1.1 of 3.0 TB/s on an H100 (1024 columns)
 * before rows were read by 16 bytes, not measured since. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

namespace
{

template <class T, int TEAM, int PER>
__global__ void __launch_bounds__(row_team<TEAM>::block)
    softmax_forward_kernel(size_t rows, size_t n, bool log_of, const T *x, T *y)
{
    size_t r = row_team<TEAM>::row();
    real<T> max = (real<T>)-INFINITY, sum = 0;

    if (r >= rows)
        return;
    row_of<T, TEAM, PER> row(x + r * n, n);
    y += r * n;
    row_each<TEAM, PER>(n, [&](size_t i, unsigned k) { max = max_of::both(max, row(i, k)); });
    max = row_team<TEAM>::max(max);
    row_each<TEAM, PER>(n, [&](size_t i, unsigned k) { sum += exp(row(i, k) - max); });
    sum = row_team<TEAM>::sum(sum);
    if (log_of) {
        sum = log(sum);
        row_put<TEAM, PER>(n, y, false,
                           [&](size_t i, unsigned k) { return row(i, k) - max - sum; });
    } else {
        sum = 1 / sum;
        row_put<TEAM, PER>(n, y, false,
                           [&](size_t i, unsigned k) { return exp(row(i, k) - max) * sum; });
    }
}

template <class T, int TEAM, int PER>
__global__ void __launch_bounds__(row_team<TEAM>::block) softmax_backward_kernel(
    size_t rows, size_t n, bool log_of, bool add, const T *y, const T *dy, T *dx)
{
    size_t r = row_team<TEAM>::row();
    real<T> sum = 0;

    if (r >= rows)
        return;
    row_of<T, TEAM, PER> of_y(y + r * n, n), of_dy(dy + r * n, n);
    dx += r * n;
    row_each<TEAM, PER>(
        n, [&](size_t i, unsigned k) { sum += log_of ? of_dy(i, k) : of_y(i, k) * of_dy(i, k); });
    sum = row_team<TEAM>::sum(sum);
    row_put<TEAM, PER>(n, dx, add, [&](size_t i, unsigned k) {
        real<T> d = of_dy(i, k), p = of_y(i, k);

        return log_of ? d - exp(p) * sum : p * (d - sum);
    });
}

} // namespace

template <class T> void softmax_forward(const struct pl_softmax_args *a)
{
    bool packed = a->n % pack<T>::size == 0 && packable(a->x) && packable(a->y);

    PL_ROWS_LAUNCH_PACKED(softmax_forward_kernel, T, packed, a->rows, a->n, a->rows, a->n, a->log,
                          (const T *)a->x, (T *)a->y);
}

template <class T> void softmax_backward(const struct pl_softmax_args *a)
{
    bool packed = a->n % pack<T>::size == 0 && packable(a->y) && packable(a->dy) && packable(a->dx);

    PL_ROWS_LAUNCH_PACKED(softmax_backward_kernel, T, packed, a->rows, a->n, a->rows, a->n, a->log,
                          a->dx_add, (const T *)a->y, (const T *)a->dy, (T *)a->dx);
}

PL_CUDA_DEFINE(softmax_forward, softmax);
PL_CUDA_DEFINE(softmax_backward, softmax);

} // namespace pl_cuda
