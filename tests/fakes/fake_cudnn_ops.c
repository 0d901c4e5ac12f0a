/* SPDX-License-Identifier: MIT */
/* The calls of cuDNN outside its graphs. */
#include "common/base/macros.h"
#include "tests/fakes/fake_cudnn.h"

#include <cudnn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct cudnnTensorStruct {
    cudnnDataType_t type;
    int dims[4];
    int last; /* channels are last in memory */
};

size_t cudnnGetVersion(void)
{
    return fake_dnn.version;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    static int one;

    fake_dnn.handles++;
    *handle = (cudnnHandle_t)&one;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    assert_non_null(handle);
    fake_dnn.handles--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    assert_non_null(handle);
    fake_dnn.streams++;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED"
           : status == CUDNN_STATUS_NOT_SUPPORTED  ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                   : "other";
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *ret)
{
    *ret = calloc(1, sizeof(**ret));
    fake_dnn.descriptors++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t)
{
    free(t);
    fake_dnn.descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t,
                                         cudnnTensorFormat_t format,
                                         cudnnDataType_t type,
                                         int n,
                                         int c,
                                         int h,
                                         int w)
{
    assert_true(format == CUDNN_TENSOR_NCHW || format == CUDNN_TENSOR_NHWC);
    *t = (struct cudnnTensorStruct){type, {n, c, h, w}, format == CUDNN_TENSOR_NHWC};
    return CUDNN_STATUS_SUCCESS;
}

static double scalar(const struct cudnnTensorStruct *t, const void *p)
{
    return t->type == CUDNN_DATA_DOUBLE ? *(const double *)p : (double)*(const float *)p;
}

static double load(const struct cudnnTensorStruct *t, const void *p, int i)
{
    return t->type == CUDNN_DATA_DOUBLE ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

static void store(const struct cudnnTensorStruct *t, void *p, int i, double x)
{
    if (t->type == CUDNN_DATA_DOUBLE)
        ((double *)p)[i] = x;
    else
        ((float *)p)[i] = (float)x;
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle,
                             const void *alpha,
                             const cudnnTensorDescriptor_t at_a,
                             const void *a,
                             const void *beta,
                             const cudnnTensorDescriptor_t at_c,
                             void *c)
{
    int inner = at_c->dims[2] * at_c->dims[3], n = at_c->dims[0] * at_c->dims[1] * inner;

    inner = at_c->last ? 1 : inner;
    assert_int_equal(at_a->dims[0] * at_a->dims[2] * at_a->dims[3], 1);
    assert_int_equal(at_a->dims[1], at_c->dims[1]);
    for (int i = 0; i < n; i++)
        store(at_c, c, i,
              scalar(at_a, alpha) * load(at_a, a, i / inner % at_c->dims[1]) +
                  scalar(at_c, beta) * load(at_c, c, i));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *ret)
{
    static int one;

    fake_dnn.descriptors++;
    *ret = (cudnnActivationDescriptor_t)&one;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t act)
{
    fake_dnn.descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t act,
                                           cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan,
                                           double coefficient)
{
    assert_int_equal(mode, CUDNN_ACTIVATION_RELU);
    assert_int_equal(nan, CUDNN_PROPAGATE_NAN);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle,
                                     cudnnActivationDescriptor_t act,
                                     const void *alpha,
                                     const cudnnTensorDescriptor_t at_x,
                                     const void *x,
                                     const void *beta,
                                     const cudnnTensorDescriptor_t at_y,
                                     void *y)
{
    int n = at_y->dims[0] * at_y->dims[1] * at_y->dims[2] * at_y->dims[3];

    assert_true(scalar(at_x, alpha) == 1 && scalar(at_y, beta) == 0);
    for (int i = 0; i < n; i++) {
        double v = load(at_x, x, i);

        store(at_y, y, i, v <= 0 ? 0 : v);
    }
    return CUDNN_STATUS_SUCCESS;
}
