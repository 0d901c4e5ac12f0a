/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/dnn_private.h"

#include <cudnn.h>

void *pl_dnn_make(struct pl_dnn_parts *parts, int type)
{
    cudnnBackendDescriptor_t desc = NULL;

    if (parts->failed || parts->n == PL_DNN_PARTS ||
        cudnnBackendCreateDescriptor((cudnnBackendDescriptorType_t)type, &desc) !=
            CUDNN_STATUS_SUCCESS) {
        parts->failed = true;
        return NULL;
    }
    return parts->list[parts->n++] = desc;
}

void pl_dnn_set(
    struct pl_dnn_parts *parts, void *desc, int attribute, int type, int64_t n, const void *values)
{
    if (!parts->failed)
        parts->failed = cudnnBackendSetAttribute(desc, (cudnnBackendAttributeName_t)attribute,
                                                 (cudnnBackendAttributeType_t)type, n,
                                                 values) != CUDNN_STATUS_SUCCESS;
}

void pl_dnn_set_desc(struct pl_dnn_parts *parts, void *desc, int attribute, void *value)
{
    pl_dnn_set(parts, desc, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void pl_dnn_finalize(struct pl_dnn_parts *parts, void *desc)
{
    if (!parts->failed)
        parts->failed = cudnnBackendFinalize(desc) != CUDNN_STATUS_SUCCESS;
}

void pl_dnn_drop(struct pl_dnn_parts *parts)
{
    while (parts->n)
        cudnnBackendDestroyDescriptor(parts->list[--parts->n]);
}

int pl_dnn_type(const struct pl_conv_key *key)
{
    switch ((enum pl_real)key->real) {
    case PL_REAL_F64:
        return CUDNN_DATA_DOUBLE;
    case PL_REAL_BF16:
        return CUDNN_DATA_BFLOAT16;
    case PL_REAL_F16:
        return CUDNN_DATA_HALF;
    case PL_REAL_F32:
        break;
    }
    return CUDNN_DATA_FLOAT;
}

static cudnnDataType_t compute_type(const struct pl_conv_key *key)
{
    return key->real == PL_REAL_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

static void *
make_tensor(struct pl_dnn_parts *p, const struct pl_conv_key *key, enum pl_conv_tensor which)
{
    void *t = pl_dnn_make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool is_virtual = which == PL_CONV_SUM || which == PL_CONV_PRE;
    /* What is between the ops of a graph is not rounded to 16 bits. */
    cudnnDataType_t type = is_virtual ? compute_type(key) : (cudnnDataType_t)pl_dnn_type(key);
    int64_t dims[4], strides[4], id = which, alignment = pl_conv_alignment(key, which);

    pl_conv_shape(key, which, dims, strides);
    pl_dnn_set(p, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_dnn_set(p, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    pl_dnn_set(p, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    pl_dnn_set(p, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    pl_dnn_set(p, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (is_virtual)
        pl_dnn_set(p, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    pl_dnn_finalize(p, t);
    return t;
}

static void *make_window(struct pl_dnn_parts *p, const struct pl_conv_key *key)
{
    void *c = pl_dnn_make(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnDataType_t type = compute_type(key);
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dims = 2, ones[2] = {1, 1};

    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, key->stride);
    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, key->pad);
    pl_dnn_set(p, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, key->pad);
    pl_dnn_finalize(p, c);
    return c;
}

/* The attributes of the three convolution ops, in one order. */
static const struct pass {
    int type, alpha, beta, window, x, w, y;
} passes[] = {
    [PL_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    [PL_CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
    [PL_CONV_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
};

static void *make_conv(
    struct pl_dnn_parts *p, const struct pl_conv_key *key, void *window, void *x, void *w, void *y)
{
    const struct pass *at = &passes[key->pass];
    void *op = pl_dnn_make(p, at->type);
    float alpha = 1, beta = key->add;
    double alpha64 = 1, beta64 = key->add;
    bool f64 = key->real == PL_REAL_F64;
    int type = f64 ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;

    pl_dnn_set_desc(p, op, at->window, window);
    pl_dnn_set_desc(p, op, at->x, x);
    pl_dnn_set_desc(p, op, at->w, w);
    pl_dnn_set_desc(p, op, at->y, y);
    pl_dnn_set(p, op, at->alpha, type, 1, f64 ? (void *)&alpha64 : (void *)&alpha);
    pl_dnn_set(p, op, at->beta, type, 1, f64 ? (void *)&beta64 : (void *)&beta);
    pl_dnn_finalize(p, op);
    return op;
}

/* to = x + b, or relu(x) where there is no b. */
static void *
make_pointwise(struct pl_dnn_parts *p, const struct pl_conv_key *key, void *x, void *b, void *to)
{
    cudnnPointwiseMode_t mode = b ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;
    cudnnDataType_t type = compute_type(key);
    void *how = pl_dnn_make(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), *op;

    pl_dnn_set(p, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    pl_dnn_set(p, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_dnn_finalize(p, how);
    op = pl_dnn_make(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    pl_dnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    pl_dnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        pl_dnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    pl_dnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    pl_dnn_finalize(p, op);
    return op;
}

void *pl_dnn_conv_graph(struct pl_dnn_parts *parts, void *handle, const struct pl_conv_key *key)
{
    struct pl_dnn_parts *p = parts;
    bool after = key->bias || key->relu; /* something follows the convolution */
    void *window = make_window(p, key), *x = make_tensor(p, key, PL_CONV_X);
    void *w = make_tensor(p, key, PL_CONV_W), *y = make_tensor(p, key, PL_CONV_Y);
    void *sum = after ? make_tensor(p, key, PL_CONV_SUM) : y, *pre = sum, *graph;
    void *ops[3];
    int64_t n = 0;

    ops[n++] = make_conv(p, key, window, x, w, sum);
    if (key->bias) {
        void *b = make_tensor(p, key, PL_CONV_B);

        pre = key->relu ? make_tensor(p, key, PL_CONV_PRE) : y;
        ops[n++] = make_pointwise(p, key, sum, b, pre);
    }
    if (key->relu)
        ops[n++] = make_pointwise(p, key, pre, NULL, y);
    graph = pl_dnn_make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    pl_dnn_set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    pl_dnn_set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, ops);
    pl_dnn_finalize(p, graph);
    return p->failed ? NULL : graph;
}
