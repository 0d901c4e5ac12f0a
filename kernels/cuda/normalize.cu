/* SPDX-License-Identifier: MIT */
/* Forward reads x once and writes y, backward reads y and dy and writes dx (rows.cuh says which
 * rows are read again); 3 and 5 operations per element. Any shape. Bound by memory; nothing else
 * was tried, not measured on a card yet. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

namespace
{

template <class T, int TEAM, int PER>
__global__ void __launch_bounds__(row_team<TEAM>::block)
    normalize_forward_kernel(size_t rows, size_t n, real<T> eps, const T *x, T *y, real<T> *norm)
{
    size_t r = row_team<TEAM>::row();
    real<T> sum = 0, length, scale;

    if (r >= rows)
        return;
    row_of<T, TEAM, PER> row(x + r * n, n);
    y += r * n;
    row_each<TEAM, PER>(n, [&](size_t i, unsigned k) { sum += row(i, k) * row(i, k); });
    length = sqrt(row_team<TEAM>::sum(sum));
    scale = length <= eps ? eps : length;
    row_put<TEAM, PER>(n, y, false, [&](size_t i, unsigned k) { return row(i, k) / scale; });
    if (row_team<TEAM>::at() == 0)
        norm[r] = length;
}

template <class T, int TEAM, int PER>
__global__ void __launch_bounds__(row_team<TEAM>::block)
    normalize_backward_kernel(size_t rows,
                              size_t n,
                              real<T> eps,
                              bool add,
                              const T *y,
                              const T *dy,
                              const real<T> *norm,
                              T *dx)
{
    size_t r = row_team<TEAM>::row();
    real<T> sum = 0, length;

    if (r >= rows)
        return;
    row_of<T, TEAM, PER> of_y(y + r * n, n), of_dy(dy + r * n, n);
    dx += r * n;
    length = norm[r];
    row_each<TEAM, PER>(n, [&](size_t i, unsigned k) { sum += of_y(i, k) * of_dy(i, k); });
    sum = row_team<TEAM>::sum(sum);
    if (length <= eps) { /* y is x / eps here, for any length of x */
        sum = 0;
        length = eps;
    }
    row_put<TEAM, PER>(n, dx, add, [&](size_t i, unsigned k) {
        return (of_dy(i, k) - of_y(i, k) * sum) / length;
    });
}

} // namespace

template <class T> void normalize_forward(const struct pl_normalize_args *a)
{
    bool packed = a->n % pack<T>::size == 0 && packable(a->x) && packable(a->y);

    PL_ROWS_LAUNCH_PACKED(normalize_forward_kernel, T, packed, a->rows, a->n, a->rows, a->n,
                          (real<T>)a->eps, (const T *)a->x, (T *)a->y, (real<T> *)a->norm);
}

template <class T> void normalize_backward(const struct pl_normalize_args *a)
{
    bool packed = a->n % pack<T>::size == 0 && packable(a->y) && packable(a->dy) && packable(a->dx);

    PL_ROWS_LAUNCH_PACKED(normalize_backward_kernel, T, packed, a->rows, a->n, a->rows, a->n,
                          (real<T>)a->eps, a->dx_add, (const T *)a->y, (const T *)a->dy,
                          (const real<T> *)a->norm, (T *)a->dx);
}

PL_CUDA_DEFINE(normalize_forward, normalize);
PL_CUDA_DEFINE(normalize_backward, normalize);

} // namespace pl_cuda
