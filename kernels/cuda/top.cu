/* SPDX-License-Identifier: MIT */
/* Exact. A block per row finds its first element, then the first of those after it, and so on: k
 * passes over the row, each bound by memory for a long row, and a reduction in shared memory. Good
 * for argmax and a few of many; a whole row is sorted in n passes. Not measured on a card yet. */
#include "kernels/cuda/divider.cuh"

namespace pl_cuda
{

#define THREADS 128

namespace
{

template <class T> struct row {
    const T *x;
    size_t step;
    bool least, nan_first;

    __device__ real<T> value(size_t j) const
    {
        return load(x, j * step);
    }

    /* By value, then by position. */
    __device__ bool before(real<T> a, size_t at, real<T> b, size_t bt) const
    {
        if (pl_top_before(least, nan_first, a, b))
            return true;
        return !pl_top_before(least, nan_first, b, a) && at < bt;
    }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    top_kernel(size_t n, size_t inner, divider columns, size_t k, row<T> all, int32_t *index)
{
    PL_SHARED(real<T>, values, [THREADS]);
    PL_SHARED(size_t, places, [THREADS]);
    size_t i, o = columns((size_t)blockIdx.x, &i), thread = threadIdx.x;
    row<T> x = all;
    real<T> last = 0;
    size_t last_at = n; /* none yet */

    x.x += o * n * inner + i;
    for (size_t t = 0; t < k; t++) {
        real<T> best = 0;
        size_t best_at = n;

        for (size_t j = thread; j < n; j += THREADS) {
            real<T> v = x.value(j);

            if (last_at < n && !x.before(last, last_at, v, j))
                continue;
            if (best_at == n || x.before(v, j, best, best_at)) {
                best = v;
                best_at = j;
            }
        }
        values[thread] = best;
        places[thread] = best_at;
        for (size_t half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (thread < half && places[thread + half] < n &&
                (places[thread] == n || x.before(values[thread + half], places[thread + half],
                                                 values[thread], places[thread]))) {
                values[thread] = values[thread + half];
                places[thread] = places[thread + half];
            }
        }
        __syncthreads();
        last = values[0];
        last_at = places[0];
        if (thread == 0)
            index[(o * k + t) * inner + i] = (int32_t)last_at;
        __syncthreads();
    }
}

} // namespace

template <class T> void top(const struct pl_top_args *a)
{
    size_t rows = a->outer * a->inner;

    if (rows && a->k)
        PL_LAUNCH((top_kernel<T>), rows, THREADS, 0, a->n, a->inner, divider(a->inner), a->k,
                  row<T>{(const T *)a->x, a->inner, a->least, a->nan_first}, a->index);
}

PL_CUDA_DEFINE(top, top);

} // namespace pl_cuda
