/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tape/tape_stage.h"

#include <string.h>

#define ALIGN(bytes) PL_BUMP_ALIGNED(bytes)

/* ---- where tensors are needed ---- */

/* The maker of a tensor's memory; SIZE_MAX for leaves. */
static size_t maker(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;

    return root->tape == tape ? root->node : SIZE_MAX;
}

static bool runs_back(const struct pl_node *node, bool reached)
{
    return !node->op->view && node->op->backward && node->out->wants_grad && reached;
}

/* As tape_plan.c's reach(), without touching the tensors. */
static void flow_back(struct pl_tape_flow *flow, const struct pl_tape *tape, size_t seed)
{
    for (size_t i = tape->n; i-- > 0;) {
        const struct pl_node *node = &tape->nodes[i];
        size_t root = maker(tape, node->out);
        bool reached = root != SIZE_MAX && (root == seed || flow->last_back[root] != SIZE_MAX);

        flow->back[i] = tape->want_grad && runs_back(node, reached);
        for (size_t k = 0; flow->back[i] && k < node->n_in; k++) {
            size_t in =
                node->in[k] && node->in[k]->wants_grad ? maker(tape, node->in[k]) : SIZE_MAX;

            if (in != SIZE_MAX && flow->last_back[in] == SIZE_MAX)
                flow->last_back[in] = i;
        }
    }
}

int pl_tape_flow_init(struct pl_tape_flow *flow,
                      const struct pl_tape *tape,
                      const plume_tensor *loss,
                      struct pl_error *err)
{
    size_t n = tape->n;

    *flow = (struct pl_tape_flow){
        .n = n,
        .last_use = calloc(n + 1, sizeof(size_t)),
        .last_back = calloc(n + 1, sizeof(size_t)),
        .back = calloc(n + 1, sizeof(bool)),
    };
    if (!flow->last_use || !flow->last_back || !flow->back) {
        pl_tape_flow_finish(flow);
        return pl_error_nomem(err);
    }
    for (size_t i = 0; i < n; i++) {
        flow->last_use[i] = i;
        flow->last_back[i] = SIZE_MAX;
        for (size_t k = 0; k < tape->nodes[i].n_in; k++) {
            const plume_tensor *in = tape->nodes[i].in[k];
            size_t root = in ? maker(tape, in) : SIZE_MAX;

            if (root != SIZE_MAX)
                flow->last_use[root] = i;
        }
    }
    if (loss && loss->wants_grad && maker(tape, loss) != SIZE_MAX) {
        flow_back(flow, tape, maker(tape, loss));
        /* Its gradient begins where the loss itself is. */
        if (loss->base && (flow->last_back[maker(tape, loss)] == SIZE_MAX ||
                           flow->last_back[maker(tape, loss)] < loss->node))
            flow->last_back[maker(tape, loss)] = loss->node;
    }
    return 0;
}

void pl_tape_flow_finish(struct pl_tape_flow *flow)
{
    free(flow->last_use);
    free(flow->last_back);
    free(flow->back);
    *flow = (struct pl_tape_flow){0};
}

static size_t bytes_of(const plume_tensor *t)
{
    return t->count * pl_dtype_size(t->dtype);
}

static bool
crosses(const struct pl_tape *tape, const struct pl_tape_flow *flow, size_t i, size_t at)
{
    return i < at && !tape->nodes[i].op->view && flow->last_use[i] >= at;
}

static bool grad_crosses(const struct pl_tape_flow *flow, size_t i, size_t at)
{
    return flow->last_back[i] != SIZE_MAX && flow->last_back[i] >= at;
}

size_t pl_tape_crossing(const struct pl_tape *tape,
                        const struct pl_tape_flow *flow,
                        size_t at,
                        double *ret_forward,
                        double *ret_back)
{
    size_t n = 0;

    *ret_forward = *ret_back = 0;
    for (size_t i = 0; i < at; i++)
        if (crosses(tape, flow, i, at)) {
            n++;
            *ret_forward += (double)bytes_of(tape->nodes[i].out);
            *ret_back += grad_crosses(flow, i, at) ? (double)bytes_of(tape->nodes[i].out) : 0;
        }
    return n;
}

/* ---- building ---- */

static bool reads(const struct pl_node *node, const plume_tensor *t)
{
    for (size_t k = 0; k < node->n_in; k++)
        if (node->in[k] && pl_tensor_root(node->in[k]) == t)
            return true;
    return false;
}

/* The tensors that cross the stage's border `at`. only: the op that is alone in the stage; NULL:
 * none is. */
static int find_passes(const struct pl_tape *whole,
                       const struct pl_tape_flow *flow,
                       size_t at,
                       const struct pl_node *only,
                       size_t most,
                       struct pl_pass *ret,
                       size_t *ret_n,
                       struct pl_error *err)
{
    *ret_n = 0;
    for (size_t i = 0; i < at && at < whole->n; i++) {
        const struct pl_node *maker = &whole->nodes[i];
        bool own = only == maker || (only == &whole->nodes[at] && reads(only, maker->out));

        if (!crosses(whole, flow, i, at) || (only && !own))
            continue;
        if (*ret_n == most)
            return pl_error_set(err, -E2BIG,
                                "more than %zu tensors cross the cut before op %zu (%s)", most, at,
                                whole->nodes[at].op->name);
        ret[(*ret_n)++] = (struct pl_pass){
            .node = i, .bytes = bytes_of(whole->nodes[i].out), .grad = grad_crosses(flow, i, at)};
    }
    return 0;
}

static plume_tensor *new_tensor(struct pl_stage_tape *s, const plume_tensor *like)
{
    plume_tensor *t = pl_bump_alloc(&s->tape.bump, sizeof(*t));

    if (t) {
        *t = *like;
        t->data = t->grad = NULL;
        t->tape = NULL;
        t->node = 0;
        t->base = NULL;
    }
    return t;
}

/* Gives leaves their memory, data first. */
struct leaf {
    plume_tensor *t;
    bool grad;
};

static int
place_leaves(struct pl_stage_tape *s, const struct leaf *leaves, size_t n, struct pl_error *err)
{
    size_t bytes = 0, at = 0;
    void *memory = NULL;
    int r;

    for (size_t i = 0; i < n; i++)
        bytes += ALIGN(bytes_of(leaves[i].t)) * (leaves[i].grad ? 2 : 1);
    if (bytes > s->leaves_cap) {
        pl_device_free(s->tape.dev, s->leaves);
        s->leaves = NULL;
        s->leaves_cap = 0;
        r = pl_device_alloc_zero(s->tape.dev, bytes, "tensors of the stage before", &memory, err);
        if (r < 0)
            return r;
        s->leaves = memory;
        s->leaves_cap = bytes;
    }
    for (int grads = 0; grads < 2; grads++)
        for (size_t i = 0; i < n; i++) {
            if (grads && !leaves[i].grad)
                continue;
            *(grads ? &leaves[i].t->grad : &leaves[i].t->data) = s->leaves + at;
            at += ALIGN(bytes_of(leaves[i].t));
        }
    return 0;
}

/* The leaf of a parameter, for ops that are timed alone. */
static plume_tensor *
param_leaf(struct pl_stage_tape *s, const plume_tensor *param, struct leaf *leaves, size_t *n)
{
    for (size_t i = 0; i < *n; i++)
        if (leaves[i].t->number == param->number)
            return leaves[i].t;
    leaves[*n].t = new_tensor(s, param);
    leaves[*n].grad = param->wants_grad;
    return leaves[(*n)++].t;
}

/* The tensor that replaces an input in the stage. NULL: out of memory. */
static plume_tensor *stand_in(struct pl_stage_tape *s,
                              const struct pl_tape *whole,
                              plume_tensor *in,
                              bool alone,
                              struct leaf *leaves,
                              size_t *n_leaves)
{
    const plume_tensor *root = pl_tensor_root(in);
    plume_tensor *base, *view;

    if (in->tape == whole && s->map[in->node])
        return s->map[in->node];
    if (root->tape == whole)
        base = s->map[root->node];
    else
        base = alone && root->number ? param_leaf(s, root, leaves, n_leaves)
                                     : (plume_tensor *)(uintptr_t)root;
    if (!base || !in->base)
        return base;
    view = new_tensor(s, in);
    if (view)
        view->base = base;
    if (in->tape == whole)
        s->map[in->node] = view;
    return view;
}

static int add_node(struct pl_stage_tape *s,
                    const struct pl_tape *whole,
                    size_t index,
                    bool alone,
                    struct leaf *leaves,
                    size_t *n_leaves)
{
    const struct pl_node *from = &whole->nodes[index];
    struct pl_tape *tape = &s->tape;
    struct pl_node *node = &tape->nodes[tape->n];
    size_t n = from->n_in;
    char *lists = pl_bump_alloc(
        &tape->bump,
        PL_MAX(n, (size_t)1) * (sizeof(*node->in) + sizeof(*node->in_count) + sizeof(*node->add) +
                                sizeof(*node->first) + sizeof(*node->alias)));
    plume_tensor *out = new_tensor(s, from->out);

    if (!lists || !out)
        return -ENOMEM;
    *node = *from; /* its memory is planned anew */
    node->saved = NULL;
    memset(node->scratch, 0, sizeof(node->scratch));
    node->before = (struct pl_bump_mark){0};
    node->in = (plume_tensor **)lists;
    node->in_count = (size_t *)(node->in + n);
    node->add = (bool *)(node->in_count + n);
    node->first = node->add + n;
    node->alias = node->first + n;
    for (size_t k = 0; k < n; k++) {
        if (from->in[k]) {
            node->in[k] = stand_in(s, whole, from->in[k], alone, leaves, n_leaves);
            if (!node->in[k])
                return -ENOMEM;
        }
        node->in_count[k] = from->in_count[k];
    }
    out->base = from->op->view ? pl_tensor_root(node->in[0]) : NULL;
    out->tape = tape;
    out->node = tape->n++;
    node->out = s->map[index] = out;
    return 0;
}

void pl_stage_tape_open(struct pl_stage_tape *stage, const struct pl_tape *whole)
{
    if (!stage->tape.dev)
        pl_tape_init(&stage->tape, whole->dev, whole->kernels->real, whole->want_grad);
}

/* Empties the tape, but for its memory. */
static int reset(struct pl_stage_tape *s, const struct pl_tape *whole, size_t n)
{
    struct pl_tape *tape = &s->tape;
    plume_tensor **map = reallocarray(s->map, whole->n + 1, sizeof(*map));

    if (map)
        s->map = map;
    pl_stage_tape_open(s, whole);
    if (tape->cap < n + 1) {
        struct pl_node *nodes = reallocarray(tape->nodes, n + 1, sizeof(*nodes));

        if (!nodes)
            return -ENOMEM;
        tape->nodes = nodes;
        tape->cap = n + 1;
    }
    if (!map)
        return -ENOMEM;
    memset(map, 0, (whole->n + 1) * sizeof(*map));
    s->n_map = whole->n;
    pl_bump_reset(&tape->bump, (struct pl_bump_mark){0});
    tape->n = 0;
    tape->planned = false;
    tape->recordings++;
    tape->want_grad = whole->want_grad;
    tape->amp_dtype = whole->amp_dtype;
    tape->amp_o2 = whole->amp_o2;
    tape->amp_o3 = whole->amp_o3;
    tape->seed = whole->seed;
    tape->part_index = whole->part_index;
    tape->allreduce = whole->allreduce;
    tape->allreduce_ctx = whole->allreduce_ctx;
    tape->peers = whole->peers;
    tape->graphs = whole->graphs;
    tape->recompute = whole->recompute;
    tape->segments = 0;     /* those of other ops may not suit these */
    tape->chunk = SIZE_MAX; /* none: bits do not depend on where the cut is */
    return 0;
}

int pl_stage_tape_build(struct pl_stage_tape *stage,
                        const struct pl_tape *whole,
                        const struct pl_tape_flow *flow,
                        size_t from,
                        size_t to,
                        const struct pl_stage_build *build,
                        struct pl_error *err)
{
    const struct pl_node *only = build->alone ? &whole->nodes[from] : NULL;
    struct leaf leaves[PL_STAGE_PASSES_MAX + PL_NODE_INPUTS_MAX];
    size_t n_leaves = 0;
    int r = reset(stage, whole, to - from) < 0 ? pl_error_nomem(err) : 0;

    stage->from = from;
    stage->to = to;
    stage->loss = NULL;
    if (r == 0)
        r = find_passes(whole, flow, from, only, only ? PL_NODE_INPUTS_MAX : PL_STAGE_PASSES_MAX,
                        stage->in, &stage->n_in, err);
    if (r == 0)
        r = find_passes(whole, flow, to, only, PL_STAGE_PASSES_MAX, stage->out, &stage->n_out, err);
    for (size_t i = 0; r == 0 && i < stage->n_in; i++) {
        struct pl_pass *pass = &stage->in[i];
        struct leaf leaf = {new_tensor(stage, whole->nodes[pass->node].out), pass->grad};

        if (!leaf.t)
            return pl_error_nomem(err);
        leaves[n_leaves++] = leaf;
        pass->t = stage->map[pass->node] = leaf.t;
    }
    for (size_t i = from; r == 0 && i < to; i++)
        if (add_node(stage, whole, i, build->alone, leaves, &n_leaves) < 0)
            r = pl_error_nomem(err);
    if (r == 0)
        r = place_leaves(stage, leaves, n_leaves, err);
    for (size_t i = 0; r == 0 && i < stage->n_out; i++)
        stage->out[i].t = stage->map[stage->out[i].node];
    stage->tape.no_drop = build->alone; /* what the whole tape's caller reads is not known here */
    if (build->alone) {                 /* the other ranks may measure another op now */
        stage->tape.allreduce = NULL;
        stage->tape.peers = NULL;
    }
    if (r == 0 && build->loss && build->loss->tape == whole && build->loss->node >= from &&
        build->loss->node < to)
        stage->loss = stage->map[build->loss->node];
    return r;
}

void pl_stage_tape_finish(struct pl_stage_tape *stage)
{
    if (stage->tape.dev)
        pl_device_free(stage->tape.dev, stage->leaves);
    pl_tape_finish(&stage->tape);
    free(stage->map);
    *stage = (struct pl_stage_tape){0};
}

plume_tensor *pl_stage_tape_find(const struct pl_stage_tape *stage, const plume_tensor *t)
{
    if (!t->tape)
        return (plume_tensor *)(uintptr_t)t;
    return t->node < stage->n_map ? stage->map[t->node] : NULL;
}

bool pl_stage_tape_makes(const struct pl_stage_tape *stage, const plume_tensor *t)
{
    return t->tape && t->node >= stage->from && t->node < stage->to;
}

int pl_stage_tape_prepare(struct pl_stage_tape *stage,
                          plume_tensor *const *more,
                          size_t n,
                          struct pl_error *err)
{
    plume_tensor *roots[PL_TAPE_ROOTS_MAX];
    size_t n_roots = 0, n_seeds;

    if (stage->loss)
        roots[n_roots++] = stage->loss;
    for (size_t i = 0; i < stage->n_out; i++)
        if (stage->out[i].grad)
            roots[n_roots++] = stage->out[i].t;
    n_seeds = n_roots;
    for (size_t i = 0; i < stage->n_out; i++)
        if (!stage->out[i].grad)
            roots[n_roots++] = stage->out[i].t;
    if (n_roots + n > PL_TAPE_ROOTS_MAX)
        return pl_error_set(err, -E2BIG, "a stage has more than %d results", PL_TAPE_ROOTS_MAX);
    for (size_t i = 0; i < n; i++)
        roots[n_roots++] = more[i];
    return pl_tape_prepare(&stage->tape, roots, n_roots, stage->tape.want_grad ? n_seeds : 0, err);
}
