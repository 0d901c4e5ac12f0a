/* SPDX-License-Identifier: MIT */
/* Convolutions that cuDNN must do in every type, forward and both gradients. Three tests have them:
 * on a fake that computes (test-cuda_conv_counts), on the real cuDNN without a GPU, for plans only
 * (test-cudnn_plans), and on a card (gpu-libraries). */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_CONV_CASES_H
#define PL_TESTS_UNIT_ENGINE_CUDA_CONV_CASES_H

#include "common/base/macros.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>

struct conv_case {
    size_t batch, in, size, out, kernel, stride;
    bool last, after; /* after: a bias and relu follow */
};

/* Of the cnn module, and of ResNet: a block's, one that halves the image, the shortcut beside it,
 * and a first one, which is done in squares. No array has more than 5000 numbers. */
static const struct conv_case conv_cases[] = {
    {2, 1, 14, 8, 3, 1, false, true},  {2, 8, 14, 16, 3, 1, false, true},
    {2, 16, 8, 32, 3, 1, true, false}, {2, 16, 8, 24, 3, 2, true, true},
    {2, 32, 8, 64, 1, 2, true, false}, {2, 3, 20, 16, 7, 2, true, false},
};

#define CONV_FORWARD_CALLS 1 /* of the library, for a case */
#define CONV_BACKWARD_CALLS 2

enum conv_array { CONV_X, CONV_W, CONV_B, CONV_DY, CONV_Y, CONV_DX, CONV_DW, CONV_DB, CONV_ARRAYS };

/* Without arrays. */
static inline struct pl_conv2d_args conv_case_args(const struct conv_case *c)
{
    return (struct pl_conv2d_args){
        .batch = c->batch,
        .in = c->in,
        .height = c->size,
        .width = c->size,
        .out = c->out,
        .kernel_h = c->kernel,
        .kernel_w = c->kernel,
        .stride_h = c->stride,
        .stride_w = c->stride,
        .pad_h = c->kernel / 2,
        .pad_w = c->kernel / 2,
        .relu = c->after,
        .last = c->last,
    };
}

static inline size_t conv_case_count(const struct conv_case *c, enum conv_array which)
{
    size_t side = pl_conv_size(c->size, c->kernel, c->stride, c->kernel / 2);

    switch (which) {
    case CONV_X:
    case CONV_DX:
        return c->batch * c->in * c->size * c->size;
    case CONV_W:
    case CONV_DW:
        return c->out * c->in * c->kernel * c->kernel;
    case CONV_Y:
    case CONV_DY:
        return c->batch * c->out * side * side;
    default:
        return c->out;
    }
}

/* Sets the arrays, in enum conv_array's order. */
static inline void conv_case_set(struct pl_conv2d_args *a, const struct conv_case *c, void **of)
{
    a->x = of[CONV_X];
    a->w = of[CONV_W];
    a->b = c->after ? of[CONV_B] : NULL;
    a->dy = of[CONV_DY];
    a->y = of[CONV_Y];
    a->dx = of[CONV_DX];
    a->dw = of[CONV_DW];
    a->db = c->after ? of[CONV_DB] : NULL;
}

#endif
