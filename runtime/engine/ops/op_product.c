/* SPDX-License-Identifier: MIT */
/* Matrix products: linear layers and matmul. */
#include "runtime/engine/ops/op_private.h"
#include "runtime/engine/ops/partial.h"

#include <string.h>

/* A layer is done on a table if each row of it has at least so many positions, on average. */
#define POSITIONS_PER_ROW 2

_Static_assert((int)PLUME_SIGMOID == PL_ACT_SIGMOID && (int)PLUME_GELU == PL_ACT_GELU,
               "the module's numbers are the kernels'");

static struct pl_linear_args linear_args(const struct pl_call *c)
{
    const plume_tensor *w = c->node->in[1];
    const struct pl_node *before =
        c->node->fusion.slope_of ? &c->tape->nodes[c->node->fusion.slope_of - 1] : NULL;
    bool bias = c->node->n_in > 2;
    size_t rows = c->node->out->count / w->shape[0], all = pl_node_all_rows(c->node);

    return (struct pl_linear_args){
        .rows = c->rows == all ? rows : rows / all * c->rows,
        .in = w->shape[1],
        .out = w->shape[0],
        .act = (enum pl_activation)c->attr->i[0],
        .dx_add = c->add[0],
        .dw_add = c->add[1],
        .db_add = bias && c->add[2],
        .dw_wide = c->node->fusion.wide & PL_NEEDS_IN(1),
        .db_wide = c->node->fusion.wide & PL_NEEDS_IN(2),
        .x_act = before ? (enum pl_activation)before->attr.i[0] : PL_ACT_NONE,
        .x = c->in[0],
        .x_pre = before ? before->saved : NULL,
        .w = c->in[1],
        .b = bias ? c->in[2] : NULL,
        .y = c->out,
        .pre = c->saved,
        .dy = c->out_grad,
        .dz = c->out_grad, /* scratch: no later node reads it */
        .dx = c->in_grad[0],
        .dw = c->in_grad[1],
        .db = bias ? c->in_grad[2] : NULL,
        .dx_sums = c->sums,
        .dx_sums_add = c->sums_add,
    };
}

static void linear_forward(const struct pl_call *c)
{
    struct pl_linear_args args = linear_args(c);

    c->k->linear_forward(&args);
}

static void linear_backward(const struct pl_call *c)
{
    struct pl_linear_args args = linear_args(c);

    if (c->node->fusion.loss) {
        pl_op_hand_on(c);
        return;
    }
    if (c->node->fusion.sloped) /* dy is dz */
        args.act = PL_ACT_NONE;
    c->k->linear_backward(&args);
}

static void linear_part(const struct pl_call *c, size_t first, size_t n, bool backward)
{
    struct pl_linear_args args = linear_args(c);
    size_t before = first * args.in * pl_real_size(c->k->real);

    args.rows = n;
    args.x = (const char *)args.x + before;
    args.dx = args.dx ? (char *)args.dx + before : NULL;
    if (backward)
        c->k->linear_backward(&args);
    else
        c->k->linear_forward(&args);
}

static double linear_flops(const struct pl_node *node, bool backward)
{
    double product = 2.0 * (double)node->out->count * (double)node->in[1]->shape[1];
    double small = (double)node->out->count * ((node->n_in > 2) + (node->attr.i[0] ? 1 : 0));

    if (!backward)
        return product + small;
    return product * (node->in[0]->wants_grad + node->in[1]->wants_grad) + small;
}

/* dz is computed in the output's gradient. */
static bool linear_scribbles(const struct pl_node *node)
{
    return node->attr.i[0] != PL_ACT_NONE;
}

static bool linear_slopes(const struct pl_node *node)
{
    return node->in[0]->wants_grad;
}

/* The library has no other slope at the end of a product. */
static bool linear_has_slope(const struct pl_node *node)
{
    return node->attr.i[0] == PL_ACT_GELU_TANH;
}

/* Backward an activation's slope is a pass of its own: it reads dy and the activation's input
 * (relu: its output), and writes dz. So is the gradient of a bias, which reads dz: its own, or that
 * of the layer before, whose dz this one has written (a library may have both in one pass). */
static double linear_side_bytes(const struct pl_node *node, bool backward)
{
    bool slope = node->attr.i[0] != PL_ACT_NONE && !node->fusion.sloped;
    bool bias = node->n_in > 2 && node->in[2]->wants_grad && !node->fusion.summed;
    double n = ((slope ? 3.0 : 0) + (bias ? 1.0 : 0)) * (double)node->out->count +
               (node->fusion.bias_of ? (double)node->in[0]->count : 0);
    size_t in = node->in[1]->shape[1], out = node->in[1]->shape[0], rows = node->out->count / out;
    enum pl_real real = node->k->real;
    double partial = 0;

    if (!backward)
        return 0;
    if (!node->out->tape->dev->ops->host)
        partial = (bias ? pl_partial_of_bias(rows, out, real) : 0) +
                  (node->fusion.bias_of ? pl_partial_of_bias(rows, in, real) : 0);
    return n * (double)pl_real_size(real) + partial;
}

static const struct pl_op op_linear = {
    .name = "linear",
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .by_row = true,
    .product = true,
    .two_products = true,
    .wide_grads = PL_NEEDS_IN(1) | PL_NEEDS_IN(2),
    .bias = 2,
    .bias_sums = true,
    .forward = linear_forward,
    .backward = linear_backward,
    .part = linear_part,
    .scribbles = linear_scribbles,
    .slopes = linear_slopes,
    .has_slope = linear_has_slope,
    .side_bytes = linear_side_bytes,
    .flops = linear_flops,
    .split = PL_SPLIT_LINEAR,
};

/* The activation's mask is computed from the output. */
static const struct pl_op op_linear_act = {
    .name = "linear",
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1) | PL_NEEDS_OUT,
    .by_row = true,
    .product = true,
    .two_products = true,
    .wide_grads = PL_NEEDS_IN(1) | PL_NEEDS_IN(2),
    .bias = 2,
    .bias_sums = true,
    .forward = linear_forward,
    .backward = linear_backward,
    .scribbles = linear_scribbles,
    .slopes = linear_slopes,
    .side_bytes = linear_side_bytes,
    .flops = linear_flops,
    .split = PL_SPLIT_LINEAR,
};

/* A row of an embedding is a row of its table, and a layer works on each row by itself. So where
 * the table has fewer rows than there are positions, the layer is done on the table, and its rows
 * are looked up afterwards: act(E[ids] W^T + b) = act(E W^T + b)[ids]. Only roundings differ. The
 * gradients of equal ids are added up before the products, not after them. In 16 bits that sum
 * would be rounded, and might leave f16's range, so mixed precision keeps the order of the module.
 * Rows that no id names count as 0: they may be infinite, and 0 times that is no gradient of w.
 * The embedding that nobody else reads does not run (tape_unread.c). */
static bool is_on_table(const struct pl_tape *tape, const plume_tensor *x)
{
    const struct pl_node *rows;

    if (!tape->on_tables || tape->amp_dtype || !pl_op_is_embedding(tape, x))
        return false;
    rows = &tape->nodes[x->node];
    return rows->in[0]->shape[0] * POSITIONS_PER_ROW <= rows->in[1]->count;
}

/* True if the table is a layer, or a layer of a layer, of rows that the ids name. */
static bool
is_of_named_rows(const struct pl_tape *tape, const plume_tensor *table, const plume_tensor *ids)
{
    while (table->tape == tape && table->node < tape->cursor &&
           (tape->nodes[table->node].op == &op_linear ||
            tape->nodes[table->node].op == &op_linear_act))
        table = tape->nodes[table->node].in[0];
    return pl_op_has_named_rows(tape, table, ids);
}

static int build_on_table(struct pl_tape *tape,
                          const struct pl_op_request *req,
                          plume_tensor **ret,
                          struct pl_error *err)
{
    const struct pl_node *rows = &tape->nodes[req->in[0]->node];
    plume_tensor *in[] = {rows->in[0], req->in[1], req->n_in > 2 ? req->in[2] : NULL};
    plume_tensor *found[] = {NULL, rows->in[1]};
    struct pl_op_request layer = *req, lookup = {.name = "embedding", .in = found, .n_in = 2};
    int r = 0;

    layer.in = in;
    if (!is_of_named_rows(tape, in[0], found[1]))
        r = pl_op_named_rows(tape, in[0], found[1], &in[0], err);
    if (r == 0)
        r = pl_build_linear(tape, &layer, &found[0], err);
    return r < 0 ? r : pl_build_embedding(tape, &lookup, ret, err);
}

int pl_build_linear(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1], *b = req->n_in > 2 ? req->in[2] : NULL;
    enum plume_activation act = (enum plume_activation)req->args.i[0];
    struct pl_apply what;

    if (!pl_op_all_real(req) || x->rank < 1 || w->rank != 2 || w->count == 0 ||
        (b && (b->rank != 1 || b->shape[0] != w->shape[0])) ||
        (pl_op_last(x) != w->shape[1] && x->count != x->shape[0] * w->shape[1]))
        return pl_op_refuse(req, "shapes do not fit (wanted: x [..., in], w [out, in], b [out])",
                            err);
    if ((unsigned)act > PLUME_SIGMOID)
        return pl_error_set(err, -EINVAL, "linear: unknown activation %d", (int)act);
    if (pl_op_last(x) == w->shape[1] && is_on_table(tape, x))
        return build_on_table(tape, req, ret, err);
    what = pl_op_like(act == PLUME_RELU ? &op_linear_act : &op_linear, req, x);
    if (pl_op_last(x) != w->shape[1])
        what.rank = 2;
    what.shape[what.rank - 1] = w->shape[0];
    what.attr.i[0] = act;
    if (pl_activation_needs_pre((enum pl_activation)act))
        what.saved_reals = x->count / w->shape[1] * w->shape[0];
    return pl_tape_apply(tape, &what, ret, err);
}

/* matmul: [..., m, k] by [..., k, n] or, transposed, [..., n, k]; equal leading dimensions, or none
 * for the second */

struct sizes {
    size_t batch, m, n, k;
    bool a_transposed, b_transposed, shared; /* shared: one b for the whole batch */
};

static struct sizes
matmul_sizes(const plume_tensor *a, const plume_tensor *b, const struct pl_attr *at)
{
    struct sizes s = {.a_transposed = at->i[0], .b_transposed = at->i[1]};
    size_t rows = a->shape[a->rank - 2], columns = a->shape[a->rank - 1];

    s.m = s.a_transposed ? columns : rows;
    s.k = s.a_transposed ? rows : columns;
    s.n = b->shape[b->rank - (s.b_transposed ? 2 : 1)];
    s.batch = a->count / PL_MAX(rows * columns, (size_t)1);
    s.shared = b->rank == 2 && s.batch > 1;
    return s;
}

static void matmul_forward(const struct pl_call *c)
{
    struct sizes s = matmul_sizes(c->node->in[0], c->node->in[1], c->attr);

    c->k->matmul(&(struct pl_matmul_args){
        .batch = s.batch,
        .m = s.m,
        .n = s.n,
        .k = s.k,
        .a_transposed = s.a_transposed,
        .b_transposed = s.b_transposed,
        .a_row = s.a_transposed ? s.m : s.k,
        .b_row = s.b_transposed ? s.k : s.n,
        .c_row = s.n,
        .a_batch = s.m * s.k,
        .b_batch = s.shared ? 0 : s.k * s.n,
        .c_batch = s.m * s.n,
        .scale = 1,
        .a = c->in[0],
        .b = c->in[1],
        .c = c->out,
    });
}

/* op(a)'s gradient is dy op(b)^T; if a itself is transposed, it is op(b) dy^T. */
static void matmul_da(const struct pl_call *c, const struct sizes *s)
{
    size_t b_row = s->b_transposed ? s->k : s->n, b_batch = s->shared ? 0 : s->k * s->n;
    struct pl_matmul_args args = {.batch = s->batch,
                                  .scale = 1,
                                  .add = c->add[0],
                                  .c = c->in_grad[0],
                                  .c_batch = s->m * s->k};

    if (s->a_transposed) { /* [k, m] = op(b) [k, n] dy^T [n, m] */
        args.m = s->k;
        args.n = s->m;
        args.k = s->n;
        args.a = c->in[1];
        args.a_transposed = s->b_transposed;
        args.a_row = b_row;
        args.a_batch = b_batch;
        args.b = c->out_grad;
        args.b_transposed = true;
        args.b_row = s->n;
        args.b_batch = s->m * s->n;
        args.c_row = s->m;
    } else { /* [m, k] = dy [m, n] op(b)^T [n, k] */
        args.m = s->m;
        args.n = s->k;
        args.k = s->n;
        args.a = c->out_grad;
        args.a_row = s->n;
        args.a_batch = s->m * s->n;
        args.b = c->in[1];
        args.b_transposed = !s->b_transposed;
        args.b_row = b_row;
        args.b_batch = b_batch;
        args.c_row = s->k;
    }
    c->k->matmul(&args);
}

/* One product of the batch, or all of them if each has its own b. */
static void
matmul_db_of(const struct pl_call *c, const struct sizes *s, size_t first, size_t batch, bool add)
{
    size_t size = pl_real_size(c->k->real), a_row = s->a_transposed ? s->m : s->k;
    const char *a = (const char *)c->in[0] + first * s->m * s->k * size;
    const char *dy = (const char *)c->out_grad + first * s->m * s->n * size;
    struct pl_matmul_args args = {
        .batch = batch, .scale = 1, .add = add, .c = c->in_grad[1], .c_batch = s->k * s->n};

    if (s->b_transposed) { /* [n, k] = dy^T [n, m] op(a) [m, k] */
        args.m = s->n;
        args.n = s->k;
        args.k = s->m;
        args.a = dy;
        args.a_transposed = true;
        args.a_row = s->n;
        args.a_batch = s->m * s->n;
        args.b = a;
        args.b_transposed = s->a_transposed;
        args.b_row = a_row;
        args.b_batch = s->m * s->k;
        args.c_row = s->k;
    } else { /* [k, n] = op(a)^T [k, m] dy [m, n] */
        args.m = s->k;
        args.n = s->n;
        args.k = s->m;
        args.a = a;
        args.a_transposed = !s->a_transposed;
        args.a_row = a_row;
        args.a_batch = s->m * s->k;
        args.b = dy;
        args.b_row = s->n;
        args.b_batch = s->m * s->n;
        args.c_row = s->n;
    }
    c->k->matmul(&args);
}

/* If the batch shares b, its rows together are those of one matrix a. */
static void matmul_db(const struct pl_call *c, const struct sizes *s)
{
    struct sizes one = *s;

    if (!s->shared) {
        matmul_db_of(c, s, 0, s->batch, c->add[1]);
    } else if (!s->a_transposed) {
        one.m *= s->batch;
        matmul_db_of(c, &one, 0, 1, c->add[1]);
    } else {
        for (size_t i = 0; i < s->batch; i++)
            matmul_db_of(c, s, i, 1, c->add[1] || i > 0);
    }
}

static void matmul_backward(const struct pl_call *c)
{
    struct sizes s = matmul_sizes(c->node->in[0], c->node->in[1], c->attr);

    if (c->in_grad[0])
        matmul_da(c, &s);
    if (c->in_grad[1])
        matmul_db(c, &s);
}

static double matmul_flops(const struct pl_node *node, bool backward)
{
    struct sizes s = matmul_sizes(node->in[0], node->in[1], &node->attr);
    double product = 2.0 * (double)node->out->count * (double)s.k;

    return backward ? product * (node->in[0]->wants_grad + node->in[1]->wants_grad) : product;
}

static const struct pl_op op_matmul = {
    .name = "matmul",
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .product = true,
    .two_products = true,
    .forward = matmul_forward,
    .backward = matmul_backward,
    .flops = matmul_flops,
    .split = PL_SPLIT_PRODUCT,
};

/* A variant for a shared b with a transposed: db is a sum of products. */
static const struct pl_op op_matmul_of_columns = {
    .name = "matmul",
    .cast = PL_CAST_LOW,
    .in_f32 = true,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .product = true,
    .two_products = true,
    .forward = matmul_forward,
    .backward = matmul_backward,
    .flops = matmul_flops,
};

int pl_build_matmul(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *a = req->in[0], *b = req->in[1];
    struct pl_apply what = pl_op_like(&op_matmul, req, a);
    struct sizes s;

    if (!pl_op_all_real(req) || a->rank < 2 || b->rank < 2 || a->count == 0 || b->count == 0 ||
        (b->rank != 2 && b->rank != a->rank))
        return pl_op_refuse(req, "wanted: [..., m, k] and [..., k, n] or [k, n]", err);
    for (size_t i = 0; b->rank == a->rank && i + 2 < a->rank; i++)
        if (a->shape[i] != b->shape[i])
            return pl_op_refuse(req, "the leading dimensions differ", err);
    what.attr.i[0] = req->args.i[0] != 0;
    what.attr.i[1] = req->args.i[1] != 0;
    s = matmul_sizes(a, b, &what.attr);
    if (b->shape[b->rank - (s.b_transposed ? 1 : 2)] != s.k)
        return pl_op_refuse(req, "the inner dimensions differ", err);
    if (s.shared && s.a_transposed)
        what.op = &op_matmul_of_columns;
    what.shape[what.rank - 2] = s.m;
    what.shape[what.rank - 1] = s.n;
    return pl_tape_apply(tape, &what, ret, err);
}
