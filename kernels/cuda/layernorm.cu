/* SPDX-License-Identifier: MIT */
/* Forward (Ba et al., arXiv 1607.06450) reads x once and writes y: mean first, then the variance of
 * the differences, with rows as in rows.cuh; 7 operations per element. Backward reads x and dy and
 * writes dx; 11 operations. For dgamma and dbeta x and dy are read once more, by columns: a block
 * has 32 columns of a piece of the rows, and each of its 8 lines of threads every eighth row; a
 * second kernel adds the pieces in order. The number of pieces depends on the shape only. Any
 * shape. Bound by memory; columns in the kernel of dx would need atomics or one sum per block; not
 * measured on a card yet. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

#define LINES 8
#define LEAST 128   /* minimum of rows per piece */
#define BLOCKS 1024 /* enough to fill any GPU */
#define THREADS 256

namespace
{

template <class T> struct forward {
    size_t rows, n;
    real<T> eps;
    const T *x, *gamma, *beta;
    T *y;
    real<T> *mean, *rstd;
};

template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) layernorm_forward_kernel(forward<T> f)
{
    size_t r = row_team<TEAM>::row();
    real<T> mean = 0, square = 0, rstd;
    T *y = f.y + r * f.n;

    if (r >= f.rows)
        return;
    row_of<T, TEAM> row(f.x + r * f.n, f.n);
    row_each<TEAM>(f.n, [&](size_t i, unsigned k) { mean += row(i, k); });
    mean = row_team<TEAM>::sum(mean) / (real<T>)f.n;
    row_each<TEAM>(f.n, [&](size_t i, unsigned k) {
        real<T> d = row(i, k) - mean;

        square += d * d;
    });
    rstd = 1 / sqrt(row_team<TEAM>::sum(square) / (real<T>)f.n + f.eps);
    row_each<TEAM>(f.n, [&](size_t i, unsigned k) {
        real<T> z = (row(i, k) - mean) * rstd;

        store(y, i, z * (f.gamma ? load(f.gamma, i) : 1) + (f.beta ? load(f.beta, i) : 0));
    });
    if (row_team<TEAM>::at() == 0) {
        f.mean[r] = mean;
        f.rstd[r] = rstd;
    }
}

template <class T> struct backward {
    size_t rows, n, pieces;
    bool dx_add;
    const T *x, *gamma, *dy;
    const real<T> *mean, *rstd;
    T *dx;
    real<T> *partial; /* [pieces][2][n]: of dgamma, of dbeta */
};

/* With z = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - z mean(g z)). */
template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) layernorm_dx_kernel(backward<T> b)
{
    size_t r = row_team<TEAM>::row();
    real<T> sum = 0, sum_z = 0, mean, rstd;
    T *dx = b.dx + r * b.n;

    if (r >= b.rows)
        return;
    row_of<T, TEAM> of_x(b.x + r * b.n, b.n), of_dy(b.dy + r * b.n, b.n);
    mean = b.mean[r];
    rstd = b.rstd[r];
    row_each<TEAM>(b.n, [&](size_t i, unsigned k) {
        real<T> g = of_dy(i, k) * (b.gamma ? load(b.gamma, i) : 1);

        sum += g;
        sum_z += g * ((of_x(i, k) - mean) * rstd);
    });
    sum = row_team<TEAM>::sum(sum) / (real<T>)b.n;
    sum_z = row_team<TEAM>::sum(sum_z) / (real<T>)b.n;
    row_each<TEAM>(b.n, [&](size_t i, unsigned k) {
        real<T> g = of_dy(i, k) * (b.gamma ? load(b.gamma, i) : 1);

        put(dx, i, rstd * (g - sum - (of_x(i, k) - mean) * rstd * sum_z), b.dx_add);
    });
}

template <class T>
__global__ void __launch_bounds__(32 * LINES) layernorm_columns_kernel(backward<T> b)
{
    PL_SHARED(real<T>, of_line, [2][LINES][32]);
    size_t tiles = (b.n + 31) / 32, piece = blockIdx.x / tiles;
    size_t column = blockIdx.x % tiles * 32 + threadIdx.x;
    size_t chunk = (b.rows + b.pieces - 1) / b.pieces, end = (piece + 1) * chunk;
    real<T> gamma = 0, beta = 0;

    if (end > b.rows)
        end = b.rows;
    if (column < b.n)
        for (size_t r = piece * chunk + threadIdx.y; r < end; r += LINES) {
            real<T> dy = load(b.dy, r * b.n + column);

            gamma += dy * ((load(b.x, r * b.n + column) - b.mean[r]) * b.rstd[r]);
            beta += dy;
        }
    of_line[0][threadIdx.y][threadIdx.x] = gamma;
    of_line[1][threadIdx.y][threadIdx.x] = beta;
    __syncthreads();
    if (threadIdx.y >= 2 || column >= b.n)
        return;
    gamma = 0;
    for (unsigned k = 0; k < LINES; k++)
        gamma += of_line[threadIdx.y][k][threadIdx.x];
    b.partial[(piece * 2 + threadIdx.y) * b.n + column] = gamma;
}

/* y of the grid: 0 = dgamma, 1 = dbeta. */
template <class T>
__global__ void __launch_bounds__(THREADS) layernorm_pieces_kernel(size_t n,
                                                                   size_t pieces,
                                                                   bool dgamma_add,
                                                                   bool dbeta_add,
                                                                   const real<T> *partial,
                                                                   T *dgamma,
                                                                   T *dbeta)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    T *to = blockIdx.y ? dbeta : dgamma;
    real<T> sum = 0;

    if (i >= n || !to)
        return;
    for (size_t k = 0; k < pieces; k++)
        sum += partial[(k * 2 + blockIdx.y) * n + i];
    put(to, i, sum, blockIdx.y ? dbeta_add : dgamma_add);
}

} // namespace

template <class T> void layernorm_forward(const struct pl_layernorm_args *a)
{
    forward<T> f = {a->rows,
                    a->n,
                    (real<T>)a->eps,
                    (const T *)a->x,
                    (const T *)a->gamma,
                    (const T *)a->beta,
                    (T *)a->y,
                    (real<T> *)a->mean,
                    (real<T> *)a->rstd};

    PL_ROWS_LAUNCH(layernorm_forward_kernel, T, a->rows, a->n, f);
}

template <class T> void layernorm_backward(const struct pl_layernorm_args *a)
{
    size_t tiles = ceil_div(a->n, 32), most = ceil_div(a->rows, LEAST);
    backward<T> b = {a->rows,
                     a->n,
                     1,
                     a->dx_add,
                     (const T *)a->x,
                     (const T *)a->gamma,
                     (const T *)a->dy,
                     (const real<T> *)a->mean,
                     (const real<T> *)a->rstd,
                     (T *)a->dx,
                     NULL};

    if (a->dx)
        PL_ROWS_LAUNCH(layernorm_dx_kernel, T, a->rows, a->n, b);
    if ((!a->dgamma && !a->dbeta) || a->n == 0)
        return;
    if (tiles < BLOCKS && most > 1) {
        size_t wanted = ceil_div(BLOCKS, tiles);

        b.pieces = wanted < most ? wanted : most;
    }
    b.partial = (real<T> *)scratch(b.pieces * 2 * a->n * sizeof(real<T>));
    if (!b.partial)
        return;
    PL_LAUNCH((layernorm_columns_kernel<T>), tiles * b.pieces, dim3(32, LINES), 0, b);
    PL_LAUNCH((layernorm_pieces_kernel<T>), dim3(ceil_div(a->n, THREADS), 2), THREADS, 0, a->n,
              b.pieces, a->dgamma_add, a->dbeta_add, b.partial, (T *)a->dgamma, (T *)a->dbeta);
}

PL_CUDA_DEFINE(layernorm_forward, layernorm);
PL_CUDA_DEFINE(layernorm_backward, layernorm);

} // namespace pl_cuda
