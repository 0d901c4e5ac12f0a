/* SPDX-License-Identifier: MIT */
/* Bytes between the kernels and memory, by arithmetic on shapes. */
#include "runtime/engine/tape/tape_private.h"

static double bytes_of(const plume_tensor *t)
{
    return (double)t->count * (double)pl_dtype_size(t->dtype);
}

/* Bytes that reading or writing t moves, with the pass between a 16-bit tensor and its f32 copy. */
static double pass_of(const struct pl_node *node, const plume_tensor *t)
{
    return bytes_of(t) +
           (pl_node_has_f32_copy(node, t) ? 2.0 * (double)t->count * sizeof(float) : 0);
}

static double forward_bytes(const struct pl_node *node)
{
    double sum = pass_of(node, node->out) + (double)node->saved_bytes;

    for (size_t i = 0; i < node->n_in; i++)
        if (node->in[i])
            sum += pass_of(node, node->in[i]);
    return sum;
}

static bool writes_grad(const struct pl_node *node, size_t i)
{
    return node->in[i] && node->in[i]->wants_grad && !node->alias[i];
}

/* A gradient that is added to is read first. A GPU may write it in f32, though the input has 16
 * bits: then it is that of the tensor that the input was cast from. */
static double grad_bytes(const struct pl_node *node, size_t i)
{
    const struct pl_tape *tape = node->out->tape;
    bool wide = node->fusion.wide & PL_NEEDS_IN(i);
    bool add = wide ? tape->nodes[node->in[i]->node].add[0] : node->add[i];

    return (wide ? bytes_of(pl_node_grad_of(tape, node, i)) : pass_of(node, node->in[i])) *
           (add ? 2 : 1);
}

static double backward_bytes(const struct pl_node *node)
{
    double sum = pass_of(node, node->out); /* its gradient */

    if (!node->op->two_products) { /* else only the slope needs them: side_bytes */
        sum += (double)node->saved_bytes;
        if (node->op->needs & PL_NEEDS_OUT)
            sum += pass_of(node, node->out);
    }
    for (size_t i = 0; i < node->n_in; i++) {
        if (node->in[i] && (node->op->needs & PL_NEEDS_IN(i)))
            sum += pass_of(node, node->in[i]);
        if (writes_grad(node, i))
            sum += grad_bytes(node, i);
        if (node->first[i])
            sum += bytes_of(pl_tensor_root(node->in[i]));
    }
    if (node->op->two_products && writes_grad(node, 0) && writes_grad(node, 1))
        sum += bytes_of(node->out); /* each reads the output's gradient */
    return sum;
}

/* The layer that a loss has by chunks, or NULL. */
static const struct pl_node *layer_of(const struct pl_node *loss)
{
    return loss->fusion.product ? &loss->in[0]->tape->nodes[loss->fusion.product - 1] : NULL;
}

/* Of its products: each chunk reads the weights, forward and backward, and adds to their gradient.
 */
static double bytes_by_chunks(const struct pl_node *loss, const struct pl_node *layer)
{
    const plume_tensor *z = layer->out;
    size_t rows = z->count / z->shape[z->rank - 1];
    double chunks = (double)((rows + loss->fusion.chunk - 1) / loss->fusion.chunk);
    double sum = forward_bytes(layer) + (layer->back ? backward_bytes(layer) : 0);

    for (size_t i = 1; i < layer->n_in; i++)
        sum += (chunks - 1) * bytes_of(layer->in[i]) *
               (!layer->back               ? 1
                : layer->in[i]->wants_grad ? 4
                                           : 2);
    return sum;
}

/* Of a layer whose gradients a loss has kept. */
static double bytes_handed_on(const struct pl_node *layer)
{
    double sum = 0;

    for (size_t i = 0; i < layer->n_in; i++)
        sum += writes_grad(layer, i) && !(layer->fusion.own & PL_NEEDS_IN(i))
                   ? bytes_of(layer->in[i]) * (layer->add[i] ? 3 : 2)
                   : 0;
    return sum;
}

double pl_node_flops(const struct pl_node *node, bool backward)
{
    const struct pl_node *layer = layer_of(node);
    double sum = node->op->flops && (!backward || node->back) ? node->op->flops(node, backward) : 0;

    if (node->fusion.loss)
        return 0;
    if (layer && !backward)
        sum += layer->op->flops(layer, false) + (layer->back ? layer->op->flops(layer, true) : 0);
    return sum;
}

struct pl_traffic pl_node_traffic(const struct pl_node *node, bool backward)
{
    const struct pl_node *layer = layer_of(node);
    struct pl_traffic t = {0};
    bool any = !backward;

    for (size_t i = 0; i < node->n_in && node->back; i++)
        any |= writes_grad(node, i);
    if (node->op->view || !any || !pl_node_runs(node, backward))
        return t;
    if (node->fusion.loss) { /* backward */
        t.all = t.outside = bytes_handed_on(node);
        return t;
    }
    t.all = node->op->bytes ? node->op->bytes(node, backward)
            : backward      ? backward_bytes(node)
                            : forward_bytes(node);
    if (backward && node->fusion.slope_of) /* what the slope is taken of */
        t.all += bytes_of(node->in[0]);
    t.outside = node->op->product ? 0 : t.all;
    if (node->op->side_bytes) {
        double side = node->op->side_bytes(node, backward);

        t.all += side;
        t.outside += side;
    }
    if (layer && !backward)
        t.all += bytes_by_chunks(node, layer);
    return t;
}

struct pl_traffic pl_tape_traffic(const struct pl_tape *tape, bool backward)
{
    struct pl_traffic sum = {0};

    for (size_t i = 0; i < tape->n; i++) {
        struct pl_traffic t = pl_node_traffic(&tape->nodes[i], backward);

        sum.all += t.all;
        sum.outside += t.outside;
    }
    return sum;
}
