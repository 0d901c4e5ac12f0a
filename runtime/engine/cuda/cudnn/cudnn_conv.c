/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/util/refused.h"

#include <cudnn.h>
#include <stdio.h>

int pl_cudnn_type(const struct pl_conv_key *key)
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
make_tensor(struct pl_cudnn_parts *p, const struct pl_conv_key *key, enum pl_conv_tensor which)
{
    void *t = pl_cudnn_make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    bool is_virtual = which == PL_CONV_SUM || which == PL_CONV_PRE;
    /* Tensors between the ops of a graph are not rounded to 16 bits. */
    cudnnDataType_t type = is_virtual ? compute_type(key) : (cudnnDataType_t)pl_cudnn_type(key);
    int64_t dims[4], strides[4], id = which, alignment = pl_conv_alignment(key, which);

    pl_conv_shape(key, which, dims, strides);
    pl_cudnn_set(p, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_cudnn_set(p, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    pl_cudnn_set(p, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    pl_cudnn_set(p, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    pl_cudnn_set(p, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (is_virtual)
        pl_cudnn_set(p, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    pl_cudnn_finalize(p, t);
    return t;
}

static void *make_window(struct pl_cudnn_parts *p, const struct pl_conv_key *key)
{
    void *c = pl_cudnn_make(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnDataType_t type = compute_type(key);
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dims = 2, ones[2] = {1, 1};

    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, key->stride);
    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, key->pad);
    pl_cudnn_set(p, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, key->pad);
    pl_cudnn_finalize(p, c);
    return c;
}

/* The attributes of the three convolution ops, in the same order. */
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

static void *make_conv(struct pl_cudnn_parts *p,
                       const struct pl_conv_key *key,
                       void *window,
                       void *x,
                       void *w,
                       void *y)
{
    const struct pass *at = &passes[key->pass];
    void *op = pl_cudnn_make(p, at->type);
    float alpha = 1, beta = key->add;
    double alpha64 = 1, beta64 = key->add;
    bool f64 = key->real == PL_REAL_F64;
    int type = f64 ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;

    pl_cudnn_set_desc(p, op, at->window, window);
    pl_cudnn_set_desc(p, op, at->x, x);
    pl_cudnn_set_desc(p, op, at->w, w);
    pl_cudnn_set_desc(p, op, at->y, y);
    pl_cudnn_set(p, op, at->alpha, type, 1, f64 ? (void *)&alpha64 : (void *)&alpha);
    pl_cudnn_set(p, op, at->beta, type, 1, f64 ? (void *)&beta64 : (void *)&beta);
    pl_cudnn_finalize(p, op);
    return op;
}

/* to = x + b, or relu(x) if b is not given. */
static void *
make_pointwise(struct pl_cudnn_parts *p, const struct pl_conv_key *key, void *x, void *b, void *to)
{
    cudnnPointwiseMode_t mode = b ? CUDNN_POINTWISE_ADD : CUDNN_POINTWISE_RELU_FWD;
    cudnnDataType_t type = compute_type(key);
    void *how = pl_cudnn_make(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), *op;

    pl_cudnn_set(p, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    pl_cudnn_set(p, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_cudnn_finalize(p, how);
    op = pl_cudnn_make(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    pl_cudnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    pl_cudnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        pl_cudnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    pl_cudnn_set_desc(p, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
    pl_cudnn_finalize(p, op);
    return op;
}

static void *conv_graph(struct pl_cudnn_parts *p, void *handle, const void *of)
{
    const struct pl_conv_key *key = of;
    bool after = key->bias || key->relu; /* an op follows the convolution */
    void *window = make_window(p, key), *x = make_tensor(p, key, PL_CONV_X);
    void *w = make_tensor(p, key, PL_CONV_W), *y = make_tensor(p, key, PL_CONV_Y);
    void *sum = after ? make_tensor(p, key, PL_CONV_SUM) : y, *pre = sum;
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
    return pl_cudnn_graph(p, handle, n, ops);
}

/* True if an engine with this numerical note may be used. */
static bool conv_may_take(const void *of, int note)
{
    const struct pl_conv_key *key = of;
    bool full = key->real == PL_REAL_F64 || (key->real == PL_REAL_F32 && !key->tf32);

    switch (note) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return false;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        return key->real != PL_REAL_F32 || key->tf32;
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        return !full;
    default:
        return true;
    }
}

static void describe_conv(const void *of, char text[PL_DNN_TEXT])
{
    static const char *const passes_text[] = {[PL_CONV_FORWARD] = "",
                                              [PL_CONV_DATA] = ", gradient of x",
                                              [PL_CONV_FILTER] = ", gradient of w"};
    const struct pl_conv_key *k = of;

    snprintf(text, PL_DNN_TEXT,
             "%s convolution%s%s%s%s%s, x %lldx%lldx%lldx%lld, w %lldx%lldx%lldx%lld, stride "
             "%lldx%lld, padding %lldx%lld",
             pl_cuda_real_name((enum pl_real)k->real), k->bias ? " + bias" : "",
             k->relu ? " + relu" : "", passes_text[k->pass],
             k->squares ? ", in squares of 2x2 elements" : "", k->last ? ", channels last" : "",
             (long long)k->x[0], (long long)k->x[1], (long long)k->x[2], (long long)k->x[3],
             (long long)k->w[0], (long long)k->w[1], (long long)k->w[2], (long long)k->w[3],
             (long long)k->stride[0], (long long)k->stride[1], (long long)k->pad[0],
             (long long)k->pad[1]);
}

/* A convolution that has no engine in squares is done without them, and bias and relu that have
 * none are done in passes of their own: cudnn_ops.c. */
static const char *conv_way(const void *of)
{
    const struct pl_conv_key *key = of;

    return key->squares ? "in squares" : key->bias || key->relu ? "in one pass" : NULL;
}

/* dx or dw. */
static int64_t conv_output(const void *of, size_t *ret_bytes)
{
    const struct pl_conv_key *key = of;
    enum pl_conv_tensor which = key->pass == PL_CONV_FILTER ? PL_CONV_W : PL_CONV_X;
    const int64_t *d = which == PL_CONV_W ? key->w : key->x;

    *ret_bytes =
        key->add ? (size_t)(d[0] * d[1] * d[2] * d[3]) * pl_real_size((enum pl_real)key->real) : 0;
    return which;
}

const struct pl_cudnn_recipe pl_cudnn_recipe_conv = {
    .graph = conv_graph,
    .may_take = conv_may_take,
    .describe = describe_conv,
    .way = conv_way,
    .output = conv_output,
    .workspace = PL_DNN_WORKSPACE,
};

bool pl_cudnn_conv(struct pl_cudnn *dnn,
                   const struct pl_conv_key *key,
                   const struct pl_conv_data *data)
{
    const struct pl_cudnn_plan *plan;
    struct pl_cudnn_array arrays[PL_CONV_B];
    size_t n = 0;

    for (int64_t id = PL_CONV_X; id <= PL_CONV_B; id++)
        if (data->of[id])
            arrays[n++] = (struct pl_cudnn_array){id, data->of[id]};
    plan = pl_cudnn_find_plan(dnn, PL_DNN_CONV, &pl_cudnn_recipe_conv, key, arrays, n);
    return plan && pl_cudnn_run(dnn, plan, arrays, n);
}

static cudnnStatus_t
describe(cudnnTensorDescriptor_t *ret, const struct pl_conv_key *key, enum pl_conv_tensor which)
{
    cudnnStatus_t r = cudnnCreateTensorDescriptor(ret);
    int64_t d[4], strides[4];

    pl_conv_shape(key, which, d, strides);
    return r != CUDNN_STATUS_SUCCESS
               ? r
               : cudnnSetTensor4dDescriptor(*ret, key->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                            (cudnnDataType_t)pl_cudnn_type(key), (int)d[0],
                                            (int)d[1], (int)d[2], (int)d[3]);
}

void pl_cudnn_add_bias(struct pl_cudnn *dnn, const struct pl_conv_key *key, const void *b, void *y)
{
    cudnnHandle_t handle = pl_cudnn_handle(dnn);
    cudnnTensorDescriptor_t at_b = NULL, at_y = NULL;
    cudnnActivationDescriptor_t relu = NULL;
    float one = 1, none = 0;
    double one64 = 1, none64 = 0;
    bool f64 = key->real == PL_REAL_F64;
    const void *keep = f64 ? (void *)&one64 : (void *)&one;
    const void *write = f64 ? (void *)&none64 : (void *)&none;
    cudnnStatus_t r = describe(&at_y, key, PL_CONV_Y);

    if (r == CUDNN_STATUS_SUCCESS && key->bias) {
        r = describe(&at_b, key, PL_CONV_B);
        if (r == CUDNN_STATUS_SUCCESS)
            r = cudnnAddTensor(handle, keep, at_b, b, keep, at_y, y);
    }
    if (r == CUDNN_STATUS_SUCCESS && key->relu) {
        r = cudnnCreateActivationDescriptor(&relu);
        if (r == CUDNN_STATUS_SUCCESS)
            r = cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0);
        if (r == CUDNN_STATUS_SUCCESS)
            r = cudnnActivationForward(handle, relu, keep, at_y, y, write, at_y, y);
    }
    if (r != CUDNN_STATUS_SUCCESS)
        pl_cuda_fail(pl_cudnn_status(dnn), "adding a convolution's bias", cudnnGetErrorString(r));
    if (relu)
        cudnnDestroyActivationDescriptor(relu);
    if (at_b)
        cudnnDestroyTensorDescriptor(at_b);
    if (at_y)
        cudnnDestroyTensorDescriptor(at_y);
}
