/* SPDX-License-Identifier: MIT */
/* Arguments of ops on parameters and gradients, once per step. All are exact: the same bits on
 * every machine, backend and number of threads. Rules for all ops: kernels/kernels.h, which
 * includes this. */
#ifndef PL_KERNELS_ARGS_OPTIM_H
#define PL_KERNELS_ARGS_OPTIM_H

#include "kernels/anywhere.h"
#include "kernels/half.h"

#include <math.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Common arguments of the updates. n elements. The effective gradient is grad * factor, clamped to
 * [-clip, clip] (INFINITY = not clamped); grad itself is not changed. With half != PL_HALF_NONE
 * (f32 tables only) the new parameter is also written, rounded, to copy; with `rounded` param
 * itself becomes that rounded number: then copy is the parameter, and param its image in f32.
 * factor_at: where an earlier kernel has left the factor; NULL: it is `factor`. Tables of the host
 * also write the new parameter to n_mirrors other places. */
struct pl_update {
    size_t n;
    double factor, clip;
    const double *factor_at;
    const void *grad;
    void *param;
    enum pl_half half;
    bool rounded;
    uint16_t *copy;
    void *const *mirrors;
    unsigned n_mirrors;
};

/* One step of stochastic gradient descent with momentum as torch.optim.SGD (dampening 0): g = grad
 * + weight_decay p; m = momentum m + g; g = nesterov ? g + momentum m : m; p = p - lr g. velocity
 * is m; if it is NULL the momentum counts as 0. */
struct pl_sgd_args {
    struct pl_update update;
    double lr, momentum, weight_decay;
    bool nesterov;
    void *velocity;
};

/* Step number `step` (from 1) of Adam (Kingma and Ba 2015, arXiv 1412.6980) or, with `decoupled`,
 * AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), with the operations and their order of
 * torch.optim.Adam(foreach=False): decoupled: p = p (1 - lr weight_decay), else g = grad +
 * weight_decay p; m = lerp(m, g, 1 - beta1); v = beta2 v + (1 - beta2) g g; p = p - lr / (1 -
 * beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps). */
struct pl_adam_args {
    struct pl_update update;
    double lr, beta1, beta2, eps, weight_decay;
    bool decoupled;
    uint64_t step;
    void *m, *v;
};

/* One step of RMSprop (Hinton 2012, lecture 6) with the operations and their order of
 * torch.optim.RMSprop(foreach=False): g = grad + weight_decay p; v = alpha v + (1 - alpha) g g;
 * d = sqrt(v) + eps, or with `mean` (centered) mean = lerp(mean, g, 1 - alpha), d = sqrt(v - mean
 * mean) + eps; p = p - lr g / d, or with `velocity` velocity = momentum velocity + g / d, p = p -
 * lr velocity. mean and velocity may be NULL. */
struct pl_rmsprop_args {
    struct pl_update update;
    double lr, alpha, eps, momentum, weight_decay;
    void *v, *mean, *velocity;
};

/* One step of Adagrad (Duchi, Hazan and Singer 2011) as torch.optim.Adagrad(foreach=False): g =
 * grad + weight_decay p; sum = sum + g g; p = p - lr g / (sqrt(sum) + eps). */
struct pl_adagrad_args {
    struct pl_update update;
    double lr, eps, weight_decay;
    void *sum;
};

/* grad = grad * scale; then the sum of its squares in f64, and a flag: all are finite. Order of the
 * sum: chunks of pl_grad_stats_chunk(n) elements; in a chunk, element i adds to lane i % 16; lanes
 * are added 8 + 8, 4 + 4, 2 + 2, 1 + 1; chunks in order. total: not NULL: the sum is added to it,
 * too, and *ret_factor becomes pl_clip_to(limit, its root). */
struct pl_grad_stats_args {
    size_t n;
    double scale, limit;
    double *total, *ret_factor;
    void *grad;
    double *ret_squares;
    bool *ret_finite;
};

/* The factor that clips gradients of this norm to a limit above 0, as torch.nn.utils'
 * clip_grad_norm_. A NaN norm makes a NaN factor, so that it shows in the parameters. */
PL_ANYWHERE static inline double pl_clip_to(double limit, double norm)
{
    double factor = limit / (norm + 1e-6);

    return !(factor >= 1) ? factor : 1;
}

#define PL_GRAD_STATS_CHUNKS 1024
#define PL_GRAD_STATS_LANES 16

/* Elements of a chunk: a multiple of 16384, at most PL_GRAD_STATS_CHUNKS of them. */
static inline size_t pl_grad_stats_chunk(size_t n)
{
    const size_t unit = 16384;
    size_t units = (n + unit * PL_GRAD_STATS_CHUNKS - 1) / (unit * PL_GRAD_STATS_CHUNKS);

    return (units ? units : 1) * unit;
}

/* X(function, struct of arguments) */
#define PL_KERNEL_LIST_OPTIM(X)                                                                    \
    X(sgd, sgd)                                                                                    \
    X(adam, adam)                                                                                  \
    X(rmsprop, rmsprop)                                                                            \
    X(adagrad, adagrad)                                                                            \
    X(grad_stats, grad_stats)

#endif
