/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/attention_key.h"
#include "common/base/macros.h"

#include <string.h>

#define ALIGNMENT 16 /* bytes, of rows that cuDNN reads */
#define MOST_DIM 256

_Static_assert(sizeof(struct pl_att_key) == 5 * 8 + 9 * 3 * 8 + 8, "no padding");

static bool is_16_bit(enum pl_real real)
{
    return real == PL_REAL_BF16 || real == PL_REAL_F16;
}

static bool is_empty(const struct pl_attention_args *a)
{
    return a->batch == 0 || a->heads == 0 || a->time == 0 || a->keys == 0 || a->dim == 0;
}

static bool is_huge(const struct pl_attention_args *a)
{
    return a->batch > INT32_MAX || a->heads > INT32_MAX || a->time > INT32_MAX ||
           a->keys > INT32_MAX;
}

/* Adds an array to the key. Returns why cuDNN cannot read (write) it, NULL: it can. */
static const char *take(struct pl_att_key *key,
                        enum pl_att_tensor which,
                        const void *p,
                        const struct pl_attention_strides *at)
{
    const size_t strides[3] = {at->batch, at->time, at->head};

    if (!p)
        return "it makes the gradients of queries, keys and values, or none";
    if ((uintptr_t)p % ALIGNMENT != 0)
        return "an array does not begin at a multiple of 16 bytes";
    for (size_t i = 0; i < 3; i++) {
        if (strides[i] * pl_real_size((enum pl_real)key->real) % ALIGNMENT != 0)
            return "rows do not begin at multiples of 16 bytes";
        key->strides[which - 1][i] = (int64_t)strides[i];
    }
    return NULL;
}

static const char *take_all(struct pl_att_key *key, const struct pl_attention_args *a)
{
    const struct {
        enum pl_att_tensor which;
        const void *at;
        const struct pl_attention_strides *strides;
    } arrays[] = {{PL_ATT_Q, a->q, &a->q_at},    {PL_ATT_K, a->k, &a->k_at},
                  {PL_ATT_V, a->v, &a->v_at},    {PL_ATT_Y, a->y, &a->y_at},
                  {PL_ATT_DY, a->dy, &a->dy_at}, {PL_ATT_DQ, a->dq, &a->dq_at},
                  {PL_ATT_DK, a->dk, &a->dk_at}, {PL_ATT_DV, a->dv, &a->dv_at}};
    const char *why = NULL;

    if (key->backward && (a->dq_add || a->dk_add || a->dv_add))
        return "it writes gradients, and does not add to them";
    for (size_t i = 0; !why && i < (key->backward ? PL_COUNT(arrays) : 4); i++)
        why = take(key, arrays[i].which, arrays[i].at, arrays[i].strides);
    return why;
}

bool pl_att_key_of(const struct pl_attention_args *args,
                   enum pl_real real,
                   bool backward,
                   bool repeatable,
                   struct pl_att_key *ret,
                   const char **ret_why)
{
    const struct pl_attention_args *a = args;

    memset(ret, 0, sizeof(*ret));
    *ret_why = NULL;
    if (!is_16_bit(real) || is_empty(a))
        return false;
    *ret = (struct pl_att_key){
        .batch = (int64_t)a->batch,
        .heads = (int64_t)a->heads,
        .time = (int64_t)a->time,
        .keys = (int64_t)a->keys,
        .dim = (int64_t)a->dim,
        .scale = (float)a->scale,
        .real = (uint8_t)real,
        .backward = backward,
        .causal = a->causal,
        .repeatable = backward && repeatable, /* forward always is */
    };
    if (a->dim > MOST_DIM || a->dim % 8 != 0)
        *ret_why = "it takes heads of 8, 16 and so on to 256 numbers";
    else if (is_huge(a))
        *ret_why = "a size is above 2147483647";
    else
        *ret_why = take_all(ret, a);
    return !*ret_why;
}

void pl_att_shape(const struct pl_att_key *key,
                  enum pl_att_tensor which,
                  int64_t ret_dims[4],
                  int64_t ret_strides[4])
{
    bool of_keys =
        which == PL_ATT_K || which == PL_ATT_V || which == PL_ATT_DK || which == PL_ATT_DV;
    bool dense = which == PL_ATT_LSE || which == PL_ATT_MEAN || which == PL_ATT_SUM;
    bool column = which == PL_ATT_LSE || which == PL_ATT_MEAN;

    ret_dims[0] = key->batch;
    ret_dims[1] = key->heads;
    ret_dims[2] = of_keys ? key->keys : key->time;
    ret_dims[3] = column ? 1 : key->dim;
    ret_strides[3] = 1;
    if (dense) {
        for (size_t i = 3; i > 0; i--)
            ret_strides[i - 1] = ret_strides[i] * ret_dims[i];
        return;
    }
    ret_strides[0] = key->strides[which - 1][0];
    ret_strides[1] = key->strides[which - 1][2];
    ret_strides[2] = key->strides[which - 1][1];
}

static size_t on_256(int64_t bytes)
{
    return ((size_t)bytes + 255) / 256 * 256;
}

size_t pl_att_mean_bytes(const struct pl_att_key *key)
{
    return on_256(key->batch * key->heads * key->time * (int64_t)sizeof(float));
}

size_t pl_att_sum_bytes(const struct pl_att_key *key)
{
    if (key->repeatable)
        return 0;
    return on_256(key->batch * key->heads * key->time * key->dim * (int64_t)sizeof(float));
}
