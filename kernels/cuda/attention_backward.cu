/* SPDX-License-Identifier: MIT */
/* Attention backward after FlashAttention-2 (Dao, arXiv 2307.08691): the probabilities p of a tile
 * are recomputed from each query's logarithm of its sum. With dp = dy v^T and mean = dy y per
 * query, ds = p (dp - mean), dv = p^T dy, dk = scale ds^T q, dq = scale ds k. Unlike there, one
 * kernel has blocks of keys for dk and dv and another has blocks of queries for dq, so that no two
 * blocks add to one number: no atomics, and the same bits each time, for 14 instead of 10 batch
 * heads time keys dim operations (half of them if causal). Each tile's arrays are read again for
 * each tile that it is combined with, mostly from the cache. Products, dim and shared memory as in
 * attention.cu; the scratch is one number per query. One kernel with atomics on dq, or with a dq
 * per block of keys, was rejected for the sake of equal bits and less memory; not measured on a
 * card yet. Limits as there. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

namespace
{

#define WARPS 4 /* warps per block of the kernel for means */

template <class T>
__global__ void __launch_bounds__(32 * WARPS)
    attention_mean_kernel(struct pl_attention_args a, real<T> *mean)
{
    size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, t = row % a.time;
    size_t head = row / a.time % a.heads, batch = row / a.time / a.heads;
    real<T> sum = 0;

    if (batch >= a.batch)
        return;
    att_rows<const T> y = att_head<const T>(a.y, a.y_at, batch, head, a.time, a.dim);
    att_rows<const T> dy = att_head<const T>(a.dy, a.dy_at, batch, head, a.time, a.dim);
    for (size_t d = threadIdx.x % 32; d < a.dim; d += 32)
        sum += load(y.p, t * y.stride + d) * load(dy.p, t * dy.stride + d);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        mean[row] = sum;
}

/* One head's inputs. */
template <class T> struct head_in {
    att_rows<const T> q, k, v, dy;
    const real<T> *lse, *mean;

    __device__ __forceinline__ head_in(const struct pl_attention_args &a,
                                       size_t number,
                                       const real<T> *all_means)
    {
        size_t batch = number / a.heads, head = number % a.heads;

        q = att_head<const T>(a.q, a.q_at, batch, head, a.time, a.dim);
        k = att_head<const T>(a.k, a.k_at, batch, head, a.keys, a.dim);
        v = att_head<const T>(a.v, a.v_at, batch, head, a.keys, a.dim);
        dy = att_head<const T>(a.dy, a.dy_at, batch, head, a.time, a.dim);
        lse = (const real<T> *)a.lse + number * a.time;
        mean = all_means + number * a.time;
    }
};

/* s = scores, then probabilities: clamped to 1, against rounding. */
template <class R>
__device__ __forceinline__ void
probabilities(const struct pl_attention_args &a, const R *lse, size_t t0, size_t k0, R s[4][4])
{
    PL_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        size_t t = t0 + 4 * att_y() + i;
        R of_query = t < a.time ? lse[t] : 0;

        PL_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            R x = att_times(s[i][j], (R)a.scale) - of_query;
            bool seen = t < a.time && att_sees(a, t, k0 + 4 * att_x() + j);

            s[i][j] = seen ? exp(x > 0 ? 0 : x) : 0;
        }
    }
}

/* dp = the probability's gradient, then the score's. */
template <class R>
__device__ __forceinline__ void differences(
    const struct pl_attention_args &a, const R *mean, size_t t0, const R p[4][4], R dp[4][4])
{
    PL_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        size_t t = t0 + 4 * att_y() + i;
        R of_query = t < a.time ? mean[t] : 0;

        PL_UNROLL
        for (unsigned j = 0; j < 4; j++)
            dp[i][j] = p[i][j] * (dp[i][j] - of_query);
    }
}

template <class T, int SLICES>
__global__ void __launch_bounds__(PL_ATT_THREADS)
    attention_keys_kernel(struct pl_attention_args a, size_t tiles, const real<T> *means)
{
    typedef real<T> R;
    PL_SHARED_DYNAMIC(att_shared<R>, sm);
    size_t k0 = blockIdx.x % tiles * PL_ATT_TILE, number = blockIdx.x / tiles;
    size_t d0 = (size_t)blockIdx.y * SLICES * PL_ATT_TILE;
    size_t batch = number / a.heads, head = number % a.heads;
    head_in<T> in(a, number, means);
    R dk[SLICES][4][4] = {}, dv[SLICES][4][4] = {}, by[4] = {1, 1, 1, 1};

    for (size_t t0 = a.causal ? k0 : 0; t0 < a.time; t0 += PL_ATT_TILE) {
        R p[4][4], ds[4][4];

        att_dots(sm, in.q, t0, in.k, k0, p);
        probabilities(a, in.lse, t0, k0, p);
        if (a.dv) {
            att_keep<false>(sm->scores, p);
            att_weigh<SLICES>(sm, in.dy, t0, d0, dv);
        }
        if (a.dk) {
            att_dots(sm, in.dy, t0, in.v, k0, ds);
            differences(a, in.mean, t0, p, ds);
            att_keep<false>(sm->scores, ds);
            att_weigh<SLICES>(sm, in.q, t0, d0, dk);
        }
    }
    if (a.dv)
        att_write<SLICES>(att_head<T>(a.dv, a.dv_at, batch, head, a.keys, a.dim), k0, d0, by, dv,
                          a.dv_add);
    for (unsigned i = 0; i < 4; i++)
        by[i] = (R)a.scale;
    if (a.dk)
        att_write<SLICES>(att_head<T>(a.dk, a.dk_at, batch, head, a.keys, a.dim), k0, d0, by, dk,
                          a.dk_add);
}

template <class T, int SLICES>
__global__ void __launch_bounds__(PL_ATT_THREADS)
    attention_queries_kernel(struct pl_attention_args a, size_t tiles, const real<T> *means)
{
    typedef real<T> R;
    PL_SHARED_DYNAMIC(att_shared<R>, sm);
    size_t t0 = (tiles - 1 - blockIdx.x % tiles) * PL_ATT_TILE; /* tiles with the most keys first */
    size_t number = blockIdx.x / tiles, end = a.keys;
    size_t d0 = (size_t)blockIdx.y * SLICES * PL_ATT_TILE;
    size_t batch = number / a.heads, head = number % a.heads;
    head_in<T> in(a, number, means);
    R dq[SLICES][4][4] = {}, by[4];

    if (a.causal && t0 + PL_ATT_TILE < end)
        end = t0 + PL_ATT_TILE;
    for (size_t k0 = 0; k0 < end; k0 += PL_ATT_TILE) {
        R p[4][4], ds[4][4];

        att_dots(sm, in.q, t0, in.k, k0, p);
        probabilities(a, in.lse, t0, k0, p);
        att_dots(sm, in.dy, t0, in.v, k0, ds);
        differences(a, in.mean, t0, p, ds);
        att_keep<true>(sm->scores, ds);
        att_weigh<SLICES>(sm, in.k, k0, d0, dq);
    }
    for (unsigned i = 0; i < 4; i++)
        by[i] = (R)a.scale;
    att_write<SLICES>(att_head<T>(a.dq, a.dq_at, batch, head, a.time, a.dim), t0, d0, by, dq,
                      a.dq_add);
}

template <class T, int SLICES>
void backward(const struct pl_attention_args *a, const real<T> *means)
{
    size_t heads = a->batch * a->heads, parts = att_parts(a->dim, SLICES);
    size_t of_keys = ceil_div(a->keys, PL_ATT_TILE), of_queries = ceil_div(a->time, PL_ATT_TILE);
    size_t bytes = sizeof(att_shared<real<T>>);

    if ((a->dk || a->dv) && of_keys)
        PL_LAUNCH((attention_keys_kernel<T, SLICES>), grid_of(heads * of_keys, parts),
                  PL_ATT_THREADS, bytes, *a, of_keys, means);
    if (a->dq && of_queries)
        PL_LAUNCH((attention_queries_kernel<T, SLICES>), grid_of(heads * of_queries, parts),
                  PL_ATT_THREADS, bytes, *a, of_queries, means);
}

} // namespace

template <class T> void attention_backward(const struct pl_attention_args *a)
{
    size_t rows = a->batch * a->heads * a->time;
    real<T> *means = (real<T> *)scratch((rows + 1) * sizeof(real<T>));

    if (!means || a->batch * a->heads == 0 || a->dim == 0)
        return;
    if (rows)
        PL_LAUNCH((attention_mean_kernel<T>), ceil_div(rows, WARPS), 32 * WARPS, 0, *a, means);
    if constexpr (sizeof(real<T>) == sizeof(float)) /* f64 has no registers for more */
        if (a->dim > PL_ATT_TILE)
            return backward<T, 2>(a, means);
    backward<T, 1>(a, means);
}

PL_CUDA_DEFINE(attention_backward, attention);

} // namespace pl_cuda
