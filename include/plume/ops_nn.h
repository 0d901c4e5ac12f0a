/* SPDX-License-Identifier: MIT */
/* Losses and norms made of the ops of plume/ops.h and plume/ops_math.h, with PyTorch's values and
 * gradients. But for plume_rmsnorm() their steps are ops of their own: each keeps a tensor of the
 * size of its result. */
#ifndef PL_OPS_NN_H
#define PL_OPS_NN_H

#include "plume/ops_math.h"

#include <errno.h>
#include <math.h>

/* Mean of all elements, [1], in f32. */
static inline plume_tensor *plume_mean_of_all(struct plume_context *pl, plume_tensor *x)
{
    return pl_f32_mean(pl, x, 0, PLUME_RANK_MAX);
}

/* x, which plume_sum() made of `like`, with the dimensions first .. end - 1 that are gone: of 1. */
static inline plume_tensor *plume_keep_dims(
    struct plume_context *pl, plume_tensor *x, plume_tensor *like, size_t first, size_t end)
{
    size_t shape[PLUME_RANK_MAX] = {0}, rank = like ? pl->api->shape(like, shape) : 0;

    for (size_t d = first; d < end && d < rank; d++)
        shape[d] = 1;
    return plume_reshape(pl, x, rank, shape);
}

/* The number of elements of dimensions first .. end - 1; 0 if there are no such dimensions. */
static inline size_t
plume_count_of(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    size_t shape[PLUME_RANK_MAX] = {0}, rank = x ? pl->api->shape(x, shape) : 0, n = 1;

    for (size_t d = first; d < end && d < rank; d++)
        n *= shape[d];
    return first < end && first < rank ? n : 0;
}

/* x with dimensions first .. end - 1 as one, in their place. */
static inline plume_tensor *
plume_one_dim(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    size_t shape[PLUME_RANK_MAX] = {1}, rank = x ? pl->api->shape(x, shape) : 0, to = 0;

    for (size_t d = 0; d < rank; d++)
        if (d > first && d < end)
            shape[to - 1] *= shape[d];
        else
            shape[to++] = shape[d];
    return plume_reshape(pl, x, to, shape);
}

/* The product of the elements of dimensions first .. end - 1, which are removed as by plume_sum().
 * Halves are multiplied with each other until one element is left: a gradient is the product of the
 * others, also beside a zero. Keeps about two tensors of x's size. */
static inline plume_tensor *
plume_prod(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    size_t n = plume_count_of(pl, x, first, end);
    plume_tensor *odd = NULL, *last;

    if (n == 0) /* refuses, or is NULL */
        return plume_sum(pl, x, first, end);
    for (x = plume_one_dim(pl, x, first, end); n > 1; n /= 2) {
        if (n % 2) {
            last = plume_slice(pl, x, first, n - 1, 1);
            odd = odd ? pl_f32_mul(pl, odd, last) : last;
        }
        x = pl_f32_mul(pl, plume_slice(pl, x, first, 0, n / 2),
                       plume_slice(pl, x, first, n / 2, n / 2));
    }
    return plume_drop_dim(pl, odd ? pl_f32_mul(pl, x, odd) : x, first);
}

/* log of the sum of e^x over dimensions first .. end - 1, which are removed as by plume_sum(). No
 * large x overflows: the largest is taken out first. Elements of minus infinity add nothing; where
 * all are, so is the result, and their gradients are NaN, as PyTorch's. So are those of infinite
 * elements; beside one, finite elements have the gradient 0. */
static inline plume_tensor *
plume_logsumexp(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    size_t shape[PLUME_RANK_MAX] = {0}, rank;
    plume_tensor *most = x, *infinite, *sum;
    const size_t one = 1;

    if (plume_count_of(pl, x, first, end)) {
        most = plume_one_dim(pl, x, first, end);
        most = pl_f32_gather(pl, most, first, plume_topk_index(pl, most, first, 1), 0, 0, 0);
        most = pl_f32_detach(pl, plume_drop_dim(pl, most, first));
        infinite = pl_f32_map(pl, most, PLUME_MAP_ABS, 0, 0);
        infinite =
            pl_f32_choose(pl, infinite, plume_full(pl, 1, &one, HUGE_VAL), NULL, PLUME_CHOOSE_EQ);
        /* An element that is finite beside an infinity gives e^x <= 1, and its gradient 0. */
        most = pl_f32_choose(pl, infinite, plume_largest(pl), most, PLUME_CHOOSE_WHERE);
        most = plume_keep_dims(pl, most, x, first, end);
    }
    sum = pl_f32_map(pl, pl_f32_sub(pl, x, most), PLUME_MAP_EXP, 0, 0);
    sum = pl_f32_sum(pl, sum, first, end);
    rank = sum ? pl->api->shape(sum, shape) : 0;
    return pl_f32_add(pl, pl_f32_map(pl, sum, PLUME_MAP_LOG, 0, 0),
                      plume_reshape(pl, most, rank, shape));
}

/* The variance over dimensions first .. end - 1 of n elements, which are removed as by plume_sum():
 * the sum of (x - mean)^2, divided by n - correction. torch.var()'s correction is 1 unless told
 * otherwise. n is larger than it (PyTorch warns, and returns NaN or infinity). Numbers that are
 * large beside their differences lose nothing, if the first is near the others: it is taken off all
 * before the mean is. */
static inline plume_tensor *
plume_var(struct plume_context *pl, plume_tensor *x, size_t first, size_t end, double correction)
{
    size_t n = plume_count_of(pl, x, first, end);
    plume_tensor *d = x, *one, *mean;
    char text[128];

    if (n) {
        one = plume_slice(pl, plume_one_dim(pl, x, first, end), first, 0, 1);
        d = pl_f32_sub(pl, x, plume_keep_dims(pl, pl_f32_detach(pl, one), x, first, end));
    }
    mean = pl_f32_detach(pl, pl_f32_mean(pl, d, first, end));
    if (!x || !mean)
        return NULL;
    if (!((double)n > correction)) {
        snprintf(text, sizeof(text),
                 "var: %zu elements with the correction %g: there must be more than that", n,
                 correction);
        pl->api->fail(pl, -EINVAL, text);
        return NULL;
    }
    /* The mean's own gradient is the sum of all d, and so zero. */
    d = pl_f32_sub(pl, d, plume_keep_dims(pl, mean, x, first, end));
    return pl_f32_scale(pl, pl_f32_mean(pl, pl_f32_mul(pl, d, d), first, end),
                        (double)n / ((double)n - correction), 0);
}

/* sqrt(x), whose gradient is 0 where x is 0; in f32. */
static inline plume_tensor *plume_root(struct plume_context *pl, plume_tensor *x)
{
    const size_t one = 1;
    plume_tensor *zero = plume_full(pl, 1, &one, 0);
    plume_tensor *is_zero = pl_f32_choose(pl, x, zero, NULL, PLUME_CHOOSE_EQ);

    x = pl_f32_choose(pl, is_zero, plume_full(pl, 1, &one, 1), x, PLUME_CHOOSE_WHERE);
    x = pl_f32_map(pl, x, PLUME_MAP_SQRT, 0, 0);
    return pl_f32_choose(pl, is_zero, zero, x, PLUME_CHOOSE_WHERE);
}

/* The square root of plume_var(). Where all elements are equal its gradient is 0. */
static inline plume_tensor *
plume_std(struct plume_context *pl, plume_tensor *x, size_t first, size_t end, double correction)
{
    return plume_root(pl, plume_var(pl, x, first, end, correction));
}

/* The square root of the sum of x^2 over dimensions first .. end - 1, which are removed as by
 * plume_sum(); its gradient is 0 where it is 0. */
static inline plume_tensor *
plume_norm(struct plume_context *pl, plume_tensor *x, size_t first, size_t end)
{
    return plume_root(pl, pl_f32_sum(pl, pl_f32_mul(pl, x, x), first, end));
}

/* 0 if plume_add() would repeat both a and b, as [rows] and [rows, 1], and so pair each element of
 * one with all of the other; with `same` if their shapes differ in anything. */
static inline int
plume_two_fit(struct plume_context *pl, plume_tensor *a, plume_tensor *b, int same)
{
    size_t sa[PLUME_RANK_MAX] = {0}, sb[PLUME_RANK_MAX] = {0};
    size_t ra = pl->api->shape(a, sa), rb = pl->api->shape(b, sb);
    int repeats_a = same && ra < rb, repeats_b = same && rb < ra;

    for (size_t d = 1; d <= ra || d <= rb; d++) { /* from the last on */
        size_t na = d <= ra ? sa[ra - d] : 1, nb = d <= rb ? sb[rb - d] : 1;

        repeats_a |= na < nb;
        repeats_b |= nb < na;
    }
    return same ? !repeats_a && !repeats_b : !repeats_a || !repeats_b;
}

/* Mean of |a - b|, [1]; shapes as for plume_add(), but only one of the two is repeated. */
static inline plume_tensor *plume_l1(struct plume_context *pl, plume_tensor *a, plume_tensor *b)
{
    if (a && b && !plume_two_fit(pl, a, b, 0))
        return plume_refuse_two(pl, "l1: the two have other dimensions: is one transposed?", a, b);
    return plume_mean_of_all(pl, pl_f32_map(pl, pl_f32_sub(pl, a, b), PLUME_MAP_ABS, 0, 0));
}

/* Mean of d^2 / 2 where d = |a - b| is at most delta, else of delta (d - delta / 2) (Huber 1964),
 * [1]; delta > 0; shapes as for plume_l1(). */
static inline plume_tensor *
plume_huber(struct plume_context *pl, plume_tensor *a, plume_tensor *b, double delta)
{
    plume_tensor *d, *linear, *inside, *square;
    const size_t one = 1;

    if (a && b && !plume_two_fit(pl, a, b, 0))
        return plume_refuse_two(pl, "huber: the two have other dimensions: is one transposed?", a,
                                b);
    d = pl_f32_map(pl, pl_f32_sub(pl, a, b), PLUME_MAP_ABS, 0, 0);
    linear = pl_f32_scale(pl, d, delta, -0.5 * delta * delta);
    inside = pl_f32_choose(pl, d, plume_full(pl, 1, &one, delta), NULL, PLUME_CHOOSE_LE);
    square = pl_f32_scale(pl, pl_f32_mul(pl, d, d), 0.5, 0);
    return plume_mean_of_all(pl, pl_f32_choose(pl, inside, square, linear, PLUME_CHOOSE_WHERE));
}

/* Mean of the binary cross-entropy of sigmoid(logits) and targets in [0, 1], in nats, [1]: of (1 -
 * t) softplus(z) + t softplus(-z), which is exact for any finite z. Both have one shape, or the
 * target is one number. */
static inline plume_tensor *
plume_bce_with_logits(struct plume_context *pl, plume_tensor *logits, plume_tensor *targets)
{
    size_t shape[PLUME_RANK_MAX] = {0}, rank = targets ? pl->api->shape(targets, shape) : 0;
    plume_tensor *of_zero, *of_one;
    int same = 0;

    for (size_t d = 0; d < rank; d++)
        same |= shape[d] != 1;
    if (logits && targets && !plume_two_fit(pl, logits, targets, same))
        return plume_refuse_two(
            pl, "bce_with_logits: the two have other dimensions: is one transposed?", logits,
            targets);
    of_zero = pl_f32_map(pl, logits, PLUME_MAP_SOFTPLUS, 0, 0);
    of_one = pl_f32_map(pl, pl_f32_scale(pl, logits, -1, 0), PLUME_MAP_SOFTPLUS, 0, 0);
    of_zero = pl_f32_mul(pl, of_zero, pl_f32_scale(pl, targets, -1, 1));
    return plume_mean_of_all(pl, pl_f32_add(pl, of_zero, pl_f32_mul(pl, of_one, targets)));
}

/* Cross-entropy with labels of which each other class gets smoothing / classes (arXiv 1512.00567):
 * (1 - smoothing) plume_cross_entropy() + smoothing times the mean of -log softmax. */
static inline plume_tensor *plume_cross_entropy_smooth(struct plume_context *pl,
                                                       plume_tensor *logits,
                                                       plume_tensor *labels,
                                                       double smoothing)
{
    plume_tensor *labelled = plume_cross_entropy(pl, logits, labels), *even;

    if (smoothing == 0) /* 0 times an infinite logarithm is NaN */
        return labelled;
    even = plume_mean_of_all(pl, plume_log_softmax(pl, logits));
    return pl_f32_sub(pl, pl_f32_scale(pl, labelled, 1 - smoothing, 0),
                      pl_f32_scale(pl, even, smoothing, 0));
}

/* Sum of p (log p - log_q) over all elements, divided by the first dimension of p (PyTorch's
 * "batchmean"), [1]; log_q and p of one shape. A p of 0 adds 0; one below 0, as of logarithms,
 * makes all NaN. The gradient of a p of 0, minus infinity (PyTorch's is NaN), is log(1.2e-38) -
 * log_q. */
static inline plume_tensor *
plume_kl_div(struct plume_context *pl, plume_tensor *log_q, plume_tensor *p)
{
    size_t shape[PLUME_RANK_MAX] = {1};
    const size_t one = 1;
    plume_tensor *log_p, *sum, *below;

    if (log_q && p && !plume_two_fit(pl, log_q, p, 1))
        return plume_refuse_two(pl, "kl_div: the two have other dimensions: is one transposed?",
                                log_q, p);
    log_p = pl_f32_map(pl, p, PLUME_MAP_CLAMP, 1.17549435e-38, HUGE_VAL); /* f16 has 0 for it */
    below = pl_f32_choose(pl, p, plume_full(pl, 1, &one, 0), NULL, PLUME_CHOOSE_LT);
    log_p = pl_f32_choose(pl, below, p, log_p, PLUME_CHOOSE_WHERE);
    log_p = pl_f32_map(pl, log_p, PLUME_MAP_LOG, 0, 0);
    sum = pl_f32_mul(pl, p, pl_f32_sub(pl, log_p, log_q));
    sum = pl_f32_sum(pl, sum, 0, PLUME_RANK_MAX);
    if (p)
        pl->api->shape(p, shape);
    return pl_f32_scale(pl, sum, 1 / (double)shape[0], 0);
}

/* x / sqrt(mean of x^2 + eps) gamma, the mean over the last dimension n (arXiv 1910.07467); gamma
 * [n] or NULL; eps 0 means 1e-6; below 0 is refused. One op, as plume_layernorm(). */
static inline plume_tensor *
plume_rmsnorm(struct plume_context *pl, plume_tensor *x, plume_tensor *gamma, double eps)
{
    plume_tensor *in[] = {x, gamma};
    struct plume_op_args args = {{1}, {eps}};

    return plume_op_call(pl, PLUME_OP_LAYERNORM, in, gamma ? 2 : 1, &args);
}

/* Normalises each of `groups` equal groups of channels of x [batch, channels, ...] by its mean and
 * variance, then gamma y + beta by channel (arXiv 1803.08494); gamma, beta [channels]; beta,
 * or both, may be NULL; eps 0 means 1e-5; below 0 is refused. `groups` divides the channels. */
static inline plume_tensor *plume_groupnorm(struct plume_context *pl,
                                            plume_tensor *x,
                                            size_t groups,
                                            plume_tensor *gamma,
                                            plume_tensor *beta,
                                            double eps)
{
    size_t shape[PLUME_RANK_MAX] = {1, 1}, rank = x ? pl->api->shape(x, shape) : 0;
    size_t grouped[3] = {shape[0], groups, 0}, channels[PLUME_RANK_MAX];
    plume_tensor *y;
    char text[128];

    if (!x)
        return plume_refuse_null(pl, "groupnorm: x is NULL");
    if (rank < 2 || groups == 0 || shape[1] % groups != 0) {
        snprintf(text, sizeof(text), "groupnorm: %zu groups do not divide the %zu channels", groups,
                 rank < 2 ? 0 : shape[1]);
        pl->api->fail(pl, -EINVAL, text);
        return NULL;
    }
    y = plume_layernorm(pl, plume_reshape(pl, x, 3, grouped), NULL, NULL, eps);
    y = plume_reshape(pl, y, rank, shape);
    if (!gamma && !beta)
        return y;
    channels[0] = shape[1];
    for (size_t d = 1; d + 1 < rank; d++)
        channels[d] = 1;
    y = plume_mul(pl, y, plume_reshape(pl, gamma, rank - 1, channels));
    return beta ? plume_add(pl, y, plume_reshape(pl, beta, rank - 1, channels)) : y;
}

#endif
