/* SPDX-License-Identifier: MIT */
/* Reads the logits once (rows past 8192 classes again, from the cache) and counts in integers: the
 * rows' hits to scratch, then one block sums them. 2 comparisons per logit. Any shape up to 2^32
 * rows. Bound by memory; nothing else was tried, not measured on a card yet. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

#define THREADS 256

namespace
{

/* The first index of a row's largest logit. A NaN is never larger, but stays the largest if it is
 * the first logit: ref compares each logit with the best so far. */
template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) correct_kernel(
    size_t rows, size_t classes, const T *logits, const int32_t *labels, unsigned *hits)
{
    size_t r = row_team<TEAM>::row();
    real<T> max = (real<T>)-INFINITY;
    unsigned before = 0; /* classes counted from the end: the maximum is the first index */

    if (r >= rows)
        return;
    row_of<T, TEAM> row(logits + r * classes, classes);
    row_each<TEAM>(classes, [&](size_t i, unsigned k) { max = row(i, k) > max ? row(i, k) : max; });
    max = row_team<TEAM>::max(max);
    row_each<TEAM>(classes, [&](size_t i, unsigned k) {
        unsigned left = (unsigned)(classes - i);

        if (row(i, k) == max && left > before)
            before = left;
    });
    before = row_team<TEAM>::template all<max_of>(before, 0u);
    if (row_team<TEAM>::at() == 0) {
        real<T> first = load(logits, r * classes);
        size_t best = first != first || before == 0 ? 0 : classes - before;

        hits[r] = labels[r] >= 0 && (size_t)labels[r] == best;
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    correct_sum_kernel(size_t rows, const unsigned *hits, void *count, bool wide)
{
    unsigned sum = 0;

    for (size_t r = threadIdx.x; r < rows; r += THREADS)
        sum += hits[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        store_one<T>(count, (real<T>)sum, wide);
}

} // namespace

template <class T> void correct(const struct pl_correct_args *a)
{
    unsigned *hits;

    if (a->rows > UINT32_MAX || a->classes > UINT32_MAX)
        return refuse("counting what is correct takes at most 4294967295 rows and classes");
    hits = (unsigned *)scratch((a->rows + 1) * sizeof(unsigned));
    if (!hits)
        return;
    PL_ROWS_LAUNCH(correct_kernel, T, a->rows, a->classes, a->rows, a->classes,
                   (const T *)a->logits, a->labels, hits);
    PL_LAUNCH((correct_sum_kernel<T>), 1, THREADS, 0, a->classes ? a->rows : 0, hits, a->count,
              a->wide);
}

PL_CUDA_DEFINE(correct, correct);

} // namespace pl_cuda
