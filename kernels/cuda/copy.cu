/* SPDX-License-Identifier: MIT */
/* Exact. Reads an element and writes one (with `add` also reads it, and 1 operation); neighbours
 * are along the last dimension. Dimensions that are dense on both sides are merged first. If the
 * last one is dense on both sides and everything is aligned to 2, 4 .. 16 bytes, elements are
 * merged into larger ones, up to 16 bytes, so that a dense copy is one load and one store per
 * thread. An element's index takes a multiplication and a shift per dimension (divider.cuh), in 32
 * bits if both sides span fewer than 2^31 elements, else a 64-bit division. A transposition, dense
 * along one dimension on one side and along another one on the other side, goes by tiles of 32 x 32
 * in shared memory, a column more per line against conflicts of banks (Ruetsch and Micikevicius
 * 2009, "Optimizing matrix transpose in CUDA"). Up to 8 dimensions. Bound by memory; a
 * transposition reached 0.94 of 3.0 TB/s on an H100 (f32) without tiles, and is not measured with
 * them. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

#define THREADS 256
#define SIDE 32                /* of a tile */
#define LINES (THREADS / SIDE) /* threads per column of it */
#define LEAST 16               /* elements along both sides, for which tiles are worth it */

namespace
{

struct places {
    size_t count, rank;
    size_t shape[PL_COPY_RANK], from[PL_COPY_RANK], to[PL_COPY_RANK];
};

/* The same for a kernel: I is uint32_t if that is enough. */
template <class I> struct steps {
    size_t count;
    unsigned rank;
    divider by[PL_COPY_RANK];
    I from[PL_COPY_RANK], to[PL_COPY_RANK];

    explicit steps(const places &p) : count(p.count), rank((unsigned)p.rank)
    {
        for (size_t d = 0; d < PL_COPY_RANK; d++) {
            by[d] = divider(d < p.rank ? p.shape[d] : 1);
            from[d] = (I)(d < p.rank ? p.from[d] : 0);
            to[d] = (I)(d < p.rank ? p.to[d] : 0);
        }
    }
};

struct alignas(16) bytes16 {
    uint64_t of[2];
};

template <class T> struct plain {
    static __device__ __forceinline__ void one(const T *src, size_t from, T *dst, size_t to)
    {
        write(dst, to, src[from]);
    }

    static __device__ __forceinline__ void write(T *dst, size_t to, T x)
    {
        dst[to] = x;
    }
};

template <class T> struct added {
    static __device__ __forceinline__ void one(const T *src, size_t from, T *dst, size_t to)
    {
        write(dst, to, src[from]);
    }

    static __device__ __forceinline__ void write(T *dst, size_t to, T x)
    {
        put(dst, to, widen_one(x), true);
    }
};

template <class T> struct added<pack<T>> {
    static __device__ __forceinline__ void
    one(const pack<T> *src, size_t from, pack<T> *dst, size_t to)
    {
        pack<T> x = src[from], sum = dst[to];

        PL_UNROLL
        for (size_t k = 0; k < pack<T>::size; k++)
            put(sum.of, k, widen_one(x.of[k]), true);
        dst[to] = sum;
    }
};

template <class T, class OP, class I>
__global__ void __launch_bounds__(THREADS) copy_kernel(steps<I> p, const T *src, T *dst)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, at;
    I from = 0, to = 0;

    if (i >= p.count)
        return;
    PL_UNROLL
    for (unsigned d = PL_COPY_RANK; d-- > 0;) {
        if (d >= p.rank)
            continue;
        i = p.by[d](i, &at);
        from += (I)at * p.from[d];
        to += (I)at * p.to[d];
    }
    OP::one(src, from, dst, to);
}

/* Dimension a is dense in src, dimension b in dst; rest: the other ones. */
template <class I> struct tiling {
    size_t n_a, n_b;
    I a_to, b_from;
    divider tiles_a, tiles_b;
    steps<I> rest;
};

/* Reads lines along a, and writes lines along b. */
template <class T, class OP, class I>
__global__ void __launch_bounds__(THREADS) copy_tiles_kernel(tiling<I> p, const T *src, T *dst)
{
    PL_SHARED(T, tile, [SIDE][SIDE + 1]);
    size_t i, tile_a, tile_b, at;
    I from = 0, to = 0;

    i = p.tiles_b(p.tiles_a(blockIdx.x, &tile_a), &tile_b);
    PL_UNROLL
    for (unsigned d = PL_COPY_RANK; d-- > 0;) {
        if (d >= p.rest.rank)
            continue;
        i = p.rest.by[d](i, &at);
        from += (I)at * p.rest.from[d];
        to += (I)at * p.rest.to[d];
    }
    PL_UNROLL
    for (unsigned line = threadIdx.y; line < SIDE; line += LINES) {
        size_t a = tile_a * SIDE + threadIdx.x, b = tile_b * SIDE + line;

        if (a < p.n_a && b < p.n_b)
            tile[line][threadIdx.x] = src[from + (I)a + (I)b * p.b_from];
    }
    __syncthreads();
    PL_UNROLL
    for (unsigned line = threadIdx.y; line < SIDE; line += LINES) {
        size_t a = tile_a * SIDE + line, b = tile_b * SIDE + threadIdx.x;

        if (a < p.n_a && b < p.n_b)
            OP::write(dst, to + (I)b + (I)a * p.a_to, tile[threadIdx.x][line]);
    }
}

places places_of(const struct pl_copy_args *a)
{
    places p = {1, 0, {}, {}, {}};

    for (size_t d = 0; d < a->rank; d++) {
        size_t last = p.rank - 1;

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

/* Merges `per` elements into one; false if they are not adjacent everywhere. */
bool widen_places(places *p, size_t per)
{
    size_t last = p->rank - 1;

    if (p->rank == 0 || p->from[last] != 1 || p->to[last] != 1 || p->shape[last] % per)
        return false;
    for (size_t d = 0; d < last; d++)
        if (p->from[d] % per || p->to[d] % per)
            return false;
    for (size_t d = 0; d < last; d++) {
        p->from[d] /= per;
        p->to[d] /= per;
    }
    p->shape[last] /= per;
    p->count /= per;
    return true;
}

bool is_small(const places &p)
{
    size_t from = 0, to = 0;

    for (size_t d = 0; d < p.rank; d++) {
        from += (p.shape[d] - 1) * p.from[d];
        to += (p.shape[d] - 1) * p.to[d];
    }
    return from >> 31 == 0 && to >> 31 == 0;
}

template <class T, class OP> void run(const struct pl_copy_args *a, const places &p)
{
    const T *src = (const T *)a->src;
    T *dst = (T *)a->dst;

    if (is_small(p))
        PL_LAUNCH((copy_kernel<T, OP, uint32_t>), ceil_div(p.count, THREADS), THREADS, 0,
                  steps<uint32_t>(p), src, dst);
    else
        PL_LAUNCH((copy_kernel<T, OP, size_t>), ceil_div(p.count, THREADS), THREADS, 0,
                  steps<size_t>(p), src, dst);
}

/* The dimensions of a transposition; false if it is none. */
bool find_sides(const places &p, size_t *ret_a, size_t *ret_b)
{
    size_t a = p.rank, b = p.rank;

    for (size_t d = 0; d < p.rank; d++) {
        if (p.shape[d] < LEAST)
            continue;
        a = p.from[d] == 1 ? d : a;
        b = p.to[d] == 1 ? d : b;
    }
    *ret_a = a;
    *ret_b = b;
    return a < p.rank && b < p.rank && a != b;
}

template <class T, class OP, class I>
void run_tiles(const struct pl_copy_args *args, const places &p, size_t a, size_t b)
{
    size_t across = ceil_div(p.shape[a], SIDE), down = ceil_div(p.shape[b], SIDE);
    places rest = {1, 0, {}, {}, {}};

    for (size_t d = 0; d < p.rank; d++) {
        if (d == a || d == b)
            continue;
        rest.count *= p.shape[d];
        rest.shape[rest.rank] = p.shape[d];
        rest.from[rest.rank] = p.from[d];
        rest.to[rest.rank++] = p.to[d];
    }
    PL_LAUNCH((copy_tiles_kernel<T, OP, I>), across * down * rest.count, dim3(SIDE, LINES), 0,
              tiling<I>{p.shape[a], p.shape[b], (I)p.to[a], (I)p.from[b], divider(across),
                        divider(down), steps<I>(rest)},
              (const T *)args->src, (T *)args->dst);
}

/* Elements that are not merged. */
template <class T, class OP> void run_any(const struct pl_copy_args *args, const places &p)
{
    size_t a, b;

    if (!find_sides(p, &a, &b))
        run<T, OP>(args, p);
    else if (is_small(p))
        run_tiles<T, OP, uint32_t>(args, p, a, b);
    else
        run_tiles<T, OP, size_t>(args, p, a, b);
}

} // namespace

template <class T> void copy(const struct pl_copy_args *a)
{
    places p = places_of(a);
    uintptr_t ends = (uintptr_t)a->src | (uintptr_t)a->dst;
    size_t bytes = a->bytes;

    if (p.count == 0)
        return;
    if (a->add) {
        if (ends % 16 == 0 && widen_places(&p, pack<T>::size))
            run<pack<T>, added<pack<T>>>(a, p);
        else
            run_any<T, added<T>>(a, p);
        return;
    }
    while (bytes < 16 && ends % (2 * bytes) == 0 && widen_places(&p, 2))
        bytes *= 2;
    switch (bytes) {
    case 1:
        return run_any<uint8_t, plain<uint8_t>>(a, p);
    case 2:
        return run_any<uint16_t, plain<uint16_t>>(a, p);
    case 4:
        return run_any<uint32_t, plain<uint32_t>>(a, p);
    case 8:
        return run_any<uint64_t, plain<uint64_t>>(a, p);
    default:
        return run<bytes16, plain<bytes16>>(a, p);
    }
}

PL_CUDA_DEFINE(copy, copy);

} // namespace pl_cuda
