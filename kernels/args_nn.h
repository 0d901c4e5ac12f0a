/* SPDX-License-Identifier: MIT */
/* Arguments of elementwise ops, ops on rows, and copies: activations, norms, losses, attention.
 * Rules for all ops: kernels/kernels.h, which includes this. */
#ifndef PL_KERNELS_ARGS_NN_H
#define PL_KERNELS_ARGS_NN_H

#include "kernels/args_linear.h"
#include "kernels/half.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* dst = (a + b) scale. n elements. dst may be a or b. Exact. */
struct pl_add_args {
    size_t n;
    double scale;
    const void *a, *b;
    void *dst;
};

/* y = max(x, 0); a NaN stays one. Backward: dx (+)= dy where y > 0, else 0. n elements. Exact. */
struct pl_relu_args {
    size_t n;
    bool dx_add;
    const void *x, *dy;
    void *y, *dx;
};

/* Mean over rows of -log softmax(logits)[label], computed with the row's maximum subtracted.
 * logits, probs [rows, classes], labels [rows] in [0, classes), loss [1], dloss [1]. Backward:
 * dlogits (+)= dloss (probs - onehot) / rows. A label out of range gives a NaN loss. probs may be
 * NULL in both; backward then recomputes them from the logits and max_sum [rows, 2] (each row's
 * maximum and its sum of exponentials), or, if max_sum is NULL too, from the logits alone. wide: a
 * 16-bit table's loss and dloss are f32, not of its type; other tables ignore it. ahead: forward
 * also writes dlogits, for a dloss of 1, which may be the logits; backward only multiplies it by
 * dloss. probs and max_sum are NULL then, and dx_add is not set. of: if not 0, forward has rows
 * first, first + 1, ... of a batch of `of` rows, over which the mean is; row_loss [of] keeps the
 * losses of its rows, and the call with the last row writes loss. */
struct pl_cross_entropy_args {
    size_t rows, classes, first, of;
    bool dx_add, wide, ahead;
    double *row_loss;
    const void *logits, *dloss;
    const int32_t *labels;
    void *probs, *max_sum; /* written forward, read backward */
    void *loss, *dlogits;
};

/* count [1] = number of rows whose largest logit (the first of equals) is the label's. Exact. wide:
 * a 16-bit table's count is f32, not of its type; other tables ignore it. */
struct pl_correct_args {
    size_t rows, classes;
    bool wide;
    const void *logits;
    const int32_t *labels;
    void *count;
};

/* Converts n numbers between a 16-bit type and the table's real type: widen writes `wide`, narrow
 * `half`. widen is exact; narrow rounds to nearest, ties to even, and keeps infinities and NaNs (as
 * some NaN). With `add` the old value is added first, and the sum is rounded once; narrow's is in
 * f32. Exact. */
struct pl_half_args {
    size_t n;
    enum pl_half type;
    bool add;
    uint16_t *half;
    void *wide;
};

/* One time of an LSTM layer (Hochreiter and Schmidhuber 1997), its gates in PyTorch's order: z = x
 * + hx; i, f, o = sigmoid of z's parts 0, 1, 3, g = tanh of part 2; c = f c_before + i g, h = o
 * tanh(c). x [batch, 4 hidden] and hx, the products of the layer's input and of its state; c, h and
 * the like [batch, hidden]. hx and c_before may be NULL: zeros. Rows of x and dx are x_row elements
 * apart, those of y and dy y_row; y is h once more. gates keeps i, f, g, o. Backward: dy, and dh
 * and dc from the next time (NULL: zeros), are the gradients of y, h and c. gates becomes dz; dx
 * (+)= dz, dc_before (+)= dc f. dc_before may be dc if it is not added to. */
struct pl_lstm_args {
    size_t batch, hidden, x_row, y_row;
    bool dx_add, dc_before_add;
    const void *x, *hx, *c_before, *dy, *dh, *dc;
    void *gates;     /* written forward, read and written backward */
    void *c, *h, *y; /* written forward; c is read backward */
    void *dx, *dc_before;
};

/* One time of a GRU layer (Cho et al., arXiv 1406.1078), as torch.nn.GRU has it: p = hx + b, r and
 * z = sigmoid of parts 0 and 1 of x + p, n = tanh(x's part 2 + r times p's); h = (1 - z) n + z
 * h_before. x [batch, 3 hidden] and hx, the products of the layer's input and of its state; b [3
 * hidden]; h and the like [batch, hidden]. hx, b and h_before may be NULL: zeros. Rows of x and dx
 * are x_row elements apart, those of y and dy y_row; y is h once more. gates keeps r, z, n, kept
 * p's part 2. Backward: dy, and dh from the next time (NULL: zeros), are the gradients of y and h.
 * gates becomes the gradient of p; dx (+)= that of x, dh_before (+)= that of h_before but for what
 * comes by way of hx. dh_before may be dh if it is not added to. */
struct pl_gru_args {
    size_t batch, hidden, x_row, y_row;
    bool dx_add, dh_before_add;
    const void *x, *hx, *b, *h_before, *dy, *dh;
    void *gates;        /* written forward, read and written backward */
    void *kept, *h, *y; /* written forward; kept is read backward */
    void *dx, *dh_before;
};

/* y = act(x), elementwise; n elements. Backward: dx (+)= dy act'(x); dx may be dy. */
struct pl_unary_args {
    size_t n;
    enum pl_activation act;
    bool dx_add;
    const void *x, *dy;
    void *y, *dx;
};

enum pl_binary {
    PL_BINARY_ADD,
    PL_BINARY_SUB,
    PL_BINARY_MUL,
    PL_BINARY_DIV,
};

/* y[i] = a[i] op b[i % m]: b [m] is repeated along a's leading dimensions; m divides n. Backward:
 * da (+)= dy d/da, db (+)= the sums over repetitions of dy d/db. da, db may be NULL. */
struct pl_binary_args {
    size_t n, m;
    enum pl_binary op;
    bool da_add, db_add;
    const void *a, *b, *dy;
    void *y, *da, *db;
};

/* y = scale x + shift; n elements. dst (+)= scale x + shift with `add`. The op is its own gradient.
 * y may be x. */
struct pl_affine_args {
    size_t n;
    double scale, shift;
    bool add;
    const void *x;
    void *y;
};

/* y [outer, inner] = scale * the sum over the middle of x [outer, n, inner]. In f64, in index order
 * within fixed chunks. Backward: dx (+)= scale dy, repeated. */
struct pl_reduce_args {
    size_t outer, n, inner;
    double scale;
    bool dx_add;
    const void *x, *dy;
    void *y, *dx;
};

/* y = (x - mean) rstd gamma + beta over the last dimension of x [rows, n], rstd = 1/sqrt(var + eps)
 * with the biased variance (Ba et al., arXiv 1607.06450). gamma, beta [n] or NULL. mean, rstd
 * [rows] are written forward and read backward. dx, dgamma, dbeta may be NULL. rms: the mean is not
 * subtracted, and counts as 0 (Zhang and Sennrich, arXiv 1910.07467).
 *
 * A sum before the norm, in the same pass: forward, if `sum` is not NULL, x is not read; x is
 * a + b, which is written to sum; with b_rows b has so many rows, which repeat. Backward, dx_too
 * gets a copy of dx if it is not NULL. y_half: y, dy, b and dx_too are of the 16-bit type `half` in
 * the table of f32; x_half: so are x, dx, a and sum (only with y_half). Other tables ignore both.
 * All is rounded as by a kernel of its own: x before its mean is taken, dx before it goes to
 * dx_too. dx_sums [n], if it is not NULL,
 * (+)= the column sums of dx_too, or of dx without it, as they were rounded: the gradient of the
 * bias of a layer that made b. It is of the table's type, and goes with dx only. */
struct pl_layernorm_args {
    size_t rows, n, b_rows;
    double eps;
    bool rms;
    bool dx_add, dgamma_add, dbeta_add, dx_sums_add;
    bool x_half, y_half;
    enum pl_half half;
    const void *x, *gamma, *beta, *dy;
    const void *a, *b;
    void *sum, *dx_too, *dx_sums;
    void *y, *mean, *rstd, *dx, *dgamma, *dbeta;
};

/* y = softmax(x), or its logarithm, over the last dimension of x [rows, n], the row's maximum taken
 * out. Backward reads y: dx (+)= y (dy - sum y dy), or dy - e^y sum dy. */
struct pl_softmax_args {
    size_t rows, n;
    bool log, dx_add;
    const void *x, *dy;
    void *y, *dx;
};

/* loss [1] = mean of (a - b)^2 over n elements. Backward: da (+)= 2 dloss (a - b)/n, db the
 * opposite; may be NULL. */
struct pl_mse_args {
    size_t n;
    bool da_add, db_add;
    const void *a, *b, *dloss;
    void *loss, *da, *db;
};

/* y [rows, dim] = table [vocab, dim] at ids [rows]; an id out of range gives NaNs. Backward: dtable
 * (+)= the sums of dy by id, in the order of the rows; ids out of range are skipped. */
struct pl_embedding_args {
    size_t rows, vocab, dim;
    bool dtable_add;
    const int32_t *ids;
    const void *table, *dy;
    void *y, *dtable;
};

/* dst (+)= src / (1 - p) if kept, else 0. Element i is dropped with probability p, by number
 * `counter + i / 4`, lane i % 4, of Philox4x32-10 with this key (Salmon et al., SC11). Forward and
 * backward are the same. */
struct pl_dropout_args {
    size_t n;
    double p;
    uint64_t key, counter[2]; /* [1] is constant over the call */
    unsigned skip;            /* 0 to 3: element i has the number of i + skip */
    bool add;
    const void *src;
    void *dst;
    const uint64_t *draw; /* if not NULL: replaces counter[1] by the value here when the op runs */
};

/* y = x / max(|x|, eps) over the last dimension of x [rows, n]; norm [rows] = |x| is written
 * forward and read backward. dx (+)= (dy - y sum(y dy)) / |x|, or dy / eps if |x| <= eps. */
struct pl_normalize_args {
    size_t rows, n;
    double eps;
    bool dx_add;
    const void *x, *dy;
    void *y, *norm, *dx;
};

/* Attention (Vaswani et al., arXiv 1706.03762): for each batch and head, y = softmax(scale q k^T) v
 * over the keys; if causal, over the keys at the query's own time and before (time == keys then).
 * q, y, dy, dq are [batch, time, heads, dim], k, v, dk, dv [batch, keys, heads, dim], each with its
 * own strides and a dense last dimension: one array [batch, time, 3, heads, dim] may hold q, k and
 * v. lse [batch, heads, time], dense: the logarithm of each row's sum of exponentials, from which
 * backward recomputes the probabilities (Dao et al., arXiv 2205.14135), so that no time x keys
 * matrix is kept; backward needs forward's y and lse. Without keys y is 0 and lse -INFINITY.
 * Numbers that are not finite: a NaN in q, k or v makes NaNs of every y that sees it, and does not
 * affect other heads; nothing else is defined for that head. The same holds for infinities and for
 * scores that overflow. */
struct pl_attention_strides {
    size_t batch, time, head; /* in elements */
};
struct pl_attention_args {
    size_t batch, heads, time, keys, dim;
    bool causal;
    bool dq_add, dk_add, dv_add;
    double scale;
    const void *q, *k, *v, *dy;
    void *y, *lse; /* written forward, read backward */
    void *dq, *dk, *dv;
    struct pl_attention_strides q_at, k_at, v_at, y_at, dy_at, dq_at, dk_at, dv_at;
};

/* dst = src, or dst += src, element by element over an index space of `rank` dimensions, each side
 * with its own strides (in elements): for dense copies of views, gradients of views, cat. Elements
 * have 1, 2, 4 or 8 bytes; with `add` they are of the table's real type. No element of dst is
 * reached twice, and src and dst do not overlap. Exact. */
#define PL_COPY_RANK 8
struct pl_copy_args {
    size_t rank, shape[PL_COPY_RANK];
    size_t src_stride[PL_COPY_RANK], dst_stride[PL_COPY_RANK];
    size_t bytes; /* per element */
    bool add;
    const void *src;
    void *dst;
};

/* y = first, first + step, ..., n of them, all of them numbers of 32 bits. Exact. */
struct pl_arange_args {
    size_t n;
    int32_t first, step;
    int32_t *y;
};

/* X(function, struct of arguments) */
/* The functions of pl_map_args. New ones are appended: modules have the numbers (plume/ops_math.h).
 */
enum pl_map {
    PL_MAP_FILL, /* p, whatever x is; no gradient */
    PL_MAP_EXP,
    PL_MAP_LOG,
    PL_MAP_SQRT,
    PL_MAP_RSQRT, /* 1 / sqrt(x) */
    PL_MAP_POW,   /* x^p */
    PL_MAP_ABS,
    PL_MAP_CLAMP,    /* p, x or q: the middle one; p <= q; a NaN stays one */
    PL_MAP_SOFTPLUS, /* log(1 + e^x) */
    PL_MAP_ELU,      /* x > 0: x, else p (e^x - 1) */
    PL_MAP_LEAKY,    /* x > 0: x, else p x */
    PL_MAP_SIN,
    PL_MAP_COS,
    PL_MAP_FLOOR,
    PL_MAP_CEIL,
    PL_MAP_ROUND, /* halves to the even number */
    PL_MAP_SIGN,  /* -1, 0 or 1; 0 of a NaN */
    PL_MAP_ERF,
    PL_MAP_TAN,
};

/* y = f(x). Backward: dx (+)= dy f'(x). Slopes where there are several, as PyTorch's: 0 of abs at
 * 0, 0 of clamp at its bounds, that of the side x <= 0 for elu and leaky, 0 of x^0, 0 of what
 * rounds. n elements; x may be y, or NULL for FILL in the tables of CPUs. */
struct pl_map_args {
    size_t n;
    enum pl_map fn;
    double p, q;
    bool dx_add;
    const void *x, *dy;
    void *y, *dx;
};

/* The operations of pl_choose_args; numbers as above. */
enum pl_choose {
    PL_CHOOSE_MAX, /* of a and b; a NaN wins */
    PL_CHOOSE_MIN,
    PL_CHOOSE_WHERE, /* a != 0: b, else c; a NaN is not 0 */
    PL_CHOOSE_LT,    /* a < b: 1, else 0; so are the others; no gradient */
    PL_CHOOSE_LE,
    PL_CHOOSE_EQ,
    PL_CHOOSE_NE,
};

/* y = op(a, b, c), n elements each; c only for WHERE. Backward: dy goes to the operand that was
 * chosen, half to each of two equal ones, all to both if one is a NaN (as PyTorch); the others get
 * 0. */
struct pl_choose_args {
    size_t n;
    enum pl_choose op;
    bool da_add, db_add, dc_add;
    const void *a, *b, *c, *dy;
    void *y, *da, *db, *dc;
};

/* Rotary position embedding (Su et al., arXiv 2104.09864): for each time, pair i of each row of x
 * [outer, time, rows, dim] is turned by the angle (first + time) base^(-2 i / dim), the other way
 * if `back`, which is the gradient. Pairs are (i, i + dim / 2), or (2 i, 2 i + 1) if `interleaved`;
 * dim is even. y (+)= the result. Angles are in f64. */
struct pl_rotary_args {
    size_t outer, time, rows, dim, first;
    double base;
    bool interleaved, back, add;
    const void *x;
    void *y;
};

/* New ones are appended: modules have the numbers (plume/ops_math.h). */
enum pl_random {
    PL_RANDOM_UNIFORM,   /* in [p, q), a multiple of 2^-24 of the range */
    PL_RANDOM_BERNOULLI, /* 1 with the probability p, else 0 */
    PL_RANDOM_NORMAL,    /* of mean p and standard deviation q (Box and Muller 1958) */
};

/* y: n random numbers by counters, as pl_dropout_args. Exact but for NORMAL, which is rounded. */
struct pl_random_args {
    size_t n;
    enum pl_random kind;
    double p, q;
    uint64_t key, counter[2];
    unsigned skip; /* as of dropout */
    void *y;
    const uint64_t *draw; /* as of dropout */
};

#define PL_KERNEL_LIST_NN(X)                                                                       \
    X(add, add)                                                                                    \
    X(relu_forward, relu)                                                                          \
    X(relu_backward, relu)                                                                         \
    X(cross_entropy_forward, cross_entropy)                                                        \
    X(cross_entropy_backward, cross_entropy)                                                       \
    X(correct, correct)                                                                            \
    X(widen, half)                                                                                 \
    X(narrow, half)                                                                                \
    X(unary_forward, unary)                                                                        \
    X(unary_backward, unary)                                                                       \
    X(binary_forward, binary)                                                                      \
    X(binary_backward, binary)                                                                     \
    X(affine, affine)                                                                              \
    X(reduce_forward, reduce)                                                                      \
    X(reduce_backward, reduce)                                                                     \
    X(layernorm_forward, layernorm)                                                                \
    X(layernorm_backward, layernorm)                                                               \
    X(softmax_forward, softmax)                                                                    \
    X(softmax_backward, softmax)                                                                   \
    X(mse_forward, mse)                                                                            \
    X(mse_backward, mse)                                                                           \
    X(embedding_forward, embedding)                                                                \
    X(embedding_backward, embedding)                                                               \
    X(dropout, dropout)                                                                            \
    X(normalize_forward, normalize)                                                                \
    X(normalize_backward, normalize)                                                               \
    X(attention_forward, attention)                                                                \
    X(attention_backward, attention)                                                               \
    X(lstm_forward, lstm)                                                                          \
    X(lstm_backward, lstm)                                                                         \
    X(gru_forward, gru)                                                                            \
    X(gru_backward, gru)                                                                           \
    X(copy, copy)                                                                                  \
    X(arange, arange)                                                                              \
    X(map_forward, map)                                                                            \
    X(map_backward, map)                                                                           \
    X(choose_forward, choose)                                                                      \
    X(choose_backward, choose)                                                                     \
    X(rotary, rotary)                                                                              \
    X(random, random)

#endif
