/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/conv_key.h"

#include <string.h>

_Static_assert(sizeof(struct pl_conv_key) == 144, "no padding");

static uint8_t alignment(const void *p)
{
    return (uint8_t)__builtin_ctzll((uint64_t)(uintptr_t)p | 256);
}

/* True if all are above 0, and the number of elements fits into 31 bits. */
static bool sensible(const int64_t dims[4])
{
    int64_t count = 1;

    for (size_t i = 0; i < 4; i++) {
        if (dims[i] <= 0 || dims[i] > INT32_MAX / count)
            return false;
        count *= dims[i];
    }
    return true;
}

bool pl_conv_key_of(const struct pl_conv2d_args *args,
                    enum pl_conv_pass pass,
                    enum pl_real real,
                    bool tf32,
                    const void *dz,
                    struct pl_conv_key *ret)
{
    size_t oh = pl_conv_size(args->height, args->kernel_h, args->stride_h, args->pad_h);
    size_t ow = pl_conv_size(args->width, args->kernel_w, args->stride_w, args->pad_w);
    const void *x = pass == PL_CONV_DATA ? args->dx : args->x;
    const void *w = pass == PL_CONV_FILTER ? args->dw : args->w;

    *ret = (struct pl_conv_key){
        .x = {(int64_t)args->batch, (int64_t)args->in, (int64_t)args->height, (int64_t)args->width},
        .w = {(int64_t)args->out, (int64_t)args->in, (int64_t)args->kernel_h,
              (int64_t)args->kernel_w},
        .y = {(int64_t)args->batch, (int64_t)args->out, (int64_t)oh, (int64_t)ow},
        .stride = {(int64_t)args->stride_h, (int64_t)args->stride_w},
        .pad = {(int64_t)args->pad_h, (int64_t)args->pad_w},
        .real = (uint8_t)real,
        .pass = (uint8_t)pass,
        .tf32 = tf32 && real == PL_REAL_F32,
        .last = args->last,
        .align_x = alignment(x),
        .align_w = alignment(w),
        .align_y = alignment(pass == PL_CONV_FORWARD ? args->y : dz),
    };
    if (pass == PL_CONV_FORWARD) {
        ret->bias = args->b != NULL;
        ret->relu = args->relu;
        ret->align_b = args->b ? alignment(args->b) : 0;
    } else {
        ret->add = pass == PL_CONV_DATA ? args->dx_add : args->dw_add;
    }
    return sensible(ret->x) && sensible(ret->w) && sensible(ret->y);
}

void pl_conv_shape(const struct pl_conv_key *key,
                   enum pl_conv_tensor which,
                   int64_t ret_dims[4],
                   int64_t ret_strides[4])
{
    const int64_t *dims = which == PL_CONV_X ? key->x : which == PL_CONV_W ? key->w : key->y;

    memcpy(ret_dims, dims, 4 * sizeof(*dims));
    if (which == PL_CONV_B)
        ret_dims[0] = ret_dims[2] = ret_dims[3] = 1;
    if (key->last) {
        ret_strides[1] = 1;
        ret_strides[3] = ret_dims[1];
        ret_strides[2] = ret_strides[3] * ret_dims[3];
        ret_strides[0] = ret_strides[2] * ret_dims[2];
        return;
    }
    ret_strides[3] = 1;
    for (size_t i = 3; i > 0; i--)
        ret_strides[i - 1] = ret_strides[i] * ret_dims[i];
}

int64_t pl_conv_alignment(const struct pl_conv_key *key, enum pl_conv_tensor which)
{
    switch (which) {
    case PL_CONV_X:
        return INT64_C(1) << key->align_x;
    case PL_CONV_W:
        return INT64_C(1) << key->align_w;
    case PL_CONV_Y:
        return INT64_C(1) << key->align_y;
    case PL_CONV_B:
        return INT64_C(1) << key->align_b;
    case PL_CONV_SUM:
    case PL_CONV_PRE:
        break;
    }
    return 16;
}
