/* SPDX-License-Identifier: MIT */
#include "tests/kernels/arrays.h"

#include <stdlib.h>

static void put(struct arrays *to,
                enum array_kind kind,
                const char *made_by,
                size_t element,
                void *slot,
                size_t n)
{
    if (*(void **)slot && n && to->n == ARRAYS_MAX)
        abort();
    if (*(void **)slot && n)
        to->v[to->n++] = (struct array){.slot = slot,
                                        .kind = kind,
                                        .made_by = made_by,
                                        .element = element,
                                        .rank = 1,
                                        .n = {n},
                                        .stride = {1}};
}

/* Read; read and written; written by the functions whose names have this, but where they add. */
#define IN(field, n) put(ret, ARRAY_IN, NULL, 0, &a->field, n)
#define KEPT(field, n) put(ret, ARRAY_OUT, NULL, 0, &a->field, n)
#define OUT(field, n, by, add) put(ret, ARRAY_OUT, (add) ? NULL : (by), 0, &a->field, n)
#define FORWARD(field, n) OUT(field, n, "forward", false)
#define BACKWARD(field, n) OUT(field, n, "backward", a->field##_add)
#define STAT(field, n, by) put(ret, ARRAY_STAT, by, 0, &a->field, n)
/* A field `wide`: the number has a statistic's type if it is set. */
#define ONE(field, kind, by) put(ret, a->wide ? ARRAY_STAT : (kind), by, 0, &a->field, 1)
#define RAW(field, n, by) put(ret, ARRAY_RAW, by, sizeof(*a->field), &a->field, n)

ARRAYS_DECLARE(linear)
{
    size_t x = a->rows * a->in, w = a->out * a->in, y = a->rows * a->out;
    size_t dy = a->dy_row && a->rows ? (a->rows - 1) * a->dy_row + a->out : y;

    IN(x, x), IN(x_pre, x), IN(w, w), IN(b, a->out), IN(dy, dy), FORWARD(y, y);
    OUT(pre, y, "forward", !pl_activation_needs_pre(a->act));
    OUT(dz, y, "backward", false), BACKWARD(dx, x);
    put(ret, a->dw_wide ? ARRAY_STAT : ARRAY_OUT, a->dw_add ? NULL : "backward", 0, &a->dw, w);
    put(ret, a->db_wide ? ARRAY_STAT : ARRAY_OUT, a->db_add ? NULL : "backward", 0, &a->db, a->out);
    STAT(dx_sums, a->in, a->dx_sums_add ? NULL : "backward");
}

static void matrices(struct arrays *to,
                     enum array_kind kind,
                     const char *made_by,
                     void *slot,
                     size_t batch,
                     size_t between,
                     size_t rows,
                     size_t row,
                     size_t columns)
{
    size_t i = to->n;

    put(to, kind, made_by, 0, slot, rows * columns * batch);
    if (to->n > i)
        to->v[i] = (struct array){.slot = slot,
                                  .kind = kind,
                                  .made_by = made_by,
                                  .rank = 3,
                                  .n = {between ? batch : 1, rows, columns},
                                  .stride = {between, row, 1}};
}

ARRAYS_DECLARE(matmul)
{
    matrices(ret, ARRAY_IN, NULL, &a->a, a->batch, a->a_batch, a->a_transposed ? a->k : a->m,
             a->a_row, a->a_transposed ? a->m : a->k);
    matrices(ret, ARRAY_IN, NULL, &a->b, a->batch, a->b_batch, a->b_transposed ? a->n : a->k,
             a->b_row, a->b_transposed ? a->k : a->n);
    matrices(ret, ARRAY_OUT, a->add ? NULL : "matmul", &a->c, a->batch, a->c_batch, a->m, a->c_row,
             a->n);
}

ARRAYS_DECLARE(conv2d)
{
    size_t x = a->batch * a->in * a->height * a->width;
    size_t w = a->out * a->in * a->kernel_h * a->kernel_w;
    size_t y = a->batch * a->out * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
               pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    IN(x, x), IN(w, w), IN(b, a->out), IN(dy, y), FORWARD(y, y);
    BACKWARD(dx, x), BACKWARD(dw, w), BACKWARD(db, a->out), RAW(bad, 1, NULL);
}

ARRAYS_DECLARE(pool2d)
{
    size_t x = a->planes * a->height * a->width * a->inner;
    size_t y = a->planes * a->inner * pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h) *
               pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);

    IN(x, x), IN(dy, y), RAW(which, y, "max_pool2d_forward"), FORWARD(y, y), BACKWARD(dx, x);
}

/* Of the table's type, or of 16 bits in the tables of f32. */
#define HALVED(half, kind, field, n, by)                                                           \
    put(ret, (half) && element == sizeof(float) ? ARRAY_RAW : (kind), by, sizeof(uint16_t),        \
        &a->field, n)

ARRAYS_DECLARE(batchnorm)
{
    size_t x = a->batch * a->channels * a->inner;
    bool xh = a->x_half, yh = a->y_half;
    const char *by = a->alone && a->training ? "batchnorm_sums" : "forward";

    HALVED(xh, ARRAY_IN, x, x, NULL), HALVED(yh, ARRAY_IN, dy, x, NULL);
    HALVED(yh, ARRAY_IN, r, x, NULL);
    HALVED(yh, ARRAY_OUT, dr, x, a->dr_add ? NULL : "batchnorm_back_sums");
    IN(w, a->channels), IN(b, a->channels);
    RAW(sums, 1 + 2 * a->channels, "batchnorm_sums");
    RAW(back_sums, 1 + 2 * a->channels, "batchnorm_back_sums");
    RAW(shift, a->channels, NULL);
    STAT(running_mean, a->channels, NULL), STAT(running_var, a->channels, NULL);
    STAT(mean, a->channels, by), STAT(inv_std, a->channels, by);
    STAT(factors, PL_BATCHNORM_FACTORS * a->channels, "batchnorm_back_sums");
    HALVED(yh, ARRAY_OUT, y, x, "forward");
    HALVED(xh, ARRAY_OUT, dx, x, a->dx_add ? NULL : "backward");
    OUT(dw, a->channels, "batchnorm_back_sums", a->dw_add);
    OUT(db, a->channels, "batchnorm_back_sums", a->db_add);
}

ARRAYS_DECLARE(add)
{
    IN(a, a->n), IN(b, a->n), OUT(dst, a->n, "add", false);
}

ARRAYS_DECLARE(relu)
{
    IN(x, a->n), IN(dy, a->n), FORWARD(y, a->n), BACKWARD(dx, a->n);
}

ARRAYS_DECLARE(cross_entropy)
{
    size_t n = a->rows * a->classes;

    IN(logits, n), ONE(dloss, ARRAY_IN, NULL), RAW(labels, a->rows, NULL), FORWARD(probs, n);
    ONE(loss, ARRAY_OUT, "forward");
    RAW(row_loss, a->of, NULL);
    STAT(max_sum, 2 * a->rows, "forward"),
        OUT(dlogits, n, a->ahead ? "forward" : "backward", a->dx_add);
}

ARRAYS_DECLARE(correct)
{
    IN(logits, a->rows * a->classes), RAW(labels, a->rows, NULL);
    ONE(count, ARRAY_OUT, "correct");
}

ARRAYS_DECLARE(half)
{
    RAW(half, a->n, "narrow"), OUT(wide, a->n, "widen", false);
}

ARRAYS_DECLARE(unary)
{
    IN(x, a->n), IN(dy, a->n), FORWARD(y, a->n), BACKWARD(dx, a->n);
}

ARRAYS_DECLARE(map)
{
    IN(x, a->n), IN(dy, a->n), FORWARD(y, a->n), BACKWARD(dx, a->n);
}

ARRAYS_DECLARE(choose)
{
    IN(a, a->n), IN(b, a->n), IN(c, a->n), IN(dy, a->n), FORWARD(y, a->n);
    BACKWARD(da, a->n), BACKWARD(db, a->n), BACKWARD(dc, a->n);
}

ARRAYS_DECLARE(binary)
{
    IN(a, a->n), IN(b, a->m), IN(dy, a->n), FORWARD(y, a->n), BACKWARD(da, a->n),
        BACKWARD(db, a->m);
}

ARRAYS_DECLARE(affine)
{
    IN(x, a->n), OUT(y, a->n, "affine", a->add);
}

ARRAYS_DECLARE(reduce)
{
    size_t x = a->outer * a->n * a->inner, y = a->outer * a->inner;

    IN(x, x), IN(dy, y), FORWARD(y, y), BACKWARD(dx, x);
}

ARRAYS_DECLARE(layernorm)
{
    size_t x = a->rows * a->n, b = a->b_rows ? a->b_rows * a->n : x;
    bool xh = a->x_half, yh = a->y_half;

    HALVED(xh, ARRAY_IN, x, x, NULL), HALVED(yh, ARRAY_IN, dy, x, NULL);
    HALVED(xh, ARRAY_IN, a, x, NULL), HALVED(yh, ARRAY_IN, b, b, NULL);
    IN(gamma, a->n), IN(beta, a->n);
    HALVED(yh, ARRAY_OUT, y, x, "forward"), HALVED(xh, ARRAY_OUT, sum, x, "forward");
    HALVED(xh, ARRAY_OUT, dx, x, a->dx_add ? NULL : "backward");
    HALVED(yh, ARRAY_OUT, dx_too, x, "backward");
    STAT(mean, a->rows, "forward"), STAT(rstd, a->rows, "forward");
    BACKWARD(dgamma, a->n), BACKWARD(dbeta, a->n), BACKWARD(dx_sums, a->n);
}

/* Rows of `columns` elements, `row` apart. */
static void rows(struct arrays *to,
                 enum array_kind kind,
                 const char *made_by,
                 void *slot,
                 size_t n,
                 size_t row,
                 size_t columns)
{
    size_t i = to->n;

    put(to, kind, made_by, 0, slot, n * columns);
    if (to->n > i)
        to->v[i] = (struct array){.slot = slot,
                                  .kind = kind,
                                  .made_by = made_by,
                                  .rank = 2,
                                  .n = {n, columns},
                                  .stride = {row, 1}};
}

ARRAYS_DECLARE(gru)
{
    size_t n = a->batch * a->hidden;

    rows(ret, ARRAY_IN, NULL, &a->x, a->batch, a->x_row, 3 * a->hidden);
    rows(ret, ARRAY_IN, NULL, &a->dy, a->batch, a->y_row, a->hidden);
    IN(hx, 3 * n), IN(b, 3 * a->hidden), IN(h_before, n), IN(dh, n);
    FORWARD(gates, 3 * n), FORWARD(kept, n), FORWARD(h, n), BACKWARD(dh_before, n);
    rows(ret, ARRAY_OUT, "forward", &a->y, a->batch, a->y_row, a->hidden);
    rows(ret, ARRAY_OUT, a->dx_add ? NULL : "backward", &a->dx, a->batch, a->x_row, 3 * a->hidden);
}

ARRAYS_DECLARE(lstm)
{
    size_t n = a->batch * a->hidden;

    rows(ret, ARRAY_IN, NULL, &a->x, a->batch, a->x_row, 4 * a->hidden);
    rows(ret, ARRAY_IN, NULL, &a->dy, a->batch, a->y_row, a->hidden);
    IN(hx, 4 * n), IN(c_before, n), IN(dh, n), IN(dc, n);
    FORWARD(gates, 4 * n), FORWARD(c, n), FORWARD(h, n), BACKWARD(dc_before, n);
    rows(ret, ARRAY_OUT, "forward", &a->y, a->batch, a->y_row, a->hidden);
    rows(ret, ARRAY_OUT, a->dx_add ? NULL : "backward", &a->dx, a->batch, a->x_row, 4 * a->hidden);
}

ARRAYS_DECLARE(softmax)
{
    size_t x = a->rows * a->n;

    IN(x, x), IN(dy, x), FORWARD(y, x), BACKWARD(dx, x);
}

ARRAYS_DECLARE(mse)
{
    IN(a, a->n), IN(b, a->n), IN(dloss, 1), FORWARD(loss, 1), BACKWARD(da, a->n),
        BACKWARD(db, a->n);
}

ARRAYS_DECLARE(embedding)
{
    RAW(ids, a->rows, NULL), IN(table, a->vocab * a->dim), IN(dy, a->rows * a->dim);
    FORWARD(y, a->rows * a->dim), BACKWARD(dtable, a->vocab * a->dim);
}

ARRAYS_DECLARE(dropout)
{
    IN(src, a->n), OUT(dst, a->n, "dropout", a->add), RAW(draw, 1, NULL);
}

ARRAYS_DECLARE(normalize)
{
    size_t x = a->rows * a->n;

    IN(x, x), IN(dy, x), FORWARD(y, x), STAT(norm, a->rows, "forward"), BACKWARD(dx, x);
}

static void heads(struct arrays *to,
                  enum array_kind kind,
                  const char *made_by,
                  void *slot,
                  const struct pl_attention_args *a,
                  size_t time,
                  const struct pl_attention_strides *at)
{
    size_t i = to->n;

    put(to, kind, made_by, 0, slot, a->batch * time * a->heads * a->dim);
    if (to->n > i)
        to->v[i] = (struct array){.slot = slot,
                                  .kind = kind,
                                  .made_by = made_by,
                                  .rank = 4,
                                  .n = {a->batch, time, a->heads, a->dim},
                                  .stride = {at->batch, at->time, at->head, 1}};
}

ARRAYS_DECLARE(attention)
{
    heads(ret, ARRAY_IN, NULL, &a->q, a, a->time, &a->q_at);
    heads(ret, ARRAY_IN, NULL, &a->k, a, a->keys, &a->k_at);
    heads(ret, ARRAY_IN, NULL, &a->v, a, a->keys, &a->v_at);
    heads(ret, ARRAY_IN, NULL, &a->dy, a, a->time, &a->dy_at);
    heads(ret, ARRAY_OUT, "forward", &a->y, a, a->time, &a->y_at);
    heads(ret, ARRAY_OUT, a->dq_add ? NULL : "backward", &a->dq, a, a->time, &a->dq_at);
    heads(ret, ARRAY_OUT, a->dk_add ? NULL : "backward", &a->dk, a, a->keys, &a->dk_at);
    heads(ret, ARRAY_OUT, a->dv_add ? NULL : "backward", &a->dv, a, a->keys, &a->dv_at);
    STAT(lse, a->batch * a->heads * a->time, "forward");
}

static void strided(struct arrays *to,
                    const struct pl_copy_args *a,
                    enum array_kind kind,
                    const char *made_by,
                    void *slot,
                    const size_t *stride)
{
    size_t i = to->n, count = 1;

    for (size_t d = 0; d < a->rank; d++)
        count *= a->shape[d];
    put(to, a->add ? kind : ARRAY_RAW, made_by, a->bytes, slot, count);
    if (to->n == i)
        return;
    to->v[i].rank = a->rank;
    for (size_t d = 0; d < a->rank; d++) {
        to->v[i].n[d] = a->shape[d];
        to->v[i].stride[d] = stride[d];
    }
}

/* The added numbers are of the table's type. */
ARRAYS_DECLARE(copy)
{
    strided(ret, a, ARRAY_IN, NULL, &a->src, a->src_stride);
    strided(ret, a, ARRAY_OUT, a->add ? NULL : "copy", &a->dst, a->dst_stride);
    a->bytes = a->add ? element : a->bytes;
}

ARRAYS_DECLARE(arange)
{
    RAW(y, a->n, "arange");
}

/* Two functions: src and dst are of the larger one of x and cols, or of x and y in squares. */
ARRAYS_DECLARE(unfold)
{
    size_t x = a->batch * a->channels * a->height * a->width;
    size_t cols = a->batch * a->channels * a->kernel_h * a->kernel_w *
                  pl_window_count(a->height, a->kernel_h, a->stride_h, a->pad_h, a->dilation_h) *
                  pl_window_count(a->width, a->kernel_w, a->stride_w, a->pad_w, a->dilation_w);
    size_t n = x > cols ? x : cols;

    IN(src, n), KEPT(dst, n);
}

ARRAYS_DECLARE(squares)
{
    size_t x = a->batch * a->height * a->width * a->channels;
    size_t y = a->batch * a->rows * a->columns * 4 * a->wide;
    size_t n = x > y ? x : y;

    IN(src, n), KEPT(dst, n), RAW(bad, 1, NULL);
}

ARRAYS_DECLARE(resample)
{
    size_t x = a->outer * a->n * a->inner, y = a->outer * a->m * a->inner;

    IN(x, x), IN(dy, y), FORWARD(y, y), BACKWARD(dx, x);
}

ARRAYS_DECLARE(rotary)
{
    size_t n = a->outer * a->time * a->rows * a->dim;

    IN(x, n), OUT(y, n, "rotary", a->add);
}

ARRAYS_DECLARE(random)
{
    OUT(y, a->n, "random", false), RAW(draw, 1, NULL);
}

ARRAYS_DECLARE(gather)
{
    size_t x = a->outer * a->n * a->inner, y = a->outer * a->m * a->inner;

    RAW(index, a->shared ? a->m : y, NULL);
    IN(x, x), IN(dy, y), FORWARD(y, y), BACKWARD(dx, x);
}

ARRAYS_DECLARE(top)
{
    IN(x, a->outer * a->n * a->inner), RAW(index, a->outer * a->k * a->inner, "top");
}

ARRAYS_DECLARE(cumsum)
{
    size_t n = a->outer * a->n * a->inner;

    IN(x, n), OUT(y, n, "cumsum", a->add);
}

ARRAYS_DECLARE(one_hot)
{
    RAW(labels, a->rows, NULL), OUT(y, a->rows * a->classes, "one_hot", false);
}

ARRAYS_DECLARE(whole)
{
    RAW(a, a->n, NULL), RAW(b, a->m, NULL), RAW(y, a->n, "whole"), OUT(real, a->n, "whole", false);
}

#define UPDATE()                                                                                   \
    IN(update.grad, a->update.n);                                                                  \
    KEPT(update.param, a->update.n);                                                               \
    RAW(update.copy, a->update.n, "");                                                             \
    RAW(update.factor_at, 1, NULL)

ARRAYS_DECLARE(sgd)
{
    UPDATE();
    KEPT(velocity, a->update.n);
}

ARRAYS_DECLARE(adam)
{
    UPDATE();
    KEPT(m, a->update.n), KEPT(v, a->update.n);
}

ARRAYS_DECLARE(rmsprop)
{
    UPDATE();
    KEPT(v, a->update.n), KEPT(mean, a->update.n), KEPT(velocity, a->update.n);
}

ARRAYS_DECLARE(adagrad)
{
    UPDATE();
    KEPT(sum, a->update.n);
}

ARRAYS_DECLARE(grad_stats)
{
    KEPT(grad, a->n), RAW(ret_squares, 1, ""), RAW(ret_finite, 1, "");
    RAW(total, 1, NULL), RAW(ret_factor, 1, "");
}
