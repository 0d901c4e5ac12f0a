/* SPDX-License-Identifier: MIT */
/* Plans a recorded tape: the place of everything in one block of memory. Time is counted in
 * positions: node i of n runs forward at i and backward at 2n - 1 - i; tensors that are read after
 * the run live until 2n. Two things that are never alive at the same position may share memory
 * (tape_memory.c). */
#include "common/base/log.h"
#include "runtime/engine/tape/tape_private.h"

#include <string.h>

#define SEGMENTS_MAX 96 /* of recomputation, that are tried */

/* True if nothing reads the parameter but casts to 16 bits. */
static bool is_only_cast(const struct pl_tape *tape, const plume_tensor *param)
{
    if (pl_tape_is_among(tape, tape->n_roots, param))
        return false;
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];

        for (size_t k = 0; k < node->n_in; k++)
            if (node->in[k] && pl_tensor_root(node->in[k]) == param &&
                (!pl_tape_is_cast(node) || node->in[k] != param))
                return false;
    }
    return true;
}

/* Call after the fusions are planned. */
static void plan_lent(struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];

        node->lent = tape->lends && pl_tape_is_cast(node) && node->in[0]->is_param &&
                     node->at[0] == i && (node->at[1] == i || node->wide) &&
                     (!node->hidden || node->unread) && !node->grad_in_data &&
                     !pl_tape_is_among(tape, tape->n_roots, node->out) &&
                     (tape->lends_all ? node->out->dtype == tape->amp_dtype
                                      : is_only_cast(tape, node->in[0]));
    }
}

/* Lifetimes of one node's tensors, while they are collected. */
struct life {
    size_t data_from, data_to, grad_from, grad_to;
    size_t leader;                               /* the node whose gradient's memory it is */
    size_t data, grad, saved, forward, backward; /* indices of blocks */
    size_t again_to;                             /* of what is computed again: its last use, */
    size_t again, again_saved, again_scratch;    /* and its blocks */
};

/* Backward uses the tensor of a node at this position. */
static void live_back(const struct pl_tape *tape, struct life *lives, size_t i, size_t position)
{
    size_t *to = pl_tape_runs_again(tape, i) ? &lives[i].again_to : &lives[i].data_to;

    *to = PL_MAX(*to, position);
}

/* The tensor's life, if the tape has made it. */
static struct life *life_of(const struct pl_tape *tape, struct life *lives, plume_tensor *t)
{
    plume_tensor *root = t ? pl_tensor_root(t) : NULL;

    return root && root->tape == tape ? &lives[root->node] : NULL;
}

static void find_lives(const struct pl_tape *tape, struct life *lives)
{
    for (size_t i = 0; i < tape->n; i++) {
        size_t at = tape->nodes[i].at[0];

        lives[i].data_from = PL_MIN(i, at);
        lives[i].data_to = PL_MAX(i, at);
        lives[i].again_to = 0;
        lives[i].grad_from = SIZE_MAX;
    }
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        size_t at = node->at[0], back = pl_tape_back_at(tape, i);
        struct life *x = node->op->fuses ? life_of(tape, lives, node->fusion.x) : NULL;
        struct life *y = node->op->fuses && (node->op->needs & PL_NEEDS_OUT)
                             ? life_of(tape, lives, node->fusion.y)
                             : NULL;

        for (size_t k = 0; k < node->n_in && !node->unread; k++) {
            struct life *life = life_of(tape, lives, node->in[k]);

            if (!life)
                continue;
            life->data_to = PL_MAX(life->data_to, at);
            if (node->back && (node->op->needs & PL_NEEDS_IN(k)))
                live_back(tape, lives, (size_t)(life - lives), back);
            if (pl_tape_runs_again(tape, i))
                live_back(tape, lives, (size_t)(life - lives), pl_tape_again_at(tape, i));
            if (node->back && node->in[k]->wants_grad)
                life->grad_from = PL_MIN(life->grad_from, back);
        }
        if (x && node->back) /* of norms, whose backward needs it */
            x->data_to = PL_MAX(x->data_to, back);
        if (y && node->back)
            y->data_to = PL_MAX(y->data_to, back);
        if (node->back && (node->op->needs & PL_NEEDS_OUT))
            live_back(tape, lives, i, back);
        if (pl_tape_runs_again(tape, i))
            live_back(tape, lives, i, pl_tape_again_at(tape, i));
        if (pl_tape_is_among(tape, tape->n_roots, node->out) || node->op->keeps)
            lives[i].data_to = 2 * tape->n;
        if (pl_tape_is_among(tape, tape->n_seeds, node->out) && node->out->wants_grad)
            lives[i].grad_from = tape->n - 1; /* filled before backward starts */
    }
}

/* Memory of a loss that has its layer's rows by chunks: what is kept for the layer's backward, and
 * while it runs a chunk and the loss of each row. */
static size_t
kept_bytes(const struct pl_tape *tape, const struct pl_node *node, size_t *ret_scratch)
{
    const struct pl_node *layer;
    const plume_tensor *z = node->in[0];

    *ret_scratch = node->scratch_bytes + pl_node_f32_bytes(node, false);
    if (!node->fusion.product)
        return node->saved_bytes;
    layer = &tape->nodes[node->fusion.product - 1];
    *ret_scratch = pl_tape_chunk_bytes(z, node->fusion.chunk) +
                   z->count / z->shape[z->rank - 1] * sizeof(double);
    return pl_tape_kept_at(layer, layer->n_in);
}

static void make_again_blocks(
    const struct pl_tape *tape, size_t i, struct life *life, size_t bytes, struct pl_lifetimes *p)
{
    const struct pl_node *node = &tape->nodes[i];
    size_t at = pl_tape_again_at(tape, i), back = pl_tape_back_at(tape, i);

    life->again = pl_lifetimes_add(p, bytes, at, life->again_to);
    life->again_saved = pl_lifetimes_add(p, node->saved_bytes, at, node->back ? back : at);
    life->again_scratch =
        pl_lifetimes_add(p, node->scratch_bytes + pl_node_f32_bytes(node, false), at, at);
}

static void make_blocks(struct pl_tape *tape, struct life *lives, struct pl_lifetimes *p)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];
        plume_tensor *out = node->out;
        size_t bytes = out->count * pl_dtype_size(out->dtype), back = pl_tape_back_at(tape, i);
        struct life *life = &lives[i];
        size_t scratch, kept = kept_bytes(tape, node, &scratch);

        life->data = life->grad = life->saved = life->forward = life->backward = SIZE_MAX;
        life->again = life->again_saved = life->again_scratch = SIZE_MAX;
        if (node->op->view || node->unread)
            continue;
        if (!node->hidden && !node->lent)
            life->data = pl_lifetimes_add(p, bytes, life->data_from, life->data_to);
        /* The caller may read a root's gradient, too (it may be a leaf of another tape). */
        if (!node->hidden && !node->grad_in_data && !node->wide && out->wants_grad &&
            life->grad_from != SIZE_MAX && life->leader == i)
            life->grad = pl_lifetimes_add(p, bytes, life->grad_from, life->grad_to);
        if (pl_tape_runs_again(tape, i))
            make_again_blocks(tape, i, life, bytes, p);
        life->saved = pl_lifetimes_add(p, kept, i,
                                       !node->back || pl_tape_runs_again(tape, i) ? i
                                       : node->fusion.product
                                           ? pl_tape_back_at(tape, node->fusion.product - 1)
                                           : back);
        life->forward = pl_lifetimes_add(p, scratch, i, i);
        if (node->back)
            life->backward = pl_lifetimes_add(
                p, node->scratch_bytes + pl_node_f32_bytes(node, true), back, back);
    }
}

/* A loss may write the gradients of its layer's inputs where they belong, if nobody else writes
 * there before the layer's backward. */
static void own_gradients(struct pl_tape *tape, const size_t *leader, struct life *lives)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *layer = &tape->nodes[i];

        for (size_t k = 0; layer->fusion.loss && k < layer->n_in && layer->back; k++) {
            const plume_tensor *in = layer->in[k];

            if (in->tape != tape || in->base || !in->wants_grad || layer->add[k] ||
                tape->nodes[in->node].op->view || tape->nodes[in->node].hidden ||
                tape->nodes[in->node].grad_in_data || pl_tape_is_among(tape, tape->n_roots, in) ||
                leader[in->node] != in->node)
                continue;
            layer->fusion.own |= PL_NEEDS_IN(k);
            lives[in->node].grad_from = layer->fusion.loss - 1;
        }
    }
}

/* A shared gradient lives from the first of its tensors to the last. */
static int share_gradients(struct pl_tape *tape, struct life *lives)
{
    _cleanup_free_ size_t *leader = calloc(PL_MAX(tape->n, (size_t)1), sizeof(*leader));

    if (!leader)
        return -ENOMEM;
    pl_tape_plan_aliases(tape, leader);
    for (size_t i = 0; i < tape->n; i++) {
        lives[i].leader = leader[i];
        lives[i].grad_to = pl_tape_back_at(
            tape, tape->nodes[i].fusion.product ? tape->nodes[i].fusion.product - 1 : i);
        if (tape->nodes[i].op->keeps)
            lives[i].grad_to = 2 * tape->n;
    }
    for (size_t i = 0; i < tape->n; i++) {
        struct life *of = &lives[leader[i]];

        of->grad_from = PL_MIN(of->grad_from, lives[i].grad_from);
        of->grad_to = PL_MAX(of->grad_to, lives[i].grad_to);
    }
    for (size_t i = 0; i < tape->n; i++)
        if (tape->nodes[i].grad_in_data)
            lives[i].data_to = PL_MAX(lives[i].data_to, lives[i].grad_to);
    own_gradients(tape, leader, lives);
    return 0;
}

static void *address(const struct pl_tape *tape, const struct pl_lifetimes *p, size_t block)
{
    return block == SIZE_MAX ? NULL : tape->memory + p->list[block].offset;
}

static void
set_addresses(struct pl_tape *tape, const struct life *lives, const struct pl_lifetimes *p)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];
        const struct life *life = &lives[i];

        if (node->op->view)
            continue;
        node->out->data = address(tape, p, life->data);
        node->out->grad =
            node->grad_in_data ? node->out->data : address(tape, p, lives[life->leader].grad);
        node->saved = address(tape, p, life->saved);
        node->scratch[0] = address(tape, p, life->forward);
        node->scratch[1] = address(tape, p, life->backward);
        if (pl_tape_runs_again(tape, i)) {
            struct pl_tape_again *a = &tape->again[i];

            a->data[0] = node->out->data;
            a->saved[0] = node->saved;
            a->scratch[0] = node->scratch[0];
            a->data[1] = address(tape, p, life->again);
            a->saved[1] = address(tape, p, life->again_saved);
            a->scratch[1] = address(tape, p, life->again_scratch);
        }
    }
}

/* Counts the nodes that run with another table than the tape's. */
static size_t low_nodes(const struct pl_tape *tape)
{
    size_t n = 0;

    for (size_t i = 0; i < tape->n; i++)
        n += tape->nodes[i].k != tape->kernels && !tape->nodes[i].op->view;
    return n;
}

/* Places all tensors. *ret_bytes: what they take. -ENOMEM. */
static int
place(struct pl_tape *tape, struct life *lives, struct pl_lifetimes *p, size_t *ret_bytes)
{
    int r;

    p->n = 0;
    find_lives(tape, lives);
    r = share_gradients(tape, lives);
    make_blocks(tape, lives, p);
    *ret_bytes = r == 0 && !p->bad ? pl_lifetimes_set(p, tape->no_reuse) : SIZE_MAX;
    return r < 0 || *ret_bytes == SIZE_MAX ? -ENOMEM : 0;
}

static int place_segments(struct pl_tape *tape,
                          size_t segments,
                          struct life *lives,
                          struct pl_lifetimes *p,
                          size_t *ret_bytes)
{
    for (size_t i = 0; i < tape->n; i++) { /* of the plan before */
        for (size_t k = 0; k < tape->nodes[i].n_in; k++)
            tape->nodes[i].alias[k] = false;
        tape->nodes[i].fusion.own = 0;
    }
    if (pl_tape_plan_again(tape, segments) < 0)
        return -ENOMEM;
    return place(tape, lives, p, ret_bytes);
}

/* The same with recomputation, in the number of segments that takes the least memory. */
static int
place_again(struct pl_tape *tape, struct life *lives, struct pl_lifetimes *p, size_t *ret_bytes)
{
    size_t best = 1, least = SIZE_MAX, bytes;
    int r = 0;

    for (size_t s = 1; !tape->segments && s <= PL_MIN(tape->n / 2, (size_t)SEGMENTS_MAX) && r == 0;
         s += PL_MAX(s / 2, (size_t)1)) {
        r = place_segments(tape, s, lives, p, &bytes);
        if (r == 0 && bytes < least) {
            least = bytes;
            best = s;
        }
    }
    if (r == 0 && !tape->segments)
        tape->segments = best;
    return r == 0 ? place_segments(tape, tape->segments, lives, p, ret_bytes) : r;
}

static int make_plan(struct pl_tape *tape, struct pl_error *err)
{
    _cleanup_free_ struct life *lives = calloc(PL_MAX(tape->n, (size_t)1), sizeof(*lives));
    struct pl_lifetimes p = {0};
    struct pl_error why = {0};
    size_t bytes = SIZE_MAX;
    int r = 0;

    if (!tape->recompute) { /* a plan with it was only measured */
        free(tape->again);
        tape->again = NULL;
    }
    pl_tape_plan_writes(tape);
    pl_tape_plan_unread(tape);
    pl_tape_plan_fusions(tape);
    plan_lent(tape);
    if (lives &&
        (tape->recompute && tape->want_grad ? place_again : place)(tape, lives, &p, &bytes) < 0)
        bytes = SIZE_MAX;
    if (bytes != SIZE_MAX && bytes > tape->memory_cap && !tape->measures) {
        pl_device_free(tape->dev, tape->memory);
        tape->memory = NULL;
        tape->memory_cap = 0;
        r = pl_device_alloc(tape->dev, bytes, "the step's tensors", (void **)&tape->memory, &why);
        if (r == 0)
            tape->memory_cap = bytes;
    }
    if (r < 0 || bytes == SIZE_MAX) {
        free(p.list);
        return pl_error_set(err, r < 0 ? r : -ENOMEM, "%s: try a smaller batch",
                            bytes != SIZE_MAX ? pl_error_text(&why) : "out of memory");
    }
    if (!tape->measures)
        set_addresses(tape, lives, &p);
    tape->memory_bytes = bytes;
    tape->unshared_bytes = 0;
    for (size_t i = 0; i < p.n; i++)
        tape->unshared_bytes += p.list[i].bytes;
    free(p.list);
    if (tape->measures)
        return 0;
    tape->planned = true;
    tape->plans++;
    pl_log_debug("tape",
                 "%zu ops, %zu of them in 16 bits, %zu KiB of memory (%zu KiB without reuse)",
                 tape->n, low_nodes(tape), bytes >> 10, tape->unshared_bytes >> 10);
    return 0;
}

static bool
same_roots(const struct pl_tape *tape, plume_tensor *const *roots, size_t n_roots, size_t n_seeds)
{
    return tape->n_roots == n_roots && tape->n_seeds == n_seeds &&
           memcmp(tape->roots, roots, n_roots * sizeof(*roots)) == 0;
}

int pl_tape_prepare(struct pl_tape *tape,
                    plume_tensor *const *roots,
                    size_t n_roots,
                    size_t n_seeds,
                    struct pl_error *err)
{
    if (n_roots > PL_TAPE_ROOTS_MAX)
        return pl_error_set(err, -E2BIG, "a step has more than %d results", PL_TAPE_ROOTS_MAX);
    if (tape->planned && same_roots(tape, roots, n_roots, n_seeds))
        return 0;
    if (n_roots)
        memcpy(tape->roots, roots, n_roots * sizeof(*roots));
    tape->n_roots = n_roots;
    tape->n_seeds = n_seeds;
    tape->planned = false;
    return make_plan(tape, err);
}

bool pl_tape_reaches(const struct pl_tape *tape, const plume_tensor *param)
{
    for (size_t i = 0; i < tape->n; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in; k++)
            if (tape->nodes[i].in[k] && pl_tensor_root(tape->nodes[i].in[k]) == param &&
                tape->nodes[i].in[k]->wants_grad && tape->nodes[i].back)
                return true;
    return false;
}
