/* SPDX-License-Identifier: MIT */
/* The fallback without cublasLt: three products (gemm.cuh) of 2 rows in out operations each, with
 * the activation at the end of the first one (and that of the layer before at the end of dx, if it
 * is asked for); before the others its slope (each.cuh, 2 elements read and 1 written) and the
 * column sums of dz in f64, which also stand beside cublasLt's products (dz read once more, 16
 * bytes per thread; bound by memory. cublasLt's own for it, EPILOGUE_BGRADB, took 2.6 ms of an H100
 * in a step of GPT-2, at 2.1 of 3.0 TB/s; sums.cuh's had reached 0.7). Bytes of the products: see
 * gemm.cuh. Bound by the f32 units. Computing the slope where the products read dy would do it
 * twice; not measured on a card yet. Any shape up to 2^31 tiles of 64 x 64. */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/each.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

#define BIAS_LINES 8
#define BIAS_AHEAD 4    /* rows that a thread reads before it adds them */
#define BIAS_BLOCKS 528 /* 4 per multiprocessor of an H100 */
#define BIAS_PIECE_LINES 32

namespace
{

/* Relu's mask is computed from y: pre is not kept for it. */
template <class T> struct relu_passed {
    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return x[0] <= 0 ? 0 : x[1];
    }
};

template <class T> struct sloped {
    int act;

    __device__ real<T> operator()(size_t, const real<T> x[2]) const
    {
        return x[1] * activate_slope_by(act, x[0]);
    }
};

template <class T> struct same {
    __device__ real<T> operator()(size_t, const real<T> x[1]) const
    {
        return x[0];
    }
};

template <class T> void slopes(const struct pl_linear_args *a)
{
    const T *dy = (const T *)a->dy, *y = (const T *)a->y, *pre = (const T *)a->pre;
    size_t n = a->rows * a->out;
    T *dz = (T *)a->dz;

    if (pl_activation_needs_pre(a->act))
        each<T, 2>(n, {{pre, dy}, dz}, false, sloped<T>{a->act});
    else if (a->act == PL_ACT_RELU)
        each<T, 2>(n, {{y, dy}, dz}, false, relu_passed<T>{});
    else if (dz != dy)
        each<T, 1>(n, {{dy}, dz}, false, same<T>{});
}

/* y = act(z), z = sum + b. */
template <class T> struct activated_to {
    T *y, *pre;
    const T *b;
    size_t out;
    int act;

    __device__ __forceinline__ void operator()(size_t, size_t i, size_t j, real<T> z) const
    {
        if (b)
            z += load(b, j);
        if (pre)
            store(pre, i * out + j, z);
        store(y, i * out + j, activate_by(act, z));
    }
};

/* dx = sum x_act'(x_pre), rounded as by two kernels. */
template <class T> struct sloped_to {
    T *dx;
    const T *pre;
    size_t in;
    int act;

    __device__ __forceinline__ void operator()(size_t, size_t i, size_t j, real<T> sum) const
    {
        real<T> d = widen_one(narrow_one<T>(sum));

        store(dx, i * in + j, d * activate_slope_by(act, load(pre, i * in + j)));
    }
};

/* Column sums of dz. A block has 32 packs of columns and a piece of the rows; a thread adds up
 * BIAS_AHEAD rows in real<T>, and these sums in f64. */
template <class T>
__global__ void __launch_bounds__(32 * BIAS_LINES)
    bias_kernel(size_t rows, size_t out, size_t row, size_t pieces, const T *dz, double *partial)
{
    const unsigned per = pack<T>::size;
    PL_SHARED(double, of_line, [BIAS_LINES][32 * pack<T>::size]);
    size_t tiles = (out / per + 31) / 32, tile = blockIdx.x % tiles, piece = blockIdx.x / tiles;
    size_t column = (tile * 32 + threadIdx.x) * per, chunk = (rows + pieces - 1) / pieces;
    size_t end = (piece + 1) * chunk < rows ? (piece + 1) * chunk : rows;
    double sum[pack<T>::size] = {};
    pack<T> in[BIAS_AHEAD];

    for (size_t r = piece * chunk + threadIdx.y; r < end && column < out;
         r += BIAS_LINES * BIAS_AHEAD) {
        real<T> few[pack<T>::size] = {};

        PL_UNROLL
        for (unsigned j = 0; j < BIAS_AHEAD; j++)
            if (r + j * BIAS_LINES < end)
                in[j] = load_pack(dz, (r + j * BIAS_LINES) * row + column);
        PL_UNROLL
        for (unsigned j = 0; j < BIAS_AHEAD; j++) {
            PL_UNROLL
            for (unsigned k = 0; k < per; k++)
                few[k] += r + j * BIAS_LINES < end ? widen_one(in[j].of[k]) : 0;
        }
        PL_UNROLL
        for (unsigned k = 0; k < per; k++)
            sum[k] += few[k];
    }
    PL_UNROLL
    for (unsigned k = 0; k < per; k++)
        of_line[threadIdx.y][k * 32 + threadIdx.x] = sum[k];
    __syncthreads();
    for (unsigned i = threadIdx.y * 32 + threadIdx.x; i < 32 * per; i += 32 * BIAS_LINES) {
        double all = 0;

        column = (tile * 32 + i % 32) * per + i / 32;
        for (unsigned line = 0; line < BIAS_LINES; line++)
            all += of_line[line][i];
        if (column < out)
            partial[piece * out + column] = all;
    }
}

/* A block has 32 columns, a line of it each 32nd piece. */
template <class OUT>
__global__ void __launch_bounds__(32 * BIAS_PIECE_LINES)
    bias_pieces_kernel(size_t out, size_t pieces, const double *partial, OUT to)
{
    PL_SHARED(double, of_line, [BIAS_PIECE_LINES][32]);
    size_t i = (size_t)blockIdx.x * 32 + threadIdx.x;
    double sum = 0;

    if (i < out)
        for (size_t k = threadIdx.y; k < pieces; k += BIAS_PIECE_LINES)
            sum += partial[k * out + i];
    of_line[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || i >= out)
        return;
    for (unsigned k = 1; k < BIAS_PIECE_LINES; k++)
        sum += of_line[k][threadIdx.x];
    to(i, sum);
}

template <class T> struct column {
    const T *dz;
    size_t row;

    __device__ double operator()(size_t, size_t k, size_t i) const
    {
        return load(dz, k * row + i);
    }
};

template <class T> struct bias_to {
    T *db;
    bool add;

    __device__ void operator()(size_t i, double sum) const
    {
        store(db, i, (real<T>)(add ? load(db, i) + sum : sum));
    }
};

/* Rows are `row` elements apart. OUT: as of sums.cuh. */
template <class T, class OUT>
void bias_sums(size_t rows, size_t out, size_t row, const T *dz, const OUT &to)
{
    size_t tiles = ceil_div(out, 32 * pack<T>::size), pieces = ceil_div(BIAS_BLOCKS, tiles);
    size_t most = ceil_div(rows, BIAS_LINES * BIAS_AHEAD);
    double *partial;

    if (rows == 0 || out % pack<T>::size || row % pack<T>::size || !packable(dz)) {
        sums(1, rows, out, column<T>{dz, row}, to);
        return;
    }
    pieces = pieces < most ? pieces : most;
    partial = (double *)scratch(pieces * out * sizeof(*partial));
    if (!partial)
        return;
    PL_LAUNCH((bias_kernel<T>), tiles * pieces, dim3(32, BIAS_LINES), 0, rows, out, row, pieces, dz,
              partial);
    PL_LAUNCH((bias_pieces_kernel<OUT>), ceil_div(out, 32), dim3(32, BIAS_PIECE_LINES), 0, out,
              pieces, (const double *)partial, to);
}

template <class T>
void write_sums(size_t rows, size_t n, size_t row, const T *x, void *to, bool wide, bool add)
{
    if (wide)
        bias_sums(rows, n, row, x, bias_to<real<T>>{(real<T> *)to, add});
    else
        bias_sums(rows, n, row, x, bias_to<T>{(T *)to, add});
}

} // namespace

template <class T> void linear_forward(const struct pl_linear_args *a)
{
    strided<T> x = {(const T *)a->x, a->in, 1, 0}, w = {(const T *)a->w, a->in, 1, 0};
    T *pre = pl_activation_needs_pre(a->act) ? (T *)a->pre : NULL;

    gemm<T>({1, a->rows, a->out, a->in}, x, w,
            activated_to<T>{(T *)a->y, pre, (const T *)a->b, a->out, a->act});
}

template <class T> void linear_backward(const struct pl_linear_args *a)
{
    const T *x = (const T *)a->x, *w = (const T *)a->w, *dz = (const T *)a->dz;

    if (a->dy_row) {
        if (a->db)
            write_sums(a->rows, a->out, a->dy_row, (const T *)a->dy, a->db, a->db_wide, a->db_add);
        return;
    }
    slopes<T>(a);
    if (a->dx && a->x_pre)
        gemm<T>({1, a->rows, a->in, a->out}, strided<T>{dz, a->out, 1, 0},
                strided<T>{w, 1, a->in, 0},
                sloped_to<T>{(T *)a->dx, (const T *)a->x_pre, a->in, a->x_act});
    else if (a->dx)
        gemm<T>({1, a->rows, a->in, a->out}, strided<T>{dz, a->out, 1, 0},
                strided<T>{w, 1, a->in, 0}, gemm_to<T>{(T *)a->dx, a->in, 0, 1, a->dx_add});
    if (a->dw && a->dw_wide)
        gemm<T>({1, a->out, a->in, a->rows}, strided<T>{dz, 1, a->out, 0},
                strided<T>{x, 1, a->in, 0},
                gemm_to<real<T>>{(real<T> *)a->dw, a->in, 0, 1, a->dw_add});
    else if (a->dw)
        gemm<T>({1, a->out, a->in, a->rows}, strided<T>{dz, 1, a->out, 0},
                strided<T>{x, 1, a->in, 0}, gemm_to<T>{(T *)a->dw, a->in, 0, 1, a->dw_add});
    if (a->db)
        write_sums(a->rows, a->out, a->out, dz, a->db, a->db_wide, a->db_add);
    if (a->dx && a->dx_sums)
        write_sums(a->rows, a->in, a->in, (const T *)a->dx, a->dx_sums, true, a->dx_sums_add);
}

PL_CUDA_DEFINE(linear_forward, linear);
PL_CUDA_DEFINE(linear_backward, linear);

} // namespace pl_cuda
