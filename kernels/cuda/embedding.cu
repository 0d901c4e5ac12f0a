/* SPDX-License-Identifier: MIT */
/* Forward copies a row for each id, 16 bytes per thread if rows are 16-byte aligned. Backward sorts
 * the row numbers by id, stable (radix sort, 8 bits per pass: a histogram per tile, Satish et al.
 * 2009, "Designing efficient sorting algorithms for manycore GPUs"; positions in a tile by ballots,
 * 12 bytes per row and pass). Then a warp sums an id's rows of dy, with 8 loads in flight: ref's
 * order, no atomics on numbers, dy read and dtable written once, 1 addition per element. Before,
 * each warp went through all ids. If one id has most rows, few warps are busy. Fewer than 2^32
 * rows. Bound by memory: on an H100 2.6 of 3.0 TB/s forward, 1.0 to 1.5 backward, where the sums of
 * the tiles' counts waited for one number after the other; not measured since. */
#include "kernels/cuda/divider.cuh"
#include "kernels/cuda/unroll.cuh"

#include <math.h>

namespace pl_cuda
{

#define THREADS 256
#define WARPS (THREADS / 32)
#define FORWARD 4 /* packs or elements per thread */
#define BINS 256  /* one per thread */
#define ROUNDS 4  /* rows per thread */
#define TILE (THREADS * ROUNDS)
#define AHEAD 8 /* rows of dy that are read before they are added; tiles' counts, too */

namespace
{

/* U: the type that is moved at once, dim of them per row. */
template <class T, class U>
__global__ void __launch_bounds__(THREADS) embedding_forward_kernel(size_t count,
                                                                    size_t dim,
                                                                    divider by_dim,
                                                                    size_t vocab,
                                                                    const int32_t *ids,
                                                                    const U *table,
                                                                    U *y)
{
    size_t from = (size_t)blockIdx.x * THREADS * FORWARD + threadIdx.x;

    PL_UNROLL
    for (unsigned k = 0; k < FORWARD; k++) {
        size_t i = from + k * THREADS, column;

        if (i < count) {
            int32_t id = ids[by_dim(i, &column)];

            if (id >= 0 && (size_t)id < vocab)
                y[i] = table[(size_t)id * dim + column];
            else
                for (size_t j = 0; j < sizeof(U) / sizeof(T); j++)
                    store((T *)y, i * (sizeof(U) / sizeof(T)) + j, (real<T>)NAN);
        }
    }
}

/* The row numbers, sorted pass by pass. from: NULL in the first pass, whose rows are in order.
 * starts: [tiles][BINS], the number of a tile's rows with that digit, then the position of the
 * first one. */
struct sort_pass {
    uint32_t rows, vocab;
    size_t tiles;
    unsigned shift;
    const int32_t *ids;
    const uint32_t *from;
    uint32_t *to, *starts;

    __device__ __forceinline__ uint32_t row(uint32_t i) const
    {
        return from ? from[i] : i;
    }

    /* Ids out of range sort after all others. */
    __device__ __forceinline__ unsigned digit(uint32_t row) const
    {
        uint32_t id = (uint32_t)ids[row];

        return (id < vocab ? id : vocab) >> shift & (BINS - 1);
    }
};

static __global__ void __launch_bounds__(THREADS) embedding_count_kernel(sort_pass s)
{
    PL_SHARED(uint32_t, count, [BINS]);
    uint32_t tile = blockIdx.x * TILE;

    count[threadIdx.x] = 0;
    __syncthreads();
    PL_UNROLL
    for (unsigned k = 0; k < ROUNDS; k++) {
        uint32_t i = tile + k * THREADS + threadIdx.x;

        if (i < s.rows)
            atomicAdd(&count[s.digit(s.row(i))], 1u);
    }
    __syncthreads();
    s.starts[(size_t)blockIdx.x * BINS + threadIdx.x] = count[threadIdx.x];
}

/* Of the thread's digit, in AHEAD tiles: one after the other each would take the memory's latency.
 */
static __device__ __forceinline__ void
read_counts(const sort_pass &s, size_t tile, uint32_t count[AHEAD])
{
    PL_UNROLL
    for (unsigned j = 0; j < AHEAD; j++)
        count[j] = tile + j < s.tiles ? s.starts[(tile + j) * BINS + threadIdx.x] : 0;
}

/* One block, one thread per digit: a digit's rows come in the order of the tiles, after those of
 * lower digits. */
static __global__ void __launch_bounds__(THREADS) embedding_starts_kernel(sort_pass s)
{
    PL_SHARED(uint32_t, of_warp, [WARPS]);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t total = 0, at, count[AHEAD];

    for (size_t tile = 0; tile < s.tiles; tile += AHEAD) {
        read_counts(s, tile, count);
        PL_UNROLL
        for (unsigned j = 0; j < AHEAD; j++)
            total += count[j];
    }
    at = total;
    for (unsigned by = 1; by < 32; by *= 2) {
        uint32_t below = __shfl_up_sync(0xffffffff, at, by);

        at += lane >= by ? below : 0;
    }
    if (lane == 31)
        of_warp[warp] = at;
    __syncthreads();
    at -= total;
    for (unsigned w = 0; w < warp; w++)
        at += of_warp[w];
    for (size_t tile = 0; tile < s.tiles; tile += AHEAD) {
        read_counts(s, tile, count);
        PL_UNROLL
        for (unsigned j = 0; j < AHEAD; j++) {
            if (tile + j < s.tiles)
                s.starts[(tile + j) * BINS + threadIdx.x] = at;
            at += count[j];
        }
    }
}

/* A row's position follows those of its digit from earlier tiles, rounds, warps and lanes. */
static __global__ void __launch_bounds__(THREADS) embedding_sort_kernel(sort_pass s)
{
    PL_SHARED(uint32_t, before, [ROUNDS * WARPS][BINS]);
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank[ROUNDS];
    uint32_t tile = blockIdx.x * TILE, at;

    for (unsigned k = 0; k < ROUNDS * WARPS; k++)
        before[k][threadIdx.x] = 0;
    __syncthreads();
    PL_UNROLL
    for (unsigned k = 0; k < ROUNDS; k++) {
        uint32_t i = tile + k * THREADS + threadIdx.x;
        bool in = i < s.rows;
        unsigned digit = in ? s.digit(s.row(i)) : 0, same = __ballot_sync(0xffffffff, in);

        for (unsigned bit = 1; bit < BINS; bit *= 2) {
            unsigned set = __ballot_sync(0xffffffff, digit & bit);

            same &= digit & bit ? set : ~set;
        }
        rank[k] = 0;
        for (unsigned below = same & ((1u << lane) - 1); below; below &= below - 1)
            rank[k]++;
        if (in && rank[k] == 0) /* the first one reports their number */
            for (; same; same &= same - 1)
                before[k * WARPS + warp][digit]++;
    }
    __syncthreads();
    at = s.starts[(size_t)blockIdx.x * BINS + threadIdx.x];
    for (unsigned k = 0; k < ROUNDS * WARPS; k++) {
        uint32_t count = before[k][threadIdx.x];

        before[k][threadIdx.x] = at;
        at += count;
    }
    __syncthreads();
    PL_UNROLL
    for (unsigned k = 0; k < ROUNDS; k++) {
        uint32_t i = tile + k * THREADS + threadIdx.x;

        if (i < s.rows) {
            uint32_t row = s.row(i);

            s.to[before[k * WARPS + warp][s.digit(row)] + rank[k]] = row;
        }
    }
}

/* The range of an id's rows after sorting. */
struct span {
    uint32_t begin, end;
};

static __global__ void __launch_bounds__(THREADS) embedding_no_spans_kernel(size_t vocab, span *of)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < vocab)
        of[i] = span{0, 0};
}

static __global__ void __launch_bounds__(THREADS) embedding_spans_kernel(
    uint32_t rows, size_t vocab, const int32_t *ids, const uint32_t *sorted, span *of)
{
    uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    int32_t id;

    if (i >= rows)
        return;
    id = ids[sorted[i]];
    if (id < 0 || (size_t)id >= vocab)
        return;
    if (i == 0 || ids[sorted[i - 1]] != id)
        of[id].begin = i;
    if (i + 1 == rows || ids[sorted[i + 1]] != id)
        of[id].end = i + 1;
}

template <class T> struct backward {
    size_t vocab, dim, slices; /* slices: warps per id */
    bool add;
    const T *dy;
    const uint32_t *sorted;
    const span *of;
    T *dtable;
};

/* PER: elements per lane, 1 or a pack. */
template <class T, int PER> static __device__ __forceinline__ pack<T> load_some(const T *p)
{
    pack<T> x = {};

    if (PER > 1)
        return load_pack(p, 0);
    x.of[0] = p[0];
    return x;
}

template <class T, int PER>
__global__ void __launch_bounds__(THREADS) embedding_backward_kernel(backward<T> b)
{
    size_t unit = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, id = unit / b.slices;
    size_t column = (unit % b.slices * 32 + threadIdx.x % 32) * PER;
    real<T> sum[PER];
    pack<T> x[AHEAD];
    span rows;

    if (id >= b.vocab || column >= b.dim)
        return;
    rows = b.of[id];
    if (b.add && rows.begin == rows.end)
        return;
    b.dtable += id * b.dim + column;
    b.dy += column;
    x[0] = b.add ? load_some<T, PER>(b.dtable) : pack<T>{};
    PL_UNROLL
    for (int k = 0; k < PER; k++)
        sum[k] = widen_one(x[0].of[k]);
    for (uint32_t i = rows.begin; i < rows.end; i += AHEAD) {
        PL_UNROLL
        for (unsigned j = 0; j < AHEAD; j++)
            if (j < rows.end - i)
                x[j] = load_some<T, PER>(b.dy + b.sorted[i + j] * b.dim);
        PL_UNROLL
        for (unsigned j = 0; j < AHEAD; j++) {
            PL_UNROLL
            for (int k = 0; k < PER; k++)
                if (j < rows.end - i)
                    sum[k] += widen_one(x[j].of[k]);
        }
    }
    PL_UNROLL
    for (int k = 0; k < PER; k++)
        x[0].of[k] = narrow_one<T>(sum[k]);
    if (PER > 1)
        store_pack(b.dtable, 0, x[0]);
    else
        b.dtable[0] = x[0].of[0];
}

/* Returns the one of the two lists that has the result. */
uint32_t *sort(const struct pl_embedding_args *a, uint32_t *list[2], uint32_t *starts)
{
    sort_pass s = {(uint32_t)a->rows,
                   (uint32_t)(a->vocab >> 31 ? (size_t)1 << 31 : a->vocab), /* ids are below */
                   ceil_div(a->rows, TILE),
                   0,
                   a->ids,
                   NULL,
                   list[0],
                   starts};

    for (;;) {
        PL_LAUNCH(embedding_count_kernel, s.tiles, THREADS, 0, s);
        PL_LAUNCH(embedding_starts_kernel, 1, THREADS, 0, s);
        PL_LAUNCH(embedding_sort_kernel, s.tiles, THREADS, 0, s);
        s.shift += 8;
        if (s.shift > 24 || s.vocab >> s.shift == 0)
            return s.to;
        s.from = s.to;
        s.to = s.to == list[0] ? list[1] : list[0];
    }
}

template <class T, int PER> void add_up(const struct pl_embedding_args *a, backward<T> b)
{
    b.slices = ceil_div(a->dim, 32 * PER);
    PL_LAUNCH((embedding_backward_kernel<T, PER>), ceil_div(a->vocab * b.slices, WARPS), THREADS, 0,
              b);
}

} // namespace

template <class T> void embedding_forward(const struct pl_embedding_args *a)
{
    const size_t per = pack<T>::size;
    size_t count = a->rows * a->dim;

    if (count == 0)
        return;
    if (a->dim % per == 0 && packable(a->table) && packable(a->y))
        PL_LAUNCH((embedding_forward_kernel<T, pack<T>>), ceil_div(count / per, THREADS * FORWARD),
                  THREADS, 0, count / per, a->dim / per, divider(a->dim / per), a->vocab, a->ids,
                  (const pack<T> *)a->table, (pack<T> *)a->y);
    else
        PL_LAUNCH((embedding_forward_kernel<T, T>), ceil_div(count, THREADS * FORWARD), THREADS, 0,
                  count, a->dim, divider(a->dim), a->vocab, a->ids, (const T *)a->table, (T *)a->y);
}

template <class T> void embedding_backward(const struct pl_embedding_args *a)
{
    size_t tiles = ceil_div(a->rows, TILE);
    span *of;
    uint32_t *list[2], *starts;
    backward<T> b = {a->vocab,         a->dim, 0,    a->dtable_add,
                     (const T *)a->dy, NULL,   NULL, (T *)a->dtable};

    if (a->vocab == 0 || a->dim == 0)
        return;
    if (a->rows > UINT32_MAX - TILE)
        return refuse("the gradient of an embedding has at most 4294966271 tokens");
    of = (span *)scratch(a->vocab * sizeof(*of) + (2 * a->rows + tiles * BINS) * sizeof(uint32_t));
    if (!of)
        return;
    list[0] = (uint32_t *)(of + a->vocab);
    list[1] = list[0] + a->rows;
    starts = list[1] + a->rows;
    PL_LAUNCH(embedding_no_spans_kernel, ceil_div(a->vocab, THREADS), THREADS, 0, a->vocab, of);
    if (a->rows) {
        b.sorted = sort(a, list, starts);
        PL_LAUNCH(embedding_spans_kernel, ceil_div(a->rows, THREADS), THREADS, 0, (uint32_t)a->rows,
                  a->vocab, a->ids, b.sorted, of);
    }
    b.of = of;
    if (a->dim % pack<T>::size == 0 && packable(a->dy) && packable(a->dtable))
        add_up<T, pack<T>::size>(a, b);
    else
        add_up<T, 1>(a, b);
}

PL_CUDA_DEFINE(embedding_forward, embedding);
PL_CUDA_DEFINE(embedding_backward, embedding);

} // namespace pl_cuda
