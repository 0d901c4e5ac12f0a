/* SPDX-License-Identifier: MIT */
/* Shared by layer norm's forward and backward: how a row is shared among threads, and which types
 * its arrays have.
 *
 * A team of threads has a row: a warp up to n = 1024, else a block of 256. A thread has V
 * neighbours at a time, 4 of them (16 bytes in f32) if n is a multiple of 8 and all arrays are
 * 16-byte aligned: so a warp's accesses are adjacent, and all types sum in the same order. It holds
 * up to H elements of each array in registers; what is left of a longer row is read again. */
#ifndef PL_KERNELS_CUDA_LAYERNORM_CUH
#define PL_KERNELS_CUDA_LAYERNORM_CUH

#include "kernels/cuda/group.cuh"
#include "kernels/cuda/warp.cuh"

namespace pl_cuda
{

#define PL_LAYERNORM_WARPS 4 /* per block, if a team is a warp */

namespace
{

/* The layout of a kernel for rows of computation type R. */
template <class R, int TEAM, int V, int H> struct layout {
    static const int block = TEAM == 32 ? 32 * PL_LAYERNORM_WARPS : TEAM, teams = block / TEAM;
    static const bool ahead = TEAM == 32 && V > 1; /* backward copies the next row */
    /* Backward: minimum of blocks per multiprocessor, and maximum of all blocks, whose sums are few
     * against the rows. An H100's 132 multiprocessors have all of them at once, or half of them. */
    static const int blocks = !ahead ? 1 : H <= 24 ? 3 : 2;
    static const size_t pieces = blocks == 3 ? 396 : 264;
    static const unsigned held = H;
    static const unsigned line = TEAM + (V == 4 ? 8 : 4); /* lanes and groups fill all banks */

    static __device__ __forceinline__ unsigned at()
    {
        return threadIdx.x % TEAM;
    }

    static __device__ __forceinline__ unsigned team()
    {
        return threadIdx.x / TEAM;
    }

    static __device__ __forceinline__ R sum(R x)
    {
        if (TEAM == 32)
            return warp_sum(x);
        return block_sum(x);
    }

    /* Calls f(i, k) for each V neighbours of the thread's elements, from i on. k is their first
     * place among the held ones, a constant of each call; `held` for all others. */
    template <class F> static __device__ __forceinline__ void each(size_t n, const F &f)
    {
        PL_UNROLL
        for (unsigned k = 0; k < held; k += V)
            if ((k / V * TEAM + at()) * V < n)
                f((size_t)(k / V * TEAM + at()) * V, k);
        if constexpr (!ahead) /* which holds all of a row */
            for (size_t i = ((size_t)held / V * TEAM + at()) * V; i < n; i += (size_t)TEAM * V)
                f(i, held);
    }
};

/* Several neighbours at a time need whole packs everywhere. */
bool wide_rows(const struct pl_layernorm_args *a)
{
    const void *all[] = {a->x, a->gamma, a->beta,   a->dy, a->a,
                         a->b, a->sum,   a->dx_too, a->y,  a->dx};
    bool ok = a->n % 8 == 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        ok &= packable(all[i]);
    return ok;
}

template <int TEAM, int V, int H> struct choice {
    static const int team = TEAM, v = V, h = H;
};

/* The elements that are held are as few as the row allows: the more blocks run at once. */
template <class X, class F> void with_layout(const struct pl_layernorm_args *a, const F &f)
{
    if constexpr (sizeof(real<X>) == 8) {
        f(choice<32, 1, 8>{}); /* more would spill */
    } else {
        if (!wide_rows(a))
            f(choice<32, 1, 32>{});
        else if (a->n <= 32 * 24)
            f(choice<32, 4, 24>{});
        else if (a->n <= 32 * 32)
            f(choice<32, 4, 32>{});
        else if (a->n <= 256 * 8)
            f(choice<256, 4, 8>{});
        else
            f(choice<256, 4, 32>{});
    }
}

/* Calls D::run<X, Y, G>(a) with the types of the arrays in a table. */
template <class D, class T> struct typed {
    static void run(const struct pl_layernorm_args *a)
    {
        D::template run<T, T, T>(a);
    }
};

template <class D, class H> void halves(const struct pl_layernorm_args *a)
{
    if (a->x_half)
        D::template run<H, H, float>(a);
    else
        D::template run<float, H, float>(a);
}

template <class D> struct typed<D, float> {
    static void run(const struct pl_layernorm_args *a)
    {
        if (!a->y_half)
            D::template run<float, float, float>(a);
        else if (a->half == PL_HALF_F16)
            halves<D, f16>(a);
        else
            halves<D, bf16>(a);
    }
};

} // namespace

} // namespace pl_cuda

#endif
