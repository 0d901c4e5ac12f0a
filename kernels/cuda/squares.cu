/* SPDX-License-Identifier: MIT */
/* Exact. space_to_depth: a thread has half of a square, 2 neighbours of x, which it writes by 16
 * bytes where the two are that many; neighbouring threads write what is adjacent, and read two
 * rows. depth_to_space: a thread per element of x, of which there are few. Bound by memory; not
 * measured on a card yet. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/group.cuh"

namespace pl_cuda
{

#define THREADS 256
#define WIDE 4 /* channels that two elements have in 16 bytes of 16 bits */

namespace
{

struct squares {
    struct pl_squares_args a;
    divider by_columns, by_rows, by_channels, by_width, by_height;

    explicit squares(const struct pl_squares_args &given)
        : a(given), by_columns(a.columns), by_rows(a.rows), by_channels(a.channels),
          by_width(a.width), by_height(a.height)
    {
    }
};

/* TOGETHER: wide is WIDE, and the halves are aligned. */
template <class T, bool TOGETHER>
__global__ void __launch_bounds__(THREADS) space_to_depth_kernel(size_t count, squares s)
{
    const struct pl_squares_args &a = s.a;
    size_t half = (size_t)blockIdx.x * THREADS + threadIdx.x, i, j, n, row;
    const T *x = (const T *)a.src;
    T *y = (T *)a.dst + half * 2 * a.wide;
    bunch<T, 2 *WIDE> all = {};
    bool bad = false;
    auto finite = [&](T value) {
        bool ok = !a.bad || isfinite(widen_one(value));

        bad |= !ok;
        return ok ? value : T();
    };

    if (half >= count)
        return;
    n = s.by_rows(s.by_columns(half / 2, &j), &i);
    row = 2 * i + half % 2 - a.before_h; /* below 0 it wraps around, as a column */
    if (TOGETHER) {
        PL_UNROLL
        for (int k = 0; k < 2 * WIDE; k++) {
            size_t column = 2 * j + k / WIDE - a.before_w, c = k % WIDE;

            if (row < a.height && column < a.width && c < a.channels)
                all.of[k] = finite(x[((n * a.height + row) * a.width + column) * a.channels + c]);
        }
        *reinterpret_cast<bunch<T, 2 * WIDE> *>(y) = all;
    } else {
        for (size_t k = 0; k < 2 * a.wide; k++) {
            size_t column = 2 * j + k / a.wide - a.before_w, c = k % a.wide;
            bool there = row < a.height && column < a.width && c < a.channels;

            y[k] =
                there ? finite(x[((n * a.height + row) * a.width + column) * a.channels + c]) : T();
        }
    }
    if (bad)
        atomicAdd(a.bad, 1u);
}

template <class T>
__global__ void __launch_bounds__(THREADS) depth_to_space_kernel(size_t count, squares s)
{
    const struct pl_squares_args &a = s.a;
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, row, column, c, n;
    const T *y = (const T *)a.src;
    real<T> value = 0;

    if (at >= count)
        return;
    n = s.by_height(s.by_width(s.by_channels(at, &c), &column), &row);
    row += a.before_h;
    column += a.before_w;
    if (row / 2 < a.rows && column / 2 < a.columns) {
        size_t square = (n * a.rows + row / 2) * a.columns + column / 2;

        value = load(y, ((square * 2 + row % 2) * 2 + column % 2) * a.wide + c);
    }
    put((T *)a.dst, at, value, a.add);
}

} // namespace

template <class T> void space_to_depth(const struct pl_squares_args *a)
{
    size_t count = a->batch * a->rows * a->columns * 2;

    if (count == 0)
        return;
    if (a->wide == WIDE && sizeof(T) == 2 && packable(a->dst))
        PL_LAUNCH((space_to_depth_kernel<T, true>), ceil_div(count, THREADS), THREADS, 0, count,
                  squares(*a));
    else
        PL_LAUNCH((space_to_depth_kernel<T, false>), ceil_div(count, THREADS), THREADS, 0, count,
                  squares(*a));
}

template <class T> void depth_to_space(const struct pl_squares_args *a)
{
    size_t count = a->batch * a->height * a->width * a->channels;

    if (count)
        PL_LAUNCH((depth_to_space_kernel<T>), ceil_div(count, THREADS), THREADS, 0, count,
                  squares(*a));
}

PL_CUDA_DEFINE(space_to_depth, squares);
PL_CUDA_DEFINE(depth_to_space, squares);

} // namespace pl_cuda
