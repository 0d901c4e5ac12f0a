/* SPDX-License-Identifier: MIT */
/* Replaying a tape: what a segment of its nodes asks of the device is captured into a graph
 * (device.h) once it has run twice in the same way, and replayed from then on. The first runs are
 * plain, so that what is made once - plans of libraries, workspaces, modules of kernels - is there.
 *
 * "The same way" is a key: the nodes, the direction, and all that is an argument of their kernels
 * and may differ between two runs of one plan: addresses of leaves (parameters, batches), where
 * gradients are added, the seed. The plan's own addresses change with the plan only, which drops
 * all graphs. What changes from step to step is in the device's memory and written before the run:
 * the gradient of the loss (its scale), and dropout's counter (`device_step`). */
#include "common/base/log.h"
#include "runtime/engine/tape/tape_private.h"

#include <string.h>

#define GRAPHS_MAX 64 /* of a plan; what comes later runs plainly */
#define PLAIN_RUNS 2  /* before a graph is captured */
#define LEAST_NODES 2 /* for which a graph is worth its launch */
#define KEY_FIXED 4   /* words in front of the leaves' */

struct segment {
    uint64_t *key;
    size_t n_key;
    unsigned runs;                 /* without a graph */
    struct pl_device_graph *graph; /* NULL: none yet */
};

struct pl_tape_graphs {
    uint64_t plan;   /* that the rest is about: the tape's `plans` */
    bool refused;    /* a capture has failed: not again with this plan */
    bool reads_step; /* there are nodes that read the counter */
    uint64_t *step;  /* the counter on the device; NULL until it is needed */
    struct segment list[GRAPHS_MAX];
    size_t n;
    uint64_t *key; /* of the run that is asked for */
    size_t key_cap;
};

static void drop(struct pl_tape *tape)
{
    struct pl_tape_graphs *g = tape->captured;

    for (size_t i = 0; i < g->n; i++) {
        tape->dev->ops->graph_free(tape->dev, g->list[i].graph);
        free(g->list[i].key);
    }
    g->n = 0;
}

void pl_tape_graphs_finish(struct pl_tape *tape)
{
    struct pl_tape_graphs *g = tape->captured;

    if (!g)
        return;
    drop(tape);
    pl_device_free(tape->dev, g->step);
    free(g->key);
    free(g);
    tape->captured = NULL;
    tape->device_step = NULL;
}

static void refuse(struct pl_tape *tape, const char *why)
{
    tape->captured->refused = true;
    pl_log_debug("tape", "%s: no graphs of this plan: %s", tape->dev->name, why);
}

/* Forgets what was about an older plan. */
static void follow_plan(struct pl_tape *tape)
{
    struct pl_tape_graphs *g = tape->captured;
    struct pl_error err = {0};

    if (g->plan == tape->plans)
        return;
    drop(tape);
    g->plan = tape->plans;
    g->refused = g->reads_step = false;
    for (size_t i = 0; i < tape->n; i++)
        g->reads_step |= tape->nodes[i].op->reads_step;
    if (g->reads_step && !g->step &&
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
    if (!tape->captured->reads_step || tape->captured->refused)
        return;
    pl_device_upload(tape->dev, tape->captured->step, &tape->step, sizeof(tape->step));
    tape->device_step = tape->captured->step;
}

bool pl_tape_graphs_usable(const struct pl_tape *tape)
{
    return tape->captured && !tape->captured->refused && tape->captured->plan == tape->plans &&
           tape->graphs && !tape->timed;
}

static size_t node_at(size_t first, size_t k, const struct pl_backward *backward)
{
    return backward ? first - k : first + k;
}

static bool runs(const struct pl_node *node, const struct pl_backward *backward)
{
    return backward ? node->back : !node->op->view;
}

/* Addresses of a node's inputs that the plan has not placed; returns their number. */
static size_t add_leaves(const struct pl_tape *tape,
                         size_t index,
                         const struct pl_backward *backward,
                         uint64_t *to)
{
    const struct pl_node *node = &tape->nodes[index];
    struct pl_call call;
    bool any = false;
    size_t n = 0;

    for (size_t i = 0; i < node->n_in && runs(node, backward); i++)
        any |= node->in[i] && pl_tensor_root(node->in[i])->tape != tape;
    if (!any)
        return 0;
    pl_node_bind(tape, index, backward != NULL, &call);
    for (size_t i = 0; i < node->n_in; i++) {
        if (!node->in[i] || pl_tensor_root(node->in[i])->tape == tape)
            continue;
        to[n++] = (uintptr_t)call.in[i];
        if (backward)
            to[n++] = (uintptr_t)call.in_grad[i];
    }
    return n;
}

/* The key into g->key; 0 words where there is no memory, or too few nodes for a graph. */
static size_t
make_key(struct pl_tape *tape, size_t first, size_t n, const struct pl_backward *backward)
{
    struct pl_tape_graphs *g = tape->captured;
    size_t most = KEY_FIXED, at = 0, kernels = 0;

    for (size_t k = 0; k < n; k++) {
        most += 2 * tape->nodes[node_at(first, k, backward)].n_in;
        kernels += runs(&tape->nodes[node_at(first, k, backward)], backward);
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
    for (size_t k = 0; k < n; k++)
        at += add_leaves(tape, node_at(first, k, backward), backward, g->key + at);
    return at;
}

/* Where the graph for g->key is, or is to be; NULL: it runs plainly. */
static struct segment *find(struct pl_tape_graphs *g, size_t n_key)
{
    struct segment *s;

    for (size_t i = 0; i < g->n; i++)
        if (g->list[i].n_key == n_key &&
            memcmp(g->list[i].key, g->key, n_key * sizeof(*g->key)) == 0)
            return &g->list[i];
    if (g->n == GRAPHS_MAX)
        return NULL;
    s = &g->list[g->n];
    *s = (struct segment){.key = calloc(n_key, sizeof(*s->key)), .n_key = n_key};
    if (!s->key)
        return NULL;
    memcpy(s->key, g->key, n_key * sizeof(*s->key));
    if (++g->n == GRAPHS_MAX)
        pl_log_debug("tape", "no more than %d graphs of one plan", GRAPHS_MAX);
    return s;
}

/* Nothing has run then. */
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
        if (r == 0 && ran < 0) { /* cannot be: nodes that meet stand alone */
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
    pl_log_debug("tape", "%s: a graph is of no more use: a workspace has moved", tape->dev->name);
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
