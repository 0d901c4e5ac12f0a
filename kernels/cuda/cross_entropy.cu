/* SPDX-License-Identifier: MIT */
/* Forward reads the logits once: per row maximum, sum of exponentials in f64, quotients where they
 * are kept (rows as rows.cuh says), and the row's loss to scratch in f64; one block then adds those
 * up in a fixed order. 4 operations and two exponentials a logit, or 3 and one. Backward reads the
 * probabilities, or the logits to make them again as forward does, and writes the gradient (reads
 * it where it adds): so not to keep the probabilities saves writing them. Any shape. Bound by
 * memory. */
#include "kernels/cuda/rows.cuh"

namespace pl_cuda
{

#define THREADS 1024

namespace
{

/* A row's softmax; `sum` of f32 terms in f64, as the CPU's. */
template <class T, int TEAM> struct distribution {
    row_of<T, TEAM> row;
    real<T> max, scale;
    double sum;

    __device__ __forceinline__ distribution(const T *logits, size_t n)
        : row(logits, n), max((real<T>)-INFINITY), sum(0)
    {
        row_each<TEAM>(n, [&](size_t i, unsigned k) { max = max_of::both(max, row(i, k)); });
        max = row_team<TEAM>::max(max);
        row_each<TEAM>(n, [&](size_t i, unsigned k) { sum += exp(row(i, k) - max); });
        sum = row_team<TEAM>::sum(sum);
        scale = (real<T>)(1 / sum);
    }

    __device__ __forceinline__ real<T> operator()(size_t i, unsigned k) const
    {
        return exp(row(i, k) - max) * scale;
    }
};

template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block) cross_entropy_kernel(
    size_t rows, size_t classes, const T *logits, const int32_t *labels, T *probs, double *loss)
{
    size_t r = row_team<TEAM>::row();

    if (r >= rows)
        return;
    logits += r * classes;
    distribution<T, TEAM> prob(logits, classes);
    if (probs)
        row_each<TEAM>(classes,
                       [&](size_t i, unsigned k) { store(probs, r * classes + i, prob(i, k)); });
    if (row_team<TEAM>::at() == 0) {
        int32_t label = labels[r];
        bool in = label >= 0 && (size_t)label < classes;

        loss[r] = in ? log(prob.sum) - ((double)load(logits, label) - prob.max) : (double)NAN;
    }
}

template <class T> struct backward {
    size_t rows, classes;
    bool add;
    const T *logits, *probs, *dloss;
    const int32_t *labels;
    T *dlogits;

    /* What dlogits gets at class i of row r. */
    __device__ __forceinline__ real<T> slope(size_t r, size_t i, real<T> prob) const
    {
        int32_t label = labels[r];
        real<T> hot = label >= 0 && (size_t)label == i ? 1 : 0;

        return load(dloss, 0) / (real<T>)rows * (prob - hot);
    }
};

template <class T, int TEAM>
__global__ void __launch_bounds__(row_team<TEAM>::block)
    cross_entropy_backward_kernel(backward<T> b)
{
    size_t r = row_team<TEAM>::row();

    if (r >= b.rows)
        return;
    if (b.probs) {
        row_each<TEAM>(b.classes, [&](size_t i, unsigned) {
            size_t at = r * b.classes + i;

            put(b.dlogits, at, b.slope(r, i, load(b.probs, at)), b.add);
        });
        return;
    }
    distribution<T, TEAM> prob(b.logits + r * b.classes, b.classes);
    row_each<TEAM>(b.classes, [&](size_t i, unsigned k) {
        put(b.dlogits, r * b.classes + i, b.slope(r, i, prob(i, k)), b.add);
    });
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_mean_kernel(size_t rows, const double *of_row, T *loss)
{
    double sum = 0;

    for (size_t r = threadIdx.x; r < rows; r += THREADS)
        sum += of_row[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        store(loss, 0, (real<T>)(sum / (double)rows));
}

} // namespace

template <class T> void cross_entropy_forward(const struct pl_cross_entropy_args *a)
{
    double *of_row = (double *)scratch((a->rows + 1) * sizeof(double));

    if (!of_row)
        return;
    PL_ROWS_LAUNCH(cross_entropy_kernel, T, a->rows, a->classes, a->rows, a->classes,
                   (const T *)a->logits, a->labels, (T *)a->probs, of_row);
    PL_LAUNCH((cross_entropy_mean_kernel<T>), 1, THREADS, 0, a->classes ? a->rows : 0, of_row,
              (T *)a->loss);
}

template <class T> void cross_entropy_backward(const struct pl_cross_entropy_args *a)
{
    backward<T> b = {a->rows,
                     a->classes,
                     a->dx_add,
                     (const T *)a->logits,
                     (const T *)a->probs,
                     (const T *)a->dloss,
                     a->labels,
                     (T *)a->dlogits};

    PL_ROWS_LAUNCH(cross_entropy_backward_kernel, T, a->rows, a->classes, b);
}

PL_CUDA_DEFINE(cross_entropy_forward, cross_entropy);
PL_CUDA_DEFINE(cross_entropy_backward, cross_entropy);

} // namespace pl_cuda
