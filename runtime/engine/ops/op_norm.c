/* SPDX-License-Identifier: MIT */
/* Ops on rows: layernorm, softmax, normalisation; and embedding. */
#include "runtime/engine/ops/op_private.h"
#include "runtime/engine/ops/partial.h"

#include <string.h>

static double flops_per_input(const struct pl_node *node, bool backward)
{
    return 8.0 * (double)node->in[0]->count;
}

/* layernorm, without its mean if attr.i[0] is set: saved has each row's mean, then each row's
 * 1/sqrt(var + eps) */

static struct pl_layernorm_args layernorm_args(const struct pl_call *c)
{
    size_t rows = pl_op_rows(c->node->in[0]), n_in = c->node->n_in;
    const struct pl_fusion *f = &c->node->fusion;

    return (struct pl_layernorm_args){
        .x_half = f->x != c->node->in[0],
        .y_half = f->y != c->node->out,
        .half = f->y->dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16,
        .a = f->a ? pl_tape_data(c->tape, f->a) : NULL,
        .b = f->b ? pl_tape_data(c->tape, f->b) : NULL,
        .sum = f->a ? c->in[0] : NULL,
        .dx_too = f->too && f->too->wants_grad ? pl_tape_grad(c->tape, f->too) : NULL,
        .dx_sums = c->sums,
        .dx_sums_add = c->sums_add,
        .rows = rows,
        .n = pl_op_last(c->node->in[0]),
        .b_rows = f->b && f->b->count < f->x->count ? f->b->count / pl_op_last(f->x) : 0,
        .eps = c->attr->f[0],
        .rms = c->attr->i[0],
        .dx_add = c->add[0],
        .dgamma_add = n_in > 1 && c->add[1],
        .dbeta_add = n_in > 2 && c->add[2],
        .x = c->in[0],
        .gamma = n_in > 1 ? c->in[1] : NULL,
        .beta = n_in > 2 ? c->in[2] : NULL,
        .dy = c->out_grad,
        .y = c->out,
        .mean = pl_op_stats(c, 0),
        .rstd = pl_op_stats(c, rows),
        .dx = c->in_grad[0],
        .dgamma = n_in > 1 ? c->in_grad[1] : NULL,
        .dbeta = n_in > 2 ? c->in_grad[2] : NULL,
    };
}

static void layernorm_forward(const struct pl_call *c)
{
    struct pl_layernorm_args args = layernorm_args(c);

    c->k->layernorm_forward(&args);
}

static void layernorm_backward(const struct pl_call *c)
{
    struct pl_layernorm_args args = layernorm_args(c);

    c->k->layernorm_backward(&args);
}

static double size_of(const plume_tensor *t)
{
    return t ? (double)t->count * (double)pl_dtype_size(t->dtype) : 0;
}

static struct pl_partial_norm partial_of(const struct pl_node *node)
{
    struct pl_partial_norm p = {
        .rows = pl_op_rows(node->in[0]),
        .n = pl_op_last(node->in[0]),
        .real = node->k->real,
        .y_half = node->fusion.y != node->out,
        .dx_sums = node->fusion.bias_of,
    };

    for (size_t i = 1; i < node->n_in; i++)
        p.params |= node->in[i]->wants_grad;
    return p;
}

/* Backward x and dy are read once, for dx and for the gradients of gamma and beta, unless a GPU has
 * too few registers for a row. */
static double layernorm_bytes(const struct pl_node *node, bool backward)
{
    const struct pl_fusion *f = &node->fusion;
    double params = 0, stats = (double)node->saved_bytes, more = 0;
    bool add = f->x == node->in[0] ? node->add[0] : f->x_add;

    for (size_t i = 1; i < node->n_in; i++)
        params += size_of(node->in[i]);
    if (!backward)
        return size_of(f->a) + size_of(f->b) + size_of(f->x) + size_of(f->y) + params + stats;
    if (!node->out->tape->dev->ops->host) {
        struct pl_partial_norm p = partial_of(node);

        more += pl_partial_of_layernorm(&p);
        if (pl_layernorm_again_for_params(&p))
            more += size_of(f->x) + size_of(f->y);
        if (pl_layernorm_again_for_sums(&p))
            more += size_of(f->too && f->too->wants_grad ? f->too : f->x);
    }
    return more +
           size_of(f->x) * (1 + (!f->x->wants_grad ? 0
                                 : add             ? 2
                                                   : 1)) +
           size_of(f->y) + (f->too && f->too->wants_grad ? size_of(f->too) : 0) + 2 * params +
           stats;
}

static const struct pl_op op_layernorm = {
    .name = "layernorm",
    .fuses = true,
    .sums = true,
    .bias_sums = true,
    .bytes = layernorm_bytes,
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .forward = layernorm_forward,
    .backward = layernorm_backward,
    .flops = flops_per_input,
};

int pl_build_layernorm(struct pl_tape *tape,
                       const struct pl_op_request *req,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    const plume_tensor *x = req->in[0];
    struct pl_apply what = pl_op_like(&op_layernorm, req, x);
    int r = pl_op_check_positive(req, "eps", req->args.f[0], err);

    if (r < 0)
        return r;
    for (size_t i = 1; i < req->n_in; i++)
        if (req->in[i]->rank != 1 || req->in[i]->count != pl_op_last(x))
            return pl_op_refuse(req, "wanted: x [..., n], gamma [n], beta [n]", err);
    if (!pl_op_all_real(req) || x->rank == 0 || x->count == 0)
        return pl_op_refuse(req, "needs rows of real numbers", err);
    what.attr.i[0] = req->args.i[0] != 0;
    what.attr.f[0] = req->args.f[0] > 0 ? req->args.f[0] : what.attr.i[0] ? 1e-6 : 1e-5;
    what.saved_stats = 2 * pl_op_rows(x);
    return pl_tape_apply(tape, &what, ret, err);
}

/* softmax and its logarithm */

static struct pl_softmax_args softmax_args(const struct pl_call *c)
{
    return (struct pl_softmax_args){
        .rows = pl_op_rows(c->node->in[0]),
        .n = pl_op_last(c->node->in[0]),
        .log = c->attr->i[0],
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void softmax_forward(const struct pl_call *c)
{
    struct pl_softmax_args args = softmax_args(c);

    c->k->softmax_forward(&args);
}

static void softmax_backward(const struct pl_call *c)
{
    struct pl_softmax_args args = softmax_args(c);

    c->k->softmax_backward(&args);
}

static const struct pl_op op_softmax = {
    .name = "softmax",
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_OUT,
    .forward = softmax_forward,
    .backward = softmax_backward,
    .flops = flops_per_input,
    .split = PL_SPLIT_ROW,
};

int pl_build_softmax(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_softmax, req, req->in[0]);

    if (!pl_op_all_real(req) || req->in[0]->rank == 0 || req->in[0]->count == 0)
        return pl_op_refuse(req, "needs rows of real numbers", err);
    what.attr.i[0] = req->args.i[0] != 0;
    return pl_tape_apply(tape, &what, ret, err);
}

/* normalize: saved has each row's length */

static struct pl_normalize_args normalize_args(const struct pl_call *c)
{
    return (struct pl_normalize_args){
        .rows = pl_op_rows(c->node->in[0]),
        .n = pl_op_last(c->node->in[0]),
        .eps = c->attr->f[0],
        .dx_add = c->add[0],
        .x = c->in[0],
        .y = c->out,
        .norm = c->saved,
        .dy = c->out_grad,
        .dx = c->in_grad[0],
    };
}

static void normalize_forward(const struct pl_call *c)
{
    struct pl_normalize_args args = normalize_args(c);

    c->k->normalize_forward(&args);
}

static void normalize_backward(const struct pl_call *c)
{
    struct pl_normalize_args args = normalize_args(c);

    c->k->normalize_backward(&args);
}

static const struct pl_op op_normalize = {
    .name = "normalize",
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_OUT,
    .forward = normalize_forward,
    .backward = normalize_backward,
    .flops = flops_per_input,
};

int pl_build_normalize(struct pl_tape *tape,
                       const struct pl_op_request *req,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_normalize, req, req->in[0]);
    int r = pl_op_check_positive(req, "eps", req->args.f[0], err);

    if (r < 0)
        return r;
    if (!pl_op_all_real(req) || req->in[0]->rank == 0 || req->in[0]->count == 0)
        return pl_op_refuse(req, "needs rows of real numbers", err);
    what.attr.f[0] = req->args.f[0] > 0 ? req->args.f[0] : 1e-12;
    what.saved_stats = pl_op_rows(req->in[0]);
    return pl_tape_apply(tape, &what, ret, err);
}

/* embedding: in[0] is the table, in[1] the row numbers */

static struct pl_embedding_args embedding_args(const struct pl_call *c)
{
    return (struct pl_embedding_args){
        .rows = c->node->in[1]->count,
        .vocab = c->node->in[0]->shape[0],
        .dim = c->node->in[0]->shape[1],
        .dtable_add = c->add[0],
        .ids = c->in[1],
        .table = c->in[0],
        .y = c->out,
        .dy = c->out_grad,
        .dtable = c->in_grad[0],
    };
}

static void embedding_forward(const struct pl_call *c)
{
    struct pl_embedding_args args = embedding_args(c);

    c->k->embedding_forward(&args);
}

static void embedding_backward(const struct pl_call *c)
{
    struct pl_embedding_args args = embedding_args(c);

    c->k->embedding_backward(&args);
}

/* Forward reads the rows that are used, which are as many as ids, or as the table has, at most: the
 * ids are not known here. Backward writes the whole table's gradient, or adds to the rows that are
 * used. */
static double embedding_bytes(const struct pl_node *node, bool backward)
{
    double size = (double)pl_dtype_size(node->out->dtype);
    double rows = (double)node->out->count * size, ids = 4.0 * (double)node->in[1]->count;
    double table = (double)node->in[0]->count * size;

    return ids + rows +
           (!backward      ? PL_MIN(table, rows)
            : node->add[0] ? 2 * PL_MIN(table, rows)
                           : table);
}

static const struct pl_op op_embedding = {
    .name = "embedding",
    .needs = PL_NEEDS_IN(1),
    .bytes = embedding_bytes,
    .forward = embedding_forward,
    .backward = embedding_backward,
};

int pl_build_embedding(struct pl_tape *tape,
                       const struct pl_op_request *req,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    const plume_tensor *table = req->in[0], *ids = req->in[1];
    struct pl_apply what = pl_op_like(&op_embedding, req, ids);

    if (!pl_dtype_is_real(table->dtype) || table->rank != 2 || table->count == 0 ||
        ids->dtype != PLUME_I32 || ids->rank + 1 > PLUME_RANK_MAX)
        return pl_op_refuse(req, "wanted: table [vocabulary, dim], ids i32[...]", err);
    what.shape[what.rank++] = table->shape[1];
    return pl_tape_apply(tape, &what, ret, err);
}

/* True if this step has traced the op that makes t. */
static bool is_made_by(const struct pl_tape *tape, const plume_tensor *t, const struct pl_op *op)
{
    const struct pl_node *node =
        t->tape == tape && t->node < tape->cursor ? &tape->nodes[t->node] : NULL;

    return node && node->out == t && node->op == op;
}

bool pl_op_is_embedding(const struct pl_tape *tape, const plume_tensor *t)
{
    return is_made_by(tape, t, &op_embedding);
}

/* named rows: a table with 0 in place of the rows that no id names. The host only needs it. */

static void named_forward(const struct pl_call *c)
{
    const plume_tensor *table = c->node->in[0];
    size_t rows = table->shape[0], bytes = table->shape[1] * pl_real_size(c->k->real);
    const int32_t *ids = c->in[1];
    char *named = c->scratch;

    memset(named, 0, rows);
    for (size_t i = 0; i < c->node->in[1]->count; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < rows)
            named[ids[i]] = 1;
    for (size_t r = 0; r < rows; r++)
        if (named[r])
            memcpy((char *)c->out + r * bytes, (const char *)c->in[0] + r * bytes, bytes);
        else
            memset((char *)c->out + r * bytes, 0, bytes);
}

static void named_backward(const struct pl_call *c)
{
    c->k->copy(&(struct pl_copy_args){.rank = 1,
                                      .shape = {c->node->out->count},
                                      .src_stride = {1},
                                      .dst_stride = {1},
                                      .bytes = pl_real_size(c->k->real),
                                      .add = c->add[0],
                                      .src = c->out_grad,
                                      .dst = c->in_grad[0]});
}

/* Its rows that are read are those of a copy, whose lowering for XLA devices it has by the name. */
static const struct pl_op op_named = {
    .name = "copy",
    .cast = PL_CAST_NONE,
    .forward = named_forward,
    .backward = named_backward,
};

int pl_op_named_rows(struct pl_tape *tape,
                     plume_tensor *table,
                     plume_tensor *ids,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = {.op = &op_named,
                            .in = (plume_tensor *[]){table, ids},
                            .n_in = 2,
                            .rank = 2,
                            .shape = {table->shape[0], table->shape[1]},
                            .scratch_bytes = table->shape[0]};

    for (size_t i = 0; i < tape->cursor; i++) { /* all layers share it */
        const struct pl_node *node = &tape->nodes[i];

        if (node->op == &op_named && node->in[0] == table && node->in[1] == ids) {
            *ret = node->out;
            return 0;
        }
    }
    return pl_tape_apply(tape, &what, ret, err);
}

bool pl_op_has_named_rows(const struct pl_tape *tape,
                          const plume_tensor *table,
                          const plume_tensor *ids)
{
    return is_made_by(tape, table, &op_named) && tape->nodes[table->node].in[1] == ids;
}

bool pl_op_labels_of_embedding(const struct pl_node *node, struct pl_op_labels *ret)
{
    if (node->op != &op_embedding)
        return false;
    *ret = (struct pl_op_labels){.input = 1, .end = node->in[0]->shape[0]};
    return true;
}
