/* SPDX-License-Identifier: MIT */
/* Losses and counts of correct labels. */
#include "runtime/engine/ops/op_private.h"

static int check_labels(const struct pl_op_request *req, struct pl_error *err)
{
    const plume_tensor *logits = req->in[0], *labels = req->in[1];

    if (!pl_dtype_is_real(logits->dtype) || logits->rank < 1 || logits->count == 0 ||
        labels->dtype != PLUME_I32 || labels->count != pl_op_rows(logits))
        return pl_op_refuse(
            req, "shapes do not fit (wanted: logits [rows, classes], labels i32[rows])", err);
    if (!pl_op_pairs(logits, logits->rank - 1, labels))
        return pl_op_refuse(
            req, "the labels have other dimensions than the logits' rows: is one transposed?", err);
    return 0;
}

/* On the host the probabilities are kept, since exponentials cost more than reading memory. A
 * device keeps each row's maximum and sum and recomputes them: that is cheaper than writing and
 * reading, and in 16 bits they would be rounded. */
static bool keeps_probs(const struct pl_tape *tape)
{
    return tape->dev->ops->host;
}

/* True for the kernel of a 16-bit table (`reads_half`). */
static bool writes_wide(const struct pl_call *c)
{
    return c->node->out->dtype != pl_dtype_of_real(c->k->real);
}

static struct pl_cross_entropy_args cross_entropy_args(const struct pl_call *c)
{
    const plume_tensor *logits = c->node->in[0];
    bool keeps = keeps_probs(c->tape), ahead = c->node->fusion.ahead;

    return (struct pl_cross_entropy_args){
        .rows = pl_op_rows(logits),
        .classes = pl_op_last(logits),
        .dx_add = c->add[0],
        .wide = writes_wide(c),
        .ahead = ahead,
        .logits = c->in[0],
        .labels = c->in[1],
        .probs = keeps ? c->saved : NULL,
        .max_sum = keeps || ahead ? NULL : pl_op_stats(c, 0),
        .loss = c->out,
        .dloss = c->out_grad,
        .dlogits = ahead ? c->in[0] : c->in_grad[0],
    };
}

/* The loss keeps the gradient of its layer's input k here. */
static char *kept(const struct pl_tape *tape, const struct pl_node *layer, size_t k)
{
    const struct pl_node *loss = &tape->nodes[layer->fusion.loss - 1];

    return layer->fusion.own & PL_NEEDS_IN(k) ? pl_tape_grad(tape, layer->in[k])
                                              : (char *)loss->saved + pl_tape_kept_at(layer, k);
}

/* The loss, and the gradients of the layer before it for a loss whose own gradient is 1: some rows
 * of logits at a time, which become their gradient. */
static void forward_by_chunks(const struct pl_call *c)
{
    const struct pl_node *layer = c->product->node;
    size_t rows = pl_op_rows(layer->out), chunk = c->node->fusion.chunk;
    struct pl_call part = *c->product;
    struct pl_cross_entropy_args args = {
        .classes = pl_op_last(layer->out),
        .of = rows,
        .wide = writes_wide(c),
        .ahead = layer->back,
        .row_loss = (void *)((char *)c->scratch + pl_tape_chunk_bytes(layer->out, chunk)),
        .logits = c->scratch,
        .dlogits = c->scratch,
        .loss = c->out,
    };

    part.out = part.out_grad = c->scratch;
    for (size_t k = 0; k < layer->n_in && layer->back; k++) {
        part.in_grad[k] = layer->in[k]->wants_grad ? kept(c->tape, layer, k) : NULL;
        part.add[k] = false;
    }
    for (; args.first < rows; args.first += args.rows) {
        args.rows = PL_MIN(chunk, rows - args.first);
        args.labels = (const int32_t *)c->in[1] + args.first;
        layer->op->part(&part, args.first, args.rows, false);
        c->k->cross_entropy_forward(&args);
        if (layer->back)
            layer->op->part(&part, args.first, args.rows, true);
        for (size_t k = 1; k < layer->n_in; k++)
            part.add[k] = true;
    }
}

void pl_op_hand_on(const struct pl_call *c)
{
    const struct pl_node *loss = &c->tape->nodes[c->node->fusion.loss - 1];

    for (size_t k = 0; k < c->node->n_in; k++) {
        char *from = kept(c->tape, c->node, k);
        size_t n = c->node->in[k]->count;

        if (!c->in_grad[k])
            continue;
        c->k->cross_entropy_backward(&(struct pl_cross_entropy_args){
            .rows = 1,
            .classes = n,
            .wide = loss->out->dtype != pl_dtype_of_real(c->k->real),
            .ahead = true,
            .dloss = pl_tensor_grad(loss->out),
            .dlogits = from,
        });
        if (from == c->in_grad[k])
            continue;
        c->k->copy(&(struct pl_copy_args){
            .rank = 1,
            .shape = {n},
            .src_stride = {1},
            .dst_stride = {1},
            .bytes = pl_real_size(c->k->real),
            .add = c->add[k],
            .src = from,
            .dst = c->in_grad[k],
        });
    }
}

static void cross_entropy_forward(const struct pl_call *c)
{
    struct pl_cross_entropy_args args = cross_entropy_args(c);

    if (c->product)
        forward_by_chunks(c);
    else
        c->k->cross_entropy_forward(&args);
}

static void cross_entropy_backward(const struct pl_call *c)
{
    struct pl_cross_entropy_args args = cross_entropy_args(c);

    c->k->cross_entropy_backward(&args);
}

static double cross_entropy_flops(const struct pl_node *node, bool backward)
{
    /* Forward per logit: compare, subtract, exp, add, multiply; exp counts as one. */
    return (double)node->in[0]->count * (backward ? 2 : 5);
}

/* Ahead forward writes the gradient; backward has nothing to do where the loss' own is 1. */
static double cross_entropy_bytes(const struct pl_node *node, bool backward)
{
    const plume_tensor *logits = node->in[0];
    double size = (double)logits->count * (double)pl_dtype_size(logits->dtype);
    double rows = (double)node->in[1]->count, labels = 4.0 * rows;
    double losses = backward ? 0 : 2.0 * sizeof(double) * rows; /* written, and added up */

    if (node->fusion.product) /* a chunk is read, and becomes its gradient */
        return backward ? 0 : size * (1 + node->back) + labels + losses;
    if (node->fusion.ahead)
        return backward ? 0 : 2 * size + labels + losses;
    return size * (backward ? 2 + node->add[0] : 1) + labels + losses + (double)node->saved_bytes;
}

static const struct pl_op op_cross_entropy = {
    .name = "cross_entropy",
    .grad_ahead = true,
    .chunks = true,
    .bytes = cross_entropy_bytes,
    .cast = PL_CAST_F32,
    .reads_half = PL_NEEDS_IN(0),
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .forward = cross_entropy_forward,
    .backward = cross_entropy_backward,
    .flops = cross_entropy_flops,
};

int pl_build_cross_entropy(struct pl_tape *tape,
                           const struct pl_op_request *req,
                           plume_tensor **ret,
                           struct pl_error *err)
{
    size_t rows = pl_op_rows(req->in[0]);
    struct pl_apply what = {.op = &op_cross_entropy,
                            .in = req->in,
                            .n_in = req->n_in,
                            .rank = 1,
                            .shape = {1},
                            .saved_reals = keeps_probs(tape) ? req->in[0]->count : 0,
                            .saved_stats = keeps_probs(tape) ? 0 : 2 * rows};
    int r = check_labels(req, err);

    return r < 0 ? r : pl_tape_apply(tape, &what, ret, err);
}

static void correct_forward(const struct pl_call *c)
{
    c->k->correct(&(struct pl_correct_args){
        .rows = pl_op_rows(c->node->in[0]),
        .classes = pl_op_last(c->node->in[0]),
        .wide = writes_wide(c),
        .logits = c->in[0],
        .labels = c->in[1],
        .count = c->out,
    });
}

static double correct_flops(const struct pl_node *node, bool backward)
{
    return backward ? 0 : (double)node->in[0]->count;
}

static const struct pl_op op_correct = {
    .name = "correct",
    .cast = PL_CAST_F32,
    .reads_half = PL_NEEDS_IN(0),
    .no_grad = true,
    .forward = correct_forward,
    .flops = correct_flops,
};

int pl_build_correct(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    struct pl_apply what = {
        .op = &op_correct, .in = req->in, .n_in = req->n_in, .rank = 1, .shape = {1}};
    int r = check_labels(req, err);

    return r < 0 ? r : pl_tape_apply(tape, &what, ret, err);
}

static bool labels_of(const struct pl_node *node, struct pl_op_labels *ret)
{
    if (node->op == &op_cross_entropy || node->op == &op_correct)
        *ret = (struct pl_op_labels){.input = 1, .end = pl_op_last(node->in[0])};
    else
        return pl_op_labels_of_index(node, ret) || pl_op_labels_of_embedding(node, ret);
    return true;
}

static int check_labels_of(const struct pl_tape *tape,
                           const struct pl_node *node,
                           const struct pl_op_labels *what,
                           struct pl_error *err)
{
    plume_tensor *t = node->in[what->input];
    _cleanup_free_ int32_t *labels = NULL;
    const void *data = pl_tape_data(tape, t);
    size_t before = tape->rows ? t->count / tape->rows * tape->first_row : 0; /* in the batch */
    int r;

    /* The memory of labels that ops have made may have another use by now. */
    if (pl_tensor_root(t)->tape || !data)
        return 0;
    labels = calloc(t->count, sizeof(*labels));
    if (!labels)
        return pl_error_nomem(err);
    r = pl_device_download(tape->dev, labels, data, t->count * sizeof(*labels), err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < t->count; i++)
        if ((labels[i] < 0 || (size_t)labels[i] >= what->end) &&
            !(what->skips && labels[i] == what->skip))
            return pl_error_set(err, -EDOM,
                                "label %d of row %zu is not in [0, %zu], the classes of %s",
                                labels[i], before + i, what->end - 1, node->op->name);
    return 0;
}

int pl_op_check_labels(const struct pl_tape *tape, struct pl_error *err)
{
    struct pl_op_labels what;
    int r = 0;

    for (size_t i = 0; i < tape->n && r == 0; i++)
        if (labels_of(&tape->nodes[i], &what))
            r = check_labels_of(tape, &tape->nodes[i], &what, err);
    return r;
}

/* mse */

static struct pl_mse_args mse_args(const struct pl_call *c)
{
    return (struct pl_mse_args){
        .n = c->node->in[0]->count,
        .da_add = c->add[0],
        .db_add = c->add[1],
        .a = c->in[0],
        .b = c->in[1],
        .loss = c->out,
        .dloss = c->out_grad,
        .da = c->in_grad[0],
        .db = c->in_grad[1],
    };
}

static void mse_forward(const struct pl_call *c)
{
    struct pl_mse_args args = mse_args(c);

    c->k->mse_forward(&args);
}

static void mse_backward(const struct pl_call *c)
{
    struct pl_mse_args args = mse_args(c);

    c->k->mse_backward(&args);
}

static double mse_flops(const struct pl_node *node, bool backward)
{
    return 3.0 * (double)node->in[0]->count;
}

static const struct pl_op op_mse = {
    .name = "mse",
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .forward = mse_forward,
    .backward = mse_backward,
    .flops = mse_flops,
};

int pl_build_mse(struct pl_tape *tape,
                 const struct pl_op_request *req,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    struct pl_apply what = {
        .op = &op_mse, .in = req->in, .n_in = req->n_in, .rank = 1, .shape = {1}};

    if (!pl_op_all_real(req) || req->in[0]->count == 0 || req->in[0]->count != req->in[1]->count)
        return pl_op_refuse(req, "needs two real tensors with the same number of elements", err);
    if (!pl_op_pairs(req->in[0], req->in[0]->rank, req->in[1]))
        return pl_op_refuse(req, "the two have other dimensions: is one transposed?", err);
    return pl_tape_apply(tape, &what, ret, err);
}
