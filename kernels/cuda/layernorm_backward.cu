/* SPDX-License-Identifier: MIT */
/* Backward reads x and dy and writes dx, and also a rounded copy of it; 15 operations per element.
 * Its blocks have many rows each, so that a thread sums up dgamma and dbeta of its columns in
 * registers on the way, and a second kernel adds the blocks' sums in order. Their number depends on
 * the shape only. Rows and threads: see layernorm.cuh.
 *
 * If the elements held are not all, dgamma and dbeta take a pass of their own over x and dy, by
 * columns. Sums of dx's columns go the same way, in registers where the next row is copied in
 * advance. Bound by memory. With a warp per row it copies the next row into shared memory while it
 * calculates: on an H100 (32768 x 768) 161 us with what dx adds to, 2.5 of 3.0 TB/s. Rows in
 * registers leave few warps, and each waits for memory twice a row: 203 us; with all of a row's
 * loads at its start 173. */
#include "kernels/cuda/layernorm.cuh"
#include "kernels/cuda/sums.cuh"

namespace pl_cuda
{

#define LINES 8
#define LEAST 128   /* minimum of rows per piece of columns */
#define BLOCKS 1024 /* enough to fill any GPU */
#define TEAM_ROWS 4 /* minimum of rows per team there */
#define PIECE_LINES 32

namespace
{

template <class X, class Y, class G> struct backward {
    size_t rows, n, pieces;
    bool dx_add, rms;
    const X *x;
    const Y *dy;
    const G *gamma;
    const real<X> *mean, *rstd;
    X *dx;
    Y *dx_too;
    /* [pieces][2][n]: of dgamma, of dbeta; [pieces][3][n] with the sums of dx. NULL: they are not
     * wanted from this. */
    real<X> *partial;
};

/* Starts a copy of 8 or 16 bytes into shared memory, which needs no register. */
template <class T, int V>
static __device__ __forceinline__ void start_copy(bunch<T, V> *to, const T *p)
{
#ifdef __CUDA_ARCH__
    unsigned at = (unsigned)__cvta_generic_to_shared(to);

    if constexpr (sizeof(*to) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(p) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(p) : "memory");
#else
    *to = *reinterpret_cast<const bunch<T, V> *>(p);
#endif
}

static __device__ __forceinline__ void end_group_of_copies()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* For all groups of this thread's copies but the last one. */
static __device__ __forceinline__ void wait_for_copies()
{
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
}

/* A row in shared memory, for backward. A lane reads only the elements that it has copied. */
template <class X, class Y, int V, int H> struct copied_row {
    bunch<X, V> x[H / V][32], old[H / V][32];
    bunch<Y, V> dy[H / V][32];
};

/* With z = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - z mean(g z)), with rms
 * without mean(g). A block has a piece of the rows. SUMS: dx is wanted, and the sums of its
 * columns. */
template <class X, class Y, class G, int TEAM, int V, int H, bool SUMS>
__global__ void __launch_bounds__(layout<real<X>, TEAM, V, H>::block,
                                  layout<real<X>, TEAM, V, H>::blocks)
    layernorm_backward_kernel(backward<X, Y, G> b)
{
    typedef real<X> R;
    typedef layout<R, TEAM, V, H> L;
    typedef copied_row<X, Y, V, H> copied;
    PL_SHARED_DYNAMIC(unsigned char, shared);   /* two rows per team, after them: */
    R *of_team = reinterpret_cast<R *>(shared); /* [teams][held][line] */
    copied *rows = reinterpret_cast<copied *>(shared) + L::team() * 2, *row = rows;
    size_t chunk = (b.rows + b.pieces - 1) / b.pieces, end = (blockIdx.x + 1) * chunk;
    bunch<X, V> x[H / V], olds[H / V] = {};
    bunch<Y, V> dy[H / V];
    R gammas[L::held], betas[L::held], dxs[SUMS ? L::held : 1];
    unsigned lane = L::at();

    end = end < b.rows ? end : b.rows;
    auto copy = [&](size_t r, copied *to) {
        if (r < end)
            L::each(b.n, [&](size_t i, unsigned k) {
                start_copy<X, V>(&to->x[k / V][lane], b.x + r * b.n + i);
                start_copy<Y, V>(&to->dy[k / V][lane], b.dy + r * b.n + i);
                if (b.dx && b.dx_add)
                    start_copy<X, V>(&to->old[k / V][lane], b.dx + r * b.n + i);
            });
        end_group_of_copies();
    };
    PL_UNROLL
    for (unsigned k = 0; k < L::held; k++) {
        gammas[k] = betas[k] = 0;
        if constexpr (SUMS)
            dxs[k] = 0;
    }
    if constexpr (L::ahead)
        copy(blockIdx.x * chunk + L::team(), row);
    for (size_t r = blockIdx.x * chunk + L::team(); r < end; r += L::teams) {
        const X *of_x = b.x + r * b.n;
        const Y *of_dy = b.dy + r * b.n;
        R mean = b.mean[r], rstd = b.rstd[r], sum = 0, sum_z = 0;

        if constexpr (L::ahead) {
            copy(r + L::teams, row == rows ? rows + 1 : rows);
            wait_for_copies();
        }
        L::each(b.n, [&](size_t i, unsigned k) {
            bunch<X, V> bx = L::ahead ? row->x[k / V][lane] : take_raw<V>(of_x, i);
            bunch<Y, V> bdy = L::ahead ? row->dy[k / V][lane] : take_raw<V>(of_dy, i);
            group<R, V> gx = widen_all(bx), gdy = widen_all(bdy);
            group<R, V> gamma = take_or<V>(b.gamma, i, (R)1);

            if (!L::ahead && k < L::held) {
                x[k / V] = bx;
                dy[k / V] = bdy;
                if (b.dx && b.dx_add) /* before dx is written: the compiler keeps the order */
                    olds[k / V] = take_raw<V>(b.dx, r * b.n + i);
            }
            PL_UNROLL
            for (int j = 0; j < V; j++) {
                R z = (gx.of[j] - mean) * rstd, g = gdy.of[j] * gamma.of[j];

                sum += g;
                sum_z += g * z;
                if (k < L::held) {
                    gammas[k + j] += gdy.of[j] * z;
                    betas[k + j] += gdy.of[j];
                }
            }
        });
        sum = b.rms ? 0 : L::sum(sum) / (R)b.n;
        sum_z = L::sum(sum_z) / (R)b.n;
        if (b.dx)
            L::each(b.n, [&](size_t i, unsigned k) {
                group<R, V> gx, gdy, old = {}, gamma = take_or<V>(b.gamma, i, (R)1);

                if (L::ahead) {
                    gx = widen_all(row->x[k / V][lane]);
                    gdy = widen_all(row->dy[k / V][lane]);
                    if (b.dx_add)
                        old = widen_all(row->old[k / V][lane]);
                } else if (k < L::held) {
                    gx = widen_all(x[k / V]);
                    gdy = widen_all(dy[k / V]);
                    old = widen_all(olds[k / V]);
                } else {
                    gx = take<V>(of_x, i);
                    gdy = take<V>(of_dy, i);
                    if (b.dx_add)
                        old = take<V>(b.dx, r * b.n + i);
                }
                PL_UNROLL
                for (int j = 0; j < V; j++) {
                    R g = gdy.of[j] * gamma.of[j], z = (gx.of[j] - mean) * rstd;
                    R d = rstd * (g - sum - z * sum_z);

                    old.of[j] = widen_one(narrow_one<X>(b.dx_add ? old.of[j] + d : d));
                    if constexpr (SUMS) /* its layouts hold all of a row */
                        dxs[k + j] += b.dx_too ? (R)widen_one(narrow_one<Y>(old.of[j])) : old.of[j];
                }
                give<V>(b.dx, r * b.n + i, old);
                if (b.dx_too)
                    give<V>(b.dx_too, r * b.n + i, old);
            });
        row = row == rows ? rows + 1 : rows;
    }
    if (!b.partial)
        return; /* all threads */
    if (L::ahead)
        __syncthreads(); /* the rows' memory is free */
    for (int which = 0; which < (SUMS ? 3 : 2); which++) {
        R *to = b.partial + (blockIdx.x * (SUMS ? 3 : 2) + which) * b.n;
        auto sum_of = [&](unsigned k) {
            if constexpr (SUMS) {
                if (which == 2)
                    return dxs[k];
            }
            return which ? betas[k] : gammas[k];
        };

        if (L::teams == 1) {
            L::each(b.n, [&](size_t i, unsigned k) {
                PL_UNROLL
                for (int j = 0; j < V; j++)
                    if (k < L::held)
                        to[i + j] = sum_of(k + j);
            });
            continue;
        }
        /* Transposed: lanes write neighbours. */
        L::each(b.n, [&](size_t, unsigned k) {
            PL_UNROLL
            for (int j = 0; j < V; j++)
                if (k < L::held)
                    of_team[(L::team() * L::held + k + j) * L::line + L::at()] = sum_of(k + j);
        });
        __syncthreads();
        for (size_t i = threadIdx.x; i < b.n; i += L::block) {
            size_t k = i / V / TEAM * V + i % V, lane = i / V % TEAM;
            R sum = 0;

            for (int t = 0; t < L::teams; t++)
                sum += of_team[(t * L::held + k) * L::line + lane];
            to[i] = sum;
        }
        __syncthreads();
    }
}

/* For rows of which a thread cannot hold all of its elements. */
template <class X, class Y, class G>
__global__ void __launch_bounds__(32 * LINES) layernorm_columns_kernel(backward<X, Y, G> b)
{
    PL_SHARED(real<X>, of_line, [2][LINES][32]);
    size_t tiles = (b.n + 31) / 32, piece = blockIdx.x / tiles;
    size_t column = blockIdx.x % tiles * 32 + threadIdx.x;
    size_t chunk = (b.rows + b.pieces - 1) / b.pieces, end = (piece + 1) * chunk;
    real<X> gamma = 0, beta = 0;

    if (end > b.rows)
        end = b.rows;
    if (column < b.n)
        for (size_t r = piece * chunk + threadIdx.y; r < end; r += LINES) {
            real<X> dy = load(b.dy, r * b.n + column);

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

/* The results that pieces are added up to. A result that nobody wants is NULL. */
template <class G> struct columns {
    G *to[3]; /* dgamma, dbeta, dx_sums */
    bool add[3];
};

/* y of the grid: which of them. A block has 32 columns, a line of it each 32nd piece. */
template <class G>
__global__ void __launch_bounds__(32 * PIECE_LINES)
    layernorm_pieces_kernel(size_t n, size_t pieces, const real<G> *partial, columns<G> c)
{
    PL_SHARED(real<G>, of_line, [PIECE_LINES][32]);
    size_t i = (size_t)blockIdx.x * 32 + threadIdx.x;
    G *to = c.to[blockIdx.y];
    real<G> sum = 0;

    if (i < n)
        for (size_t k = threadIdx.y; k < pieces; k += PIECE_LINES)
            sum += partial[(k * gridDim.y + blockIdx.y) * n + i];
    of_line[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || i >= n || !to)
        return;
    for (unsigned k = 1; k < PIECE_LINES; k++)
        sum += of_line[k][threadIdx.x];
    put(to, i, sum, c.add[blockIdx.y]);
}

/* Sums of columns in a pass of their own. */
template <class T> struct of_column {
    const T *x;
    size_t n;

    __device__ double operator()(size_t, size_t k, size_t i) const
    {
        return load(x, k * n + i);
    }
};

template <class G> struct to_column {
    G *to;
    bool add;

    __device__ void operator()(size_t i, double sum) const
    {
        put(to, i, (real<G>)sum, add);
    }
};

template <class G, class T> void sum_columns(const struct pl_layernorm_args *a, const T *x)
{
    sums(1, a->rows, a->n, of_column<T>{x, a->n}, to_column<G>{(G *)a->dx_sums, a->dx_sums_add});
}

template <class X, class Y, class G, int TEAM, int V, int H, bool SUMS>
void launch_backward(const struct pl_layernorm_args *a, backward<X, Y, G> b)
{
    typedef layout<real<X>, TEAM, V, H> L;
    size_t most = ceil_div(a->rows, TEAM_ROWS * L::teams), rows, sums; /* bytes, of a block */
    const unsigned which = SUMS ? 3 : 2;
    columns<G> to = {{(G *)a->dgamma, (G *)a->dbeta, (G *)a->dx_sums},
                     {a->dgamma_add, a->dbeta_add, a->dx_sums_add}};

    b.pieces = most == 0 ? 1 : most < L::pieces ? most : L::pieces;
    if ((SUMS || a->dgamma || a->dbeta) && a->n <= (size_t)L::held * TEAM) {
        b.partial = (real<X> *)scratch(b.pieces * which * a->n * sizeof(real<X>));
        if (!b.partial)
            return;
    }
    rows = L::ahead ? L::teams * 2 * sizeof(copied_row<X, Y, V, H>) : 0;
    sums = L::teams > 1 && b.partial ? L::teams * L::held * L::line * sizeof(real<X>) : 0;
    if (a->dx || b.partial)
        PL_LAUNCH((layernorm_backward_kernel<X, Y, G, TEAM, V, H, SUMS>), b.pieces, L::block,
                  rows > sums ? rows : sums, b);
    if (!SUMS && !a->dgamma && !a->dbeta)
        return;
    if (!b.partial) {
        size_t tiles = ceil_div(a->n, 32), wanted = ceil_div(BLOCKS, tiles);

        most = ceil_div(a->rows, LEAST);
        b.pieces = most == 0 ? 1 : wanted < most ? wanted : most;
        b.partial = (real<X> *)scratch(b.pieces * 2 * a->n * sizeof(real<X>));
        if (!b.partial)
            return;
        PL_LAUNCH((layernorm_columns_kernel<X, Y, G>), tiles * b.pieces, dim3(32, LINES), 0, b);
    }
    PL_LAUNCH((layernorm_pieces_kernel<G>), grid_of(ceil_div(a->n, 32), which),
              dim3(32, PIECE_LINES), 0, a->n, b.pieces, (const real<X> *)b.partial, to);
}

struct do_backward {
    template <class X, class Y, class G> static void run(const struct pl_layernorm_args *a)
    {
        backward<X, Y, G> b = {a->rows,
                               a->n,
                               1,
                               a->dx_add,
                               a->rms,
                               (const X *)a->x,
                               (const Y *)a->dy,
                               (const G *)a->gamma,
                               (const real<X> *)a->mean,
                               (const real<X> *)a->rstd,
                               (X *)a->dx,
                               (Y *)a->dx_too,
                               NULL};

        if (a->n == 0)
            return;
        with_layout<X>(a, [&](auto l) {
            typedef decltype(l) L;

            /* Only where the engine asks for them: with 16-bit y. */
            if constexpr (sizeof(Y) == 2 && sizeof(G) == 4 && L::team == 32 && L::v == 4) {
                if (a->dx_sums) {
                    launch_backward<X, Y, G, L::team, L::v, L::h, true>(a, b);
                    return;
                }
            }
            launch_backward<X, Y, G, L::team, L::v, L::h, false>(a, b);
            if (a->dx_sums && a->dx_too)
                sum_columns<G>(a, b.dx_too);
            else if (a->dx_sums)
                sum_columns<G>(a, b.dx);
        });
    }
};

} // namespace

template <class T> void layernorm_backward(const struct pl_layernorm_args *a)
{
    typed<do_backward, T>::run(a);
}

PL_CUDA_DEFINE(layernorm_backward, layernorm);

} // namespace pl_cuda
