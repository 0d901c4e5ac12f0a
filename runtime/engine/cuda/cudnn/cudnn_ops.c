/* SPDX-License-Identifier: MIT */
/* The ops that cuDNN implements: one function per type, as in cublaslt_ops.c. */
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/util/libs.h"

static struct pl_kernels own[PL_REAL_F16 + 1];

static struct pl_cuda_libs current(void)
{
    struct CUstream_st *stream;

    return pl_cuda_libs_current(&stream);
}

/* Returns false if nothing was queued. */
static bool pass(struct pl_cudnn *dnn,
                 enum pl_real real,
                 const struct pl_conv2d_args *a,
                 enum pl_conv_pass which,
                 const void *dz)
{
    struct pl_conv_data data = {.of = {NULL}};
    struct pl_conv_key key;

    if (!dnn || !pl_conv_key_of(a, which, real, pl_cudnn_options(dnn).tf32, dz, &key))
        return false;
    data.of[PL_CONV_X] = which == PL_CONV_DATA ? a->dx : (void *)(uintptr_t)a->x;
    data.of[PL_CONV_W] = which == PL_CONV_FILTER ? a->dw : (void *)(uintptr_t)a->w;
    data.of[PL_CONV_Y] = which == PL_CONV_FORWARD ? a->y : (void *)(uintptr_t)dz;
    data.of[PL_CONV_B] = key.bias ? (void *)(uintptr_t)a->b : NULL;
    return pl_cudnn_conv(dnn, &key, &data);
}

/* If no engine fuses bias and relu, they run in passes of their own. */
static bool
forward_in_parts(struct pl_cudnn *dnn, enum pl_real real, const struct pl_conv2d_args *a)
{
    struct pl_conv2d_args plain = *a;
    struct pl_conv_key key;

    if (!dnn || (!a->b && !a->relu))
        return false;
    plain.relu = false;
    plain.b = NULL;
    if (!pass(dnn, real, &plain, PL_CONV_FORWARD, NULL))
        return false;
    (void)pl_conv_key_of(a, PL_CONV_FORWARD, real, false, NULL, &key);
    pl_cudnn_add_bias(dnn, &key, a->b, a->y);
    return true;
}

static void conv2d_forward(enum pl_real real, const struct pl_conv2d_args *a)
{
    struct pl_cuda_libs libs = current();
    bool done =
        pass(libs.dnn, real, a, PL_CONV_FORWARD, NULL) || forward_in_parts(libs.dnn, real, a);

    if (!done)
        own[real].conv2d_forward(a);
    pl_cuda_libs_count(&libs, done, 1);
}

/* dy masked by relu, in scratch; dy itself without relu. NULL: out of memory. */
static const void *make_dz(struct pl_cudnn *dnn, enum pl_real real, const struct pl_conv2d_args *a)
{
    size_t oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
    struct pl_relu_args relu = {
        .n = a->batch * a->out * oh * ow, .x = a->y, .y = a->y, .dy = a->dy};

    if (!a->relu)
        return a->dy;
    relu.dx = dnn ? pl_cudnn_scratch(dnn, relu.n * pl_real_size(real)) : NULL;
    if (relu.dx)
        own[real].relu_backward(&relu);
    return relu.dx;
}

static void conv2d_backward(enum pl_real real, const struct pl_conv2d_args *a)
{
    struct pl_cuda_libs libs = current();
    struct pl_cudnn *dnn = libs.dnn;
    struct pl_conv2d_args left = *a;
    unsigned passes = (a->dx != NULL) + (a->dw != NULL), rest;
    const void *dz = dnn && (a->dx || a->dw) ? make_dz(dnn, real, a) : NULL;

    if (dz && left.dx && pass(dnn, real, a, PL_CONV_DATA, dz))
        left.dx = NULL;
    if (dz && left.dw && pass(dnn, real, a, PL_CONV_FILTER, dz))
        left.dw = NULL;
    if (dz) { /* relu is done */
        left.dy = dz;
        left.relu = false;
    }
    if (left.dx || left.dw || left.db)
        own[real].conv2d_backward(&left);
    rest = (left.dx != NULL) + (left.dw != NULL); /* a bias' gradient is no convolution */
    pl_cuda_libs_count(&libs, true, passes - rest);
    pl_cuda_libs_count(&libs, false, rest);
}

/* All parts of the gradient or none: cuDNN has no engine for some of them. */
static bool
attend(struct pl_cudnn *dnn, enum pl_real real, const struct pl_attention_args *a, bool backward)
{
    struct pl_att_data data = {.of = {NULL}};
    struct pl_att_key key;

    if (!dnn || !pl_att_key_of(a, real, backward, pl_cudnn_options(dnn).deterministic, &key))
        return false;
    data.of[PL_ATT_Q] = (void *)(uintptr_t)a->q;
    data.of[PL_ATT_K] = (void *)(uintptr_t)a->k;
    data.of[PL_ATT_V] = (void *)(uintptr_t)a->v;
    data.of[PL_ATT_Y] = a->y;
    data.of[PL_ATT_LSE] = a->lse;
    if (backward) {
        data.of[PL_ATT_DY] = (void *)(uintptr_t)a->dy;
        data.of[PL_ATT_DQ] = a->dq;
        data.of[PL_ATT_DK] = a->dk;
        data.of[PL_ATT_DV] = a->dv;
    }
    return pl_cudnn_attention(dnn, &key, &data);
}

static void attention_forward(enum pl_real real, const struct pl_attention_args *a)
{
    struct pl_cuda_libs libs = current();
    bool done = attend(libs.dnn, real, a, false);

    if (!done)
        own[real].attention_forward(a);
    pl_cuda_libs_count(&libs, done, 1);
}

static void attention_backward(enum pl_real real, const struct pl_attention_args *a)
{
    struct pl_cuda_libs libs = current();
    bool done = attend(libs.dnn, real, a, true);

    if (!done)
        own[real].attention_backward(a);
    pl_cuda_libs_count(&libs, done, 1);
}

#define PL_DNN_OPS(name, real)                                                                     \
    static void conv2d_forward_##name(const struct pl_conv2d_args *a)                              \
    {                                                                                              \
        conv2d_forward(real, a);                                                                   \
    }                                                                                              \
    static void conv2d_backward_##name(const struct pl_conv2d_args *a)                             \
    {                                                                                              \
        conv2d_backward(real, a);                                                                  \
    }                                                                                              \
    static void attention_forward_##name(const struct pl_attention_args *a)                        \
    {                                                                                              \
        attention_forward(real, a);                                                                \
    }                                                                                              \
    static void attention_backward_##name(const struct pl_attention_args *a)                       \
    {                                                                                              \
        attention_backward(real, a);                                                               \
    }
PL_DNN_OPS(f32, PL_REAL_F32)
PL_DNN_OPS(f64, PL_REAL_F64)
PL_DNN_OPS(bf16, PL_REAL_BF16)
PL_DNN_OPS(f16, PL_REAL_F16)

#define PL_DNN_SET(name, value)                                                                    \
    case value:                                                                                    \
        table->conv2d_forward = conv2d_forward_##name;                                             \
        table->conv2d_backward = conv2d_backward_##name;                                           \
        table->attention_forward = attention_forward_##name;                                       \
        table->attention_backward = attention_backward_##name;                                     \
        break

void pl_cudnn_install(struct pl_kernels *table)
{
    own[table->real] = *table;
    switch (table->real) {
        PL_DNN_SET(f32, PL_REAL_F32);
        PL_DNN_SET(f64, PL_REAL_F64);
        PL_DNN_SET(bf16, PL_REAL_BF16);
        PL_DNN_SET(f16, PL_REAL_F16);
    default:
        break;
    }
}
