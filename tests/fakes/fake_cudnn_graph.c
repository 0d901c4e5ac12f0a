/* SPDX-License-Identifier: MIT */
/* The ops of a graph, computed in plain loops. */
#include "common/base/macros.h"
#include "kernels/half.h"
#include "tests/fakes/fake_cudnn_private.h"

#include <math.h>
#include <string.h>

/* An array: address and shape. Values between ops are doubles, rounded to their type. */
struct array {
    char *at;
    int type; /* cudnnDataType_t */
    bool between;
    int64_t dims[4], strides[4];
};

static double read_at(const struct array *t, int64_t at)
{
    if (t->between || t->type == CUDNN_DATA_DOUBLE)
        return ((double *)t->at)[at];
    if (t->type == CUDNN_DATA_BFLOAT16)
        return (double)pl_f32_of_bf16(((uint16_t *)t->at)[at]);
    assert_int_equal(t->type, CUDNN_DATA_FLOAT);
    return (double)((float *)t->at)[at];
}

static void write_at(const struct array *t, int64_t at, double x)
{
    if (t->between && t->type == CUDNN_DATA_BFLOAT16)
        x = (double)pl_f32_of_bf16(pl_bf16_of_f32((float)x));
    if (t->between || t->type == CUDNN_DATA_DOUBLE)
        ((double *)t->at)[at] = x;
    else if (t->type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)t->at)[at] = pl_bf16_of_f32((float)x);
    else
        ((float *)t->at)[at] = (float)x;
}

static double get(const struct array *t, const int64_t i[4])
{
    int64_t at = 0;

    for (size_t d = 0; d < 4; d++) {
        assert_true(i[d] >= 0 && (i[d] < t->dims[d] || t->dims[d] == 1));
        at += (t->dims[d] == 1 ? 0 : i[d]) * t->strides[d];
    }
    return read_at(t, at);
}

static void put(const struct array *t, const int64_t i[4], double x)
{
    int64_t at = 0;

    for (size_t d = 0; d < 4; d++)
        at += i[d] * t->strides[d];
    write_at(t, at, x);
}

/* True if no two elements share an address, as far as neighbours in `t` by stride show. */
static bool is_apart(const struct array *t)
{
    for (size_t d = 0; d < 4; d++)
        for (size_t e = 0; e < 4; e++)
            if (d != e && t->dims[d] > 1 && t->dims[e] > 1 && t->strides[d] <= t->strides[e] &&
                t->strides[d] * t->dims[d] > t->strides[e])
                return false;
    return true;
}

/* Strides of virtual tensors are used if they make sense; cuDNN ignores them otherwise. */
static void make_sense(struct array *t)
{
    if (is_apart(t))
        return;
    t->strides[3] = 1;
    for (size_t d = 3; d > 0; d--)
        t->strides[d - 1] = t->strides[d] * t->dims[d];
}

#define VIRTUALS 24
static _Alignas(256) double virtuals[VIRTUALS][1 << 16]; /* by number; private to a run */
static int64_t virtual_ids[VIRTUALS];

static struct array array_of(const struct desc *t, const struct desc *pack)
{
    const struct attribute *ids =
        need(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 0);
    int64_t id = number(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    struct array a = {.type = word(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE),
                      .between = find(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != NULL};

    for (size_t d = 0; d < 4; d++) {
        a.dims[d] = number(t, CUDNN_ATTR_TENSOR_DIMENSIONS, d);
        a.strides[d] = number(t, CUDNN_ATTR_TENSOR_STRIDES, d);
    }
    if (a.between)
        make_sense(&a);
    for (int64_t i = 0; i < ids->n; i++)
        if (((const int64_t *)ids->bytes)[i] == id)
            a.at = ((char *const *)need(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                        CUDNN_TYPE_VOID_PTR, ids->n)
                        ->bytes)[i];
    for (size_t i = 0; !a.at && a.between && i < VIRTUALS; i++) {
        if (virtual_ids[i] == 0)
            virtual_ids[i] = id;
        if (virtual_ids[i] == id)
            a.at = (char *)virtuals[i];
    }
    assert_non_null(a.at);
    if (find(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE))
        return a;
    assert_int_equal((uintptr_t)a.at % (uintptr_t)number(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0),
                     0);
    return a;
}

static double scalar(const struct desc *op, int name)
{
    const struct attribute *a = find(op, name);

    assert_non_null(a);
    return a->type == CUDNN_TYPE_DOUBLE ? *(const double *)a->bytes : *(const float *)a->bytes;
}

/* Sums over all taps; the caller says which of x, w and y is the result. */
static void convolve(const struct desc *window,
                     const struct array *x,
                     const struct array *w,
                     const struct array *y,
                     const struct array *to,
                     double beta)
{
    int64_t i[4], stride[2], pad[2];

    assert_int_equal(word(window, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE),
                     CUDNN_CROSS_CORRELATION);
    for (size_t d = 0; d < 2; d++) {
        stride[d] = number(window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, d);
        pad[d] = number(window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, d);
        assert_int_equal(number(window, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, d), pad[d]);
        assert_int_equal(number(window, CUDNN_ATTR_CONVOLUTION_DILATIONS, d), 1);
    }
    if (x->dims[1] == 16) {
        fake_dnn.by_squares++;
        fake_dnn.square_taps = (unsigned)(w->dims[2] * w->dims[3]);
    }
    for (i[0] = 0; i[0] < to->dims[0]; i[0]++)
        for (i[1] = 0; i[1] < to->dims[1]; i[1]++)
            for (i[2] = 0; i[2] < to->dims[2]; i[2]++)
                for (i[3] = 0; i[3] < to->dims[3]; i[3]++)
                    put(to, i, beta != 0 ? beta * get(to, i) : 0);
    for (int64_t n = 0; n < y->dims[0] * y->dims[1] * y->dims[2] * y->dims[3]; n++) {
        int64_t c = y->dims[1], h = y->dims[2], wide = y->dims[3];
        int64_t at_y[4] = {n / (c * h * wide), n / (h * wide) % c, n / wide % h, n % wide};

        for (int64_t t = 0; t < w->dims[1] * w->dims[2] * w->dims[3]; t++) {
            int64_t at_w[4] = {at_y[1], t / (w->dims[2] * w->dims[3]), t / w->dims[3] % w->dims[2],
                               t % w->dims[3]};
            int64_t at_x[4] = {at_y[0], at_w[1], at_y[2] * stride[0] + at_w[2] - pad[0],
                               at_y[3] * stride[1] + at_w[3] - pad[1]};

            if (at_x[2] < 0 || at_x[2] >= x->dims[2] || at_x[3] < 0 || at_x[3] >= x->dims[3])
                continue;
            if (to == y)
                put(y, at_y, get(y, at_y) + get(x, at_x) * get(w, at_w));
            else if (to == x)
                put(x, at_x, get(x, at_x) + get(y, at_y) * get(w, at_w));
            else
                put(w, at_w, get(w, at_w) + get(y, at_y) * get(x, at_x));
        }
    }
}

static double element(int mode, double x, double b, double mask)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return mask != 0 ? x : b;
    case CUDNN_POINTWISE_RELU_FWD:
        return x > 0 ? x : 0;
    default:
        fail_msg("pointwise mode %d", mode);
        return 0;
    }
}

/* An operand that not every mode has; `x` in its place. */
static struct array
operand(const struct desc *op, int name, const struct array *x, const struct desc *pack)
{
    return find(op, name) ? array_of(child(op, name, 0), pack) : *x;
}

static void run_pointwise(const struct desc *op, const struct desc *pack)
{
    struct desc *how = child(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0);
    int mode = word(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
    struct array x = array_of(child(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0), pack);
    struct array y = array_of(child(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0), pack);
    struct array b = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &x, pack);
    struct array t = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, &x, pack);
    int64_t i[4];

    for (i[0] = 0; i[0] < y.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < y.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < y.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < y.dims[3]; i[3]++)
                    put(&y, i,
                        mode == CUDNN_POINTWISE_GEN_INDEX
                            ? (double)i[number(how, CUDNN_ATTR_POINTWISE_AXIS, 0)]
                            : element(mode, get(&x, i), get(&b, i), get(&t, i)));
}

/* c = a b */
static void run_matmul(const struct desc *op, const struct desc *pack)
{
    struct array a = array_of(child(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, 0), pack);
    struct array b = array_of(child(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0), pack);
    struct array c = array_of(child(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, 0), pack);
    int64_t i[4];

    assert_int_equal(a.dims[3], b.dims[2]);
    assert_int_equal(a.dims[2], c.dims[2]);
    assert_int_equal(b.dims[3], c.dims[3]);
    for (i[0] = 0; i[0] < c.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < c.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < c.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < c.dims[3]; i[3]++) {
                    double sum = 0;

                    for (int64_t k = 0; k < a.dims[3]; k++) {
                        const int64_t at_a[4] = {i[0], i[1], i[2], k};
                        const int64_t at_b[4] = {i[0], i[1], k, i[3]};

                        sum += get(&a, at_a) * get(&b, at_b);
                    }
                    put(&c, i, sum);
                }
}

/* Of each row. */
static void run_reduction(const struct desc *op, const struct desc *pack)
{
    struct desc *how = child(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, 0);
    int by = word(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
    struct array x = array_of(child(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0), pack);
    struct array y = array_of(child(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 0), pack);
    int64_t i[4];

    assert_int_equal(y.dims[3], 1);
    for (i[0] = 0; i[0] < x.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < x.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < x.dims[2]; i[2]++) {
                double all = by == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;

                for (i[3] = 0; i[3] < x.dims[3]; i[3]++)
                    all = by == CUDNN_REDUCE_TENSOR_MAX ? fmax(all, get(&x, i)) : all + get(&x, i);
                i[3] = 0;
                put(&y, i, all);
            }
}

/* The same memory by other dimensions: element by element where both have it. */
static void run_reshape(const struct desc *op, const struct desc *pack)
{
    struct array x = array_of(child(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0), pack);
    struct array y = array_of(child(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 0), pack);
    int64_t i[4], n = 1;

    assert_true(y.between);
    for (size_t d = 0; d < 4; d++)
        n *= x.dims[d];
    assert_int_equal(n, y.dims[0] * y.dims[1] * y.dims[2] * y.dims[3]);
    for (i[0] = 0; i[0] < y.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < y.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < y.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < y.dims[3]; i[3]++) {
                    int64_t at = i[0] * y.strides[0] + i[1] * y.strides[1] + i[2] * y.strides[2] +
                                 i[3] * y.strides[3];

                    write_at(&y, at, read_at(&x, at));
                }
}

static void run_op(const struct desc *op, const struct desc *pack)
{
    struct array x, w, y;

    switch (op->type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        x = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, 0), pack);
        w = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, 0), pack);
        y = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, 0), pack);
        assert_true(scalar(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA) == 1);
        convolve(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, 0), &x, &w, &y, &y,
                 scalar(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA));
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        x = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, 0), pack);
        w = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, 0), pack);
        y = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, 0), pack);
        assert_true(scalar(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA) == 1);
        convolve(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, 0), &x, &w, &y, &x,
                 scalar(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA));
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        x = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, 0), pack);
        w = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, 0), pack);
        y = array_of(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, 0), pack);
        assert_true(scalar(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA) == 1);
        convolve(child(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, 0), &x, &w, &y,
                 &w, scalar(op, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA));
        break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        run_matmul(op, pack);
        break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        run_reduction(op, pack);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        run_reshape(op, pack);
        break;
    default:
        run_pointwise(op, pack);
    }
}

void fake_cudnn_run_graph(const struct attribute *ops, const struct desc *pack)
{
    memset(virtual_ids, 0, sizeof(virtual_ids));
    for (int64_t i = 0; i < ops->n; i++)
        run_op(((struct desc *const *)ops->bytes)[i], pack);
}
