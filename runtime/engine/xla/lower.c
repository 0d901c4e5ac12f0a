/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/lower_private.h"

#include <stdlib.h>
#include <string.h>

/* By the name of struct pl_op. An op without a gradient has no backward. */
static const struct {
    const char *name;
    pl_lower_forward_fn *forward;
    pl_lower_backward_fn *backward;
} table[] = {
    {"reshape", pl_lower_reshape_forward, pl_lower_reshape_backward},
    {"slice", pl_lower_slice_forward, pl_lower_slice_backward},
    {"permute", pl_lower_permute_forward, pl_lower_permute_backward},
    {"copy", pl_lower_copy_forward, pl_lower_copy_backward},
    {"cast", pl_lower_copy_forward, pl_lower_copy_backward},
    {"cat", pl_lower_cat_forward, pl_lower_cat_backward},
    {"linear", pl_lower_linear_forward, pl_lower_linear_backward},
    {"matmul", pl_lower_matmul_forward, pl_lower_matmul_backward},
    {"attention", pl_lower_attention_forward, pl_lower_attention_backward},
    {"relu", pl_lower_activation_forward, pl_lower_activation_backward},
    {"activation", pl_lower_activation_forward, pl_lower_activation_backward},
    {"add", pl_lower_binary_forward, pl_lower_binary_backward},
    {"mul", pl_lower_binary_forward, pl_lower_binary_backward},
    {"scale", pl_lower_affine_forward, pl_lower_affine_backward},
    {"detach", pl_lower_affine_forward, NULL},
    {"dropout", pl_lower_dropout_forward, pl_lower_dropout_backward},
    {"sum", pl_lower_reduce_forward, pl_lower_reduce_backward},
    {"cross_entropy", pl_lower_cross_entropy_forward, pl_lower_cross_entropy_backward},
    {"correct", pl_lower_correct_forward, NULL},
    {"mse", pl_lower_mse_forward, pl_lower_mse_backward},
    {"layernorm", pl_lower_layernorm_forward, pl_lower_layernorm_backward},
    {"softmax", pl_lower_softmax_forward, pl_lower_softmax_backward},
    {"embedding", pl_lower_embedding_forward, pl_lower_embedding_backward},
    {"conv2d", pl_lower_conv2d_forward, pl_lower_conv2d_backward},
    {"max_pool2d", pl_lower_max_pool2d_forward, pl_lower_max_pool2d_backward},
    {"avg_pool2d", pl_lower_avg_pool2d_forward, pl_lower_avg_pool2d_backward},
    {"batchnorm", pl_lower_batchnorm_forward, pl_lower_batchnorm_backward},
    {"arange", pl_lower_arange_forward, NULL},
    {"normalize", pl_lower_normalize_forward, pl_lower_normalize_backward},
    {"map", pl_lower_map_forward, pl_lower_map_backward},
    {"round", pl_lower_map_forward, pl_lower_round_backward},
    {"full", pl_lower_full_forward, NULL},
    {"maximum", pl_lower_choose_forward, pl_lower_choose_backward},
    {"where", pl_lower_choose_forward, pl_lower_choose_backward},
    {"compare", pl_lower_choose_forward, NULL},
    {"expand", pl_lower_expand_forward, pl_lower_expand_backward},
    {"gather", pl_lower_gather_forward, pl_lower_gather_backward},
    {"scatter_add", pl_lower_scatter_forward, pl_lower_scatter_backward},
    {"top", pl_lower_top_forward, NULL},
    {"whole", pl_lower_whole_forward, NULL},
    {"cumsum", pl_lower_cumsum_forward, pl_lower_cumsum_backward},
    {"one_hot", pl_lower_one_hot_forward, NULL},
    {"unfold", pl_lower_unfold_forward, pl_lower_unfold_backward},
    {"fold", pl_lower_fold_forward, pl_lower_fold_backward},
    {"resample", pl_lower_resample_forward, pl_lower_resample_backward},
    {"rotary", pl_lower_rotary_forward, pl_lower_rotary_backward},
    {"random", pl_lower_random_forward, NULL},
    {"gru", pl_lower_gru_forward, pl_lower_gru_backward},
    {"lstm", pl_lower_lstm_forward, pl_lower_lstm_backward},
};

static size_t find(const char *name)
{
    size_t i = 0;

    while (i < PL_COUNT(table) && strcmp(table[i].name, name) != 0)
        i++;
    return i;
}

static bool has_type(const plume_tensor *t)
{
    return !t || t->dtype == PLUME_F32 || t->dtype == PLUME_I32 || t->dtype == PLUME_BF16;
}

int pl_lower_check(const struct pl_tape *tape, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf names = {0};

    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        bool known = find(node->op->name) < PL_COUNT(table), named = false;
        bool typed = has_type(node->out);

        for (size_t k = 0; k < node->n_in; k++)
            typed = typed && has_type(node->in[k]);
        for (size_t k = 0; k < i && !named; k++)
            named = strcmp(tape->nodes[k].op->name, node->op->name) == 0;
        if (!known && !named)
            pl_buf_addf(&names, "%s%s", names.len ? ", " : "", node->op->name);
        if (known && !typed)
            return pl_error_set(
                err, -ENOTSUP,
                "op '%s' has numbers that are not f32, bf16 or i32: an XLA device takes "
                "no others yet",
                node->op->name);
    }
    if (!names.len)
        return 0;
    return pl_error_set(err, -ENOTSUP,
                        "the module uses ops that cannot be compiled for an XLA device yet: %s; "
                        "train it on the CPU or on GPUs",
                        pl_buf_str(&names));
}

int pl_lower_forward(struct pl_lower *l, struct pl_error *err)
{
    size_t n = l->tape->n + 1;

    l->out = calloc(n, sizeof(*l->out));
    l->grad = calloc(n, sizeof(*l->grad));
    l->kept = calloc(n, sizeof(*l->kept));
    if (!l->out || !l->grad || !l->kept)
        return pl_error_nomem(err);
    for (size_t i = 0; i < l->tape->n; i++) {
        const struct pl_node *node = &l->tape->nodes[i];

        for (size_t k = 0; k < node->n_in; k++)
            if (node->in[k] && pl_lower_value(l, node->in[k]).id == 0)
                return pl_error_set(err, -EINVAL,
                                    "op '%s' takes a tensor that is neither a parameter or buffer, "
                                    "nor of the batch",
                                    node->op->name);
        l->h->low = node->out->dtype == PLUME_BF16;
        table[find(node->op->name)].forward(l, i);
    }
    return l->h->failed ? pl_error_nomem(err) : 0;
}

int pl_lower_backward(struct pl_lower *l, const plume_tensor *loss, struct pl_error *err)
{
    bool any = false;

    if (loss->count != 1 || !loss->wants_grad || loss->tape != l->tape)
        return pl_tape_refuse_loss(loss, err);
    l->grad[loss->node] = pl_hlo_fill_like(l->h, l->out[loss->node], 1);
    for (size_t i = l->tape->n; i-- > 0;) {
        const struct pl_op *op = l->tape->nodes[i].op;
        pl_lower_backward_fn *backward = table[find(op->name)].backward;

        l->h->low = l->tape->nodes[i].out->dtype == PLUME_BF16;
        if (l->grad[i].id && backward && !op->no_grad)
            backward(l, i, pl_hlo_convert(l->h, l->grad[i], "f32"));
    }
    l->h->low = false;
    for (size_t i = 0; i < l->n_leaves; i++)
        any = any || l->leaves[i].grad.id;
    if (!any)
        return pl_error_set(err, -EINVAL, "the loss depends on no parameter");
    return l->h->failed ? pl_error_nomem(err) : 0;
}

void pl_lower_finish(struct pl_lower *l)
{
    free(l->out);
    free(l->grad);
    free(l->kept);
    l->out = l->grad = NULL;
    l->kept = NULL;
}
