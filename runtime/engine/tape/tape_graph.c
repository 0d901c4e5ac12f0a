/* SPDX-License-Identifier: MIT */
/* Replaying a tape. The device work of a segment of nodes is captured into a graph (device.h) after
 * it has run twice with the same key, and replayed from then on. The first runs are plain: they
 * create what is created once (library plans, workspaces, kernel modules).
 *
 * The key holds the nodes, the direction, and every kernel argument that may differ between two
 * runs of one plan: addresses of leaves (parameters, batches), the add flags, the seed, the rows of
 * a microbatch. Numbers that change every step are in device memory and are written before the run:
 * the gradient of the loss (its scale), and dropout's counter (`device_step`).
 *
 * A batch of another size makes another plan, and the next full one makes the first plan again. So
 * the graphs of the last plans are kept. A plan is known by all that its kernels' arguments come
 * from (tape_identity.c): nodes, shapes, addresses. */
#include "common/base/log.h"
#include "runtime/engine/tape/tape_private.h"

#include <stdatomic.h>
#include <string.h>

#define PLANS_MAX 4   /* whose graphs are kept; another one takes the place of the oldest */
#define GRAPHS_MAX 64 /* per plan; further segments run without graphs */
#define PLAIN_RUNS 2  /* before a graph is captured */
#define LEAST_NODES 2 /* minimum for which a graph is worth its launch */
#define KEY_FIXED 6   /* words before those of the leaves */

struct segment {
    uint64_t *key;
    size_t n_key;
    unsigned runs;                 /* without a graph */
    struct pl_device_graph *graph; /* NULL: not captured */
};

/* Of one plan. */
struct plan {
    struct pl_words what; /* the plan; empty: the place is free */
    const void *memory;   /* the tape's */
    uint64_t used;        /* the tape's `plans`, when it was in use last */
    bool refused;         /* a capture has failed: no more with this plan */
    bool reads_step;      /* some node reads the counter */
    struct segment list[GRAPHS_MAX];
    size_t n;
};

struct pl_tape_graphs {
    struct plan plans[PLANS_MAX];
    struct plan *now; /* the tape's plan; NULL: it has no graphs */
    uint64_t number;  /* the tape's `plans` that `now` belongs to */
    uint64_t *step;   /* the counter on the device; NULL until needed */
    uint64_t *key;    /* of the current run */
    size_t key_cap;
};

/* Frees the place of a plan. */
static void drop(struct pl_tape *tape, struct plan *plan)
{
    for (size_t i = 0; i < plan->n; i++) {
        tape->dev->ops->graph_free(tape->dev, plan->list[i].graph);
        free(plan->list[i].key);
    }
    free(plan->what.list);
    plan->what = (struct pl_words){0};
    plan->n = 0;
}

void pl_tape_graphs_finish(struct pl_tape *tape)
{
    struct pl_tape_graphs *g = tape->captured;

    if (!g)
        return;
    for (size_t i = 0; i < PLANS_MAX; i++)
        drop(tape, &g->plans[i]);
    pl_device_free(tape->dev, g->step);
    free(g->key);
    free(g);
    tape->captured = NULL;
    tape->device_step = NULL;
}

/* A process tells this once: its tapes, and parts of batches, mostly have the same reason. */
static void refuse(struct pl_tape *tape, const char *why)
{
    static atomic_bool told;

    if (!atomic_exchange(&told, true))
        pl_log_warn("tape", "%s: steps are not replayed as graphs, which is slower: %s",
                    tape->dev->name, why);
    tape->captured->now->refused = true;
    pl_log_debug("tape", "%s: no graphs of this plan: %s", tape->dev->name, why);
}

/* The plan that these words are of; else a place for it. Graphs of memory that the tape no longer
 * has are dropped. */
static struct plan *find_plan(struct pl_tape *tape, const struct pl_words *what)
{
    struct plan *oldest = tape->captured->plans;

    for (struct plan *p = tape->captured->plans; p < tape->captured->plans + PLANS_MAX; p++) {
        if (p->what.n && p->memory != tape->memory)
            drop(tape, p);
        if (p->what.n == what->n &&
            memcmp(p->what.list, what->list, what->n * sizeof(*what->list)) == 0)
            return p;
        if (oldest->what.n && (!p->what.n || p->used < oldest->used))
            oldest = p;
    }
    drop(tape, oldest);
    return oldest;
}

/* Finds the graphs of the tape's plan, which has changed. */
static void follow_plan(struct pl_tape *tape)
{
    struct pl_tape_graphs *g = tape->captured;
    struct pl_words what = {0};
    struct pl_error err = {0};

    if (g->number == tape->plans)
        return;
    g->number = tape->plans;
    g->now = NULL;
    pl_tape_identity(tape, &what);
    if (what.bad) {
        free(what.list);
        return;
    }
    g->now = find_plan(tape, &what);
    g->now->used = tape->plans;
    if (g->now->what.n) {
        free(what.list);
        return;
    }
    g->now->what = what;
    g->now->memory = tape->memory;
    g->now->refused = g->now->reads_step = false;
    for (size_t i = 0; i < tape->n; i++)
        g->now->reads_step |= tape->nodes[i].op->reads_step;
    if (g->now->reads_step && !g->step &&
        pl_device_alloc(tape->dev, sizeof(*g->step), "dropout's counter", (void **)&g->step, &err) <
            0)
        refuse(tape, pl_error_text(&err));
}

void pl_tape_graphs_begin(struct pl_tape *tape)
{
    tape->device_step = NULL;
    if (!tape->graphs || tape->timed || !tape->dev->ops->capture_begin)
        return;
    if (!tape->captured)
        tape->captured = calloc(1, sizeof(*tape->captured));
    if (!tape->captured)
        return;
    follow_plan(tape);
    if (!pl_tape_graphs_usable(tape) || !tape->captured->now->reads_step)
        return;
    pl_device_upload(tape->dev, tape->captured->step, &tape->step, sizeof(tape->step));
    tape->device_step = tape->captured->step;
}

bool pl_tape_graphs_usable(const struct pl_tape *tape)
{
    const struct pl_tape_graphs *g = tape->captured;

    return g && g->now && !g->now->refused && g->number == tape->plans && tape->graphs &&
           !tape->timed;
}

static size_t node_at(size_t first, size_t k, const struct pl_backward *backward)
{
    return backward ? first - k : first + k;
}

/* The input, or its gradient, is not in the plan's memory. */
static bool is_from_outside(const struct pl_tape *tape, const struct pl_node *node, size_t i)
{
    return node->in[i] && (pl_tape_is_leaf(tape, pl_tensor_root(node->in[i])) ||
                           (node->fusion.wide & PL_NEEDS_IN(i)));
}

/* Appends the addresses of a node's inputs that are not in the plan's memory; returns their number.
 */
static size_t leaves_of(const struct pl_tape *tape,
                        size_t index,
                        const struct pl_backward *backward,
                        uint64_t *to)
{
    const struct pl_node *node = &tape->nodes[index];
    struct pl_call call;
    bool any = false;
    size_t n = 0;

    for (size_t i = 0; i < node->n_in; i++)
        any |= is_from_outside(tape, node, i);
    if (!any && !(backward && node->fusion.bias_of))
        return 0;
    pl_node_bind(tape, index, backward != NULL, &call);
    if (backward && node->fusion.bias_of)
        to[n++] = (uintptr_t)call.sums;
    for (size_t i = 0; i < node->n_in; i++) {
        if (!is_from_outside(tape, node, i))
            continue;
        to[n++] = (uintptr_t)call.in[i];
        if (backward)
            to[n++] = (uintptr_t)call.in_grad[i];
    }
    return n;
}

/* Of a node, and of a layer that it does on the way. */
static size_t add_leaves(const struct pl_tape *tape,
                         size_t index,
                         const struct pl_backward *backward,
                         uint64_t *to)
{
    const struct pl_node *node = &tape->nodes[index];
    size_t n = pl_node_runs(node, backward != NULL) ? leaves_of(tape, index, backward, to) : 0;

    if (!backward && node->fusion.product)
        n += leaves_of(tape, node->fusion.product - 1, NULL, to + n);
    return n;
}

/* Writes the key into g->key. Returns its words; 0 if out of memory, or if a graph is not worth it.
 */
static size_t
make_key(struct pl_tape *tape, size_t first, size_t n, const struct pl_backward *backward)
{
    struct pl_tape_graphs *g = tape->captured;
    size_t most = KEY_FIXED, at = 0, kernels = 0;

    for (size_t k = 0; k < n; k++) {
        size_t product = tape->nodes[node_at(first, k, backward)].fusion.product;

        most += 2 * tape->nodes[node_at(first, k, backward)].n_in + 1;
        most += product ? 2 * tape->nodes[product - 1].n_in : 0;
        kernels += pl_node_runs(&tape->nodes[node_at(first, k, backward)], backward != NULL);
    }
    if (kernels < LEAST_NODES)
        return 0;
    if (most > g->key_cap) {
        uint64_t *key = reallocarray(g->key, most, sizeof(*key));

        if (!key)
            return 0;
        g->key = key;
        g->key_cap = most;
    }
    g->key[at++] = (uint64_t)(backward != NULL) << 1 | (backward && backward->accumulate);
    g->key[at++] = first;
    g->key[at++] = n;
    g->key[at++] = tape->seed;
    g->key[at++] = tape->first_row;
    g->key[at++] = tape->rows;
    for (size_t k = 0; k < n; k++)
        at += add_leaves(tape, node_at(first, k, backward), backward, g->key + at);
    return at;
}

/* The segment of g->key, which is added if new; NULL: run it without a graph. */
static struct segment *find(struct pl_tape_graphs *g, size_t n_key)
{
    struct plan *plan = g->now;
    struct segment *s;

    for (size_t i = 0; i < plan->n; i++)
        if (plan->list[i].n_key == n_key &&
            memcmp(plan->list[i].key, g->key, n_key * sizeof(*g->key)) == 0)
            return &plan->list[i];
    if (plan->n == GRAPHS_MAX)
        return NULL;
    s = &plan->list[plan->n];
    *s = (struct segment){.key = calloc(n_key, sizeof(*s->key)), .n_key = n_key};
    if (!s->key)
        return NULL;
    memcpy(s->key, g->key, n_key * sizeof(*s->key));
    if (++plan->n == GRAPHS_MAX)
        pl_log_debug("tape", "no more than %d graphs of one plan", GRAPHS_MAX);
    return s;
}

/* Captures a graph. If that fails, nothing has run. */
static bool capture(struct pl_tape *tape,
                    struct segment *s,
                    size_t first,
                    size_t n,
                    const struct pl_backward *backward,
                    pl_tape_run_fn *run)
{
    const struct pl_device_ops *ops = tape->dev->ops;
    struct pl_error err = {0}, why = {0};
    int r = ops->capture_begin(tape->dev, &err);

    if (r == 0) {
        int ran = run(tape, first, n, backward, &why);

        r = ops->capture_end(tape->dev, &s->graph, &err);
        if (r == 0 &&
            ran < 0) { /* cannot happen: nodes with collectives are segments of their own */
            ops->graph_free(tape->dev, s->graph);
            s->graph = NULL;
            r = pl_error_set(&err, ran, "%s", pl_error_text(&why));
        }
        tape->failed = 0;
    }
    if (r < 0)
        refuse(tape, pl_error_text(&err));
    else
        pl_log_debug("tape", "%s: captured ops %zu to %zu %s, replayed from now on",
                     tape->dev->name, first, node_at(first, n - 1, backward),
                     !backward              ? "forward"
                     : backward->accumulate ? "backward, adding"
                                            : "backward");
    return r == 0;
}

static bool replay(struct pl_tape *tape, struct segment *s)
{
    if (tape->dev->ops->replay(tape->dev, s->graph) == 0)
        return true;
    pl_log_debug("tape", "%s: a graph is dropped: a workspace has moved", tape->dev->name);
    tape->dev->ops->graph_free(tape->dev, s->graph);
    s->graph = NULL;
    return false;
}

int pl_tape_graphs_run(struct pl_tape *tape,
                       size_t first,
                       size_t n,
                       const struct pl_backward *backward,
                       pl_tape_run_fn *run,
                       struct pl_error *err)
{
    size_t n_key = pl_tape_graphs_usable(tape) ? make_key(tape, first, n, backward) : 0;
    struct segment *s = n_key ? find(tape->captured, n_key) : NULL;

    if (s && s->graph && replay(tape, s))
        return 0;
    if (s && s->runs >= PLAIN_RUNS && capture(tape, s, first, n, backward, run) && replay(tape, s))
        return 0;
    if (s && s->runs < PLAIN_RUNS)
        s->runs++;
    return run(tape, first, n, backward, err);
}
