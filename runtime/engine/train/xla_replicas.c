/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/xla_replicas.h"

#include <string.h>

static int open_peer(struct pl_xla_peer *peer,
                     unsigned k,
                     struct pl_stage *stage,
                     struct pl_context *ctx,
                     struct pl_error *err)
{
    struct pl_loader_options options = stage->loader.options;
    unsigned first = ctx->share;
    int r;

    options.rank = ctx->share = first + k;
    r = pl_loader_open(&peer->loader, &stage->loader.data, &options, err);
    if (r == 0)
        r = pl_lane_init(stage, &peer->lane, 0, err);
    ctx->share = first;
    if (r < 0)
        return r;
    /* The dry step of replica 0 has found the names. */
    peer->lane.parts.root->logs = *pl_stage_logs(stage);
    return 0;
}

int pl_xla_replicas_open(struct pl_xla_replicas *replicas,
                         unsigned n,
                         struct pl_stage *stages,
                         struct pl_context *ctx,
                         struct pl_error *err)
{
    int r = 0;

    replicas->n = n;
    for (size_t s = 0; s < PL_COUNT(replicas->peer) && n > 1 && r == 0; s++) {
        if (!stages[s].present)
            continue;
        replicas->peer[s] = calloc(n - 1, sizeof(*replicas->peer[s]));
        if (!replicas->peer[s])
            return pl_error_nomem(err);
        for (unsigned k = 1; k < n && r == 0; k++)
            r = open_peer(&replicas->peer[s][k - 1], k, &stages[s], ctx, err);
    }
    return r;
}

void pl_xla_replicas_finish(struct pl_xla_replicas *replicas)
{
    for (size_t s = 0; s < PL_COUNT(replicas->peer); s++) {
        for (unsigned k = 1; replicas->peer[s] && k < replicas->n; k++) {
            pl_loader_finish(&replicas->peer[s][k - 1].loader);
            pl_parts_finish(&replicas->peer[s][k - 1].lane.parts);
        }
        free(replicas->peer[s]);
    }
    *replicas = (struct pl_xla_replicas){0};
}

/* The loader is where replica 0's was before its running batch, or goes there. */
static void catch_up(struct pl_loader *peer, const struct pl_loader *first)
{
    if (peer->epoch == first->epoch && peer->batch.index + 1 == first->batch.index)
        return;
    pl_loader_begin(peer, first->epoch, (size_t)first->batch.index);
}

int pl_xla_replicas_follow(struct pl_xla_replicas *replicas,
                           const struct pl_stage *stage,
                           struct pl_error *err)
{
    int r = 0;

    for (unsigned k = 1; k < replicas->n && r == 0; k++) {
        struct pl_xla_peer *peer = &replicas->peer[stage->kind][k - 1];

        peer->batch = NULL;
        if ((uint64_t)stage->loader.batch.index >= pl_stage_batches(stage, &peer->loader))
            continue;
        catch_up(&peer->loader, &stage->loader);
        peer->batch = pl_loader_next(&peer->loader);
        r = peer->batch ? 0 : pl_loader_result(&peer->loader, err);
    }
    return r;
}

struct pl_lane *
pl_xla_replicas_lane(struct pl_xla_replicas *replicas, const struct pl_stage *stage, unsigned k)
{
    return k ? &replicas->peer[stage->kind][k - 1].lane : &stage->lanes[0];
}

const struct plume_batch *pl_xla_replicas_batch(const struct pl_xla_replicas *replicas,
                                                const struct pl_stage *stage,
                                                const struct plume_batch *first,
                                                unsigned k)
{
    return k ? replicas->peer[stage->kind][k - 1].batch : first;
}
