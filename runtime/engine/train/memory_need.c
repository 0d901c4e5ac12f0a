/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/memory_need.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/eval.h"

#include <math.h>
#include <sys/resource.h>

/* Plans a lane's tapes on a full batch, without memory. */
static int measure_lane(struct pl_stage *stage,
                        struct pl_lane *lane,
                        plume_tensor **loss,
                        struct pl_error *err)
{
    int r = pl_lane_trace(stage, lane, pl_loader_dry(&stage->loader), loss, err);

    for (unsigned i = 0; i < lane->parts.n_tapes; i++)
        lane->parts.list[i].tape.measures = true;
    if (r == 0)
        r = pl_parts_prepare(&lane->parts, &lane->outputs, loss ? *loss : NULL, err);
    for (unsigned i = 0; i < lane->parts.n_tapes; i++)
        lane->parts.list[i].tape.measures = false;
    return r;
}

static double tapes_of(const struct pl_lane *lane)
{
    double sum = 0;

    for (unsigned i = 0; i < lane->parts.n_tapes; i++)
        sum += (double)lane->parts.list[i].tape.memory_bytes;
    return sum;
}

/* With --shard param: what the tape of a lane gathers at a time. */
static int gathered_by(struct pl_trainer *t,
                       const struct pl_lane *lane,
                       struct pl_memory_need *need,
                       struct pl_error *err)
{
    struct pl_unit_plan plan = {0};
    int r =
        t->ctx.params.units ? pl_unit_plan_make(&t->units, &plan, &lane->parts.root->tape, err) : 0;

    need->gathered = fmax(need->gathered, (double)plan.bytes);
    pl_unit_plan_finish(&plan);
    return r;
}

static int measure_training(struct pl_trainer *t,
                            unsigned optimizer_idx,
                            struct pl_memory_need *need,
                            struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    struct pl_lane *lane = &stage->lanes[optimizer_idx];
    const struct pl_tape *tapes[PL_PARTS_MAX + 1];
    plume_tensor *loss = NULL;
    size_t places = 0;
    int r;

    pl_stage_enter_lane(stage, &t->optimizers, optimizer_idx);
    r = measure_lane(stage, lane, &loss, err);
    if (r == 0)
        r = gathered_by(t, lane, need, err);
    if (r < 0)
        return r;
    pl_unused_params_reset(&t->ctx.params);
    pl_unused_params_find(&t->ctx.params, tapes, pl_parts_tapes(&lane->parts, tapes));
    r = pl_reducer_measure(&lane->reducer, &places, err);
    pl_unused_params_reset(&t->ctx.params);
    need->grads += (double)places;
    need->step += tapes_of(lane);
    for (unsigned i = 0; i < lane->parts.n_tapes; i++)
        need->unshared += (double)lane->parts.list[i].tape.unshared_bytes;
    return r;
}

static int measure_evaluation(struct pl_trainer *t,
                              enum plume_stage kind,
                              struct pl_memory_need *need,
                              struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[kind];
    int r;

    if (!stage->present || pl_eval_batches(t, kind) == 0)
        return 0;
    r = measure_lane(stage, &stage->lanes[0], NULL, err);
    if (r == 0)
        r = gathered_by(t, &stage->lanes[0], need, err);
    need->evaluation += tapes_of(&stage->lanes[0]);
    return r;
}

/* Adds the arrays that are allocated before the first step. */
static void add_built(const struct pl_trainer *t, struct pl_memory_need *need)
{
    const struct pl_params *params = &t->ctx.params;
    double size = (double)pl_real_size(params->real);
    double held = size * (double)pl_params_held(params);

    need->params = held;
    need->grads = size * (double)(params->count - params->flags +
                                  (pl_params_shard_grads(params) ? params->own_to - params->own_from
                                                                 : params->flags));
    need->grads += (t->strategy.devices - 1) * size * (double)params->count; /* of other parts */
    for (size_t i = 0; i < t->optimizers.n; i++)
        need->state += size * (double)t->optimizers.list[i].count *
                       (double)pl_optimizer_slots(&t->optimizers.list[i]);
    if (t->ema.params)
        need->average = held;
    if (t->ema.params)
        need->spare = fmin(held, PL_EMA_SPARE_BYTES);
    for (size_t i = 0; i < params->n_buffers; i++)
        need->buffers += (double)(params->buffers[i].tensor->count *
                                  pl_dtype_size(params->buffers[i].tensor->dtype));
    for (int kind = 0; !params->dev->ops->host && kind < 3; kind++)
        for (size_t i = 0; t->stage[kind].present && i < t->stage[kind].loader.batch.n_fields;
             i++) {
            const struct pl_loader *loader = &t->stage[kind].loader;

            need->batches += (double)(loader->options.batch_size * loader->elements[i] *
                                      pl_dtype_size(loader->fields[i].dtype));
        }
}

int pl_memory_need(struct pl_trainer *trainer, struct pl_memory_need *ret, struct pl_error *err)
{
    struct pl_stage *stage = &trainer->stage[PLUME_TRAIN];
    struct pl_memory_need need = {0};
    int r = 0;

    add_built(trainer, &need);
    for (unsigned i = 0; i < stage->n_lanes && r == 0; i++)
        r = measure_training(trainer, i, &need, err);
    pl_stage_enter_lane(stage, &trainer->optimizers, 0);
    for (int kind = PLUME_VALIDATE; kind <= PLUME_TEST && r == 0; kind++)
        r = measure_evaluation(trainer, (enum plume_stage)kind, &need, err);
    need.all = need.params + need.gathered + need.grads + need.state + need.average + need.spare +
               need.buffers + need.step + need.evaluation + need.batches;
    *ret = need;
    return r;
}

double pl_memory_limit(struct pl_trainer *trainer)
{
    double pages = (double)sysconf(_SC_PHYS_PAGES), page = (double)sysconf(_SC_PAGESIZE);
    double limit = INFINITY;
    struct rlimit space;

    if (!trainer->dev->ops->host) {
        struct pl_device_memory memory = {0};

        trainer->dev->ops->memory(trainer->dev, &memory);
        return memory.total ? (double)memory.total : INFINITY;
    }
    if (pages > 0 && page > 0)
        limit = pages * page / PL_MAX(trainer->comm->world.local_size, 1u);
    for (int i = 0; i < 2; i++)
        if (getrlimit(i ? RLIMIT_AS : RLIMIT_DATA, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
            limit = fmin(limit, (double)space.rlim_cur);
    return limit;
}

const char *pl_memory_text(double bytes, char ret[PL_MEMORY_TEXT])
{
    if (isinf(bytes))
        snprintf(ret, PL_MEMORY_TEXT, "an unknown size");
    else if (bytes >= 1e9)
        snprintf(ret, PL_MEMORY_TEXT, "%.1f GB", bytes * 1e-9);
    else
        snprintf(ret, PL_MEMORY_TEXT, "%.1f MB", bytes * 1e-6);
    return ret;
}
