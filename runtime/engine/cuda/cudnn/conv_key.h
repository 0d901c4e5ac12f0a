/* SPDX-License-Identifier: MIT */
/* The key of convolutions' plans: everything that decides which engine is best, and no addresses.
 * Pure functions. Arrays are dense, in the order of pl_conv2d_args (NCHW, weights KCRS; or NHWC and
 * KRSC if channels are last); strides describe this to cuDNN. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_CONV_KEY_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_CONV_KEY_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

enum pl_conv_pass {
    PL_CONV_FORWARD, /* y = conv(x, w), then + b and relu if asked for */
    PL_CONV_DATA,    /* dx (+)= from dz and w */
    PL_CONV_FILTER,  /* dw (+)= from dz and x */
};

/* The passes' tensors, also their unique ids in graphs. */
enum pl_conv_tensor {
    PL_CONV_X = 1, /* or dx */
    PL_CONV_W,     /* or dw */
    PL_CONV_Y,     /* or dz */
    PL_CONV_B,     /* [1, out, 1, 1] */
    PL_CONV_SUM,   /* y before the bias, virtual */
    PL_CONV_PRE,   /* y before relu, virtual */
};

/* No padding: hashed and compared as bytes. */
struct pl_conv_key {
    int64_t x[4], w[4], y[4];
    int64_t stride[2], pad[2];
    uint8_t real, pass;
    uint8_t bias, relu;                /* in the forward pass */
    uint8_t add;                       /* add to dx or dw */
    uint8_t tf32;                      /* f32 may be rounded to tf32 */
    uint8_t align_x, align_w, align_y; /* exponents of bytes, at most 8 */
    uint8_t align_b;
    uint8_t last;    /* channels are last */
    uint8_t squares; /* of 2 x 2 elements: x and w are in scratch memory (cudnn_ops.c) */
    uint8_t zero[4];
};

/* The pass of these arguments; backward, dz takes the place of y. Returns false if cuDNN cannot do
 * it: an empty dimension, or sizes over 32 bits. The key has the shape all the same. */
bool pl_conv_key_of(const struct pl_conv2d_args *args,
                    enum pl_conv_pass pass,
                    enum pl_real real,
                    bool tf32,
                    const void *dz,
                    struct pl_conv_key *ret);

/* Dimensions and strides, in elements, of a tensor. */
void pl_conv_shape(const struct pl_conv_key *key,
                   enum pl_conv_tensor which,
                   int64_t ret_dims[4],
                   int64_t ret_strides[4]);

/* The alignment of its address, in bytes. */
int64_t pl_conv_alignment(const struct pl_conv_key *key, enum pl_conv_tensor which);

#endif
