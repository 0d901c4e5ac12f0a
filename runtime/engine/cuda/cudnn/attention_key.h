/* SPDX-License-Identifier: MIT */
/* The key of attention's plans: everything that decides which engine is best, and no addresses.
 * Pure functions. */
#ifndef PL_RUNTIME_ENGINE_CUDA_CUDNN_ATTENTION_KEY_H
#define PL_RUNTIME_ENGINE_CUDA_CUDNN_ATTENTION_KEY_H

#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

/* The tensors' unique ids in graphs; tensors between the ops of a graph follow them. The shape is
 * [batch, heads, time or keys, dim] unless noted. */
enum pl_att_tensor {
    PL_ATT_Q = 1,
    PL_ATT_K,
    PL_ATT_V,
    PL_ATT_Y,
    PL_ATT_LSE, /* [batch, heads, time, 1] */
    PL_ATT_DY,
    PL_ATT_DQ,
    PL_ATT_DK,
    PL_ATT_DV,
    PL_ATT_MEAN,  /* per query, of dy y: [batch, heads, time, 1], f32, scratch */
    PL_ATT_SUM,   /* dq in f32, dense, scratch; unused if the same bits are required */
    PL_ATT_SCALE, /* one f32 on the host, as the next two */
    PL_ATT_ONE,
    PL_ATT_HIDDEN, /* the score of a masked key: -infinity */
    PL_ATT_TENSORS,
};

/* No padding: hashed and compared as bytes. */
struct pl_att_key {
    int64_t batch, heads, time, keys, dim;
    int64_t strides[PL_ATT_DV][3]; /* by tensor - 1: batch, time (keys), head; lse has none */
    float scale;
    uint8_t real, backward, causal;
    uint8_t repeatable; /* the same bits each time */
};

/* The forward or the backward pass of these arguments. Returns false if cuDNN cannot do it, or is
 * not known to: types of 32 bits and more, a dim that is no multiple of 8 or above 256, no keys,
 * strides or addresses not aligned to 16 bytes; backward also with a gradient that is added to or
 * not wanted. *ret_why says why not where 16-bit attention is left to our own kernels, which are
 * many times slower; the key has the shape then. NULL: nothing is lost. */
bool pl_att_key_of(const struct pl_attention_args *args,
                   enum pl_real real,
                   bool backward,
                   bool repeatable,
                   struct pl_att_key *ret,
                   const char **ret_why);

/* Dimensions and strides, in elements, of a tensor that has an array. */
void pl_att_shape(const struct pl_att_key *key,
                  enum pl_att_tensor which,
                  int64_t ret_dims[4],
                  int64_t ret_strides[4]);

/* Bytes of PL_ATT_MEAN and of PL_ATT_SUM after it; both are aligned to 256. */
size_t pl_att_mean_bytes(const struct pl_att_key *key);
size_t pl_att_sum_bytes(const struct pl_att_key *key);

#endif
