/* SPDX-License-Identifier: MIT */
#include "runtime/engine/optim/grad_graph.h"
#include "common/base/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN_RUNS 2 /* before a graph is captured: they allocate the kernels' scratch */

/* Another key takes the place of the old one, with its graph. False: out of memory. */
static bool
follow(struct pl_grad_graph *g, struct pl_device *dev, const uint64_t *key, size_t n_key)
{
    uint64_t *copy;

    if (g->n_key == n_key && memcmp(g->key, key, n_key * sizeof(*key)) == 0)
        return true;
    copy = malloc(n_key * sizeof(*copy));
    if (!copy)
        return false;
    memcpy(copy, key, n_key * sizeof(*copy));
    pl_grad_graph_finish(g, dev);
    g->key = copy;
    g->n_key = n_key;
    return true;
}

/* A process tells this once. */
static void refuse(struct pl_grad_graph *g, const struct pl_device *dev, const char *why)
{
    static atomic_bool told;

    if (!atomic_exchange(&told, true))
        pl_log_warn("optim", "%s: gradients are measured without a graph, which is slower: %s",
                    dev->name, why);
    g->refused = true;
}

/* If that fails, nothing has run. */
static bool
capture(struct pl_grad_graph *g, struct pl_device *dev, void (*run)(void *ctx), void *ctx)
{
    struct pl_error err = {0};
    int r = dev->ops->capture_begin(dev, &err);

    if (r == 0) {
        run(ctx);
        r = dev->ops->capture_end(dev, &g->graph, &err);
    }
    if (r < 0)
        refuse(g, dev, pl_error_text(&err));
    else
        pl_log_debug("optim", "%s: captured how gradients are measured, replayed from now on",
                     dev->name);
    return r == 0;
}

static bool replay(struct pl_grad_graph *g, struct pl_device *dev)
{
    if (dev->ops->replay(dev, g->graph) == 0)
        return true;
    dev->ops->graph_free(dev, g->graph); /* the kernels' scratch has moved */
    g->graph = NULL;
    return false;
}

void pl_grad_graph_run(struct pl_grad_graph *g,
                       struct pl_device *dev,
                       const uint64_t *key,
                       size_t n_key,
                       void (*run)(void *ctx),
                       void *ctx)
{
    bool may = !g->refused && dev->ops->capture_begin && follow(g, dev, key, n_key);

    if (may && g->graph && replay(g, dev))
        return;
    if (may && g->runs >= PLAIN_RUNS && capture(g, dev, run, ctx) && replay(g, dev))
        return;
    if (may && g->runs < PLAIN_RUNS)
        g->runs++;
    run(ctx);
}

void pl_grad_graph_finish(struct pl_grad_graph *g, struct pl_device *dev)
{
    if (g->graph)
        dev->ops->graph_free(dev, g->graph);
    free(g->key);
    *g = (struct pl_grad_graph){.refused = g->refused};
}
