/* SPDX-License-Identifier: MIT */
/* Runs graphs of ops that graphs.py wrote with PyTorch's values and gradients, and compares: every
 * op by the function that modules call, in f64 and f32, on any device (tests/lib/on_device.h).
 *
 *     test-graphs FILE...                     "-" is standard input
 *     test-graphs --pjrt PLUGIN EVERY FILE... in f32 by that XLA device, each EVERYth of the graphs
 *
 * Every op must have a lowering for XLA devices, which is looked up without one.
 * A file has words between white space: "graph NAME", then "leaf" (a tensor), "op" (a call, its
 * result is the next tensor), "out" and "grad" (what is expected of a tensor), "end". */
#include "plume/ops_attention.h"
#include "plume/ops_einsum.h"
#include "plume/ops_image.h"
#include "plume/ops_nn.h"
#include "plume/ops_rnn.h"
#include "plume/ops_shape.h"
#include "plume/ops_whole.h"
#include "runtime/engine/ops/ops.h"
#include "tests/graphs/on_xla.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <string.h>

#define TENSORS 96
#define INPUTS 8
#define NUMBERS 16

struct wanted {
    size_t id;
    bool grad;
    double tolerance[2]; /* f64, f32 */
    double *values;
    size_t n;
};

struct call {
    char name[40];
    size_t n_in, in[INPUTS], n;
    double number[NUMBERS];
};

struct leaf {
    bool integer;
    size_t rank, shape[PLUME_RANK_MAX], count;
    double *values;
};

struct graph {
    char name[512];
    size_t n_leaves, n_calls, n_wanted;
    struct leaf leaf[TENSORS];
    struct call call[TENSORS];
    struct wanted wanted[2 * TENSORS];
};

/* A graph in one type. */
struct run {
    const struct graph *graph;
    struct plume_api api;
    struct plume_context pl;
    struct pl_tape tape;
    plume_tensor leaf[2 * TENSORS], *t[TENSORS];
    size_t n_leaves, n;
    bool f64;
};

static const char *file_name;
static size_t xla_every, xla_seen, xla_run; /* graphs; every = 0: not on an XLA device */

static void give_up(const char *graph, const char *what)
{
    fprintf(stderr, "%s: graph %s: %s\n", file_name, graph, what);
    exit(1);
}

/* ops */

#define PL (&run->pl)
#define IN(i) (run->t[c->in[i]])
#define NUM(i) (c->number[i])
#define SIZE(i) ((size_t)c->number[i])
#define MAYBE(i) (c->n_in > (i) ? IN(i) : NULL)
#define OP(text, call)                                                                             \
    if (strcmp(c->name, text) == 0)                                                                \
    return call

static void sizes(const struct call *c, size_t from, size_t *ret)
{
    for (size_t i = from; i < c->n && i - from < PLUME_RANK_MAX; i++)
        ret[i - from] = (size_t)c->number[i];
}

static plume_tensor *of_elements(struct run *run, const struct call *c)
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
    OP("scale", plume_scale(PL, IN(0), NUM(0), NUM(1)));
    OP("detach", plume_detach(PL, IN(0)));
    OP("add", plume_add(PL, IN(0), IN(1)));
    OP("sub", plume_sub(PL, IN(0), IN(1)));
    OP("mul", plume_mul(PL, IN(0), IN(1)));
    OP("div", plume_div(PL, IN(0), IN(1)));
    OP("maximum", plume_maximum(PL, IN(0), IN(1)));
    OP("minimum", plume_minimum(PL, IN(0), IN(1)));
    OP("lt", plume_lt(PL, IN(0), IN(1)));
    OP("ge", plume_ge(PL, IN(0), IN(1)));
    OP("where", plume_where(PL, IN(0), IN(1), IN(2)));
    OP("masked_fill", plume_masked_fill(PL, IN(0), IN(1), NUM(0)));
    return NULL;
}

static plume_tensor *of_shapes(struct run *run, const struct call *c)
{
    size_t shape[PLUME_RANK_MAX] = {0};
    plume_tensor *list[INPUTS];

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
    OP("norm", plume_norm(PL, IN(0), shape[0], shape[1]));
    OP("pad", plume_pad(PL, IN(0), shape[0], shape[1], shape[2], NUM(3)));
    return NULL;
}

static plume_tensor *of_layers(struct run *run, const struct call *c)
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
    OP("cross_entropy", plume_cross_entropy(PL, IN(0), IN(1)));
    OP("nll", plume_nll(PL, IN(0), IN(1), MAYBE(2), (int32_t)NUM(0)));
    OP("cross_entropy_but", plume_cross_entropy_but(PL, IN(0), IN(1), MAYBE(2), (int32_t)NUM(0)));
    return NULL;
}

/* Numbers: stride, padding, dilation and output padding of height and width, groups. */
static struct plume_window window(const struct call *c)
{
    return (struct plume_window){.stride = {SIZE(0), SIZE(1)},
                                 .pad = {SIZE(2), SIZE(3)},
                                 .dilation = {SIZE(4), SIZE(5)},
                                 .output_pad = {SIZE(6), SIZE(7)},
                                 .groups = SIZE(8)};
}

/* Numbers: heads, kv_heads, causal, mask_is_added, scale; the mask is input 3. */
static plume_tensor *attend(struct run *run, const struct call *c)
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
static plume_tensor *lstm(struct run *run, const struct call *c)
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
static plume_tensor *gru(struct run *run, const struct call *c)
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
static plume_tensor *einsum(struct run *run, const struct call *c)
{
    char form[NUMBERS + 1] = "";

    for (size_t i = 0; i < c->n; i++)
        form[i] = (char)NUM(i);
    return plume_einsum(PL, form, IN(0), MAYBE(1));
}

static plume_tensor *of_images(struct run *run, const struct call *c)
{
    const struct plume_window how = c->n > 8 ? window(c) : (struct plume_window){.groups = 1};

    OP("conv", plume_conv(PL, IN(0), IN(1), MAYBE(2), &how, (enum plume_activation)NUM(9)));
    OP("conv_transpose",
       plume_conv_transpose(PL, IN(0), IN(1), MAYBE(2), &how, (enum plume_activation)NUM(9)));
    OP("conv1d", plume_conv1d(PL, IN(0), IN(1), MAYBE(2), SIZE(0), SIZE(1), SIZE(2), SIZE(3),
                              (enum plume_activation)NUM(4)));
    OP("upsample", plume_upsample(PL, IN(0), SIZE(0), SIZE(1), (enum plume_resample)NUM(2)));
    OP("adaptive_avg_pool2d", plume_adaptive_avg_pool2d(PL, IN(0), SIZE(0), SIZE(1)));
    OP("resample", plume_resample(PL, IN(0), SIZE(0), SIZE(1), (enum plume_resample)NUM(2)));
    OP("attention_with", attend(run, c));
    OP("lstm", lstm(run, c));
    OP("gru", gru(run, c));
    OP("einsum", einsum(run, c));
    OP("rotary", plume_rotary(PL, IN(0), SIZE(0), SIZE(1), NUM(2), (int)NUM(3)));
    return NULL;
}

static plume_tensor *of_whole_numbers(struct run *run, const struct call *c)
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

static plume_tensor *call_op(struct run *run, const struct call *c)
{
    plume_tensor *(*const groups[])(struct run *, const struct call *) = {
        of_elements, of_shapes, of_layers, of_images, of_whole_numbers};
    plume_tensor *ret = NULL;

    for (size_t i = 0; i < PL_COUNT(groups) && !ret; i++)
        ret = groups[i](run, c);
    if (!ret) {
        fprintf(stderr, "op %s: ", c->name);
        give_up(run->graph->name, "this op does not exist here");
    }
    return ret;
}

/* the engine's half of struct plume_api, as far as ops need it */

static plume_tensor *api_op(struct plume_context *pl,
                            enum plume_op which,
                            plume_tensor *const *in,
                            size_t n_in,
                            const struct plume_op_args *args)
{
    struct run *run = pl->state;
    struct pl_error err = {0};
    plume_tensor *ret = NULL;

    for (size_t i = 0; i < n_in; i++)
        if (!in[i])
            return NULL;
    if (pl_op_call(&run->tape, which, in, n_in, args, &ret, &err) < 0)
        give_up(run->graph->name, pl_error_text(&err));
    return ret;
}

static size_t api_shape(const plume_tensor *t, size_t *ret_shape)
{
    for (size_t d = 0; ret_shape && d < t->rank; d++)
        ret_shape[d] = t->shape[d];
    return t->rank;
}

static int api_fail(struct plume_context *pl, int code, const char *text)
{
    give_up(((struct run *)pl->state)->graph->name, text);
    return code;
}

/* a run */

static void *memory(size_t bytes)
{
    void *ret = NULL;

    if (pl_device_alloc(on_device(), bytes + 1, "a leaf", &ret, NULL) < 0)
        give_up("?", "out of memory");
    return ret;
}

static plume_tensor *make(
    struct run *run, enum plume_dtype dtype, size_t rank, const size_t *shape, const double *values)
{
    plume_tensor *t = &run->leaf[run->n_leaves++];

    if (pl_tensor_init(t, dtype, rank, shape) < 0)
        give_up(run->graph->name, "a leaf has no valid shape");
    t->data = memory(t->count * 8);
    if (dtype == PLUME_I32) {
        int32_t *numbers = calloc(t->count + 1, sizeof(*numbers));

        for (size_t i = 0; numbers && i < t->count; i++)
            numbers[i] = (int32_t)values[i];
        pl_device_upload(on_device(), t->data, numbers, t->count * sizeof(*numbers));
        free(numbers);
    } else {
        on_device_set(t, values);
    }
    return t;
}

static void begin(struct run *run, const struct graph *graph, bool f64)
{
    *run = (struct run){
        .graph = graph,
        .f64 = f64,
        .api = {
            .struct_size = sizeof(run->api), .op = api_op, .shape = api_shape, .fail = api_fail}};
    run->pl =
        (struct plume_context){.struct_size = sizeof(run->pl), .api = &run->api, .state = run};
    pl_tape_init(&run->tape, on_device(), f64 ? PL_REAL_F64 : PL_REAL_F32, true);
    pl_tape_begin(&run->tape);
    for (size_t i = 0; i < graph->n_leaves; i++) {
        const struct leaf *leaf = &graph->leaf[i];
        plume_tensor *t = make(run,
                               leaf->integer ? PLUME_I32
                               : f64         ? PLUME_F64
                                             : PLUME_F32,
                               leaf->rank, leaf->shape, leaf->values);

        run->t[run->n++] = t;
        if (leaf->integer)
            continue;
        t->wants_grad = t->is_param = true;
        t->grad = memory(t->count * 8);
    }
}

/* The sum of y w, w by index as in graphs.py. */
static plume_tensor *weighted(struct run *run, plume_tensor *y)
{
    double *w = calloc(y->count + 1, sizeof(*w));
    plume_tensor *weights;

    for (size_t i = 0; w && i < y->count; i++)
        w[i] = ((double)(i * 3 % 7) - 2.5) / 2;
    weights = make(run, run->f64 ? PLUME_F64 : PLUME_F32, y->rank, y->shape, w);
    free(w);
    return plume_sum(&run->pl, plume_mul(&run->pl, y, weights), 0, PLUME_RANK_MAX);
}

static bool compare(struct run *run, const struct wanted *w)
{
    plume_tensor *t = run->t[w->id];
    void *at = w->grad ? pl_tensor_grad(t) : pl_tensor_data(t);
    double *got =
        t->dtype == PLUME_I32 ? calloc(t->count + 1, sizeof(*got)) : on_device_values(t, at);

    if (t->dtype == PLUME_I32) {
        int32_t *read = on_device_read(at, t->count * sizeof(*read));

        for (size_t i = 0; read && got && i < t->count; i++)
            got[i] = read[i];
        free(read);
    }
    if (!got || t->count != w->n)
        give_up(run->graph->name, "a tensor has another number of elements than PyTorch's");
    for (size_t i = 0; i < w->n; i++) {
        double limit = w->tolerance[run->f64 ? 0 : 1];

        if (fabs(got[i] - w->values[i]) <= limit || (isnan(got[i]) && isnan(w->values[i])))
            continue;
        fprintf(stderr,
                "%s: graph %s in %s: %s of tensor %zu, element %zu: %.17g, PyTorch: %.17g "
                "(allowed: %g)\n",
                file_name, run->graph->name, run->f64 ? "f64" : "f32",
                w->grad ? "gradient" : "value", w->id, i, got[i], w->values[i], limit);
        free(got);
        return false;
    }
    free(got);
    return true;
}

/* Takes the memory of the leaves that backward does not declare to read (pl_op's `needs`), as units
 * of parameters do (runtime/engine/params/units.h). */
static void hide_leaves(struct run *run, void **ret_data)
{
    for (size_t i = 0; i < run->n_leaves; i++) {
        ret_data[i] = run->leaf[i].data;
        run->leaf[i].data = NULL;
    }
    for (size_t i = 0; i < run->tape.n; i++) {
        const struct pl_node *node = &run->tape.nodes[i];

        for (size_t k = 0; k < node->n_in && node->back; k++) {
            plume_tensor *root = node->in[k] ? pl_tensor_root(node->in[k]) : NULL;

            if (root && !root->tape && (node->op->needs & PL_NEEDS_IN(k)))
                root->data = ret_data[root - run->leaf];
        }
    }
}

/* Gradients are compared twice: backward may neither add to old contents nor need them, nor leaves
 * that it does not declare. */
static bool execute(struct run *run)
{
    const struct graph *graph = run->graph;
    plume_tensor *roots[PL_TAPE_ROOTS_MAX], *loss = NULL;
    struct pl_error err = {0};
    void *data[PL_COUNT(run->leaf)];
    size_t n_roots = 1;
    bool good = true;

    for (size_t i = 0; i < graph->n_calls; i++)
        run->t[run->n++] = call_op(run, &graph->call[i]);
    for (size_t i = 0; i < graph->n_wanted; i++) {
        plume_tensor *y = run->t[graph->wanted[i].id], *part;

        if (graph->wanted[i].grad)
            continue;
        if (y->dtype != PLUME_I32 && !pl_tensor_is_dense(y)) /* to read it as it is */
            y = run->t[graph->wanted[i].id] = plume_scale(&run->pl, y, 1, 0);
        if (n_roots < PL_TAPE_ROOTS_MAX)
            roots[n_roots++] = y;
        if (y->dtype == PLUME_I32)
            continue;
        part = weighted(run, y);
        loss = loss ? plume_add(&run->pl, loss, part) : part;
    }
    pl_tape_end(&run->tape);
    roots[0] = loss;
    if (pl_tape_prepare(&run->tape, loss ? roots : roots + 1, n_roots - !loss, loss ? 1 : 0, &err) <
        0)
        give_up(graph->name, pl_error_text(&err));
    if (!run->f64 && !on_xla_takes(&run->tape))
        give_up(graph->name, "has an op that cannot be compiled for an XLA device");
    if (xla_every && xla_seen++ % xla_every)
        return true;
    for (int time = 0; time < 2; time++) {
        if (pl_tape_forward(&run->tape, &err) < 0)
            give_up(graph->name, pl_error_text(&err));
        if (time == 1)
            hide_leaves(run, data);
        if (loss && loss->wants_grad &&
            pl_tape_backward(&run->tape, &(struct pl_backward){.loss = loss, .seed = 1}, &err) < 0)
            give_up(graph->name, pl_error_text(&err));
        for (size_t i = 0; time == 1 && i < run->n_leaves; i++)
            run->leaf[i].data = data[i];
        if (xla_every && time == 0) {
            on_xla_run(&run->tape, run->leaf, run->n_leaves, roots + !loss, n_roots - !loss,
                       loss && loss->wants_grad ? loss : NULL);
            xla_run++;
        }
        for (size_t i = 0; i < graph->n_wanted; i++)
            good = compare(run, &graph->wanted[i]) && good;
    }
    return good;
}

static void end(struct run *run)
{
    pl_tape_finish(&run->tape);
    for (size_t i = 0; i < run->n_leaves; i++) {
        pl_device_free(on_device(), run->leaf[i].data);
        if (run->leaf[i].grad)
            pl_device_free(on_device(), run->leaf[i].grad);
    }
}

/* files */

static double number(FILE *f, const struct graph *g)
{
    char word[64], *rest;
    double value;

    if (fscanf(f, "%63s", word) != 1)
        give_up(g->name, "ends too early");
    value = strtod(word, &rest);
    if (*rest)
        give_up(g->name, "has a word where a number should be");
    return value;
}

static size_t size(FILE *f, const struct graph *g, size_t limit)
{
    double value = number(f, g);

    if (!(value >= 0 && value <= (double)limit))
        give_up(g->name, "has a number that is too large");
    return (size_t)value;
}

static double *numbers(FILE *f, const struct graph *g, size_t n)
{
    double *values = calloc(n + 1, sizeof(*values));

    if (!values)
        give_up(g->name, "out of memory");
    for (size_t i = 0; i < n; i++)
        values[i] = number(f, g);
    return values;
}

static void read_leaf(FILE *f, struct graph *g)
{
    struct leaf *leaf = &g->leaf[g->n_leaves++];

    leaf->integer = size(f, g, 1);
    leaf->rank = size(f, g, PLUME_RANK_MAX);
    leaf->count = 1;
    for (size_t d = 0; d < leaf->rank; d++) {
        leaf->shape[d] = size(f, g, 1 << 20);
        leaf->count *= leaf->shape[d];
    }
    leaf->values = numbers(f, g, leaf->count);
}

static void read_call(FILE *f, struct graph *g)
{
    struct call *c = &g->call[g->n_calls++];

    if (fscanf(f, "%39s", c->name) != 1)
        give_up(g->name, "ends too early");
    c->n_in = size(f, g, INPUTS);
    for (size_t i = 0; i < c->n_in; i++)
        c->in[i] = size(f, g, g->n_leaves + g->n_calls - 2);
    c->n = size(f, g, NUMBERS);
    for (size_t i = 0; i < c->n; i++)
        c->number[i] = number(f, g);
}

static void read_wanted(FILE *f, struct graph *g, bool grad)
{
    struct wanted *w = &g->wanted[g->n_wanted++];

    w->grad = grad;
    w->id = size(f, g, g->n_leaves + g->n_calls - 1);
    w->tolerance[0] = number(f, g);
    w->tolerance[1] = number(f, g);
    w->n = size(f, g, 1 << 20);
    w->values = numbers(f, g, w->n);
}

/* False at the end of the file. */
static bool read_graph(FILE *f, struct graph *g)
{
    char word[16];

    *g = (struct graph){.name = "?"};
    if (fscanf(f, "%15s", word) != 1)
        return false;
    if (strcmp(word, "graph") != 0 || fscanf(f, "%511s", g->name) != 1)
        give_up(g->name, "does not begin with 'graph NAME'");
    while (fscanf(f, "%15s", word) == 1 && strcmp(word, "end") != 0) {
        if (g->n_leaves + g->n_calls >= TENSORS || g->n_wanted >= PL_COUNT(g->wanted))
            give_up(g->name, "has too many tensors");
        if (strcmp(word, "leaf") == 0)
            read_leaf(f, g);
        else if (strcmp(word, "op") == 0)
            read_call(f, g);
        else if (strcmp(word, "out") == 0 || strcmp(word, "grad") == 0)
            read_wanted(f, g, word[0] == 'g');
        else
            give_up(g->name, "has an unknown word");
    }
    return true;
}

static void forget(struct graph *g)
{
    for (size_t i = 0; i < g->n_leaves; i++)
        free(g->leaf[i].values);
    for (size_t i = 0; i < g->n_wanted; i++)
        free(g->wanted[i].values);
}

/* Returns the number of graphs; *ret_bad is raised by those that differ. */
static size_t run_file(const char *path, size_t *ret_bad)
{
    static struct graph graph;
    static struct run run;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    size_t n = 0;

    file_name = path;
    if (!f)
        give_up("?", "cannot be opened");
    for (; read_graph(f, &graph); n++) {
        bool good = true;

        for (int f64 = !xla_every; f64 >= 0; f64--) {
            begin(&run, &graph, f64);
            good = execute(&run) && good;
            end(&run);
        }
        *ret_bad += !good;
        forget(&graph);
    }
    if (f != stdin)
        fclose(f);
    return n;
}

int main(int argc, char **argv)
{
    size_t n = 0, bad = 0;
    bool xla = argc > 3 && strcmp(argv[1], "--pjrt") == 0;

    if (xla && !argv[2][0]) {
        puts("no PJRT plugin (./dev deps pjrt), or a build with a sanitizer");
        return 77;
    }
    if (xla) {
        xla_every = strtoul(argv[3], NULL, 10);
        on_xla_open(argv[2]);
    }
    for (int i = xla ? 4 : 1; i < argc; i++)
        n += run_file(argv[i], &bad);
    if (xla) {
        on_xla_close();
        printf("%zu on the XLA device; ", n = xla_run);
    }
    printf("%zu graphs, %zu differ from PyTorch\n", n, bad);
    return n == 0 || bad > 0;
}
