/* SPDX-License-Identifier: MIT */
#include "runtime/engine/ops/op_private.h"

static const struct {
    const char *name;
    size_t least, most; /* number of inputs */
    pl_op_build *build;
} table[] = {
    [PLUME_OP_LINEAR] = {"linear", 2, 3, pl_build_linear},
    [PLUME_OP_UNARY] = {"activation", 1, 1, pl_build_unary},
    [PLUME_OP_CROSS_ENTROPY] = {"cross_entropy", 2, 2, pl_build_cross_entropy},
    [PLUME_OP_CORRECT] = {"correct", 2, 2, pl_build_correct},
    [PLUME_OP_BINARY] = {"add, sub, mul or div", 2, 2, pl_build_binary},
    [PLUME_OP_RESHAPE] = {"reshape", 1, 1, pl_build_reshape},
    [PLUME_OP_SLICE] = {"slice", 1, 1, pl_build_slice},
    [PLUME_OP_PERMUTE] = {"permute", 1, 1, pl_build_permute},
    [PLUME_OP_CAT] = {"cat", 1, PL_NODE_INPUTS_MAX, pl_build_cat},
    [PLUME_OP_MATMUL] = {"matmul", 2, 2, pl_build_matmul},
    [PLUME_OP_AFFINE] = {"scale", 1, 1, pl_build_affine},
    [PLUME_OP_DROPOUT] = {"dropout", 1, 1, pl_build_dropout},
    [PLUME_OP_REDUCE] = {"sum or mean", 1, 1, pl_build_reduce},
    [PLUME_OP_MSE] = {"mse", 2, 2, pl_build_mse},
    [PLUME_OP_LAYERNORM] = {"layernorm", 1, 3, pl_build_layernorm},
    [PLUME_OP_SOFTMAX] = {"softmax", 1, 1, pl_build_softmax},
    [PLUME_OP_NORMALIZE] = {"normalize", 1, 1, pl_build_normalize},
    [PLUME_OP_EMBEDDING] = {"embedding", 2, 2, pl_build_embedding},
    [PLUME_OP_CONV2D] = {"conv2d", 2, 3, pl_build_conv2d},
    [PLUME_OP_POOL2D] = {"pool2d", 1, 1, pl_build_pool2d},
    [PLUME_OP_BATCHNORM] = {"batchnorm", 5, 5, pl_build_batchnorm},
    [PLUME_OP_ATTENTION] = {"attention", 1, 3, pl_build_attention},
    [PLUME_OP_ARANGE] = {"arange", 0, 0, pl_build_arange},
    [PLUME_OP_MAP] = {"a function of each element", 1, 1, pl_build_map},
    [PLUME_OP_CHOOSE] = {"maximum, minimum, where or a comparison", 2, 3, pl_build_choose},
    [PLUME_OP_FULL] = {"full", 0, 0, pl_build_full},
    [PLUME_OP_GATHER] = {"gather", 2, 2, pl_build_gather},
    [PLUME_OP_TOP] = {"argmax or topk", 1, 1, pl_build_top},
    [PLUME_OP_CUMSUM] = {"cumsum", 1, 1, pl_build_cumsum},
    [PLUME_OP_CONV] = {"conv", 2, 3, pl_build_conv},
    [PLUME_OP_CONV_TRANSPOSE] = {"conv_transpose", 2, 3, pl_build_conv_transpose},
    [PLUME_OP_RESAMPLE] = {"upsample or adaptive pool", 1, 1, pl_build_resample},
    [PLUME_OP_ROTARY] = {"rotary", 1, 1, pl_build_rotary},
    [PLUME_OP_RANDOM] = {"uniform, bernoulli or normal", 0, 0, pl_build_random},
    [PLUME_OP_ONE_HOT] = {"one_hot", 1, 1, pl_build_one_hot},
    [PLUME_OP_LSTM] = {"lstm", 2, 4, pl_build_lstm},
    [PLUME_OP_RANGE] = {"range", 0, 0, pl_build_range},
    [PLUME_OP_EXPAND] = {"expand", 1, 1, pl_build_expand},
    [PLUME_OP_GRU] = {"gru", 2, 4, pl_build_gru},
    [PLUME_OP_SCATTER_ADD] = {"scatter_add", 3, 3, pl_build_scatter},
    [PLUME_OP_WHOLE] = {"an operation of whole numbers", 2, 2, pl_build_whole},
    [PLUME_OP_DETACH] = {"detach", 1, 1, pl_build_detach},
};

const char *pl_op_name(enum plume_op op)
{
    return (size_t)op < PL_COUNT(table) && table[op].name ? table[op].name : "?";
}

int pl_op_call(struct pl_tape *tape,
               enum plume_op op,
               plume_tensor *const *in,
               size_t n_in,
               const struct plume_op_args *args,
               plume_tensor **ret,
               struct pl_error *err)
{
    struct pl_op_request req = {.name = pl_op_name(op), .in = in, .n_in = n_in};
    int r;

    if ((size_t)op >= PL_COUNT(table) || !table[op].build)
        return pl_error_set(err, -ENOSYS,
                            "the module asks for op %d, which this release does not have: use a "
                            "newer pltrain",
                            (int)op);
    if (n_in < table[op].least || n_in > table[op].most)
        return pl_error_set(err, -EINVAL, "%s: takes %zu to %zu inputs, not %zu", req.name,
                            table[op].least, table[op].most, n_in);
    if (args)
        req.args = *args;
    tape->always_f32 = req.args.i[PLUME_OP_ARG_F32] != 0;
    r = table[op].build(tape, &req, ret, err);
    tape->always_f32 = false;
    return r;
}
