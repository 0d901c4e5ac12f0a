/* SPDX-License-Identifier: MIT */
#include "tests/unit/fake_cudnn.h"
#include "common/base/macros.h"
#include "tests/unit/fake_cudart.h"

#include <cudnn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct attribute {
    int name, type;
    int64_t n;
    _Alignas(8) unsigned char bytes[64];
};

struct desc {
    int type;
    bool final;
    size_t n;
    struct attribute list[10];
    struct desc *graph; /* of a configuration or an engine */
    unsigned engine;
};

struct fake_dnn fake_dnn;

static size_t size_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

static const struct attribute *find(const struct desc *d, int name)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->list[i].name == name)
            return &d->list[i];
    return NULL;
}

static const struct attribute *need(const struct desc *d, int name, int type, int64_t n)
{
    const struct attribute *a = find(d, name);

    if (!a || a->type != type || (n && a->n != n))
        fail_msg("descriptor %d lacks attribute %d of type %d", d->type, name, type);
    return a;
}

static int64_t number(const struct desc *d, int name, size_t i)
{
    return ((const int64_t *)need(d, name, CUDNN_TYPE_INT64, 0)->bytes)[i];
}

static int word(const struct desc *d, int name, int type)
{
    return *(const int *)need(d, name, type, 1)->bytes;
}

static struct desc *child(const struct desc *d, int name, size_t i)
{
    struct desc *c =
        ((struct desc *const *)need(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0)->bytes)[i];

    assert_true(c->final || d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    return c;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *ret)
{
    struct desc *d = calloc(1, sizeof(*d));

    assert_non_null(d);
    d->type = (int)type;
    fake_dnn.descriptors++;
    *ret = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t desc)
{
    assert_non_null(desc);
    free(desc);
    fake_dnn.descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t n,
                                       const void *values)
{
    struct desc *d = desc;
    struct attribute *a = &d->list[d->n];

    assert_false(d->final);
    assert_in_range(d->n, 0, PL_COUNT(d->list) - 1);
    assert_null(find(d, (int)name));
    d->n++;
    a->name = (int)name;
    a->type = (int)type;
    a->n = n;
    assert_in_range((size_t)n * size_of(a->type), 1, sizeof(a->bytes));
    memcpy(a->bytes, values, (size_t)n * size_of(a->type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t desc)
{
    struct desc *d = desc;

    assert_false(d->final);
    d->final = true;
    if (d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
        assert_true(number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0) > 0);
    return CUDNN_STATUS_SUCCESS;
}

static void give_configs(const struct desc *d, int64_t asked, int64_t *n, struct desc **to)
{
    struct desc *graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 0);
    const struct attribute *ops =
        need(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0);

    fake_dnn.asked++;
    *n = fake_dnn.no_fusion && ops->n > 1 ? 0 : PL_MIN((int64_t)fake_dnn.engines, asked);
    for (int64_t i = 0; i < *n; i++) {
        to[i]->graph = graph;
        to[i]->engine = (unsigned)i;
    }
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const desc,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type,
                                       int64_t asked,
                                       int64_t *n,
                                       void *to)
{
    struct desc *d = desc;

    *n = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        give_configs(d, asked, n, to);
        break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        (*(struct desc **)to)->engine = d->engine;
        break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *n = fake_dnn.note[d->engine] >= 0;
        *(int *)to = fake_dnn.note[d->engine];
        break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        fake_dnn.taken = child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0)->engine;
        *(int64_t *)to = fake_dnn.workspace[fake_dnn.taken];
        break;
    default:
        fail_msg("attribute %d is asked for", (int)name);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* An array: where, and its shape. */
struct array {
    char *at;
    bool f64;
    int64_t dims[4], strides[4];
};

static double get(const struct array *t, const int64_t i[4])
{
    int64_t at = 0;

    for (size_t d = 0; d < 4; d++) {
        assert_true(i[d] >= 0 && (i[d] < t->dims[d] || t->dims[d] == 1));
        at += (t->dims[d] == 1 ? 0 : i[d]) * t->strides[d];
    }
    return t->f64 ? ((double *)t->at)[at] : (double)((float *)t->at)[at];
}

static void put(const struct array *t, const int64_t i[4], double x)
{
    int64_t at = 0;

    for (size_t d = 0; d < 4; d++)
        at += i[d] * t->strides[d];
    if (t->f64)
        ((double *)t->at)[at] = x;
    else
        ((float *)t->at)[at] = (float)x;
}

#define VIRTUALS 2
static _Alignas(256) double virtuals[VIRTUALS][1 << 16]; /* by number; a run's own */
static int64_t virtual_ids[VIRTUALS];

static struct array array_of(const struct desc *t, const struct desc *pack)
{
    const struct attribute *ids =
        need(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 0);
    int64_t id = number(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    struct array a = {.f64 = word(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE) ==
                             CUDNN_DATA_DOUBLE};

    for (size_t d = 0; d < 4; d++) {
        a.dims[d] = number(t, CUDNN_ATTR_TENSOR_DIMENSIONS, d);
        a.strides[d] = number(t, CUDNN_ATTR_TENSOR_STRIDES, d);
    }
    for (int64_t i = 0; i < ids->n; i++)
        if (((const int64_t *)ids->bytes)[i] == id)
            a.at = ((char *const *)need(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                        CUDNN_TYPE_VOID_PTR, ids->n)
                        ->bytes)[i];
    for (size_t i = 0; !a.at && find(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && i < VIRTUALS; i++) {
        if (virtual_ids[i] == 0)
            virtual_ids[i] = id;
        if (virtual_ids[i] == id)
            a.at = (char *)virtuals[i];
    }
    assert_non_null(a.at);
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

/* Adds up over all taps; which of x, w and y is the result, the caller says. */
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

static void run_pointwise(const struct desc *op, const struct desc *pack)
{
    struct desc *how = child(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 0);
    int mode = word(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
    struct array x = array_of(child(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 0), pack);
    struct array y = array_of(child(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 0), pack), b = x;
    int64_t i[4];

    if (mode == CUDNN_POINTWISE_ADD)
        b = array_of(child(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 0), pack);
    else
        assert_int_equal(mode, CUDNN_POINTWISE_RELU_FWD);
    for (i[0] = 0; i[0] < y.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < y.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < y.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < y.dims[3]; i[3]++) {
                    double v = get(&x, i);

                    put(&y, i, mode == CUDNN_POINTWISE_ADD ? v + get(&b, i) : v > 0 ? v : 0);
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
    default:
        run_pointwise(op, pack);
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
                                  cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack)
{
    const struct desc *config = child(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 0);
    const struct desc *pack = variant_pack;
    const struct attribute *ops =
        need(config->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0);
    size_t workspace = (size_t)fake_dnn.workspace[config->engine];

    if (fake_dnn.broken)
        return CUDNN_STATUS_EXECUTION_FAILED;
    assert_true(pack->final);
    assert_true(!workspace ||
                fake_cuda_owns(*(void *const *)need(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                                    CUDNN_TYPE_VOID_PTR, 1)
                                    ->bytes,
                               workspace));
    fake_dnn.runs++;
    memset(virtual_ids, 0, sizeof(virtual_ids));
    for (int64_t i = 0; i < ops->n; i++)
        run_op(((struct desc *const *)ops->bytes)[i], pack);
    return CUDNN_STATUS_SUCCESS;
}
