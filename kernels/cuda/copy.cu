/* SPDX-License-Identifier: MIT */
/* Exact. Reads an element and writes one (with `add` also reads it, and 1 operation); neighbours
 * are along the last dimension. Dimensions that are dense on both sides are merged first. If the
 * last one is dense on both sides and everything is aligned to 2, 4 .. 16 bytes, elements are
 * merged into larger ones, up to 16 bytes, so that a dense copy is one load and one store per
 * thread. An element's index takes a multiplication and a shift per dimension (divider.cuh), in 32
 * bits if both sides span fewer than 2^31 elements, else a 64-bit division. A transposition, dense
 * along one dimension on one side and along another one on the other side, goes by tiles of 32 x 32
 * in shared memory, a column more per line against conflicts of banks (Ruetsch and Micikevicius
 * 2009, "Optimizing matrix transpose in CUDA"). If one of both has few elements (9 of a
 * convolution's weights, 3 of a picture's channels), and its lines follow one another, a block
 * moves up to 2048 elements as a whole on that side and by lines on the other, also through shared
 * memory; each of its threads reads 8 before it writes. Up to 8 dimensions. Bound by memory; a
 * transposition reached 0.94 of 3.0 TB/s on an H100 (f32) without tiles, and is not measured with
 * them. 35 thin ones of ResNet-18 (bf16), element by element, took 366 us for 0.1 GB, which take
 * 33; by themselves they were not measured since. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/unroll.cuh"

namespace pl_cuda
{

#define THREADS 256
#define SIDE 32                /* of a tile */
#define LINES (THREADS / SIDE) /* threads per column of it */
#define LEAST 16               /* elements along both sides, for which tiles are worth it */
#define THIN 16                /* the most elements along one side for lines instead of tiles */
#define BLOCK 2048             /* the most elements of a block with such lines */
#define FEW 128                /* blocks, so that each processor has one */

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

    /* Of index i of them all. */
    __device__ __forceinline__ void find(size_t i, I *ret_from, I *ret_to) const
    {
        size_t at;

        *ret_from = *ret_to = 0;
        PL_UNROLL
        for (unsigned d = PL_COPY_RANK; d-- > 0;) {
            if (d >= rank)
                continue;
            i = by[d](i, &at);
            *ret_from += (I)at * from[d];
            *ret_to += (I)at * to[d];
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

    static __device__ __forceinline__ T before(const T *, size_t)
    {
        return T();
    }

    static __device__ __forceinline__ T after(T, T x)
    {
        return x;
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

    /* The same in two steps. */
    static __device__ __forceinline__ T before(const T *dst, size_t to)
    {
        return dst[to];
    }

    static __device__ __forceinline__ T after(T before, T x)
    {
        return narrow_one<T>(widen_one(before) + widen_one(x));
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
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    I from, to;

    if (i >= p.count)
        return;
    p.find(i, &from, &to);
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
    size_t tile_a, tile_b;
    I from, to;

    p.rest.find(p.tiles_b(p.tiles_a(blockIdx.x, &tile_a), &tile_b), &from, &to);
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

/* A thin dimension that is dense on one side, where a line of it follows the other, one for each
 * place of the wide dimension, which is dense on the other side. A block has `per` places of the
 * wide one, a power of 2, and all of the thin one. */
template <class I> struct thin_lines {
    unsigned thin, per, shift;
    unsigned by_thin; /* if thin is even: 2^16 / thin, rounded up; else 0 */
    size_t wide;
    I step; /* of the thin dimension on the other side */
    divider blocks;
    steps<I> rest;

    /* Element i of the side where the thin dimension is dense, which is moved as a whole, or of the
     * other one, along lines: its place there and in the tile. False if it is not among the n
     * places. In the tile a thin line has an odd number of elements, against conflicts of banks; i
     * is below BLOCK, so that the multiplication divides exactly. */
    template <bool WHOLE>
    __device__ __forceinline__ bool
    find(unsigned i, unsigned n, I *ret_there, unsigned *ret_in_tile) const
    {
        unsigned w = i & (per - 1), t = i >> shift;

        *ret_there = WHOLE ? (I)i : (I)w + (I)t * step;
        *ret_in_tile = WHOLE ? i + (i * by_thin >> 16) : w * (thin | 1) + t;
        return WHOLE ? i < n * thin : w < n && t < thin;
    }
};

/* IN_SRC: the thin dimension is dense in src, else in dst. Reads all its elements at once. */
template <class T, class OP, class I, bool IN_SRC>
__global__ void __launch_bounds__(THREADS) copy_thin_kernel(thin_lines<I> p, const T *src, T *dst)
{
    PL_SHARED_DYNAMIC(T, tile);
    T x[BLOCK / THREADS] = {}, before[BLOCK / THREADS] = {};
    unsigned n, in_tile;
    size_t first;
    I from, to, at;

    p.rest.find(p.blocks(blockIdx.x, &first), &from, &to);
    first *= p.per;
    n = p.wide - first < p.per ? (unsigned)(p.wide - first) : p.per;
    from += (I)first * (IN_SRC ? p.thin : 1);
    to += (I)first * (IN_SRC ? 1 : p.thin);
    PL_UNROLL
    for (unsigned k = 0; k < BLOCK / THREADS; k++)
        if (p.template find<IN_SRC>(threadIdx.x + k * THREADS, n, &at, &in_tile))
            x[k] = src[from + at];
    PL_UNROLL
    for (unsigned k = 0; k < BLOCK / THREADS; k++)
        if (p.template find<!IN_SRC>(threadIdx.x + k * THREADS, n, &at, &in_tile))
            before[k] = OP::before(dst, to + at);
    PL_UNROLL
    for (unsigned k = 0; k < BLOCK / THREADS; k++)
        if (p.template find<IN_SRC>(threadIdx.x + k * THREADS, n, &at, &in_tile))
            tile[in_tile] = x[k];
    __syncthreads();
    PL_UNROLL
    for (unsigned k = 0; k < BLOCK / THREADS; k++)
        if (p.template find<!IN_SRC>(threadIdx.x + k * THREADS, n, &at, &in_tile))
            dst[to + at] = OP::after(before[k], tile[in_tile]);
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

places without(const places &p, size_t a, size_t b)
{
    places rest = {1, 0, {}, {}, {}};

    for (size_t d = 0; d < p.rank; d++) {
        if (d == a || d == b)
            continue;
        rest.count *= p.shape[d];
        rest.shape[rest.rank] = p.shape[d];
        rest.from[rest.rank] = p.from[d];
        rest.to[rest.rank++] = p.to[d];
    }
    return rest;
}

/* The dimensions of a thin transposition whose thin one is dense on the side of strides
 * `dense`; false if it is none. */
bool find_thin(
    const places &p, const size_t *dense, const size_t *other, size_t *ret_t, size_t *ret_w)
{
    for (size_t t = 0; t < p.rank; t++)
        for (size_t w = 0; w < p.rank; w++)
            if (p.shape[t] > 1 && p.shape[t] <= THIN && p.shape[w] >= LEAST && dense[t] == 1 &&
                dense[w] == p.shape[t] && other[w] == 1) {
                *ret_t = t;
                *ret_w = w;
                return true;
            }
    return false;
}

template <class T, class OP, bool IN_SRC, class I>
void run_thin_by(const struct pl_copy_args *args, const places &p, size_t t, size_t w)
{
    places rest = without(p, t, w);
    unsigned thin = (unsigned)p.shape[t], shift = 4;
    size_t blocks;

    while (thin << (shift + 1) <= BLOCK && (size_t)1 << shift < p.shape[w])
        shift++;
    while (shift > 4 && ceil_div(p.shape[w], (size_t)1 << shift) * rest.count < FEW)
        shift--;
    blocks = ceil_div(p.shape[w], (size_t)1 << shift);
    PL_LAUNCH((copy_thin_kernel<T, OP, I, IN_SRC>), blocks * rest.count, THREADS,
              ((size_t)(thin | 1) << shift) * sizeof(T),
              thin_lines<I>{thin, 1u << shift, shift, thin % 2 ? 0 : (65536 + thin - 1) / thin,
                            p.shape[w], (I)(IN_SRC ? p.to[t] : p.from[t]), divider(blocks),
                            steps<I>(rest)},
              (const T *)args->src, (T *)args->dst);
}

template <class T, class OP, bool IN_SRC>
void run_thin(const struct pl_copy_args *args, const places &p, size_t t, size_t w)
{
    if (is_small(p))
        run_thin_by<T, OP, IN_SRC, uint32_t>(args, p, t, w);
    else
        run_thin_by<T, OP, IN_SRC, size_t>(args, p, t, w);
}

template <class T, class OP, class I>
void run_tiles(const struct pl_copy_args *args, const places &p, size_t a, size_t b)
{
    size_t across = ceil_div(p.shape[a], SIDE), down = ceil_div(p.shape[b], SIDE);
    places rest = without(p, a, b);

    PL_LAUNCH((copy_tiles_kernel<T, OP, I>), across * down * rest.count, dim3(SIDE, LINES), 0,
              tiling<I>{p.shape[a], p.shape[b], (I)p.to[a], (I)p.from[b], divider(across),
                        divider(down), steps<I>(rest)},
              (const T *)args->src, (T *)args->dst);
}

/* Elements that are not merged. */
template <class T, class OP> void run_any(const struct pl_copy_args *args, const places &p)
{
    size_t a, b;
    bool in_src = find_thin(p, p.from, p.to, &a, &b);

    if (in_src || find_thin(p, p.to, p.from, &a, &b))
        return in_src ? run_thin<T, OP, true>(args, p, a, b)
                      : run_thin<T, OP, false>(args, p, a, b);
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
