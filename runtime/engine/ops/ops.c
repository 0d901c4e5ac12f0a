/* SPDX-License-Identifier: MIT */
#include "runtime/engine/ops/op_private.h"

#include <string.h>

/* The functions of an op that has several, by one of its numbers: NULL ends them. */
static const char *const activations[] = {"activate", "relu", "gelu",    "gelu_tanh",
                                          "silu",     "tanh", "sigmoid", NULL};
static const char *const arithmetic[] = {"add", "sub", "mul", "div", NULL};
static const char *const reductions[] = {"sum", "mean", NULL};
static const char *const norms[] = {"layernorm", "rmsnorm", NULL};
static const char *const softmaxes[] = {"softmax", "log_softmax", NULL};
static const char *const pools[] = {"max_pool2d", "avg_pool2d", NULL};
static const char *const maps[] = {
    "map",        "exp", "ln",  "sqrt",  "rsqrt", "pow",   "abs",  "clamp", "softplus", "elu",
    "leaky_relu", "sin", "cos", "floor", "ceil",  "round", "sign", "erf",   "tan",      NULL};
static const char *const choices[] = {"maximum",  "minimum", "where", "lt or gt",
                                      "le or ge", "eq",      "ne",    NULL};
static const char *const randoms[] = {"uniform", "bernoulli", "normal", NULL};
static const char *const wholes[] = {"whole_add", "whole_sub",     "whole_mul", "whole_div",
                                     "whole_mod", "whole_lt",      "whole_le",  "whole_eq",
                                     "whole_ne",  "whole_to_real", NULL};

static const struct {
    const char *name;
    size_t least, most; /* number of inputs */
    pl_op_build *build;
    const char *inputs; /* their names in plume/ops.h and its siblings; "": they have none */
    size_t at;          /* in the op's numbers: that of its function */
    const char *const *functions; /* NULL: it has one */
} table[] = {
    [PLUME_OP_LINEAR] = {"linear", 2, 3, pl_build_linear, "x w b", 0, NULL},
    [PLUME_OP_UNARY] = {"activation", 1, 1, pl_build_unary, "x", 0, activations},
    [PLUME_OP_CROSS_ENTROPY] = {"cross_entropy", 2, 2, pl_build_cross_entropy, "logits labels", 0,
                                NULL},
    [PLUME_OP_CORRECT] = {"correct", 2, 2, pl_build_correct, "logits labels", 0, NULL},
    [PLUME_OP_BINARY] = {"add, sub, mul or div", 2, 2, pl_build_binary, "a b", 0, arithmetic},
    [PLUME_OP_RESHAPE] = {"reshape", 1, 1, pl_build_reshape, "x", 0, NULL},
    [PLUME_OP_SLICE] = {"slice", 1, 1, pl_build_slice, "x", 0, NULL},
    [PLUME_OP_PERMUTE] = {"permute", 1, 1, pl_build_permute, "x", 0, NULL},
    [PLUME_OP_CAT] = {"cat", 1, PL_NODE_INPUTS_MAX, pl_build_cat, "", 0, NULL},
    [PLUME_OP_MATMUL] = {"matmul", 2, 2, pl_build_matmul, "a b", 0, NULL},
    [PLUME_OP_AFFINE] = {"scale", 1, 1, pl_build_affine, "x", 0, NULL},
    [PLUME_OP_DROPOUT] = {"dropout", 1, 1, pl_build_dropout, "x", 0, NULL},
    [PLUME_OP_REDUCE] = {"sum or mean", 1, 1, pl_build_reduce, "x", 3, reductions},
    [PLUME_OP_MSE] = {"mse", 2, 2, pl_build_mse, "a b", 0, NULL},
    [PLUME_OP_LAYERNORM] = {"layernorm", 1, 3, pl_build_layernorm, "x gamma beta", 0, norms},
    [PLUME_OP_SOFTMAX] = {"softmax", 1, 1, pl_build_softmax, "x", 0, softmaxes},
    [PLUME_OP_NORMALIZE] = {"normalize", 1, 1, pl_build_normalize, "x", 0, NULL},
    [PLUME_OP_EMBEDDING] = {"embedding", 2, 2, pl_build_embedding, "table ids", 0, NULL},
    [PLUME_OP_CONV2D] = {"conv2d", 2, 3, pl_build_conv2d, "x w b", 0, NULL},
    [PLUME_OP_POOL2D] = {"pool2d", 1, 1, pl_build_pool2d, "x", 3, pools},
    [PLUME_OP_BATCHNORM] = {"batchnorm", 5, 5, pl_build_batchnorm, "x w b mean var", 0, NULL},
    [PLUME_OP_ATTENTION] = {"attention", 1, 3, pl_build_attention, "q k v", 0, NULL},
    [PLUME_OP_ARANGE] = {"arange", 0, 0, pl_build_arange, "", 0, NULL},
    [PLUME_OP_MAP] = {"a function of each element", 1, 1, pl_build_map, "x", 0, maps},
    [PLUME_OP_CHOOSE] = {"maximum, minimum, where or a comparison", 2, 3, pl_build_choose, "a b c",
                         0, choices},
    [PLUME_OP_FULL] = {"full", 0, 0, pl_build_full, "", 0, NULL},
    [PLUME_OP_GATHER] = {"gather", 2, 2, pl_build_gather, "x index", 0, NULL},
    [PLUME_OP_TOP] = {"argmax or topk", 1, 1, pl_build_top, "x", 0, NULL},
    [PLUME_OP_CUMSUM] = {"cumsum", 1, 1, pl_build_cumsum, "x", 0, NULL},
    [PLUME_OP_CONV] = {"conv", 2, 3, pl_build_conv, "x w b", 0, NULL},
    [PLUME_OP_CONV_TRANSPOSE] = {"conv_transpose", 2, 3, pl_build_conv_transpose, "x w b", 0, NULL},
    [PLUME_OP_RESAMPLE] = {"upsample or adaptive pool", 1, 1, pl_build_resample, "x", 0, NULL},
    [PLUME_OP_ROTARY] = {"rotary", 1, 1, pl_build_rotary, "x", 0, NULL},
    [PLUME_OP_RANDOM] = {"uniform, bernoulli or normal", 0, 0, pl_build_random, "", 0, randoms},
    [PLUME_OP_ONE_HOT] = {"one_hot", 1, 1, pl_build_one_hot, "labels", 0, NULL},
    [PLUME_OP_LSTM] = {"lstm", 2, 4, pl_build_lstm, "x w_hh h c", 0, NULL},
    [PLUME_OP_RANGE] = {"range", 0, 0, pl_build_range, "", 0, NULL},
    [PLUME_OP_EXPAND] = {"expand", 1, 1, pl_build_expand, "x", 0, NULL},
    [PLUME_OP_GRU] = {"gru", 2, 4, pl_build_gru, "x w_hh b_hh h", 0, NULL},
    [PLUME_OP_SCATTER_ADD] = {"scatter_add", 3, 3, pl_build_scatter, "x index src", 0, NULL},
    [PLUME_OP_WHOLE] = {"an operation of whole numbers", 2, 2, pl_build_whole, "a b", 0, wholes},
    [PLUME_OP_DETACH] = {"detach", 1, 1, pl_build_detach, "x", 0, NULL},
};

const char *pl_op_name(enum plume_op op, const struct plume_op_args *args)
{
    const char *const *functions;

    if ((size_t)op >= PL_COUNT(table) || !table[op].name)
        return "?";
    functions = table[op].functions;
    for (int64_t i = 0; functions && functions[i]; i++)
        if (i == (args ? args->i[table[op].at] : 0))
            return functions[i];
    return table[op].name;
}

/* Those of the function: others than the op's. */
static const char *inputs_of(enum plume_op op, const struct plume_op_args *args, size_t n_in)
{
    if ((size_t)op >= PL_COUNT(table) || !table[op].name)
        return "";
    if (op == PLUME_OP_ATTENTION && n_in == 1)
        return "qkv";
    if (op == PLUME_OP_CHOOSE && args && args->i[0] == PLUME_CHOOSE_WHERE)
        return "mask yes no";
    if (op == PLUME_OP_CHOOSE && args && args->i[0] > PLUME_CHOOSE_WHERE)
        return ""; /* gt is lt of the two in the other order */
    if (op == PLUME_OP_GRU && !(args && args->i[0]))
        return "x w_hh h";
    return table[op].inputs;
}

void pl_op_input_name(enum plume_op op,
                      const struct plume_op_args *args,
                      size_t n_in,
                      size_t i,
                      char *buf,
                      size_t size)
{
    const char *name = inputs_of(op, args, n_in);

    for (size_t k = 0; k < i && *name; k++) {
        name += strcspn(name, " ");
        name += *name == ' ';
    }
    if (*name)
        snprintf(buf, size, "%.*s (input %zu)", (int)strcspn(name, " "), name, i);
    else
        snprintf(buf, size, "input %zu", i);
}

int pl_op_call(struct pl_tape *tape,
               enum plume_op op,
               plume_tensor *const *in,
               size_t n_in,
               const struct plume_op_args *args,
               plume_tensor **ret,
               struct pl_error *err)
{
    struct pl_op_request req = {.name = pl_op_name(op, args), .in = in, .n_in = n_in};
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
