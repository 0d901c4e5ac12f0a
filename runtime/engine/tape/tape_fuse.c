/* SPDX-License-Identifier: MIT */
/* Passes over memory that a norm's kernel does on the way. Around a norm of the residual stream
 * there are the sum before it and, with autocast, casts: of the branch that is added, of the norm's
 * input and of its output. Each is a pass of its own over a tensor as large as the norm's. Where
 * nobody else reads what is in between, the norm's kernel does their work, forward and backward:
 *
 *     h --cast_b--> b --+
 *                       sum --> x --cast_x--> --norm--> --cast_y--> y
 *     a ----------------+
 *
 * The numbers are those of separate kernels, with the same roundings. The nodes stay on the tape,
 * and do nothing (`at`). Their work is done at the norm's place, so nobody may need it before.
 * After a batch norm there may also be a sum with another tensor, and relu.
 *
 * Likewise a layer's backward multiplies its dx by the slope of the activation before it, at the
 * end of the product; a library may round once there instead of twice. And cross-entropy writes the
 * gradient of the logits over them while it has them at hand, or is done together with the layer
 * that makes them, some rows at a time (the idea of Liger's fused linear cross-entropy, arXiv
 * 2410.10989). The product that makes the gradient of a layer's weights writes it in f32, and
 * nothing rounds it to 16 bits on its way to the parameter's. Who completes the gradient of a
 * layer's output, the product with that slope or the norm after the residual sum, also adds up its
 * columns: the gradient of the bias. So does an attention, which knows most of the sums. */
#include "runtime/engine/tape/tape_private.h"

static bool is_root(const struct pl_tape *tape, const plume_tensor *t)
{
    for (size_t i = 0; i < tape->n_roots; i++)
        if (tape->roots[i] == t || tape->roots[i]->base == t)
            return true;
    return pl_tape_keeps(tape, t);
}

/* The first node after `from` that reads t, or a view of it, or is a view of it; tape->n: none. One
 * that does not run reads nothing, and can do nothing for others. */
static size_t next_use(const struct pl_tape *tape, const plume_tensor *t, size_t from)
{
    for (size_t n = from + 1; n < tape->n; n++)
        for (size_t k = 0; k < tape->nodes[n].n_in && !tape->nodes[n].unread; k++)
            if (tape->nodes[n].in[k] && pl_tensor_root(tape->nodes[n].in[k]) == t)
                return n;
    return tape->n;
}

/* True if a node between these two reads t, or a view of it. */
static bool is_read_between(const struct pl_tape *tape, const plume_tensor *t, size_t a, size_t b)
{
    return next_use(tape, t, a) < b;
}

/* The tape has made t, which is no view. */
static bool is_made(const struct pl_tape *tape, const plume_tensor *t)
{
    return t->tape == tape && !t->base && !tape->nodes[t->node].op->view;
}

/* Node n alone reads t, once. */
static bool is_only_for(const struct pl_tape *tape, const plume_tensor *t, size_t n)
{
    size_t times = 0;

    if (!is_made(tape, t) || is_root(tape, t) || next_use(tape, t, t->node) != n ||
        next_use(tape, t, n) != tape->n)
        return false;
    for (size_t k = 0; k < tape->nodes[n].n_in; k++)
        times += tape->nodes[n].in[k] && pl_tensor_root(tape->nodes[n].in[k]) == t;
    return times == 1;
}

/* The cast from `dtype` (0: from 16 bits) that makes t for node n alone; NULL: something else does.
 */
static struct pl_node *
cast_before(const struct pl_tape *tape, const plume_tensor *t, enum plume_dtype dtype, size_t n)
{
    struct pl_node *node = is_only_for(tape, t, n) ? &tape->nodes[t->node] : NULL;

    return node && pl_tape_is_cast(node) && is_made(tape, node->in[0]) &&
                   (dtype ? node->in[0]->dtype == dtype : pl_dtype_is_16bit(node->in[0]->dtype))
               ? node
               : NULL;
}

static void absorb(struct pl_tape *tape, struct pl_node *node, size_t norm)
{
    node->at[0] = node->at[1] = norm;
    node->hidden = true;
}

/* The cast of the norm's output to 16 bits. One to f32 rounds: a host's norm at O3 has such
 * readers. */
static void take_cast_after(struct pl_tape *tape, struct pl_node *norm)
{
    size_t at = norm->out->node, n = next_use(tape, norm->out, at);
    struct pl_node *cast = n < tape->n ? &tape->nodes[n] : NULL;

    if (!cast || norm->k->real != PL_REAL_F32 || !pl_tape_is_cast(cast) ||
        !pl_dtype_is_16bit(cast->out->dtype) || !is_only_for(tape, norm->out, n) ||
        cast->back != norm->back)
        return;
    cast->at[0] = cast->at[1] = at;
    norm->hidden = true;
    norm->fusion.y = cast->out;
}

/* The cast of the norm's input. What it adds to its own input's gradient is then added earlier. */
static void take_cast_before(struct pl_tape *tape, struct pl_node *norm)
{
    size_t at = norm->out->node;
    bool any = norm->fusion.y == norm->out; /* type: nothing else has 16 bits */
    struct pl_node *cast = cast_before(tape, norm->in[0], any ? 0 : norm->fusion.y->dtype, at);

    if (!cast || norm->k->real != PL_REAL_F32 || next_use(tape, cast->in[0], cast->out->node) < at)
        return;
    if (tape->dev->ops->host && cast->add[0])
        return; /* the host's kernel would round the gradient and the sum at once */
    absorb(tape, cast, at);
    norm->fusion.x = cast->in[0];
    norm->fusion.x_add = cast->add[0];
}

/* The sum that makes the norm's input, if the norm is the first to read it; with the cast of one of
 * its operands, or with one that repeats whole rows, as positions do for each sample. That
 * operand's gradient is the sum's, which is complete after the norm's backward.
 */
static void take_sum(struct pl_tape *tape, struct pl_node *norm)
{
    struct pl_fusion *f = &norm->fusion;
    size_t at = norm->out->node;
    struct pl_node *sum = is_made(tape, f->x) ? &tape->nodes[f->x->node] : NULL, *cast = NULL;
    size_t b = 1, reader = f->x == norm->in[0] ? at : norm->in[0]->node;

    if (!sum || !sum->op->is_sum || !sum->op->is_sum(sum) ||
        next_use(tape, f->x, f->x->node) != reader || sum->in[0]->dtype != f->x->dtype ||
        sum->in[1]->dtype != f->x->dtype)
        return;
    if (f->y == norm->out && pl_dtype_of_real(norm->k->real) != f->x->dtype)
        return; /* it has f32 copies */
    for (size_t k = 0; k < 2; k++)
        if (pl_tensor_root(sum->in[k])->tape != tape)
            return;
    if (sum->in[1]->count < f->x->count &&
        (f->y->dtype != f->x->dtype ||
         sum->in[1]->count % norm->in[0]->shape[norm->in[0]->rank - 1]))
        return;
    if (f->y->dtype != f->x->dtype) { /* the kernel reads b in y's type */
        for (size_t k = 0; k < 2 && !cast; k++) {
            cast = cast_before(tape, sum->in[1 - k], f->y->dtype, f->x->node);
            b = 1 - k;
        }
        if (!cast || !is_only_for(tape, cast->in[0], cast->out->node) ||
            (cast->back && !norm->back))
            return;
        absorb(tape, cast, at);
        sum->alias[b] = true;
        f->too = cast->in[0];
    }
    sum->at[0] = at;
    f->a = sum->in[1 - b];
    f->b = cast ? cast->in[0] : sum->in[b];
}

/* The sum of a batch norm's output with another tensor and relu of that, as at the end of a block
 * of a ResNet. What is added must be there before the norm, and nobody may have read it in between:
 * its gradient becomes complete at the norm's place. */
static void take_join(struct pl_tape *tape, struct pl_node *norm)
{
    struct pl_fusion *f = &norm->fusion;
    size_t at = norm->out->node, n = next_use(tape, f->y, f->y->node), k, last;
    struct pl_node *sum = n < tape->n ? &tape->nodes[n] : NULL, *relu;
    plume_tensor *r;

    if (!sum || !sum->op->is_sum || !sum->op->is_sum(sum) ||
        sum->in[0]->count != sum->in[1]->count || !is_only_for(tape, f->y, n) ||
        pl_node_has_f32_copy(norm, norm->out) || pl_node_has_f32_copy(sum, sum->out))
        return;
    k = sum->in[0] == f->y;
    r = sum->in[k];
    if (sum->in[1 - k] != f->y || r->dtype != f->y->dtype || sum->out->dtype != r->dtype ||
        !is_made(tape, r) || r->node >= at || tape->nodes[r->node].at[0] >= at ||
        tape->nodes[r->node].hidden || sum->first[k] || r == f->x || r == norm->in[0] ||
        is_read_between(tape, r, at, n))
        return;
    last = next_use(tape, sum->out, n);
    relu = last < tape->n ? &tape->nodes[last] : NULL;
    if (!relu || !relu->op->is_relu || !is_only_for(tape, sum->out, last) ||
        relu->out->dtype != r->dtype || sum->back != norm->back || relu->back != norm->back)
        return;
    tape->nodes[f->y->node].hidden = true;
    absorb(tape, sum, at);
    relu->at[0] = relu->at[1] = at;
    f->y = relu->out;
    f->r = r;
    f->r_add = sum->add[k];
}

/* The slope of the activation before a layer, if no other reads its output. The gradient of that
 * output is then what follows from it. */
static void take_slope(struct pl_tape *tape, struct pl_node *node)
{
    const plume_tensor *x = node->in[0];
    size_t at = node->out->node;
    struct pl_node *before = is_only_for(tape, x, at) ? &tape->nodes[x->node] : NULL;

    if (!before || !before->op->has_slope || !before->op->has_slope(before) || !node->back ||
        !before->back || node->add[0] || node->k != before->k || pl_node_has_f32_copy(node, x) ||
        pl_node_has_f32_copy(node, node->out))
        return;
    node->fusion.slope_of = x->node + 1;
    before->fusion.sloped = true;
}

/* The gradient of a loss' input, if forward is the last to read that input (a sum may be done
 * later, by a norm) and no other adds to its gradient. Not in f16, where it would be rounded before
 * it is scaled. */
static void take_gradient(struct pl_tape *tape, struct pl_node *node)
{
    const plume_tensor *x = node->in[0];
    size_t at = node->out->node;
    struct pl_node *maker;

    if (!node->back || !x->wants_grad || !is_made(tape, x) || is_root(tape, x) || node->add[0] ||
        x->dtype == PLUME_F16 || pl_node_has_f32_copy(node, x) || next_use(tape, x, at) != tape->n)
        return;
    for (size_t n = next_use(tape, x, x->node); n < at; n = next_use(tape, x, n))
        if (tape->nodes[n].back || tape->nodes[n].op->view || tape->nodes[n].at[0] > at)
            return;
    maker = &tape->nodes[x->node];
    if (maker->hidden || maker->op->same_grad || (maker->op->needs & PL_NEEDS_OUT))
        return;
    maker->grad_in_data = true;
    node->fusion.ahead = true;
}

/* Of a language model's last layer the logits are by far the largest tensor. */
#define CHUNK_LEAST ((size_t)8 << 20) /* bytes of logits for which chunks are worth it */
#define CHUNK_HOST 512                /* rows: enough for the products */
#define CHUNK_DEVICE 8192
/* In 16 bits, as each chunk rounds the weights' gradient once more: 8 add 0.35 % of it, where one
 * rounding is 0.17 %, and 64 would add 1 %. */
#define CHUNKS_ROUNDED 8

size_t pl_tape_kept_at(const struct pl_node *layer, size_t k)
{
    size_t at = 0;

    for (size_t i = 0; i < k; i++)
        if (layer->back && layer->in[i]->wants_grad && !(layer->fusion.own & PL_NEEDS_IN(i)))
            at += PL_BUMP_ALIGNED(layer->in[i]->count * pl_dtype_size(layer->in[i]->dtype));
    return at;
}

size_t pl_tape_chunk_bytes(const plume_tensor *z, size_t chunk)
{
    return PL_BUMP_ALIGNED(chunk * z->shape[z->rank - 1] * pl_dtype_size(z->dtype));
}

/* The rows of a chunk; 0: the logits are better stored. On the host there are probabilities and a
 * gradient of the same size. */
static size_t chunk_of(const struct pl_tape *tape, const struct pl_node *layer)
{
    const plume_tensor *z = layer->out;
    bool host = tape->dev->ops->host;
    size_t row = z->shape[z->rank - 1] * pl_dtype_size(z->dtype), rows, chunk, bytes;

    rows = z->count / z->shape[z->rank - 1];
    if (tape->chunk)
        return rows > tape->chunk ? tape->chunk : 0;
    chunk = host ? CHUNK_HOST : CHUNK_DEVICE;
    if (!host && pl_dtype_is_16bit(z->dtype))
        chunk = PL_MAX(chunk, (rows + CHUNKS_ROUNDED - 1) / CHUNKS_ROUNDED);
    chunk = (rows + (rows + chunk - 1) / chunk - 1) / PL_MAX((rows + chunk - 1) / chunk, (size_t)1);
    bytes = rows * row * (!host ? 1 : layer->back ? 3 : 2);
    return rows * row >= CHUNK_LEAST && rows >= 2 * chunk &&
                   pl_tape_kept_at(layer, layer->n_in) + chunk * row <= bytes / 2
               ? chunk
               : 0;
}

/* True if a loss writes a gradient over t: nobody may read it later. */
static bool is_overwritten(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;

    return root->tape == tape && tape->nodes[root->node].grad_in_data;
}

/* The layer before a loss, if nothing else reads the logits. Not in f16, where small gradients
 * would be 0 before they are scaled. */
static void take_layer(struct pl_tape *tape, struct pl_node *loss)
{
    const plume_tensor *z = loss->in[0];
    size_t at = loss->out->node;
    struct pl_node *layer = is_only_for(tape, z, at) ? &tape->nodes[z->node] : NULL;

    if (!layer || !layer->op->part || layer->attr.i[0] || layer->fusion.slope_of ||
        layer->fusion.sloped || layer->k != loss->k || layer->back != loss->back ||
        layer->at[0] != z->node || pl_node_has_f32_copy(layer, z) ||
        pl_node_has_f32_copy(loss, z) || (loss->back && z->dtype == PLUME_F16))
        return;
    for (size_t k = 0; k < layer->n_in; k++)
        if (!layer->in[k] || pl_node_has_f32_copy(layer, layer->in[k]) || layer->first[k] ||
            is_overwritten(tape, layer->in[k]))
            return;
    loss->fusion.chunk = chunk_of(tape, layer);
    if (!loss->fusion.chunk)
        return;
    loss->fusion.product = z->node + 1;
    layer->fusion.loss = at + 1;
    layer->at[0] = at;
    layer->hidden = true;
}

/* The gradients of weights in bf16, if nothing but their own cast needs them: the product writes
 * them in f32, where the cast's backward would. Not in f16, whose gradients are to overflow where
 * they do elsewhere: the loss scale follows from that. */
static void take_wide_gradients(struct pl_tape *tape, struct pl_node *node)
{
    size_t at = node->out->node;

    for (size_t k = 0; k < node->n_in; k++) {
        const plume_tensor *t = node->in[k];
        struct pl_node *cast;

        if (!(node->op->wide_grads & PL_NEEDS_IN(k)) || !t || !node->back || node->fusion.loss ||
            t->dtype != PLUME_BF16 || node->k->real != PL_REAL_BF16 || !is_only_for(tape, t, at) ||
            node->first[k])
            continue;
        cast = &tape->nodes[t->node];
        if (!pl_tape_is_cast(cast) || !cast->back || cast->first[0] || cast->hidden ||
            cast->at[0] != t->node || cast->at[1] != t->node || cast->in[0]->dtype != PLUME_F32 ||
            cast->in[0]->base || cast->in[0]->tape == tape ||
            is_read_between(tape, cast->in[0], t->node, at))
            continue;
        cast->at[1] = at;
        cast->wide = true;
        node->fusion.wide |= PL_NEEDS_IN(k);
    }
}

/* The norm that completes the gradient of a layer's output t: the sum before it is the only one to
 * read t, or t's cast. NULL: there is none. */
static struct pl_node *norm_after(const struct pl_tape *tape, const plume_tensor *t)
{
    for (size_t i = t->node + 1; i < tape->n; i++) {
        struct pl_node *norm = &tape->nodes[i];
        const struct pl_fusion *f = &norm->fusion;

        if (!norm->op->fuses || !norm->op->bias_sums || !f->a || !norm->back || !f->x->wants_grad ||
            norm->k->real != PL_REAL_F32)
            continue;
        if (f->too == t || ((f->a == t || f->b == t) && is_only_for(tape, t, f->x->node)))
            return norm;
    }
    return NULL;
}

/* The node that alone reads the layer's output, and can add up its gradient. NULL: none can. */
static struct pl_node *summing_after(const struct pl_tape *tape, const struct pl_node *layer)
{
    size_t next = next_use(tape, layer->out, layer->out->node);
    struct pl_node *node = next < tape->n ? &tape->nodes[next] : NULL;

    return node && node->op->sums_grad && node->op->sums_grad(node) && node->back &&
                   node->k == layer->k && node->in[0] == layer->out &&
                   is_only_for(tape, layer->out, next)
               ? node
               : NULL;
}

/* The gradient of a layer's bias, if the layer writes it in f32 and takes its output's gradient as
 * it is. It is then written earlier: nobody else may do so in between. */
static void take_bias(struct pl_tape *tape, struct pl_node *layer)
{
    size_t at = layer->out->node, next = next_use(tape, layer->out, at);
    struct pl_node *by = NULL;

    if (!(layer->fusion.wide & PL_NEEDS_IN(layer->op->bias)) || !is_made(tape, layer->out))
        return;
    if (layer->fusion.sloped && tape->nodes[next].op->bias_sums)
        by = &tape->nodes[next];
    else if (!layer->op->scribbles || !layer->op->scribbles(layer))
        by = norm_after(tape, layer->out) ?: summing_after(tape, layer);
    if (!by || by->fusion.bias_of ||
        is_read_between(tape, pl_node_grad_of(tape, layer, layer->op->bias), at, by->out->node))
        return;
    by->fusion.bias_of = at + 1;
    layer->fusion.summed = true;
}

void pl_tape_plan_fusions(struct pl_tape *tape)
{
    bool plain = tape->no_fuse || tape->recompute; /* what runs again runs by itself */
    bool halves;

    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];

        node->at[0] = node->at[1] = i;
        node->hidden = node->unread;
        node->grad_in_data = node->wide = false;
        node->fusion = (struct pl_fusion){0};
    }
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];

        if (node->op->slopes && node->op->slopes(node) && !plain && !tape->dev->ops->host)
            take_slope(tape, node);
        if (!node->op->fuses)
            continue;
        node->fusion.x = node->in[0];
        node->fusion.y = node->out;
        if (plain || node->unread)
            continue;
        halves = !tape->dev->ops->host || node->op->host_halves;
        if (halves)
            take_cast_after(tape, node);
        if (node->fusion.y != node->out || (node->op->casts && halves))
            take_cast_before(tape, node);
        if (node->op->sums)
            take_sum(tape, node);
        if (node->op->joins && !tape->dev->ops->host)
            take_join(tape, node);
    }
    for (size_t i = 0; i < tape->n && !tape->no_fuse; i++) {
        struct pl_node *node = &tape->nodes[i];

        if (node->op->chunks && !node->unread)
            take_layer(tape, node);
        if (node->op->grad_ahead && !node->fusion.product && !plain && !tape->dev->ops->host)
            take_gradient(tape, node);
    }
    for (size_t i = 0; i < tape->n && !plain && tape->wide_grads && !tape->dev->ops->host; i++)
        if (tape->nodes[i].op->wide_grads)
            take_wide_gradients(tape, &tape->nodes[i]);
    for (size_t i = 0; i < tape->n; i++)
        if (tape->nodes[i].op->bias && tape->nodes[i].fusion.wide)
            take_bias(tape, &tape->nodes[i]);
}
