/* SPDX-License-Identifier: MIT */
#include "tests/kernels/arrays.h"

static void put(struct arrays *to, enum array_kind kind, size_t element, void *slot, size_t n)
{
    if (*(void **)slot && n)
        to->v[to->n++] = (struct array){
            .slot = slot, .kind = kind, .element = element, .rank = 1, .n = {n}, .stride = {1}};
}

#define IN(field, n) put(ret, ARRAY_IN, 0, &a->field, n)
#define OUT(field, n) put(ret, ARRAY_OUT, 0, &a->field, n)
#define STAT(field, n) put(ret, ARRAY_STAT, 0, &a->field, n)
#define RAW(field, n) put(ret, ARRAY_RAW, sizeof(*a->field), &a->field, n)

ARRAYS_DECLARE(linear)
{
    size_t x = a->rows * a->in, w = a->out * a->in, y = a->rows * a->out;

    IN(x, x), IN(w, w), IN(b, a->out), IN(dy, y);
    OUT(y, y), OUT(pre, y), OUT(dz, y), OUT(dx, x), OUT(dw, w), OUT(db, a->out);
}

static void matrices(struct arrays *to,
                     enum array_kind kind,
                     void *slot,
                     size_t batch,
                     size_t between,
                     size_t rows,
                     size_t row,
                     size_t columns)
{
    size_t i = to->n;

    put(to, kind, 0, slot, rows * columns * batch);
    if (to->n > i)
        to->v[i] = (struct array){.slot = slot,
                                  .kind = kind,
                                  .rank = 3,
                                  .n = {between ? batch : 1, rows, columns},
                                  .stride = {between, row, 1}};
}

ARRAYS_DECLARE(matmul)
{
    matrices(ret, ARRAY_IN, &a->a, a->batch, a->a_batch, a->a_transposed ? a->k : a->m, a->a_row,
             a->a_transposed ? a->m : a->k);
    matrices(ret, ARRAY_IN, &a->b, a->batch, a->b_batch, a->b_transposed ? a->n : a->k, a->b_row,
             a->b_transposed ? a->k : a->n);
    matrices(ret, ARRAY_OUT, &a->c, a->batch, a->c_batch, a->m, a->c_row, a->n);
}

ARRAYS_DECLARE(conv2d)
{
    size_t x = a->batch * a->in * a->height * a->width;
    size_t w = a->out * a->in * a->kernel_h * a->kernel_w;
    size_t y = a->batch * a->out * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
               pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    IN(x, x), IN(w, w), IN(b, a->out), IN(dy, y);
    OUT(y, y), OUT(dx, x), OUT(dw, w), OUT(db, a->out);
}

ARRAYS_DECLARE(pool2d)
{
    size_t x = a->planes * a->height * a->width;
    size_t y = a->planes * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
               pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    IN(x, x), IN(dy, y), RAW(which, y), OUT(y, y), OUT(dx, x);
}

ARRAYS_DECLARE(batchnorm)
{
    size_t x = a->batch * a->channels * a->inner;

    IN(x, x), IN(dy, x), IN(w, a->channels), IN(b, a->channels);
    RAW(sums, 1 + 2 * a->channels), RAW(back_sums, 1 + 2 * a->channels);
    STAT(running_mean, a->channels), STAT(running_var, a->channels);
    STAT(mean, a->channels), STAT(inv_std, a->channels);
    OUT(y, x), OUT(dx, x), OUT(dw, a->channels), OUT(db, a->channels);
}

ARRAYS_DECLARE(add)
{
    IN(a, a->n), IN(b, a->n), OUT(dst, a->n);
}

ARRAYS_DECLARE(relu)
{
    IN(x, a->n), IN(dy, a->n), OUT(y, a->n), OUT(dx, a->n);
}

ARRAYS_DECLARE(cross_entropy)
{
    size_t n = a->rows * a->classes;

    IN(logits, n), IN(dloss, 1), RAW(labels, a->rows);
    OUT(probs, n), STAT(max_sum, 2 * a->rows), OUT(loss, 1), OUT(dlogits, n);
}

ARRAYS_DECLARE(correct)
{
    IN(logits, a->rows * a->classes), RAW(labels, a->rows), OUT(count, 1);
}

ARRAYS_DECLARE(half)
{
    RAW(half, a->n), OUT(wide, a->n);
}

ARRAYS_DECLARE(unary)
{
    IN(x, a->n), IN(dy, a->n), OUT(y, a->n), OUT(dx, a->n);
}

ARRAYS_DECLARE(binary)
{
    IN(a, a->n), IN(b, a->m), IN(dy, a->n), OUT(y, a->n), OUT(da, a->n), OUT(db, a->m);
}

ARRAYS_DECLARE(affine)
{
    IN(x, a->n), OUT(y, a->n);
}

ARRAYS_DECLARE(reduce)
{
    size_t x = a->outer * a->n * a->inner, y = a->outer * a->inner;

    IN(x, x), IN(dy, y), OUT(y, y), OUT(dx, x);
}

ARRAYS_DECLARE(layernorm)
{
    size_t x = a->rows * a->n;

    IN(x, x), IN(gamma, a->n), IN(beta, a->n), IN(dy, x), OUT(y, x), STAT(mean, a->rows);
    STAT(rstd, a->rows), OUT(dx, x), OUT(dgamma, a->n), OUT(dbeta, a->n);
}

ARRAYS_DECLARE(softmax)
{
    size_t x = a->rows * a->n;

    IN(x, x), IN(dy, x), OUT(y, x), OUT(dx, x);
}

ARRAYS_DECLARE(mse)
{
    IN(a, a->n), IN(b, a->n), IN(dloss, 1), OUT(loss, 1), OUT(da, a->n), OUT(db, a->n);
}

ARRAYS_DECLARE(embedding)
{
    RAW(ids, a->rows), IN(table, a->vocab * a->dim), IN(dy, a->rows * a->dim);
    OUT(y, a->rows * a->dim), OUT(dtable, a->vocab * a->dim);
}

ARRAYS_DECLARE(dropout)
{
    IN(src, a->n), OUT(dst, a->n), RAW(draw, 1);
}

ARRAYS_DECLARE(normalize)
{
    size_t x = a->rows * a->n;

    IN(x, x), IN(dy, x), OUT(y, x), STAT(norm, a->rows), OUT(dx, x);
}

static void heads(struct arrays *to,
                  enum array_kind kind,
                  void *slot,
                  const struct pl_attention_args *a,
                  size_t time,
                  const struct pl_attention_strides *at)
{
    size_t i = to->n;

    put(to, kind, 0, slot, a->batch * time * a->heads * a->dim);
    if (to->n > i)
        to->v[i] = (struct array){.slot = slot,
                                  .kind = kind,
                                  .rank = 4,
                                  .n = {a->batch, time, a->heads, a->dim},
                                  .stride = {at->batch, at->time, at->head, 1}};
}

ARRAYS_DECLARE(attention)
{
    heads(ret, ARRAY_IN, &a->q, a, a->time, &a->q_at);
    heads(ret, ARRAY_IN, &a->k, a, a->keys, &a->k_at);
    heads(ret, ARRAY_IN, &a->v, a, a->keys, &a->v_at);
    heads(ret, ARRAY_IN, &a->dy, a, a->time, &a->dy_at);
    heads(ret, ARRAY_OUT, &a->y, a, a->time, &a->y_at);
    heads(ret, ARRAY_OUT, &a->dq, a, a->time, &a->dq_at);
    heads(ret, ARRAY_OUT, &a->dk, a, a->keys, &a->dk_at);
    heads(ret, ARRAY_OUT, &a->dv, a, a->keys, &a->dv_at);
    STAT(lse, a->batch * a->heads * a->time);
}

static void strided(struct arrays *to,
                    const struct pl_copy_args *a,
                    enum array_kind kind,
                    void *slot,
                    const size_t *stride)
{
    size_t i = to->n, count = 1;

    for (size_t d = 0; d < a->rank; d++)
        count *= a->shape[d];
    put(to, a->add ? kind : ARRAY_RAW, a->bytes, slot, count);
    if (to->n == i)
        return;
    to->v[i].rank = a->rank;
    for (size_t d = 0; d < a->rank; d++) {
        to->v[i].n[d] = a->shape[d];
        to->v[i].stride[d] = stride[d];
    }
}

/* What is added is of the table's type. */
ARRAYS_DECLARE(copy)
{
    strided(ret, a, ARRAY_IN, &a->src, a->src_stride);
    strided(ret, a, ARRAY_OUT, &a->dst, a->dst_stride);
    a->bytes = a->add ? element : a->bytes;
}

ARRAYS_DECLARE(arange)
{
    RAW(y, a->n);
}

#define UPDATE()                                                                                   \
    IN(update.grad, a->update.n);                                                                  \
    OUT(update.param, a->update.n);                                                                \
    RAW(update.copy, a->update.n)

ARRAYS_DECLARE(sgd)
{
    UPDATE();
    OUT(velocity, a->update.n);
}

ARRAYS_DECLARE(adam)
{
    UPDATE();
    OUT(m, a->update.n), OUT(v, a->update.n);
}

ARRAYS_DECLARE(grad_stats)
{
    OUT(grad, a->n), RAW(ret_squares, 1), RAW(ret_finite, 1);
}
