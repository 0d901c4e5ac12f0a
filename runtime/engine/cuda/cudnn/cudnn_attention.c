/* SPDX-License-Identifier: MIT */
/* Attention as graphs that cuDNN runs as one fused kernel. cuDNN matches their exact form, so the
 * order of the ops, the types between them and even strides without meaning follow NVIDIA's
 * documentation (cuDNN developer guide, "Attention"). No other source exists: test changes on a
 * GPU. */
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/util/refused.h"

#include <cudnn.h>
#include <math.h>
#include <stdio.h>

#define OPS 24

struct maker {
    struct pl_cudnn_parts *p;
    const struct pl_att_key *key;
    int64_t io; /* type of the arrays, a cudnnDataType_t */
    int64_t next_id;
    void *ops[OPS];
    int64_t n;
};

enum where { ARRAY, BETWEEN, HOST };

static void *make_tensor(struct maker *m,
                         int64_t id,
                         cudnnDataType_t type,
                         enum where where,
                         const int64_t dims[4],
                         const int64_t strides[4])
{
    void *t = pl_cudnn_make(m->p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = 16;
    bool yes = true;

    pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (where == BETWEEN)
        pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (where == HOST)
        pl_cudnn_set(m->p, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    pl_cudnn_finalize(m->p, t);
    return t;
}

static void swap_last(int64_t x[4])
{
    int64_t keep = x[2];

    x[2] = x[3];
    x[3] = keep;
}

/* An array of the arguments, or of scratch; `turned`: with its last two dimensions swapped. */
static void *make_array(struct maker *m, enum pl_att_tensor which, bool turned)
{
    bool f32 = which == PL_ATT_LSE || which == PL_ATT_MEAN || which == PL_ATT_SUM;
    int64_t dims[4], strides[4];

    pl_att_shape(m->key, which, dims, strides);
    if (turned) {
        swap_last(dims);
        swap_last(strides);
    }
    return make_tensor(m, which, f32 ? CUDNN_DATA_FLOAT : (cudnnDataType_t)m->io, ARRAY, dims,
                       strides);
}

static void *make_number(struct maker *m, enum pl_att_tensor which)
{
    const int64_t ones[4] = {1, 1, 1, 1};

    return make_tensor(m, which, CUDNN_DATA_FLOAT, HOST, ones, ones);
}

/* A virtual tensor between ops, [batch, heads, time, columns]. */
static void *make_between(struct maker *m, cudnnDataType_t type, int64_t columns)
{
    const struct pl_att_key *k = m->key;
    const int64_t dims[4] = {k->batch, k->heads, k->time, columns};
    const int64_t strides[4] = {k->heads * k->time * columns, k->time * columns, columns, 1};

    return make_tensor(m, m->next_id++, type, BETWEEN, dims, strides);
}

static void *make_scores(struct maker *m)
{
    return make_between(m, CUDNN_DATA_FLOAT, m->key->keys);
}

static void *make_column(struct maker *m)
{
    return make_between(m, CUDNN_DATA_FLOAT, 1);
}

static void add_op(struct maker *m, void *op)
{
    pl_cudnn_finalize(m->p, op);
    if (m->n < OPS)
        m->ops[m->n++] = op;
    else
        m->p->failed = true;
}

/* c = a b */
static void *multiply(struct maker *m, void *a, void *b, void *c)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    void *how = pl_cudnn_make(m->p, CUDNN_BACKEND_MATMUL_DESCRIPTOR), *op;

    pl_cudnn_set(m->p, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_cudnn_finalize(m->p, how);
    op = pl_cudnn_make(m->p, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_op(m, op);
    return c;
}

/* A pointwise op; axis is GEN_INDEX's, or -1. */
struct element {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t type; /* the type of its computation */
    int64_t axis;
    void *x, *b, *t; /* b and t are NULL if the mode has none */
};

static void *run_element(struct maker *m, const struct element *e, void *y)
{
    void *how = pl_cudnn_make(m->p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR), *op;

    pl_cudnn_set(m->p, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &e->mode);
    pl_cudnn_set(m->p, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &e->type);
    if (e->axis >= 0)
        pl_cudnn_set(m->p, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &e->axis);
    pl_cudnn_finalize(m->p, how);
    op = pl_cudnn_make(m->p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, e->x);
    if (e->b)
        pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, e->b);
    if (e->t)
        pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, e->t);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(m, op);
    return y;
}

/* y = x `mode` b, or mode(x) */
static void *apply(struct maker *m, cudnnPointwiseMode_t mode, void *x, void *b, void *y)
{
    const struct element e = {mode, CUDNN_DATA_FLOAT, -1, x, b, NULL};

    return run_element(m, &e, y);
}

/* A reduction of each row. */
static void *reduce(struct maker *m, cudnnReduceTensorOp_t by, void *x)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    void *how = pl_cudnn_make(m->p, CUDNN_BACKEND_REDUCTION_DESCRIPTOR), *y = make_column(m), *op;

    pl_cudnn_set(m->p, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    pl_cudnn_set(m->p, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                 &by);
    pl_cudnn_finalize(m->p, how);
    op = pl_cudnn_make(m->p, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_op(m, op);
    return y;
}

/* The same elements with other dimensions. */
static void *reshape(struct maker *m, void *x, void *y)
{
    void *op = pl_cudnn_make(m->p, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    pl_cudnn_set_desc(m->p, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(m, op);
    return y;
}

/* Scores transposed to [batch, heads, keys, time], in the arrays' type. */
static void *turn_scores(struct maker *m, void *x)
{
    const struct pl_att_key *k = m->key;
    const int64_t dims[4] = {k->batch, k->heads, k->keys, k->time};
    const int64_t strides[4] = {k->heads * k->time * k->keys, k->time * k->keys, 1, k->keys};

    return reshape(m, x,
                   make_tensor(m, m->next_id++, (cudnnDataType_t)m->io, BETWEEN, dims, strides));
}

/* The keys as [batch, heads, keys, dim] again. */
static void *turn_keys(struct maker *m, void *turned)
{
    int64_t dims[4], strides[4];

    pl_att_shape(m->key, PL_ATT_K, dims, strides);
    return reshape(m, turned,
                   make_tensor(m, m->next_id++, CUDNN_DATA_FLOAT, BETWEEN, dims, strides));
}

static void *number_along(struct maker *m, void *scores, int64_t axis)
{
    const struct element e = {
        CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis, scores, NULL, NULL};

    return run_element(m, &e, make_between(m, CUDNN_DATA_INT32, m->key->keys));
}

/* If causal, a query sees the keys up to its own index. */
static void *hide(struct maker *m, void *scores)
{
    struct element e = {CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, NULL, NULL, NULL};
    void *seen;

    if (!m->key->causal)
        return scores;
    e.x = number_along(m, scores, 2);
    e.b = number_along(m, scores, 3);
    seen = run_element(m, &e, make_between(m, CUDNN_DATA_BOOLEAN, m->key->keys));
    e = (struct element){CUDNN_POINTWISE_BINARY_SELECT,
                         CUDNN_DATA_FLOAT,
                         -1,
                         scores,
                         make_number(m, PL_ATT_HIDDEN),
                         seen};
    return run_element(m, &e, make_scores(m));
}

/* y = softmax(scale q k^T) v, and lse */
static void make_forward(struct maker *m)
{
    void *q = make_array(m, PL_ATT_Q, false), *k = make_array(m, PL_ATT_K, true);
    void *v = make_array(m, PL_ATT_V, false), *y = make_array(m, PL_ATT_Y, false);
    void *lse = make_array(m, PL_ATT_LSE, false), *scale = make_number(m, PL_ATT_SCALE);
    void *s = multiply(m, q, k, make_scores(m)), *max, *sum, *log;

    s = hide(m, apply(m, CUDNN_POINTWISE_MUL, s, scale, make_scores(m)));
    max = reduce(m, CUDNN_REDUCE_TENSOR_MAX, s);
    s = apply(m, CUDNN_POINTWISE_SUB, s, max, make_scores(m));
    s = apply(m, CUDNN_POINTWISE_EXP, s, NULL, make_scores(m));
    sum = reduce(m, CUDNN_REDUCE_TENSOR_ADD, s);
    log = apply(m, CUDNN_POINTWISE_LOG, sum, NULL, make_column(m));
    apply(m, CUDNN_POINTWISE_ADD, max, log, lse);
    s = apply(m, CUDNN_POINTWISE_DIV, s, sum,
              make_between(m, (cudnnDataType_t)m->io, m->key->keys));
    multiply(m, s, v, y);
}

/* mean = dy y per query */
static void *make_mean(struct maker *m, void *dy)
{
    const struct pl_att_key *k = m->key;
    const int64_t dims[4] = {k->batch, k->heads, k->time, k->dim};
    /* the third one is that of the documentation */
    const int64_t strides[4] = {k->heads * k->time * k->dim, k->time * k->dim, k->heads * k->dim,
                                1};
    void *product = make_tensor(m, m->next_id++, CUDNN_DATA_FLOAT, BETWEEN, dims, strides), *sum;

    apply(m, CUDNN_POINTWISE_MUL, dy, make_array(m, PL_ATT_Y, false), product);
    sum = reduce(m, CUDNN_REDUCE_TENSOR_ADD, product);
    return apply(m, CUDNN_POINTWISE_MUL, sum, make_number(m, PL_ATT_ONE),
                 make_array(m, PL_ATT_MEAN, false));
}

/* p = exp(scale q k^T - lse), with dv = p^T dy; ds = p (dy v^T - mean) scale, with dk = ds^T q and
 * dq = ds k */
static void make_backward(struct maker *m)
{
    void *q = make_array(m, PL_ATT_Q, false), *k = make_array(m, PL_ATT_K, true);
    void *v = make_array(m, PL_ATT_V, true), *dy = make_array(m, PL_ATT_DY, false);
    void *dq = make_array(m, PL_ATT_DQ, false), *scale = make_number(m, PL_ATT_SCALE);
    void *mean = make_mean(m, dy), *s = multiply(m, q, k, make_scores(m)), *p, *sum;

    s = apply(m, CUDNN_POINTWISE_MUL, s, scale, make_scores(m));
    s = apply(m, CUDNN_POINTWISE_SUB, s, make_array(m, PL_ATT_LSE, false), make_scores(m));
    p = apply(m, CUDNN_POINTWISE_EXP, hide(m, s), NULL, make_scores(m));
    multiply(m, turn_scores(m, p), dy, make_array(m, PL_ATT_DV, false));
    s = multiply(m, dy, v, make_scores(m));
    s = apply(m, CUDNN_POINTWISE_SUB, s, mean, make_scores(m));
    s = apply(m, CUDNN_POINTWISE_MUL, s, p, make_scores(m));
    s = apply(m, CUDNN_POINTWISE_MUL, s, scale, make_scores(m));
    multiply(m, turn_scores(m, s), q, make_array(m, PL_ATT_DK, false));
    if (m->key->repeatable) {
        multiply(m, s, turn_keys(m, k), dq);
        return;
    }
    sum = multiply(m, s, turn_keys(m, k), make_array(m, PL_ATT_SUM, false));
    apply(m, CUDNN_POINTWISE_IDENTITY, sum, NULL, dq);
}

static void *attention_graph(struct pl_cudnn_parts *parts, void *handle, const void *key)
{
    struct maker m = {.p = parts, .key = key, .next_id = PL_ATT_TENSORS};

    m.io = m.key->real == PL_REAL_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    if (m.key->backward)
        make_backward(&m);
    else
        make_forward(&m);
    return pl_cudnn_graph(parts, handle, m.n, m.ops);
}

/* Any numerical note is acceptable; only the order of sums matters. */
static bool may_take(const void *of, int note)
{
    const struct pl_att_key *key = of;

    return note != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC || !key->backward || !key->repeatable;
}

/* Why the loaded cuDNN is not known to run this graph correctly. Before 9.11 it needs another value
 * for masked scores and zeroed memory, and 9.10 has faults. Backward: no single queries; up to 9.15
 * it does not mask the keys past the last full 128; up to 9.25 dq has NaNs if half of the last 128
 * keys is missing and no other mask hides them. Sources: its release notes, and PyTorch's issue
 * 196678. */
static const char *refuse(const void *of)
{
    const struct pl_att_key *key = of;
    size_t version = cudnnGetVersion();

    if (version < 91100)
        return "releases before 9.11 have faults";
    if (!key->backward)
        return NULL;
    if (key->time == 1)
        return "it has no gradient for single queries";
    if (key->keys % 128 == 64 && !key->causal && version < 92600)
        return "releases before 9.26 give NaNs where 64 of the last 128 keys are missing";
    if (key->keys % 128 != 0 && version < 91600)
        return "releases before 9.16 do not mask keys past the last full 128";
    return NULL;
}

static void describe(const void *of, char text[PL_DNN_TEXT])
{
    const struct pl_att_key *k = of;

    snprintf(text, PL_DNN_TEXT,
             "%s attention%s%s, batch %lld, %lld heads, %lld queries, %lld keys, dim %lld%s",
             pl_cuda_real_name((enum pl_real)k->real), k->causal ? ", causal" : "",
             k->backward ? ", gradient" : "", (long long)k->batch, (long long)k->heads,
             (long long)k->time, (long long)k->keys, (long long)k->dim,
             k->repeatable ? ", the same bits each time" : "");
}

const struct pl_cudnn_recipe pl_cudnn_recipe_attention = {
    .graph = attention_graph,
    .may_take = may_take,
    .refuse = refuse,
    .describe = describe,
    .workspace = PL_DNN_ATTENTION_WORKSPACE,
};

bool pl_cudnn_attention(struct pl_cudnn *dnn,
                        const struct pl_att_key *key,
                        const struct pl_att_data *data)
{
    float scale = key->scale, one = 1, hidden = -INFINITY;
    const struct pl_cudnn_plan *plan =
        pl_cudnn_find_plan(dnn, PL_DNN_ATTENTION, &pl_cudnn_recipe_attention, key, NULL, 0);
    struct pl_cudnn_array arrays[PL_ATT_TENSORS];
    size_t n = 0;

    if (!plan)
        return false;
    for (int64_t id = PL_ATT_Q; id <= PL_ATT_DV; id++)
        if (data->of[id])
            arrays[n++] = (struct pl_cudnn_array){id, data->of[id]};
    arrays[n++] = (struct pl_cudnn_array){PL_ATT_SCALE, &scale};
    if (key->causal)
        arrays[n++] = (struct pl_cudnn_array){PL_ATT_HIDDEN, &hidden};
    if (key->backward) {
        size_t mean_bytes = pl_att_mean_bytes(key), sum_bytes = pl_att_sum_bytes(key);
        char *scratch = pl_cudnn_scratch(dnn, mean_bytes + sum_bytes);

        if (!scratch)
            return false;
        arrays[n++] = (struct pl_cudnn_array){PL_ATT_ONE, &one};
        arrays[n++] = (struct pl_cudnn_array){PL_ATT_MEAN, scratch};
        if (sum_bytes)
            arrays[n++] = (struct pl_cudnn_array){PL_ATT_SUM, scratch + mean_bytes};
    }
    return pl_cudnn_run(dnn, plan, arrays, n);
}
