/* SPDX-License-Identifier: MIT */
/* Products: linear layers, matmul, attention. Argument structs in kernels/ say what each computes.
 */
#include "runtime/engine/xla/lower_private.h"

#include <math.h>

/* linear: kept[0] = x [rows, in], kept[1] = z, the activation's input */

void pl_lower_linear_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value w = pl_lower_in(l, i, 1), x, z;
    size_t rows = node->out->count / w.shape[0];

    x = pl_hlo_reshape2(l->h, pl_lower_in(l, i, 0), rows, w.shape[1]);
    z = pl_hlo_dot(l->h, x, w, &(struct pl_hlo_dot){.a_sum = 1, .b_sum = 1});
    if (node->n_in > 2)
        z = pl_hlo_two(l->h, "add", z, pl_hlo_along(l->h, pl_lower_in(l, i, 2), 1, z));
    l->kept[i][0] = x;
    l->kept[i][1] = z;
    pl_lower_set(l, i, pl_lower_activate(l->h, (enum pl_activation)node->attr.i[0], z));
}

void pl_lower_linear_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value x = l->kept[i][0], z = l->kept[i][1], dz;

    dz = pl_lower_slope(l->h, (enum pl_activation)node->attr.i[0], z,
                        pl_hlo_reshape_like(l->h, dy, z));
    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0,
                     pl_hlo_dot(l->h, dz, pl_lower_in(l, i, 1),
                                &(struct pl_hlo_dot){.a_sum = 1, .b_sum = 0}));
    if (pl_lower_wants(l, i, 1))
        pl_lower_add(l, i, 1,
                     pl_hlo_dot(l->h, dz, x, &(struct pl_hlo_dot){.a_sum = 0, .b_sum = 0}));
    if (pl_lower_wants(l, i, 2))
        pl_lower_add(l, i, 2, pl_hlo_reduce(l->h, "add", dz, 1));
}

/* matmul: kept[0] = a [batch, ...], kept[1] = b [batch, ...], or [...] if all share it */

static struct pl_hlo_value as_batch(struct pl_hlo *h, struct pl_hlo_value a)
{
    size_t m = a.shape[a.rank - 2], n = a.shape[a.rank - 1];

    return pl_hlo_reshape(h, a, 3, (size_t[]){pl_hlo_count(&a) / (m * n), m, n});
}

/* The product of a [batch, ..], summed over dimension a_sum, and b, over b_sum. */
static struct pl_hlo_value
batched(struct pl_hlo *h, struct pl_hlo_value a, size_t a_sum, struct pl_hlo_value b, size_t b_sum)
{
    return pl_hlo_dot(h, a, b, &(struct pl_hlo_dot){.n_batch = 1, .a_sum = a_sum, .b_sum = b_sum});
}

void pl_lower_matmul_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value a = as_batch(l->h, pl_lower_in(l, i, 0));
    struct pl_hlo_value b = as_batch(l->h, pl_lower_in(l, i, 1));

    if (b.shape[0] != a.shape[0])
        b = pl_hlo_broadcast(l->h, pl_lower_in(l, i, 1), (size_t[]){1, 2}, 3,
                             (size_t[]){a.shape[0], b.shape[1], b.shape[2]});
    l->kept[i][0] = a;
    l->kept[i][1] = b;
    pl_lower_set(l, i, batched(l->h, a, node->attr.i[0] ? 1 : 2, b, node->attr.i[1] ? 2 : 1));
}

void pl_lower_matmul_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    bool ta = node->attr.i[0], tb = node->attr.i[1];
    struct pl_hlo_value a = l->kept[i][0], b = l->kept[i][1], db;

    dy = as_batch(l->h, dy); /* [batch, m, n] */
    if (pl_lower_wants(l, i, 0))
        pl_lower_add(l, i, 0,
                     ta ? batched(l->h, b, tb ? 1 : 2, dy, 2)
                        : batched(l->h, dy, 2, b, tb ? 1 : 2));
    if (!pl_lower_wants(l, i, 1))
        return;
    db = tb ? batched(l->h, dy, 1, a, ta ? 2 : 1) : batched(l->h, a, ta ? 2 : 1, dy, 1);
    if (node->in[1]->count != pl_hlo_count(&db)) /* shared: the sum over the batch */
        db = pl_hlo_reduce(l->h, "add", db, 1);
    pl_lower_add(l, i, 1, db);
}

/* attention: kept[] = q, k, v [batch, time, heads, dim], and the probabilities [batch, heads, time,
 * time] */

static void queries_keys_values(struct pl_lower *l, size_t i, struct pl_hlo_value ret[3])
{
    const struct pl_node *node = pl_lower_node(l, i);
    const plume_tensor *y = node->out;
    size_t heads = (size_t)node->attr.i[0], width = y->shape[2];
    size_t shape[] = {y->shape[0], y->shape[1], heads, width / heads};

    for (size_t k = 0; k < 3; k++) {
        struct pl_hlo_value part =
            node->n_in == 1 ? pl_hlo_slice(l->h, pl_lower_in(l, i, 0), 2, k * width, width)
                            : pl_lower_in(l, i, k);

        ret[k] = pl_hlo_reshape(l->h, part, 4, shape);
    }
}

static struct pl_hlo_value softmax_of(struct pl_hlo *h, struct pl_hlo_value scores)
{
    size_t dims[] = {0, 1, 2};
    struct pl_hlo_value max = pl_hlo_reduce(h, "maximum", scores, 1u << 3), e, sum;

    e = pl_hlo_two(h, "subtract", scores, pl_hlo_broadcast(h, max, dims, 4, scores.shape));
    e = pl_hlo_one(h, "exponential", e);
    sum = pl_hlo_reduce(h, "add", e, 1u << 3);
    return pl_hlo_two(h, "divide", e, pl_hlo_broadcast(h, sum, dims, 4, scores.shape));
}

/* With heads as a batch dimension: of [batch, time, heads, dim] by itself, and by [batch, heads,
 * time, time]. */
static const struct pl_hlo_dot over_dim = {
    .n_batch = 2, .a_batch = {0, 2}, .b_batch = {0, 2}, .a_sum = 3, .b_sum = 3};
static const struct pl_hlo_dot over_keys = {
    .n_batch = 2, .a_batch = {0, 1}, .b_batch = {0, 2}, .a_sum = 3, .b_sum = 1};
static const struct pl_hlo_dot over_queries = {
    .n_batch = 2, .a_batch = {0, 1}, .b_batch = {0, 2}, .a_sum = 2, .b_sum = 1};
static const size_t heads_inside[] = {0, 2, 1, 3};

static double scale_of(const struct pl_node *node)
{
    return 1 / sqrt((double)(node->out->shape[2] / (size_t)node->attr.i[0]));
}

void pl_lower_attention_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value *kept = l->kept[i], scores, p;

    queries_keys_values(l, i, kept);
    scores = pl_hlo_dot(l->h, kept[0], kept[1], &over_dim);
    scores = pl_hlo_with(l->h, "multiply", scores, scale_of(node));
    if (node->attr.i[1]) { /* causal */
        struct pl_hlo_value query = pl_hlo_iota(l->h, "i32", 4, scores.shape, 2);
        struct pl_hlo_value key = pl_hlo_iota(l->h, "i32", 4, scores.shape, 3);

        scores = pl_hlo_select(l->h, pl_hlo_compare(l->h, "LE", key, query), scores,
                               pl_hlo_fill_like(l->h, scores, -INFINITY));
    }
    p = kept[3] = softmax_of(l->h, scores);
    p = pl_hlo_dot(l->h, p, kept[2], &over_keys);
    pl_lower_set(l, i, pl_hlo_transpose(l->h, p, heads_inside));
}

void pl_lower_attention_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value q = l->kept[i][0], k = l->kept[i][1], v = l->kept[i][2], p = l->kept[i][3];
    struct pl_hlo_value grad[3], dp, ds, sum;

    dy = pl_hlo_reshape_like(l->h, dy, v);
    grad[2] = pl_hlo_dot(l->h, p, dy, &over_queries);
    dp = pl_hlo_dot(l->h, dy, v, &over_dim);
    sum = pl_hlo_reduce(l->h, "add", pl_hlo_two(l->h, "multiply", dp, p), 1u << 3);
    sum = pl_hlo_broadcast(l->h, sum, (size_t[]){0, 1, 2}, 4, p.shape);
    ds = pl_hlo_two(l->h, "multiply", p, pl_hlo_two(l->h, "subtract", dp, sum));
    ds = pl_hlo_with(l->h, "multiply", ds, scale_of(node));
    grad[0] = pl_hlo_dot(l->h, ds, k, &over_keys);
    grad[1] = pl_hlo_dot(l->h, ds, q, &over_queries);
    for (size_t part = 0; part < 3; part++) {
        grad[part] = pl_hlo_transpose(l->h, grad[part], heads_inside);
        grad[part] = pl_hlo_reshape(l->h, grad[part], 3,
                                    (size_t[]){q.shape[0], q.shape[1], q.shape[2] * q.shape[3]});
        if (node->n_in > 1)
            pl_lower_add(l, i, part, grad[part]);
    }
    if (node->n_in == 1)
        pl_lower_add(l, i, 0, pl_hlo_concat(l->h, grad, 3, 2));
}
