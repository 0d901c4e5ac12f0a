/* SPDX-License-Identifier: MIT */
/* Shared by the op_*.c files. */
#ifndef PL_RUNTIME_ENGINE_OPS_OP_PRIVATE_H
#define PL_RUNTIME_ENGINE_OPS_OP_PRIVATE_H

#include "runtime/engine/ops/ops.h"

/* The arguments of a builder. The number of inputs is valid, and none is NULL. */
struct pl_op_request {
    const char *name;
    plume_tensor *const *in;
    size_t n_in;
    struct plume_op_args args;
};

typedef int pl_op_build(struct pl_tape *tape,
                        const struct pl_op_request *req,
                        plume_tensor **ret,
                        struct pl_error *err);

pl_op_build pl_build_linear, pl_build_matmul, pl_build_unary, pl_build_binary, pl_build_affine,
    pl_build_detach, pl_build_dropout, pl_build_reduce, pl_build_cross_entropy, pl_build_correct,
    pl_build_mse, pl_build_layernorm, pl_build_softmax, pl_build_normalize, pl_build_embedding,
    pl_build_reshape, pl_build_slice, pl_build_permute, pl_build_cat;
pl_op_build pl_build_conv2d, pl_build_pool2d, pl_build_batchnorm, pl_build_attention,
    pl_build_arange, pl_build_range;
pl_op_build pl_build_expand;                              /* op_broadcast.c */
pl_op_build pl_build_map, pl_build_choose, pl_build_full; /* op_map.c */

pl_op_build pl_build_scatter, pl_build_whole;                                 /* op_index.c */
pl_op_build pl_build_gather, pl_build_top, pl_build_cumsum, pl_build_one_hot; /* op_index.c */
pl_op_build pl_build_conv, pl_build_conv_transpose, pl_build_resample;        /* op_conv.c */
pl_op_build pl_build_random, pl_build_rotary;                                 /* op_random.c */
pl_op_build pl_build_gru;                                                     /* op_gru.c */
pl_op_build pl_build_lstm;                                                    /* op_rnn.c */

/* The labels or indices that a node reads: input number `input` has numbers in [0, end), or `skip`
 * if `skips` is set. */
struct pl_op_labels {
    size_t input, end;
    bool skips;
    int32_t skip;
};

/* False if the node is none of op_index.c's (op_norm.c's) that has some. */
bool pl_op_labels_of_index(const struct pl_node *node, struct pl_op_labels *ret);
bool pl_op_labels_of_embedding(const struct pl_node *node, struct pl_op_labels *ret);

/* op_norm.c: true if an embedding that this step has traced makes t. */
bool pl_op_is_embedding(const struct pl_tape *tape, const plume_tensor *t);

/* op_norm.c: the table with 0 in place of the rows that no id names, for what is done on all rows:
 * a row that the module's order does not read may hold anything. Host only. */
int pl_op_named_rows(struct pl_tape *tape,
                     plume_tensor *table,
                     plume_tensor *ids,
                     plume_tensor **ret,
                     struct pl_error *err);

/* op_norm.c: true if that has made the table, for these ids. */
bool pl_op_has_named_rows(const struct pl_tape *tape,
                          const plume_tensor *table,
                          const plume_tensor *ids);

/* op_loss.c: backward of a layer that a loss does by chunks (`loss` of pl_fusion). */
void pl_op_hand_on(const struct pl_call *call);

/* op_util.c */

/* Sets rank and shape of what is to be made from the numbers at args.i[at]: the rank, then the
 * sizes. -EINVAL. */
int pl_op_given_shape(const struct pl_op_request *req,
                      size_t at,
                      struct pl_apply *what,
                      struct pl_error *err);

/* op_index.c: the sizes of a real x before, at and after dimension `dim`. -EINVAL. */
int pl_op_split_at(const struct pl_op_request *req,
                   const plume_tensor *x,
                   int64_t dim,
                   int64_t ret[3],
                   struct pl_error *err);

/* op_image.c: the convolution of one group without dilation; shapes have been checked. */
int pl_op_plain_conv(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     const size_t stride[2],
                     const size_t pad[2],
                     bool relu,
                     plume_tensor **ret,
                     struct pl_error *err);

/* The type of the tape's real numbers: the 16-bit one where all is in it. */
enum plume_dtype pl_op_real_of(const struct pl_tape *tape);

/* -EINVAL: "NAME: WHAT: f32[2, 3], f32[4]". */
int pl_op_refuse(const struct pl_op_request *req, const char *what, struct pl_error *err);

/* The same; WHAT is formatted. */
PL_PRINTF(3, 4)
int pl_op_refuse_as(const struct pl_op_request *req, struct pl_error *err, const char *fmt, ...);

/* For eps and the like, of which 0 means the default. -EINVAL: "NAME: EPS is -1: must be ...". */
int pl_op_check_positive(const struct pl_op_request *req,
                         const char *name,
                         double value,
                         struct pl_error *err);

/* True if all inputs are real. */
bool pl_op_all_real(const struct pl_op_request *req);

/* For two tensors with equally many elements, of a the first rank_a dimensions: false if they have
 * as many dimensions (but those of 1), and other sizes. One is likely the other one's transpose,
 * and elements of one place do not belong together. */
bool pl_op_pairs(const plume_tensor *a, size_t rank_a, const plume_tensor *b);

/* op_broadcast.c: repeats two tensors as numpy broadcasts them, until the second's shape is the end
 * of the first's (a kernel repeats it from there). ret[] has the two, and gets the results.
 * -EINVAL. */
int pl_op_broadcast(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor *ret[2],
                    struct pl_error *err);

/* Repeats all inputs of the request to one shape. ret[] has them, and gets the results. -EINVAL. */
int pl_op_broadcast_all(struct pl_tape *tape,
                        const struct pl_op_request *req,
                        plume_tensor **ret,
                        struct pl_error *err);

/* A pl_apply with the request's inputs and t's shape. */
static inline struct pl_apply
pl_op_like(const struct pl_op *op, const struct pl_op_request *req, const plume_tensor *t)
{
    struct pl_apply what = {.op = op, .in = req->in, .n_in = req->n_in, .rank = t->rank};

    for (size_t i = 0; i < t->rank; i++)
        what.shape[i] = t->shape[i];
    return what;
}

/* The element of the whole batch's tensor that is element 0 of a microbatch's: its random numbers
 * begin there. 0 for tensors without rows. */
static inline size_t pl_op_first_element(const struct pl_call *call)
{
    size_t rows = call->tape->rows, count = call->node->out->count;

    return rows && count % rows == 0 ? count / rows * call->tape->first_row : 0;
}

/* Number i of the statistics that a node keeps. */
static inline void *pl_op_stats(const struct pl_call *call, size_t i)
{
    return (char *)call->saved + i * pl_real_size(pl_real_of_stats(call->k->real));
}

/* Product of all dimensions but the last; 1 for a scalar. */
static inline size_t pl_op_rows(const plume_tensor *t)
{
    return t->rank && t->shape[t->rank - 1] ? t->count / t->shape[t->rank - 1] : 1;
}

/* The last dimension; 1 for a scalar. */
static inline size_t pl_op_last(const plume_tensor *t)
{
    return t->rank ? t->shape[t->rank - 1] : 1;
}

#endif
