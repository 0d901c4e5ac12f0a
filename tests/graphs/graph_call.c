/* SPDX-License-Identifier: MIT */
#include "plume/ops_attention.h"
#include "plume/ops_einsum.h"
#include "plume/ops_image.h"
#include "plume/ops_nn.h"
#include "plume/ops_rnn.h"
#include "plume/ops_shape.h"
#include "plume/ops_whole.h"
#include "tests/graphs/graph.h"

#include <string.h>

#define PL (&run->pl)
#define IN(i) (run->t[c->in[i]])
#define NUM(i) (c->number[i])
#define SIZE(i) ((size_t)c->number[i])
#define MAYBE(i) (c->n_in > (i) ? IN(i) : NULL)
#define OP(text, call)                                                                             \
    if (strcmp(c->name, text) == 0)                                                                \
    return call

static void sizes(const struct graph_call *c, size_t from, size_t *ret)
{
    for (size_t i = from; i < c->n && i - from < PLUME_RANK_MAX; i++)
        ret[i - from] = (size_t)c->number[i];
}

static plume_tensor *of_elements(struct graph_run *run, const struct graph_call *c)
{
    OP("activate", plume_activate(PL, IN(0), (enum plume_activation)NUM(0)));
    OP("exp", plume_exp(PL, IN(0)));
    OP("ln", plume_ln(PL, IN(0)));
    OP("sqrt", plume_sqrt(PL, IN(0)));
    OP("rsqrt", plume_rsqrt(PL, IN(0)));
    OP("pow", plume_pow(PL, IN(0), NUM(0)));
    OP("abs", plume_abs(PL, IN(0)));
    OP("clamp", plume_clamp(PL, IN(0), NUM(0), NUM(1)));
    OP("softplus", plume_softplus(PL, IN(0)));
    OP("elu", plume_elu(PL, IN(0), NUM(0)));
    OP("leaky_relu", plume_leaky_relu(PL, IN(0), NUM(0)));
    OP("sin", plume_sin(PL, IN(0)));
    OP("cos", plume_cos(PL, IN(0)));
    OP("tan", plume_tan(PL, IN(0)));
    OP("erf", plume_erf(PL, IN(0)));
    OP("floor", plume_floor(PL, IN(0)));
    OP("ceil", plume_ceil(PL, IN(0)));
    OP("round", plume_round(PL, IN(0)));
    OP("sign", plume_sign(PL, IN(0)));
    OP("scale", plume_scale(PL, IN(0), NUM(0), NUM(1)));
    OP("detach", plume_detach(PL, IN(0)));
    OP("add", plume_add(PL, IN(0), IN(1)));
    OP("sub", plume_sub(PL, IN(0), IN(1)));
    OP("mul", plume_mul(PL, IN(0), IN(1)));
    OP("div", plume_div(PL, IN(0), IN(1)));
    OP("maximum", plume_maximum(PL, IN(0), IN(1)));
    OP("minimum", plume_minimum(PL, IN(0), IN(1)));
    OP("lt", plume_lt(PL, IN(0), IN(1)));
    OP("le", plume_le(PL, IN(0), IN(1)));
    OP("gt", plume_gt(PL, IN(0), IN(1)));
    OP("eq", plume_eq(PL, IN(0), IN(1)));
    OP("ne", plume_ne(PL, IN(0), IN(1)));
    OP("ge", plume_ge(PL, IN(0), IN(1)));
    OP("where", plume_where(PL, IN(0), IN(1), IN(2)));
    OP("masked_fill", plume_masked_fill(PL, IN(0), IN(1), NUM(0)));
    return NULL;
}

static plume_tensor *of_shapes(struct graph_run *run, const struct graph_call *c)
{
    size_t shape[PLUME_RANK_MAX] = {0};
    plume_tensor *list[GRAPH_INPUTS];

    for (size_t i = 0; i < c->n_in; i++)
        list[i] = IN(i);
    sizes(c, 0, shape);
    OP("reshape", plume_reshape(PL, IN(0), c->n, shape));
    OP("permute", plume_permute(PL, IN(0), shape));
    OP("slice", plume_slice(PL, IN(0), shape[0], shape[1], shape[2]));
    OP("cat", plume_cat_along(PL, shape[0], c->n_in, list));
    OP("sum", plume_sum(PL, IN(0), shape[0], shape[1]));
    OP("mean", plume_mean(PL, IN(0), shape[0], shape[1]));
    OP("gather", plume_gather(PL, IN(0), shape[0], IN(1)));
    OP("index_select", plume_index_select(PL, IN(0), shape[0], IN(1)));
    OP("gather_but", plume_gather_but(PL, IN(0), shape[0], IN(1), (int)NUM(1), (int32_t)NUM(2)));
    OP("range", plume_range(PL, shape[0], (int64_t)NUM(1), (int64_t)NUM(2)));
    OP("full", plume_full(PL, c->n - 1, shape, NUM(c->n - 1)));
    OP("scatter_add", plume_scatter_add(PL, IN(0), shape[0], IN(1), IN(2)));
    OP("index_add", plume_index_add(PL, IN(0), shape[0], IN(1), IN(2)));
    OP("scatter", plume_scatter(PL, IN(0), shape[0], IN(1), IN(2)));
    OP("one_hot", plume_one_hot(PL, IN(0), shape[0]));
    OP("topk", plume_topk(PL, IN(0), shape[0], shape[1], NULL));
    OP("topk_index", plume_topk_index(PL, IN(0), shape[0], shape[1]));
    OP("smallest_index", plume_smallest_index(PL, IN(0), shape[0], shape[1]));
    OP("max", plume_max(PL, IN(0), shape[0]));
    OP("min", plume_min(PL, IN(0), shape[0]));
    OP("argmax", plume_argmax(PL, IN(0), shape[0]));
    OP("argmin", plume_argmin(PL, IN(0), shape[0]));
    OP("cumsum", plume_cumsum(PL, IN(0), shape[0]));
    OP("stack", plume_stack(PL, shape[0], c->n_in, list));
    OP("flip", plume_flip(PL, IN(0), shape[0]));
    OP("roll", plume_roll(PL, IN(0), shape[0], (int64_t)NUM(1)));
    OP("add_dim", plume_add_dim(PL, IN(0), shape[0]));
    OP("expand", plume_expand(PL, IN(0), c->n, shape));
    OP("logsumexp", plume_logsumexp(PL, IN(0), shape[0], shape[1]));
    OP("var", plume_var(PL, IN(0), shape[0], shape[1], NUM(2)));
    OP("std", plume_std(PL, IN(0), shape[0], shape[1], NUM(2)));
    OP("prod", plume_prod(PL, IN(0), shape[0], shape[1]));
    OP("tril", plume_tril(PL, IN(0), (int32_t)NUM(0)));
    OP("triu", plume_triu(PL, IN(0), (int32_t)NUM(0)));
    OP("norm", plume_norm(PL, IN(0), shape[0], shape[1]));
    OP("pad", plume_pad(PL, IN(0), shape[0], shape[1], shape[2], NUM(3)));
    return NULL;
}

static plume_tensor *of_layers(struct graph_run *run, const struct graph_call *c)
{
    OP("linear", plume_linear(PL, IN(0), IN(1), MAYBE(2), (enum plume_activation)NUM(0)));
    OP("matmul", plume_matmul(PL, IN(0), IN(1), (int)NUM(0), (int)NUM(1)));
    OP("layernorm", plume_layernorm(PL, IN(0), MAYBE(1), MAYBE(2), NUM(0)));
    OP("rmsnorm", plume_rmsnorm(PL, IN(0), MAYBE(1), NUM(0)));
    OP("groupnorm", plume_groupnorm(PL, IN(0), SIZE(0), MAYBE(1), MAYBE(2), NUM(1)));
    OP("softmax", plume_softmax(PL, IN(0)));
    OP("log_softmax", plume_log_softmax(PL, IN(0)));
    OP("normalize", plume_normalize(PL, IN(0), NUM(0)));
    OP("embedding", plume_embedding(PL, IN(0), IN(1)));
    OP("conv2d",
       plume_conv2d(PL, IN(0), IN(1), MAYBE(2), SIZE(0), SIZE(1), (enum plume_activation)NUM(2)));
    OP("max_pool2d", plume_max_pool2d(PL, IN(0), SIZE(0), SIZE(1), SIZE(2)));
    OP("avg_pool2d", plume_avg_pool2d(PL, IN(0), SIZE(0), SIZE(1), SIZE(2)));
    OP("attention", plume_attention(PL, IN(0), SIZE(0), (int)NUM(1)));
    OP("attention_of", plume_attention_of(PL, IN(0), IN(1), IN(2), SIZE(0), (int)NUM(1)));
    OP("mse", plume_mse(PL, IN(0), IN(1)));
    OP("l1", plume_l1(PL, IN(0), IN(1)));
    OP("huber", plume_huber(PL, IN(0), IN(1), NUM(0)));
    OP("correct", plume_correct(PL, IN(0), IN(1)));
    OP("bce_with_logits", plume_bce_with_logits(PL, IN(0), IN(1)));
    OP("kl_div", plume_kl_div(PL, IN(0), IN(1)));
    OP("cross_entropy_smooth", plume_cross_entropy_smooth(PL, IN(0), IN(1), NUM(0)));
    OP("batchnorm", plume_batchnorm(PL, IN(0), IN(1), IN(2), IN(3), IN(4), NUM(0), NUM(1),
                                    (enum plume_activation)NUM(2)));
    OP("cross_entropy", plume_cross_entropy(PL, IN(0), IN(1)));
    OP("nll", plume_nll(PL, IN(0), IN(1), MAYBE(2), (int32_t)NUM(0)));
    OP("cross_entropy_but", plume_cross_entropy_but(PL, IN(0), IN(1), MAYBE(2), (int32_t)NUM(0)));
    return NULL;
}

/* Numbers: stride, padding, dilation and output padding of height and width, groups. */
static struct plume_window window(const struct graph_call *c)
{
    return (struct plume_window){.stride = {SIZE(0), SIZE(1)},
                                 .pad = {SIZE(2), SIZE(3)},
                                 .dilation = {SIZE(4), SIZE(5)},
                                 .output_pad = {SIZE(6), SIZE(7)},
                                 .groups = SIZE(8)};
}

/* Numbers: heads, kv_heads, causal, mask_is_added, scale; the mask is input 3. */
static plume_tensor *attend(struct graph_run *run, const struct graph_call *c)
{
    struct plume_attention_how how = {.heads = SIZE(0),
                                      .kv_heads = SIZE(1),
                                      .causal = (int)NUM(2),
                                      .mask_is_added = (int)NUM(3),
                                      .scale = NUM(4),
                                      .mask = MAYBE(3)};

    return plume_attention_with(PL, IN(0), IN(1), IN(2), &how);
}

/* Numbers: with biases, and what is wanted: 0, all hidden states; 1, the last ones; 2, all, and the
 * last ones are given but not used. Inputs: x, weights, biases, then perhaps both states. */
static plume_tensor *lstm(struct graph_run *run, const struct graph_call *c)
{
    bool biased = NUM(0) != 0;
    size_t next = biased ? 5 : 3;
    plume_tensor *h = MAYBE(next), *cell = MAYBE(next + 1);
    bool states = h || NUM(1) != 0;
    plume_tensor *y = plume_lstm(PL, IN(0), IN(1), IN(2), biased ? IN(3) : NULL,
                                 biased ? IN(4) : NULL, states ? &h : NULL, states ? &cell : NULL);

    return NUM(1) == 1 ? plume_add(PL, plume_scale(PL, cell, 2, 0), h) : y;
}

/* Numbers: which biases (1: the input's, 2: the state's), and what is wanted, as lstm()'s. */
static plume_tensor *gru(struct graph_run *run, const struct graph_call *c)
{
    unsigned biases = (unsigned)NUM(0);
    size_t next = 3;
    plume_tensor *b_ih = biases & 1 ? IN(next++) : NULL, *b_hh = biases & 2 ? IN(next++) : NULL;
    plume_tensor *h = MAYBE(next);
    bool states = h || NUM(1) != 0;
    plume_tensor *y = plume_gru(PL, IN(0), IN(1), IN(2), b_ih, b_hh, states ? &h : NULL);

    return NUM(1) == 1 ? h : y;
}

/* Numbers: the characters of the form. */
static plume_tensor *einsum(struct graph_run *run, const struct graph_call *c)
{
    char form[GRAPH_NUMBERS + 1] = "";
    plume_tensor *list[GRAPH_INPUTS];

    for (size_t i = 0; i < c->n; i++)
        form[i] = (char)NUM(i);
    for (size_t i = 0; i < c->n_in; i++)
        list[i] = IN(i);
    return c->n_in > 2 ? plume_einsum_all(PL, form, c->n_in, list)
                       : plume_einsum(PL, form, IN(0), MAYBE(1));
}

static plume_tensor *of_images(struct graph_run *run, const struct graph_call *c)
{
    const struct plume_window how = c->n > 8 ? window(c) : (struct plume_window){.groups = 1};

    OP("conv", plume_conv(PL, IN(0), IN(1), MAYBE(2), &how, (enum plume_activation)NUM(9)));
    OP("conv_transpose",
       plume_conv_transpose(PL, IN(0), IN(1), MAYBE(2), &how, (enum plume_activation)NUM(9)));
    OP("conv1d", plume_conv1d(PL, IN(0), IN(1), MAYBE(2), SIZE(0), SIZE(1), SIZE(2), SIZE(3),
                              (enum plume_activation)NUM(4)));
    OP("upsample", plume_upsample(PL, IN(0), SIZE(0), SIZE(1), (enum plume_resample)NUM(2)));
    OP("adaptive_avg_pool2d", plume_adaptive_avg_pool2d(PL, IN(0), SIZE(0), SIZE(1)));
    OP("adaptive_max_pool2d", plume_adaptive_max_pool2d(PL, IN(0), SIZE(0), SIZE(1)));
    OP("adaptive_max_pool", plume_adaptive_max_pool(PL, IN(0), SIZE(0), SIZE(1)));
    OP("resample", plume_resample(PL, IN(0), SIZE(0), SIZE(1), (enum plume_resample)NUM(2)));
    OP("attention_with", attend(run, c));
    OP("lstm", lstm(run, c));
    OP("gru", gru(run, c));
    OP("einsum", einsum(run, c));
    OP("rotary", plume_rotary(PL, IN(0), SIZE(0), SIZE(1), NUM(2), (int)NUM(3)));
    return NULL;
}

static plume_tensor *of_whole_numbers(struct graph_run *run, const struct graph_call *c)
{
    OP("whole_add", plume_whole_add(PL, IN(0), IN(1)));
    OP("whole_sub", plume_whole_sub(PL, IN(0), IN(1)));
    OP("whole_mul", plume_whole_mul(PL, IN(0), IN(1)));
    OP("whole_div", plume_whole_div(PL, IN(0), IN(1)));
    OP("whole_mod", plume_whole_mod(PL, IN(0), IN(1)));
    OP("whole_lt", plume_whole_lt(PL, IN(0), IN(1)));
    OP("whole_le", plume_whole_le(PL, IN(0), IN(1)));
    OP("whole_eq", plume_whole_eq(PL, IN(0), IN(1)));
    OP("whole_ne", plume_whole_ne(PL, IN(0), IN(1)));
    OP("whole_to_real", plume_whole_to_real(PL, IN(0)));
    return NULL;
}

plume_tensor *graph_call(struct graph_run *run, const struct graph_call *c)
{
    plume_tensor *(*const groups[])(struct graph_run *, const struct graph_call *) = {
        of_elements, of_shapes, of_layers, of_images, of_whole_numbers};
    plume_tensor *ret = NULL;

    for (size_t i = 0; i < PL_COUNT(groups) && !ret; i++)
        ret = groups[i](run, c);
    if (!ret) {
        fprintf(stderr, "op %s: ", c->name);
        graph_give_up(run->graph->name, "this op does not exist here");
    }
    return ret;
}
