/* SPDX-License-Identifier: MIT */
/* Looks for regions (split.h). From a linear layer on it follows the split both ways until nothing
 * new is found: to all that uses a split tensor, and to all that a split output is made of. A
 * region that meets an op that needs whole tensors is none. */
#include "runtime/engine/ops/split_private.h"

#include <string.h>

/* Numbers of ranges that a layer's output may have: one; packed queries, keys and values; packed
 * gate and value. */
static const size_t groups_tried[] = {1, 3, 2};

static bool is_same(const struct pl_split_at *a, const struct pl_split_at *b)
{
    return a->groups == b->groups && a->dim == b->dim;
}

const plume_tensor *pl_split_param(const struct pl_tape *tape, const plume_tensor *t)
{
    if (t->tape == tape && pl_tape_is_cast(&tape->nodes[t->node]))
        t = tape->nodes[t->node].in[0];
    return t->is_param && !t->base && t->number ? t : NULL;
}

/* The node that made a tensor; SIZE_MAX for leaves. */
static size_t maker(const struct pl_split_regions *g, const plume_tensor *t)
{
    return t && t->tape == g->tape ? t->node : SIZE_MAX;
}

static size_t last_dim(const plume_tensor *t)
{
    return t->shape[t->rank - 1];
}

/* ---- uses ---- */

static bool is_param(const struct pl_split_regions *g, const plume_tensor *t)
{
    return t && !t->tape && t->number && t->number <= g->split->numbers;
}

static void count_uses(struct pl_split_regions *g, bool store)
{
    for (size_t i = 0; i < g->tape->n; i++)
        for (size_t k = 0; k < g->tape->nodes[i].n_in; k++) {
            const plume_tensor *t = g->tape->nodes[i].in[k];
            size_t of = maker(g, t);

            if (of != SIZE_MAX && store)
                g->list[g->first[of]++] = (struct pl_split_use){i, k};
            else if (of != SIZE_MAX)
                g->first[of + 1]++;
            else if (is_param(g, t) && store)
                g->param_list[g->param_first[t->number - 1]++] = (struct pl_split_use){i, k};
            else if (is_param(g, t))
                g->param_first[t->number]++;
        }
}

static void add_up(size_t *first, size_t n)
{
    for (size_t i = 0; i < n; i++)
        first[i + 1] += first[i];
}

/* Storing has moved each entry to the next one's place. */
static void shift_back(size_t *first, size_t n)
{
    memmove(first + 1, first, n * sizeof(*first));
    first[0] = 0;
}

static int find_uses(struct pl_split_regions *g)
{
    size_t n = g->tape->n, numbers = g->split->numbers;

    g->first = calloc(n + 2, sizeof(*g->first));
    g->param_first = calloc(numbers + 2, sizeof(*g->param_first));
    if (!g->first || !g->param_first)
        return -ENOMEM;
    count_uses(g, false);
    add_up(g->first, n);
    add_up(g->param_first, numbers);
    g->list = calloc(g->first[n] + 1, sizeof(*g->list));
    g->param_list = calloc(g->param_first[numbers] + 1, sizeof(*g->param_list));
    if (!g->list || !g->param_list)
        return -ENOMEM;
    count_uses(g, true);
    shift_back(g->first, n);
    shift_back(g->param_first, numbers);
    return 0;
}

/* ---- a region ---- */

static void fail(struct pl_split_regions *g)
{
    g->failed = true;
}

/* Goes on where the ranks do not divide a size, to tell if that is the only reason. */
static bool divides(struct pl_split_regions *g, size_t size, size_t groups)
{
    g->indivisible |= size / groups % g->split->n != 0;
    return size % groups == 0;
}

/* The output of a node is split at `at`. */
static void put(struct pl_split_regions *g, size_t node, struct pl_split_at at)
{
    struct pl_split_mark *m = node == SIZE_MAX ? NULL : &g->marks[node];
    const plume_tensor *t = m ? g->tape->nodes[node].out : NULL;

    if (!m || g->is_root[node] || at.dim >= t->rank || !pl_dtype_is_real(t->dtype) ||
        !divides(g, t->shape[at.dim], at.groups) ||
        (m->role != PL_SPLIT_WHOLE && (m->role == PL_SPLIT_ROWS || !is_same(&m->at, &at)))) {
        fail(g);
        return;
    }
    if (m->role != PL_SPLIT_WHOLE)
        return;
    *m = (struct pl_split_mark){PL_SPLIT_INSIDE, at};
    g->todo[g->n_todo++] = node;
}

static bool is_each(const struct pl_node *node)
{
    return node->op->split == PL_SPLIT_EACH;
}

/* A node uses a parameter that is split at `at`: splits its output or other inputs to match. */
static void follow_use(struct pl_split_regions *g,
                       struct pl_split_use use,
                       struct pl_split_at at,
                       const plume_tensor *param)
{
    const struct pl_node *node = &g->tape->nodes[use.node];
    const plume_tensor *out = node->out;

    if (out->rank == 0)
        fail(g);
    else if (node->op->split == PL_SPLIT_LINEAR && use.input == 1 && at.dim == 1)
        put(g, maker(g, node->in[0]),
            (struct pl_split_at){(unsigned)node->in[0]->rank - 1, at.groups});
    else if ((node->op->split == PL_SPLIT_LINEAR && use.input > 0 && at.dim == 0) ||
             (is_each(node) && use.input == 1 &&
              (out->count != param->count || out->rank != param->rank) && /* it is repeated */
              at.dim + 1 == param->rank))
        put(g, use.node, (struct pl_split_at){(unsigned)out->rank - 1, at.groups});
    else
        fail(g);
}

/* A parameter is split at `at`, and so are all its uses. */
static void take(struct pl_split_regions *g, const plume_tensor *t, struct pl_split_at at)
{
    const plume_tensor *p = t ? pl_split_param(g->tape, t) : NULL;
    struct pl_split_at *mine = p && is_param(g, p) ? &g->params[p->number - 1] : NULL;

    if (!mine || at.dim >= p->rank || (g->banned && g->banned[p->number - 1]) ||
        (g->split->decided && !is_same(&g->split->params[p->number - 1], &at)) ||
        (mine->groups && !is_same(mine, &at)) || !divides(g, p->shape[at.dim], at.groups)) {
        fail(g);
        return;
    }
    if (mine->groups)
        return;
    for (size_t i = 0; i < g->from->n_roots; i++)
        g->failed |= g->from->roots[i] == p || g->from->roots[i]->base == p;
    *mine = at;
    g->taken[g->n_taken++] = p->number;
    for (size_t i = g->param_first[p->number - 1]; i < g->param_first[p->number]; i++) {
        struct pl_split_use use = g->param_list[i];

        if (!pl_tape_is_cast(&g->tape->nodes[use.node])) {
            follow_use(g, use, at, p);
            continue;
        }
        if (g->is_root[use.node])
            fail(g);
        for (size_t k = g->first[use.node]; k < g->first[use.node + 1]; k++)
            follow_use(g, g->list[k], at, p);
    }
}

static void
follow_element(struct pl_split_regions *g, const struct pl_node *node, struct pl_split_at at)
{
    for (size_t k = 0; k < node->n_in && !g->failed; k++) {
        const plume_tensor *in = node->in[k];

        if (in && in->count == node->out->count && in->rank == node->out->rank)
            put(g, maker(g, in), at);
        else if (!in || !pl_split_repeats(node, k, at)) { /* a parameter of each column */
            if (!in || in->rank == 0 || at.dim + 1 != node->out->rank ||
                last_dim(in) != last_dim(node->out))
                fail(g);
            else
                take(g, in, (struct pl_split_at){(unsigned)in->rank - 1, at.groups});
        }
    }
}

/* The output of a node is split: splits the inputs that are split with it. */
static void
follow_back(struct pl_split_regions *g, const struct pl_node *node, struct pl_split_at at)
{
    struct pl_split_at in;

    if (!pl_split_through(node, at, true, &in)) {
        fail(g);
        return;
    }
    for (size_t k = 0; k < node->n_in && !g->failed; k++)
        put(g, maker(g, node->in[k]), in);
}

/* The same of an input: splits the output. */
static void follow_on(struct pl_split_regions *g, size_t index, struct pl_split_at at)
{
    struct pl_split_at out;

    if (pl_split_through(&g->tape->nodes[index], at, false, &out))
        put(g, index, out);
    else
        fail(g);
}

static void follow_heads(struct pl_split_regions *g, const struct pl_node *node)
{
    size_t packed = node->op->split == PL_SPLIT_HEADS && node->n_in == 1 ? 3 : 1;

    if (!divides(g, (size_t)node->attr.i[0], 1)) {
        fail(g);
        return;
    }
    for (size_t k = 0; k < node->n_in; k++)
        put(g, maker(g, node->in[k]), (struct pl_split_at){2, packed});
}

/* The output of a node is split: splits the inputs that it is made of. */
static void follow_inputs(struct pl_split_regions *g, size_t index)
{
    const struct pl_node *node = &g->tape->nodes[index];
    struct pl_split_at at = g->marks[index].at;

    switch (node->op->split) {
    case PL_SPLIT_EACH:
        follow_element(g, node, at);
        break;
    case PL_SPLIT_EXPAND:
        if (!pl_split_repeats(node, 0, at))
            follow_back(g, node, at);
        break;
    case PL_SPLIT_RANDOM:
    case PL_SPLIT_SLICE:
    case PL_SPLIT_RESHAPE:
    case PL_SPLIT_PERMUTE:
    case PL_SPLIT_ROW:
    case PL_SPLIT_PRODUCT:
        follow_back(g, node, at);
        break;
    case PL_SPLIT_HEADS:
    case PL_SPLIT_TURN:
        if (is_same(&at, &(struct pl_split_at){2, 1}))
            follow_heads(g, node);
        else
            fail(g);
        break;
    case PL_SPLIT_LINEAR:
        if (at.dim + 1 != node->out->rank) {
            fail(g);
            break;
        }
        g->marks[index].role = PL_SPLIT_COLUMNS;
        at.dim = 0;
        take(g, node->in[1], at);
        if (node->n_in > 2)
            take(g, node->in[2], at);
        break;
    case PL_SPLIT_NEVER:
        fail(g);
        break;
    }
}

/* A linear layer whose first input is split. */
static void follow_rows(struct pl_split_regions *g, size_t index, struct pl_split_at at)
{
    const struct pl_node *node = &g->tape->nodes[index];
    struct pl_split_mark *m = &g->marks[index];

    if (m->role == PL_SPLIT_ROWS)
        return;
    if (m->role != PL_SPLIT_WHOLE || at.dim + 1 != node->in[0]->rank ||
        last_dim(node->in[0]) != node->in[1]->shape[1]) {
        fail(g);
        return;
    }
    m->role = PL_SPLIT_ROWS;
    g->todo[g->n_todo++] = index;
    g->rows++;
    at.dim = 1;
    take(g, node->in[1], at);
}

/* A node uses a split tensor: splits its output to match. */
static void
follow_output(struct pl_split_regions *g, struct pl_split_use use, struct pl_split_at at)
{
    const struct pl_node *node = &g->tape->nodes[use.node];
    const plume_tensor *in = node->in[use.input];

    switch (node->op->split) {
    case PL_SPLIT_EACH:
        if (in->count == node->out->count && in->rank == node->out->rank)
            put(g, use.node, at);
        else
            fail(g);
        break;
    case PL_SPLIT_RANDOM:
    case PL_SPLIT_SLICE:
    case PL_SPLIT_RESHAPE:
    case PL_SPLIT_PERMUTE:
    case PL_SPLIT_EXPAND:
    case PL_SPLIT_ROW:
    case PL_SPLIT_PRODUCT:
        follow_on(g, use.node, at);
        break;
    case PL_SPLIT_HEADS:
    case PL_SPLIT_TURN:
        put(g, use.node, (struct pl_split_at){2, 1});
        break;
    case PL_SPLIT_LINEAR:
        if (use.input == 0)
            follow_rows(g, use.node, at);
        else
            fail(g);
        break;
    case PL_SPLIT_NEVER:
        fail(g);
        break;
    }
}

static bool is_linear(const struct pl_node *node)
{
    return node->op->split == PL_SPLIT_LINEAR && node->out->rank > 0;
}

/* Takes back what the region has marked. */
static void drop(struct pl_split_regions *g)
{
    for (size_t i = 0; i < g->n_todo; i++)
        g->marks[g->todo[i]] = (struct pl_split_mark){0};
    for (size_t i = 0; i < g->n_taken; i++)
        g->params[g->taken[i] - 1] = (struct pl_split_at){0};
}

/* Remembers the layers of a region that only their sizes keep whole. */
static void note_indivisible(struct pl_split_regions *g)
{
    for (size_t i = 0; i < g->n_todo; i++)
        g->odd[g->todo[i]] |= is_linear(&g->tape->nodes[g->todo[i]]);
}

/* The region of a linear layer, if there is one. */
static bool try_region(struct pl_split_regions *g, size_t start, size_t groups)
{
    g->n_todo = g->n_taken = g->rows = 0;
    g->failed = g->indivisible = false;
    put(g, start, (struct pl_split_at){(unsigned)g->tape->nodes[start].out->rank - 1, groups});
    for (size_t i = 0; i < g->n_todo && !g->failed; i++) {
        size_t node = g->todo[i];
        struct pl_split_at at = g->marks[node].at;

        if (g->marks[node].role == PL_SPLIT_ROWS)
            continue;
        follow_inputs(g, node);
        for (size_t k = g->first[node]; k < g->first[node + 1] && !g->failed; k++)
            follow_output(g, g->list[k], at);
    }
    if (!g->failed && g->rows > 0 && !g->indivisible)
        return true;
    if (!g->failed && g->rows > 0)
        note_indivisible(g);
    drop(g);
    return false;
}

static void count(struct pl_split_regions *g)
{
    for (size_t i = 0; i < g->tape->n; i++) {
        const struct pl_node *node = &g->tape->nodes[i];
        bool is_split = g->marks[i].role != PL_SPLIT_WHOLE;

        g->counts.linears += is_linear(node);
        g->counts.split_linears += is_linear(node) && is_split;
        g->counts.indivisible += g->odd[i] && !is_split;
        g->counts.attentions += node->op->split == PL_SPLIT_HEADS;
        g->counts.split_attentions += node->op->split == PL_SPLIT_HEADS && is_split;
    }
}

static int start(struct pl_split_regions *g)
{
    const struct pl_split_tape *tape = g->from;
    size_t n = tape->whole.n;

    g->marks = calloc(n + 1, sizeof(*g->marks));
    g->is_root = calloc(n + 1, sizeof(*g->is_root));
    g->odd = calloc(n + 1, sizeof(*g->odd));
    g->params = calloc(g->split->numbers + 1, sizeof(*g->params));
    g->todo = calloc(n + 1, sizeof(*g->todo));
    g->taken = calloc(g->split->numbers + 1, sizeof(*g->taken));
    if (!g->marks || !g->is_root || !g->odd || !g->params || !g->todo || !g->taken)
        return -ENOMEM;
    for (size_t i = 0; i < tape->n_roots; i++)
        if (tape->roots[i]->tape == g->tape) {
            g->is_root[tape->roots[i]->node] = true;
            if (tape->roots[i]->base && tape->roots[i]->base->tape == g->tape)
                g->is_root[tape->roots[i]->base->node] = true;
        }
    return find_uses(g);
}

int pl_split_regions_find(struct pl_split_regions *g,
                          const struct pl_split *split,
                          const struct pl_split_tape *tape,
                          const bool *banned,
                          struct pl_error *err)
{
    *g = (struct pl_split_regions){
        .split = split, .from = tape, .tape = &tape->whole, .banned = banned};
    if (start(g) < 0) {
        pl_split_regions_finish(g);
        return pl_error_nomem(err);
    }
    for (size_t i = 0; i < g->tape->n; i++) {
        bool found = g->marks[i].role != PL_SPLIT_WHOLE || !is_linear(&g->tape->nodes[i]);

        if (found)
            continue;
        for (size_t k = 0; k < PL_COUNT(groups_tried) && !found; k++)
            found = try_region(g, i, groups_tried[k]);
    }
    count(g);
    return 0;
}

void pl_split_regions_finish(struct pl_split_regions *g)
{
    free(g->marks);
    free(g->is_root);
    free(g->odd);
    free(g->first);
    free(g->param_first);
    free(g->list);
    free(g->param_list);
    free(g->params);
    free(g->todo);
    free(g->taken);
    *g = (struct pl_split_regions){0};
}

unsigned pl_split_regions_differ(const struct pl_split_regions *g)
{
    for (size_t i = 0; i < g->split->numbers; i++)
        if (g->param_first[i + 1] > g->param_first[i] &&
            !is_same(&g->params[i], &g->split->params[i]))
            return (unsigned)i + 1;
    return 0;
}
