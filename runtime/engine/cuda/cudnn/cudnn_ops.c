/* SPDX-License-Identifier: MIT */
/* The ops that cuDNN implements: one function per type, as in cublaslt_ops.c. */
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/util/libs.h"

static struct pl_kernels own[PL_REAL_F16 + 1];

static struct pl_cuda_libs current(void)
{
    struct CUstream_st *stream;

    return pl_cuda_libs_current(&stream);
}

/* Returns false if nothing was queued. squares: x and w are made of squares of 2 x 2 elements. */
static bool pass_as(struct pl_cudnn *dnn,
                    enum pl_real real,
                    const struct pl_conv2d_args *a,
                    enum pl_conv_pass which,
                    const void *dz,
                    bool squares)
{
    struct pl_conv_data data = {.of = {NULL}};
    struct pl_conv_key key;
    bool fits;

    if (!dnn)
        return false;
    fits = pl_conv_key_of(a, which, real, pl_cudnn_options(dnn).tf32, dz, &key);
    key.squares = squares;
    if (!fits) {
        if (a->batch && a->in && a->out && key.y[2] && key.y[3])
            pl_cudnn_unasked(dnn, &pl_cudnn_recipe_conv, &key,
                             "an array has more than 2147483647 numbers");
        return false;
    }
    data.of[PL_CONV_X] = which == PL_CONV_DATA ? a->dx : (void *)(uintptr_t)a->x;
    data.of[PL_CONV_W] = which == PL_CONV_FILTER ? a->dw : (void *)(uintptr_t)a->w;
    data.of[PL_CONV_Y] = which == PL_CONV_FORWARD ? a->y : (void *)(uintptr_t)dz;
    data.of[PL_CONV_B] = key.bias ? (void *)(uintptr_t)a->b : NULL;
    return pl_cudnn_conv(dnn, &key, &data);
}

static bool pass(struct pl_cudnn *dnn,
                 enum pl_real real,
                 const struct pl_conv2d_args *a,
                 enum pl_conv_pass which,
                 const void *dz)
{
    return pass_as(dnn, real, a, which, dz, false);
}

/* A convolution of up to WIDE channels at every second place, such as the first one of a network:
 * no engine has fewer than 8 channels, and what takes those by steps of 2 was far from memory's
 * rate and from that of the tensor cores on an H100 (128 x 3 x 224 x 224, 7 x 7: 0.78 ms, and 0.11
 * for adding 5 channels of zeros; backward 0.45 and 0.11). Squares of 2 x 2 elements make it one of
 * 4 WIDE channels, with windows of half the size at every place ("space to depth"). Such windows
 * have taps beside ours whose weight is 0, which would make a NaN of an infinite or NaN element:
 * forward squares have a 0 there, and what has such an element in its own window is mended. */
#define WIDE 4

struct squares {
    struct pl_squares_args x, w;
    struct pl_conv2d_args conv;
    size_t x_bytes, w_bytes;
};

static bool make_squares(enum pl_real real, const struct pl_conv2d_args *a, struct squares *ret)
{
    size_t oh = pl_conv_size(a->height, a->kernel_h, a->stride_h, a->pad_h);
    size_t ow = pl_conv_size(a->width, a->kernel_w, a->stride_w, a->pad_w);
    size_t odd_h = a->pad_h % 2, odd_w = a->pad_w % 2; /* windows begin at an even place */
    size_t kernel_h = (a->kernel_h + odd_h + 1) / 2, kernel_w = (a->kernel_w + odd_w + 1) / 2;

    if (!a->last || a->in > WIDE || a->stride_h != 2 || a->stride_w != 2 || a->kernel_h < 3 ||
        a->kernel_w < 3 || oh == 0 || ow == 0)
        return false;
    *ret = (struct squares){
        .x = {.batch = a->batch,
              .height = a->height,
              .width = a->width,
              .channels = a->in,
              .rows = oh - 1 + kernel_h,
              .columns = ow - 1 + kernel_w,
              .wide = WIDE,
              .before_h = a->pad_h + odd_h,
              .before_w = a->pad_w + odd_w,
              .src = a->x},
        .w = {.batch = a->out,
              .height = a->kernel_h,
              .width = a->kernel_w,
              .channels = a->in,
              .rows = kernel_h,
              .columns = kernel_w,
              .wide = WIDE,
              .before_h = odd_h,
              .before_w = odd_w},
        .conv = *a,
    };
    ret->conv.in = 4 * WIDE;
    ret->conv.height = ret->x.rows;
    ret->conv.width = ret->x.columns;
    ret->conv.kernel_h = kernel_h;
    ret->conv.kernel_w = kernel_w;
    ret->conv.stride_h = ret->conv.stride_w = 1;
    ret->conv.pad_h = ret->conv.pad_w = 0;
    ret->x_bytes = a->batch * ret->x.rows * ret->x.columns * 4 * WIDE * pl_real_size(real);
    ret->x_bytes = (ret->x_bytes + 255) / 256 * 256;
    ret->w_bytes = a->out * kernel_h * kernel_w * 4 * WIDE * pl_real_size(real);
    ret->w_bytes = (ret->w_bytes + 255) / 256 * 256;
    return true;
}

/* Puts the squares of x into scratch memory; those of w come after them, and the number of elements
 * that are not finite. */
static bool gather_x(struct pl_cudnn *dnn, enum pl_real real, bool mends, struct squares *s)
{
    char *at = pl_cudnn_scratch(dnn, s->x_bytes + s->w_bytes + sizeof(*s->x.bad));

    if (!at)
        return false;
    s->x.dst = at;
    if (mends) {
        s->x.bad = (uint32_t *)(at + s->x_bytes + s->w_bytes);
        own[real].arange(&(struct pl_arange_args){.n = 1, .y = (int32_t *)s->x.bad}); /* 0 */
    }
    own[real].space_to_depth(&s->x);
    s->conv.x = at;
    return true;
}

static bool
forward_by_squares(struct pl_cudnn *dnn, enum pl_real real, const struct pl_conv2d_args *a)
{
    struct pl_conv2d_args mended = *a;
    struct squares s;

    if (!dnn || !make_squares(real, a, &s) || !gather_x(dnn, real, true, &s))
        return false;
    s.w.src = a->w;
    s.w.dst = (char *)s.x.dst + s.x_bytes;
    own[real].space_to_depth(&s.w);
    s.conv.w = s.w.dst;
    if (!pass_as(dnn, real, &s.conv, PL_CONV_FORWARD, NULL, true))
        return false;
    mended.bad = s.x.bad;
    own[real].conv2d_mend(&mended);
    return true;
}

/* Not with relu, whose dz is in scratch memory. */
static bool
filter_by_squares(struct pl_cudnn *dnn, enum pl_real real, const struct pl_conv2d_args *a)
{
    struct squares s;

    if (a->relu || !make_squares(real, a, &s) || !gather_x(dnn, real, false, &s))
        return false;
    s.conv.dw = (char *)s.x.dst + s.x_bytes;
    s.conv.dw_add = false;
    if (!pass_as(dnn, real, &s.conv, PL_CONV_FILTER, a->dy, true))
        return false;
    s.w.src = s.conv.dw;
    s.w.dst = a->dw;
    s.w.add = a->dw_add;
    own[real].depth_to_space(&s.w);
    return true;
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
    bool done = forward_by_squares(libs.dnn, real, a) ||
                pass(libs.dnn, real, a, PL_CONV_FORWARD, NULL) ||
                forward_in_parts(libs.dnn, real, a);

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
    if (dz && left.dw &&
        (filter_by_squares(dnn, real, a) || pass(dnn, real, a, PL_CONV_FILTER, dz)))
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
    const char *why;

    if (!dnn)
        return false;
    if (!pl_att_key_of(a, real, backward, pl_cudnn_options(dnn).deterministic, &key, &why)) {
        if (why)
            pl_cudnn_unasked(dnn, &pl_cudnn_recipe_attention, &key, why);
        return false;
    }
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
