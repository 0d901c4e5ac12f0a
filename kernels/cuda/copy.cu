/* SPDX-License-Identifier: MIT */
/* Exact. Reads an element and writes one (reads it, too, where it adds), a thread each; neighbours
 * are along the last dimension. Bound by memory, and by the divisions that find an element's place,
 * one a dimension: neighbouring dimensions that are dense on both sides are taken as one first. */
#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

struct places {
    size_t count;
    unsigned rank;
    size_t shape[PL_COPY_RANK], from[PL_COPY_RANK], to[PL_COPY_RANK];
};

template <class T> struct plain {
    static __device__ void one(const T *src, size_t from, T *dst, size_t to)
    {
        dst[to] = src[from];
    }
};

template <class T> struct added {
    static __device__ void one(const T *src, size_t from, T *dst, size_t to)
    {
        put(dst, to, load(src, from), true);
    }
};

template <class T, class OP>
__global__ void __launch_bounds__(THREADS) copy_kernel(places p, const T *src, T *dst)
{
    size_t rest = (size_t)blockIdx.x * THREADS + threadIdx.x, from = 0, to = 0;

    if (rest >= p.count)
        return;
    for (unsigned d = p.rank; d-- > 0; rest /= p.shape[d]) {
        from += rest % p.shape[d] * p.from[d];
        to += rest % p.shape[d] * p.to[d];
    }
    OP::one(src, from, dst, to);
}

places places_of(const struct pl_copy_args *a)
{
    places p = {1, 0, {}, {}, {}};

    for (size_t d = 0; d < a->rank; d++) {
        unsigned last = p.rank - 1;

        p.count *= a->shape[d];
        if (a->shape[d] == 1)
            continue;
        if (p.rank && p.from[last] == a->shape[d] * a->src_stride[d] &&
            p.to[last] == a->shape[d] * a->dst_stride[d])
            p.shape[last] *= a->shape[d];
        else
            p.shape[last = p.rank++] = a->shape[d];
        p.from[last] = a->src_stride[d];
        p.to[last] = a->dst_stride[d];
    }
    return p;
}

template <class T, class OP> void run(const struct pl_copy_args *a)
{
    places p = places_of(a);

    if (p.count)
        PL_LAUNCH((copy_kernel<T, OP>), ceil_div(p.count, THREADS), THREADS, 0, p,
                  (const T *)a->src, (T *)a->dst);
}

} // namespace

template <class T> void copy(const struct pl_copy_args *a)
{
    if (a->add)
        run<T, added<T>>(a);
    else if (a->bytes == 1)
        run<uint8_t, plain<uint8_t>>(a);
    else if (a->bytes == 2)
        run<uint16_t, plain<uint16_t>>(a);
    else if (a->bytes == 4)
        run<uint32_t, plain<uint32_t>>(a);
    else
        run<uint64_t, plain<uint64_t>>(a);
}

PL_CUDA_DEFINE(copy, copy);

} // namespace pl_cuda
