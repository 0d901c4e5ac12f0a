/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/tensor_parallel.h"
#include "runtime/engine/comm/comm_gpu.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/unused_params.h"

#include <string.h>

static int sum(void *ctx, void *buf, size_t count, enum pl_real real, struct pl_error *err)
{
    const struct pl_tensor_parallel *tp = ctx;

    return pl_comm_allreduce_on(tp->peers, tp->dev, buf, count, real, err);
}

/* The node and the place in it of each rank. */
struct place {
    unsigned node, local;
};

/* The number of a rank's group. Its first rank is that with the lowest number. */
static unsigned group_of(const struct place *places, unsigned rank, unsigned k)
{
    const struct place *mine = &places[rank];
    unsigned group = 0, first = rank;

    for (unsigned i = 0; i < rank; i++)
        if (places[i].node == mine->node && places[i].local / k == mine->local / k)
            first = PL_MIN(first, i);
    for (unsigned i = 0; i < first; i++) {
        bool is_first = true;

        for (unsigned j = 0; j < i; j++)
            is_first &=
                places[j].node != places[i].node || places[j].local / k != places[i].local / k;
        group += is_first;
    }
    return group;
}

static int find_group(struct pl_tensor_parallel *tp, unsigned k, struct pl_error *err)
{
    struct pl_comm *world = tp->world;
    _cleanup_free_ struct place *places = calloc(world->size, sizeof(*places));
    _cleanup_free_ size_t *offset = calloc((size_t)world->size + 1, sizeof(*offset));
    bool fits;
    int r = pl_comm_agree(world, world->world.local_size % k == 0, &fits, err);

    if (r < 0)
        return r;
    if (!fits)
        return pl_error_set(err, -EINVAL,
                            "--tensor-parallel %u is inside a node: start a multiple of %u ranks "
                            "on each node",
                            k, k);
    if (!places || !offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= world->size; i++)
        offset[i] = i * sizeof(*places);
    places[world->rank] = (struct place){world->world.node, world->world.local_rank};
    r = pl_comm_allgather(world, places, offset, err);
    tp->group = r == 0 ? group_of(places, world->rank, k) : 0;
    return r;
}

static int join_gpu(struct pl_tensor_parallel *tp, struct pl_comm *comm, struct pl_error *err)
{
    return comm && tp->world->gpu ? pl_comm_gpu_create(comm, tp->dev, true, err) : 0;
}

int pl_tensor_parallel_open(struct pl_tensor_parallel *tp,
                            const struct pl_strategy *strategy,
                            struct pl_comm *world,
                            struct pl_device *dev,
                            struct pl_error *err)
{
    unsigned k = strategy->tensor_parallel;
    int r;

    *tp = (struct pl_tensor_parallel){.world = world, .dev = dev};
    if (k < 2)
        return 0;
    tp->on = true;
    tp->n_groups = world->size / k;
    r = find_group(tp, k, err);
    if (r < 0)
        return r;
    r = pl_comm_split(world, (int)tp->group, (int)world->rank, &tp->peers, err);
    if (r == 0)
        r = pl_comm_split(world, (int)tp->peers->rank, (int)tp->group, &tp->copies, err);
    if (r == 0)
        r = join_gpu(tp, tp->peers, err);
    if (r == 0)
        r = join_gpu(tp, tp->copies, err);
    tp->sum = (struct pl_tape_peers){.sum = sum, .ctx = tp};
    if (r == 0) {
        tp->peers->ordered = tp->copies->ordered = world->ordered;
        tp->split.n = k;
        tp->split.rank = tp->peers->rank;
        tp->split.peers = &tp->sum;
    }
    return r < 0 ? pl_error_wrap(err, r, "while joining the ranks of --tensor-parallel") : 0;
}

int pl_tensor_parallel_join(struct pl_tensor_parallel *tp,
                            bool first,
                            const struct pl_comm *copy,
                            struct pl_comm **ret,
                            struct pl_error *err)
{
    int r = 0;

    if (!copy) {
        *ret = tp->peers;
    } else if (copy->size * tp->split.n == tp->world->size) {
        *ret = tp->world;
    } else {
        r = pl_comm_split(tp->world, first ? 0 : 1, (int)tp->world->rank, &tp->savers, err);
        *ret = tp->savers;
    }
    return r;
}

static void close_comm(const struct pl_tensor_parallel *tp, struct pl_comm *comm)
{
    if (comm)
        pl_comm_gpu_destroy(comm, tp->failed[0] ? tp->failed : NULL);
    pl_comm_destroy(comm);
}

void pl_tensor_parallel_finish(struct pl_tensor_parallel *tp)
{
    close_comm(tp, tp->savers);
    close_comm(tp, tp->copies);
    close_comm(tp, tp->peers);
    pl_split_finish(&tp->split);
    *tp = (struct pl_tensor_parallel){0};
}

void pl_tensor_parallel_fail(struct pl_tensor_parallel *tp, int r, const struct pl_error *err)
{
    struct pl_comm *list[] = {tp->world, tp->peers, tp->copies, tp->savers};

    if (!tp->on)
        return;
    if (r == -ECONNRESET)
        snprintf(tp->failed, sizeof(tp->failed), "%s", pl_error_text(err));
    else
        snprintf(tp->failed, sizeof(tp->failed), "rank %u gave up: %s",
                 tp->world->world_ranks[tp->world->rank], pl_error_text(err));
    for (size_t i = 0; i < PL_COUNT(list); i++) {
        if (list[i])
            list[i]->ops->abort(list[i], tp->failed);
        if (list[i] && list[i]->gpu)
            list[i]->gpu->ops->abort(list[i]->gpu, tp->failed);
    }
}

int pl_tensor_parallel_split(struct pl_tensor_parallel *tp,
                             struct pl_stage *stages,
                             struct pl_params *params,
                             struct pl_error *err)
{
    const struct pl_split_tape *tapes[3];
    size_t n = 0;
    int r = pl_split_init(&tp->split, params->n + params->n_buffers, err);

    for (int i = 0; i < 3; i++)
        if (stages[i].present)
            tapes[n++] = &stages[i].lanes[0].parts.list[0].traced;
    if (r == 0)
        r = pl_split_find(&tp->split, tapes, n, &tp->counts, err);
    if (r < 0)
        return r;
    if (tp->counts.split_linears == 0)
        return pl_error_set(
            err, -EINVAL,
            "--tensor-parallel %u finds nothing to split: it needs a linear layer, elementwise ops "
            "or attention, and a linear layer again, whose sizes and heads are multiples of %u: "
            "leave it out",
            tp->split.n, tp->split.n);
    r = pl_param_parts_make(params, tp->peers, tp->split.params, tp->split.local, err);
    for (int i = 0; i < 3 && r == 0; i++)
        if (stages[i].present)
            r = pl_lane_split(&stages[i], &stages[i].lanes[0], NULL, err);
    return r;
}

int pl_tensor_parallel_share_flags(const struct pl_tensor_parallel *tp,
                                   struct pl_params *params,
                                   struct pl_error *err)
{
    int r = 0;

    if (tp->on)
        r = pl_comm_allreduce_on(tp->peers, tp->dev, params->flag_list,
                                 params->n + PL_PARAMS_SIGNALS, params->real, err);
    /* Look for a lost rank before the sums of this step are used. */
    if (r == 0 && tp->on && tp->peers->gpu)
        r = pl_comm_nccl_check(tp->peers->gpu, err);
    return r;
}

void pl_tensor_parallel_print(const struct pl_tensor_parallel *tp,
                              const struct pl_params *params,
                              FILE *out)
{
    const struct pl_split_counts *c = &tp->counts;
    double all = 0, part = 0;

    for (size_t i = 0; i < params->n; i++) {
        const struct pl_param *p = params->list[i];

        all += (double)p->whole->count;
        part += pl_param_is_split(p) ? (double)p->whole->count : 0;
    }
    fprintf(out, "tensor parallel over %u ranks: %zu of %zu linear layers, ", tp->split.n,
            c->split_linears, c->linears);
    if (c->attentions)
        fprintf(out, "%zu of %zu attentions, ", c->split_attentions, c->attentions);
    fprintf(out, "%.0f %% of the parameters", 100 * part / all);
    if (c->indivisible)
        fprintf(out, "; %zu linear layers stay whole: %u does not divide their sizes or heads",
                c->indivisible, tp->split.n);
    fputc('\n', out);
    fflush(out);
}
