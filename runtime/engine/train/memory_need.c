/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/memory_need.h"
#include "common/base/log.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/eval.h"
#include "runtime/engine/train/pipe.h"

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
                                  (pl_params_shard_grads(params) || params->stages.n
                                       ? params->own_to - params->own_from
                                       : params->flags));
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->borrowed)
            need->borrowed += 2 * size * (double)params->list[i]->tensor->count;
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

/* ---- pipelines ---- */

/* Of a stage: bytes of its messages, by pl_pipe_messages(). */
struct messages {
    size_t most[PL_PIPE_MESSAGES];
};

/* Plans a microbatch's ops of this rank's stage, without memory. *ret: what so many slots of them
 * take. */
static int measure_slot(struct pl_pipe *pipe,
                        enum plume_stage kind,
                        size_t index,
                        size_t first,
                        size_t rows,
                        struct messages *messages,
                        struct pl_pipe_slot **ret,
                        struct pl_error *err)
{
    const struct plume_batch *dry = pl_loader_dry(&pipe->stages[kind].loader);
    size_t bytes[PL_PIPE_MESSAGES];
    int r = pl_pipe_slot(pipe, kind, index, ret, err);

    if (r < 0)
        return r;
    pl_stage_tape_open(&(*ret)->own, &(*ret)->lane.parts.root->tape);
    (*ret)->own.tape.measures = true;
    r = pl_pipe_begin(pipe, kind, *ret, dry, first, rows, err);
    (*ret)->own.tape.measures = false;
    if (r < 0)
        return r;
    pl_pipe_messages(&(*ret)->own, bytes);
    for (size_t i = 0; i < PL_PIPE_MESSAGES; i++)
        messages->most[i] = PL_MAX(messages->most[i], bytes[i]);
    return 0;
}

static void add_slots(struct pl_memory_need *need,
                      enum plume_stage kind,
                      const struct pl_stage_tape *own,
                      size_t slots)
{
    double bytes = (double)slots * (double)(own->tape.memory_bytes + own->leaves_cap);

    *(kind == PLUME_TRAIN ? &need->step : &need->evaluation) += bytes;
    if (kind == PLUME_TRAIN)
        need->unshared += (double)slots * (double)(own->tape.unshared_bytes + own->leaves_cap);
}

/* The slots that a stage has at a time, and one for a shorter last microbatch. */
static int measure_slots(struct pl_trainer *t,
                         enum plume_stage kind,
                         struct messages *messages,
                         struct pl_memory_need *need,
                         struct pl_error *err)
{
    struct pl_pipe *pipe = &t->pipe;
    struct pl_pipe_slot *slot;
    size_t rows, chunk, n, tail;
    int r;

    if (!t->stage[kind].present || (kind != PLUME_TRAIN && pl_eval_batches(t, kind) == 0))
        return 0;
    rows = chunk = pl_loader_dry(&t->stage[kind].loader)->rows;
    n = kind == PLUME_TRAIN ? pl_pipe_microbatches(pipe, rows, &chunk) : 1;
    tail = rows - (n - 1) * chunk;
    r = measure_slot(pipe, kind, 0, 0, chunk, messages, &slot, err);
    if (r == 0)
        add_slots(need, kind, &slot->own, PL_MIN(pl_pipe_in_flight(pipe, n), n - (tail < chunk)));
    if (r < 0 || tail == chunk)
        return r;
    r = measure_slot(pipe, kind, SIZE_MAX, (n - 1) * chunk, tail, messages, &slot, err);
    if (r == 0)
        add_slots(need, kind, &slot->own, 1);
    return r;
}

static int measure_pipe(struct pl_trainer *t, struct pl_memory_need *need, struct pl_error *err)
{
    struct messages messages = {0};
    int r = 0;

    for (int kind = PLUME_TRAIN; kind <= PLUME_TEST && r == 0; kind++)
        r = measure_slots(t, (enum plume_stage)kind, &messages, need, err);
    for (int i = 0; i < 2; i++) /* they may be larger: their links were timed with them */
        messages.most[i] = PL_MAX(messages.most[i], t->pipe.link[i].cap);
    for (size_t i = 0; i < PL_PIPE_MESSAGES; i++)
        need->messages += (double)messages.most[i];
    return r;
}

int pl_memory_need(struct pl_trainer *trainer, struct pl_memory_need *ret, struct pl_error *err)
{
    struct pl_stage *stage = &trainer->stage[PLUME_TRAIN];
    struct pl_memory_need need = {0};
    int r = 0;

    add_built(trainer, &need);
    if (trainer->pipe.on)
        r = measure_pipe(trainer, &need, err);
    for (unsigned i = 0; !trainer->pipe.on && i < stage->n_lanes && r == 0; i++)
        r = measure_training(trainer, i, &need, err);
    pl_stage_enter_lane(stage, &trainer->optimizers, 0);
    for (int kind = PLUME_VALIDATE; !trainer->pipe.on && kind <= PLUME_TEST && r == 0; kind++)
        r = measure_evaluation(trainer, (enum plume_stage)kind, &need, err);
    need.all = need.params + need.gathered + need.grads + need.state + need.average + need.spare +
               need.buffers + need.borrowed + need.messages + need.step + need.evaluation +
               need.batches;
    if (trainer->pipe.on) { /* the ops were measured before, which may have taken more */
        struct pl_device_memory memory;

        trainer->dev->ops->memory(trainer->dev, &memory);
        need.all = fmax(need.all, (double)memory.peak);
    }
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

/* The ranks' needs and limits, one after another. */
static int gather_needs(struct pl_trainer *t, double *all, struct pl_error *err)
{
    unsigned size = t->comm->size;
    _cleanup_free_ size_t *offset = calloc((size_t)size + 1, sizeof(*offset));
    struct pl_memory_need need;
    int r = offset ? pl_memory_need(t, &need, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    for (unsigned i = 0; i <= size; i++)
        offset[i] = i * 2 * sizeof(*all);
    all[2 * t->comm->rank] = need.all;
    all[2 * t->comm->rank + 1] = pl_memory_limit(t);
    return pl_comm_allgather(t->comm, all, offset, err);
}

int pl_memory_stages(struct pl_trainer *trainer, struct pl_error *err)
{
    struct pl_pipe *pipe = &trainer->pipe;
    unsigned size = trainer->comm->size;
    _cleanup_free_ double *all = calloc(size, 2 * sizeof(*all));
    char text[2][PL_MEMORY_TEXT];
    int r = all ? gather_needs(trainer, all, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    for (unsigned s = 0; s < pipe->n_stages; s++) {
        pipe->needs[s] = 0;
        pipe->limits[s] = INFINITY;
    }
    for (unsigned i = 0; i < size; i++) {
        unsigned s = i % pipe->n_stages;

        pipe->needs[s] = fmax(pipe->needs[s], all[2 * i]);
        pipe->limits[s] = fmin(pipe->limits[s], all[2 * i + 1]);
        if (trainer->comm->rank == 0 && all[2 * i] > all[2 * i + 1])
            pl_log_warn("train",
                        "rank %u, stage %u, needs %s of %s: choose more stages, more microbatches, "
                        "or a smaller batch",
                        i, s, pl_memory_text(all[2 * i], text[0]),
                        pl_memory_text(all[2 * i + 1], text[1]));
    }
    return 0;
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
