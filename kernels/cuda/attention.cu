/* SPDX-License-Identifier: MIT */
/* Attention forward after FlashAttention-2 (Dao, arXiv 2307.08691): a block has 64 queries of a
 * head and goes through the keys 64 at a time, with a running maximum and sum of each query
 * (Milakov and Gimelshein, arXiv 1805.02867), so that no time x keys matrix is kept. Products use
 * f32 (f64) units, no tensor cores: libraries that do better have files of their own. 4 batch heads
 * time keys dim operations, half of them if causal; q, k and v are read once per tile of 64 queries
 * by 64 keys, mostly from the cache, and y is written once. 64 columns of y or, in f32, 128 are in
 * registers; for a larger dim further blocks recompute the scores for the other columns. Two
 * passes, maxima first, would compute the scores twice; in f32 35 % of an H100's rate forward
 * (causal, 1024 x 64), 22 % backward. Any shape up to 2^31 tiles of 64 queries; shared memory 34.8
 * KB, twice that in f64. */
#include "kernels/cuda/attention.cuh"

namespace pl_cuda
{

namespace
{

/* A reduction over the 16 threads that share the rows. */
template <class R> __device__ __forceinline__ R rows_max(R x)
{
    for (int with = 8; with > 0; with /= 2) {
        R other = __shfl_xor_sync(0xffffffff, x, with);

        x = other > x || other != other ? other : x;
    }
    return x;
}

template <class R> __device__ __forceinline__ R rows_sum(R x)
{
    for (int with = 8; with > 0; with /= 2)
        x += __shfl_xor_sync(0xffffffff, x, with);
    return x;
}

/* Of the thread's queries; equal in the 16 threads of a row. */
template <class R> struct running {
    R max[4], sum[4];
};

/* s = scores, then exponentials in shared memory as [keys][queries]; ret_by = the factor of the
 * earlier sums. */
template <class R>
__device__ __forceinline__ void exponentials(const struct pl_attention_args &a,
                                             size_t t0,
                                             size_t k0,
                                             R s[4][4],
                                             running<R> *run,
                                             R *to,
                                             R ret_by[4])
{
    PL_UNROLL
    for (unsigned i = 0; i < 4; i++) {
        R max = run->max[i], sum = 0;

        PL_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            bool seen = att_sees(a, t0 + 4 * att_y() + i, k0 + 4 * att_x() + j);

            s[i][j] = seen ? att_times(s[i][j], (R)a.scale) : (R)-INFINITY;
            max = s[i][j] > max || s[i][j] != s[i][j] ? s[i][j] : max;
        }
        max = rows_max(max);
        PL_UNROLL
        for (unsigned j = 0; j < 4; j++) {
            s[i][j] = exp(s[i][j] - max);
            sum += s[i][j];
        }
        ret_by[i] = exp(run->max[i] - max);
        run->sum[i] = run->sum[i] * ret_by[i] + rows_sum(sum);
        run->max[i] = max;
    }
    att_keep<true>(to, s);
}

template <class T, int SLICES>
__global__ void __launch_bounds__(PL_ATT_THREADS)
    attention_forward_kernel(struct pl_attention_args a, size_t tiles)
{
    typedef real<T> R;
    PL_SHARED_DYNAMIC(att_shared<R>, sm);
    size_t t0 = (tiles - 1 - blockIdx.x % tiles) * PL_ATT_TILE; /* tiles with the most keys first */
    size_t head = blockIdx.x / tiles % a.heads, batch = blockIdx.x / tiles / a.heads;
    size_t d0 = (size_t)blockIdx.y * SLICES * PL_ATT_TILE, end = a.keys;
    att_rows<const T> q = att_head<const T>(a.q, a.q_at, batch, head, a.time, a.dim);
    att_rows<const T> k = att_head<const T>(a.k, a.k_at, batch, head, a.keys, a.dim);
    att_rows<const T> v = att_head<const T>(a.v, a.v_at, batch, head, a.keys, a.dim);
    att_rows<T> y = att_head<T>(a.y, a.y_at, batch, head, a.time, a.dim);
    R sum[SLICES][4][4] = {}, by[4];
    running<R> run;

    for (unsigned i = 0; i < 4; i++) {
        run.max[i] = (R)-INFINITY;
        run.sum[i] = 0;
    }
    if (a.causal && t0 + PL_ATT_TILE < end)
        end = t0 + PL_ATT_TILE;
    for (size_t k0 = 0; k0 < end; k0 += PL_ATT_TILE) {
        R s[4][4];

        att_dots(sm, q, t0, k, k0, s);
        exponentials(a, t0, k0, s, &run, sm->scores, by);
        PL_UNROLL
        for (unsigned i = 0; i < SLICES * 16; i++)
            sum[i / 16][i / 4 % 4][i % 4] *= by[i / 4 % 4];
        att_weigh<SLICES>(sm, v, k0, d0, sum);
    }
    for (unsigned i = 0; i < 4; i++)
        by[i] = run.sum[i] == 0 ? 0 : 1 / run.sum[i]; /* without keys y is 0 */
    att_write<SLICES>(y, t0, d0, by, sum, false);
    for (unsigned i = 0; i < 4; i++) {
        size_t t = t0 + 4 * att_y() + i;

        if (blockIdx.y == 0 && att_x() == 0 && t < a.time)
            ((R *)a.lse)[(batch * a.heads + head) * a.time + t] = run.max[i] + log(run.sum[i]);
    }
}

template <class T, int SLICES> void forward(const struct pl_attention_args *a)
{
    size_t tiles = ceil_div(a->time, PL_ATT_TILE), blocks = a->batch * a->heads * tiles;

    if (blocks && a->dim)
        PL_LAUNCH((attention_forward_kernel<T, SLICES>), grid_of(blocks, att_parts(a->dim, SLICES)),
                  PL_ATT_THREADS, sizeof(att_shared<real<T>>), *a, tiles);
}

} // namespace

template <class T> void attention_forward(const struct pl_attention_args *a)
{
    if constexpr (sizeof(real<T>) == sizeof(float)) /* f64 has no registers for more */
        if (a->dim > PL_ATT_TILE)
            return forward<T, 2>(a);
    forward<T, 1>(a);
}

PL_CUDA_DEFINE(attention_forward, attention);

} // namespace pl_cuda
