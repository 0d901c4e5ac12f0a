/* SPDX-License-Identifier: MIT */
/* Recomputation (Chen et al. 2016, arXiv 1604.06174): the tape is cut into segments, and of all but
 * the last only the tensors that others use stay until backward. The rest is computed again, just
 * before the segment's backward. Kernels repeat bit for bit, so gradients have the same bits.
 *
 * Labels are kept, and so are outputs of ops that change something else, such as running
 * statistics, or that wait for other ranks. */
#include "runtime/engine/tape/tape_private.h"

#include <string.h>

struct cut {
    size_t n;
    size_t *last_use; /* by node: the last node that uses its output or a view of it */
    bool *needed;     /* by node: backward reads its output */
    double *crossing; /* by node: bytes that are made before it, and used from it on */
};

static bool is_root(const struct pl_tape *tape, const plume_tensor *t)
{
    for (size_t i = 0; i < tape->n_roots; i++)
        if (tape->roots[i] == t || tape->roots[i]->base == t)
            return true;
    return pl_tape_keeps(tape, t);
}

/* The node that made a tensor's memory; SIZE_MAX for leaves. */
static size_t maker(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t && t->base ? t->base : t;

    return root && root->tape == tape ? root->node : SIZE_MAX;
}

static void find_uses(const struct pl_tape *tape, struct cut *cut)
{
    for (size_t i = 0; i < cut->n; i++) {
        const struct pl_node *node = &tape->nodes[i];

        cut->last_use[i] = PL_MAX(cut->last_use[i], i);
        cut->needed[i] |= node->back && (node->op->needs & PL_NEEDS_OUT);
        for (size_t k = 0; k < node->n_in && !node->unread; k++) {
            size_t in = maker(tape, node->in[k]);

            if (in == SIZE_MAX)
                continue;
            cut->last_use[in] = PL_MAX(cut->last_use[in], node->at[0]);
            cut->needed[in] |= node->back && (node->op->needs & PL_NEEDS_IN(k));
        }
    }
    for (size_t i = 0; i < cut->n; i++) {
        const plume_tensor *out = tape->nodes[i].out;
        double bytes = (double)(out->count * pl_dtype_size(out->dtype));

        if (tape->nodes[i].op->view || tape->nodes[i].unread)
            continue;
        cut->crossing[i + 1] += bytes;
        cut->crossing[cut->last_use[i] + 1] -= bytes;
    }
    for (size_t i = 0; i < cut->n; i++)
        cut->crossing[i + 1] += cut->crossing[i];
}

/* A segment begins where little is kept: around its share of the nodes. */
static size_t border(const struct cut *cut, size_t segment, size_t segments, size_t after)
{
    size_t ideal = segment * cut->n / segments, reach = cut->n / (3 * segments), best = ideal;

    for (size_t at = ideal > reach ? ideal - reach : 0; at <= ideal + reach && at < cut->n; at++)
        if (cut->crossing[at] < cut->crossing[best])
            best = at;
    return PL_MAX(best, after);
}

/* Decides which nodes of [from, to) run again. */
static void mark(struct pl_tape *tape, struct cut *cut, size_t from, size_t to)
{
    for (size_t i = to; i-- > from;) {
        const struct pl_node *node = &tape->nodes[i];

        if (!pl_node_runs(node, false) || node->fusion.product || node->op->state_inputs ||
            node->op->collective || !pl_dtype_is_real(node->out->dtype) || cut->last_use[i] >= to ||
            is_root(tape, node->out) || !(cut->needed[i] || (node->back && node->saved_bytes)))
            continue;
        tape->again[i].before = to;
        for (size_t k = 0; k < node->n_in; k++)
            if (maker(tape, node->in[k]) != SIZE_MAX)
                cut->needed[maker(tape, node->in[k])] = true;
    }
}

int pl_tape_plan_again(struct pl_tape *tape, size_t segments)
{
    size_t n = tape->n, from = 0;
    _cleanup_free_ size_t *last_use = calloc(n + 2, sizeof(*last_use));
    _cleanup_free_ bool *needed = calloc(n + 2, sizeof(*needed));
    _cleanup_free_ double *crossing = calloc(n + 2, sizeof(*crossing));
    struct pl_tape_again *again = reallocarray(tape->again, n + 1, sizeof(*again));
    struct cut cut = {n, last_use, needed, crossing};

    if (again)
        tape->again = again;
    if (!last_use || !needed || !crossing || !again)
        return -ENOMEM;
    memset(again, 0, (n + 1) * sizeof(*again));
    find_uses(tape, &cut);
    for (size_t s = 1; s < segments; s++) {
        size_t to = border(&cut, s, segments, from);

        mark(tape, &cut, from, to);
        from = to;
    }
    return 0;
}

void pl_tape_switch_again(struct pl_tape *tape, size_t before, bool again)
{
    for (size_t i = 0; i < tape->n && tape->again; i++) {
        struct pl_tape_again *a = &tape->again[i];

        if (!a->before || (before && a->before != before))
            continue;
        tape->nodes[i].out->data = a->data[again];
        tape->nodes[i].saved = a->saved[again];
        tape->nodes[i].scratch[0] = a->scratch[again];
    }
}
