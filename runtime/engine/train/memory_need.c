/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/memory_need.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/params/halves.h"
#include "runtime/engine/params/shard.h"
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

/* Elements of a slot: those that this rank has, or those of the stage that it plans. */
static size_t state_count(const struct pl_optimizer *o, const struct pl_params *params)
{
    size_t count = 0;

    if (!params->stages.n)
        return o->count;
    for (size_t i = 0; i < o->n_ranges; i++) {
        size_t from = PL_MAX(o->ranges[i].offset, params->own_from),
               to = PL_MIN(o->ranges[i].offset + o->ranges[i].count, params->own_to);

        count += to > from ? to - from : 0;
    }
    return count;
}

/* Ranks among which a node has the state once. Shards, which a plan may try, are parts already. */
static unsigned state_parts(const struct pl_params *params)
{
    return params->by_node && !params->shard ? pl_comm_node(params->by_node)->size : 1;
}

/* Adds the arrays that are allocated before the first step. */
static void add_built(const struct pl_trainer *t, struct pl_memory_need *need)
{
    const struct pl_params *params = &t->ctx.params;
    double size = (double)pl_real_size(params->real);
    double held = size * (double)pl_params_held(params);
    size_t own = params->shard ? params->own_to - params->own_from : SIZE_MAX;

    need->params = held + (double)pl_halves_bytes(params);
    need->grads = size * (double)(params->count - params->flags +
                                  (pl_params_shard_grads(params) || params->stages.n
                                       ? params->own_to - params->own_from
                                       : params->flags));
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->borrowers & (1ull << params->stages.own))
            need->borrowed += 2 * size * (double)params->list[i]->tensor->count;
    need->grads += (t->strategy.devices - 1) * size * (double)params->count; /* of other parts */
    if (params->evaluates)
        need->grads = 0;
    for (size_t i = 0; i < t->optimizers.n && !params->evaluates; i++)
        need->state += size * (double)PL_MIN(state_count(&t->optimizers.list[i], params), own) *
                       (double)pl_optimizer_slots(&t->optimizers.list[i]) / state_parts(params);
    if (t->ema.params)
        need->average = held;
    if (t->ema.params)
        need->spare = fmin(held, PL_EMA_SPARE_BYTES);
    need->spare += (double)pl_precision_round_bytes(t->options, params);
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
    (*ret)->lane.parts.root->tape.recompute = kind == PLUME_TRAIN && pipe->options->recompute;
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
    for (unsigned i = 0; i < 2; i++) /* they may be larger: their links were timed with them */
        if (i == PL_PIPE_PREVIOUS ? t->pipe.stage > 0 : t->pipe.stage + 1 < t->pipe.n_stages)
            messages.most[i] = PL_MAX(messages.most[i], (size_t)(2 * PL_PIPE_PROBE_BYTES));
    for (size_t i = 0; i < PL_PIPE_MESSAGES; i++)
        need->messages += (double)messages.most[i];
    return r;
}

/* Bytes that measuring the ops one by one takes: what has been taken, or with other options what
 * will be. An op's tensors become smaller with the microbatch; its parameters do not, nor do the
 * messages by which the links are timed. */
static double measured(struct pl_trainer *t)
{
    const struct pl_pipe *pipe = &t->pipe;
    size_t rows = pl_loader_dry(&t->stage[PLUME_TRAIN].loader)->rows, chunk = rows;
    unsigned links =
        (pipe->link[PL_PIPE_PREVIOUS].comm ? 1 : 0) + (pipe->link[PL_PIPE_NEXT].comm ? 1 : 0);
    double bytes = pipe->costs.measured_bytes, fixed = 0;
    struct pl_device_memory memory;

    if (pipe->options == t->options) {
        t->dev->ops->memory(t->dev, &memory);
        return (double)memory.peak;
    }
    for (size_t i = 0; i < t->ctx.params.n; i++)
        fixed = fmax(fixed, (double)t->ctx.params.list[i]->tensor->count);
    fixed =
        2 * fixed * (double)pl_real_size(t->ctx.params.real) + 2.0 * links * PL_PIPE_PROBE_BYTES;
    (void)pl_pipe_microbatches(pipe, rows, &chunk);
    return bytes <= fixed
               ? bytes
               : fixed + (bytes - fixed) * fmin(1, (double)chunk / (double)pipe->costs.rows);
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
    if (trainer->pipe.on) /* the ops are measured before, which may take more */
        need.all = fmax(need.all, measured(trainer));
    *ret = need;
    return r;
}

/* ---- with other options ---- */

/* The members of a trainer that other options change, to be put back. */
struct kept {
    size_t batch[3];
    bool recompute;
    struct {
        size_t segments[PL_PARTS_MAX];
        struct pl_reducer reducer;
    } lanes[PL_OPTIMIZERS_MAX];
    enum pl_shard_kind shard;
    size_t own_from, own_to;
    struct pl_units units, *used;
};

/* The batch, and recomputation. back: as they were. */
static void
set_tapes(struct pl_trainer *t, const struct pl_memory_as *as, struct kept *kept, bool back)
{
    struct pl_stage *train = &t->stage[PLUME_TRAIN];

    for (int kind = 0; as->batch && kind < 3; kind++) {
        size_t *rows = &t->stage[kind].loader.options.batch_size;

        if (!back)
            kept->batch[kind] = *rows;
        *rows = back ? kept->batch[kind] : as->batch;
    }
    for (unsigned i = 0; i < train->n_lanes; i++)
        for (unsigned k = 0; k < train->lanes[i].parts.n_tapes; k++) {
            struct pl_tape *tape = &train->lanes[i].parts.list[k].tape;

            if (!back) {
                kept->recompute = tape->recompute;
                kept->lanes[i].segments[k] = tape->segments;
            }
            tape->recompute = kept->recompute || (as->recompute && !back);
            tape->segments = back ? kept->lanes[i].segments[k] : 0;
        }
}

/* A lane's buckets as set_reducers() of trainer.c would cut them. */
static int
cut_buckets(struct pl_trainer *t, struct pl_lane *lane, struct pl_comm *comm, struct pl_error *err)
{
    struct pl_stage *stage = &t->stage[PLUME_TRAIN];
    size_t share = t->ctx.params.flags * pl_real_size(t->ctx.params.real) / PL_SHARD_BUCKETS;
    struct pl_reducer old = lane->reducer;
    size_t bytes = PL_MIN(old.max_bytes, PL_MAX(share, PL_SHARD_BUCKET_BYTES));
    int r = pl_reducer_init(&lane->reducer, &t->ctx.params,
                            stage->n_lanes > 1 ? &t->optimizers.list[lane - stage->lanes] : NULL,
                            comm, bytes, bytes, err);

    lane->reducer.half = old.half;
    return r;
}

/* Shards, of the last of the ranks: none has more. */
static int set_shards(struct pl_trainer *t,
                      const struct pl_memory_as *as,
                      struct kept *kept,
                      struct pl_error *err)
{
    struct pl_stage *train = &t->stage[PLUME_TRAIN];
    struct pl_params *params = &t->ctx.params;
    int r = 0;

    kept->shard = params->shard;
    kept->own_from = params->own_from;
    kept->own_to = params->own_to;
    kept->units = t->units;
    kept->used = params->units;
    for (unsigned i = 0; i < train->n_lanes; i++)
        kept->lanes[i].reducer = train->lanes[i].reducer;
    pl_shard_take(params, as->ranks - 1, as->ranks);
    params->shard = PL_SHARD_OS; /* so that new buckets take no memory */
    for (unsigned i = 0; as->shard >= PL_SHARD_GRAD && i < train->n_lanes && r == 0; i++)
        r = cut_buckets(t, &train->lanes[i], t->group.shards, err);
    params->shard = as->shard;
    if (r == 0 && as->shard == PL_SHARD_PARAM)
        r = pl_units_init(&t->units, params, t->group.shards,
                          train->n_lanes ? train->lanes[0].reducer.max_bytes : 0, err);
    return r;
}

static void reset_shards(struct pl_trainer *t, const struct kept *kept)
{
    struct pl_stage *train = &t->stage[PLUME_TRAIN];
    struct pl_params *params = &t->ctx.params;

    for (unsigned i = 0; i < train->n_lanes; i++) {
        struct pl_reducer *reducer = &train->lanes[i].reducer;

        if (reducer->buckets != kept->lanes[i].reducer.buckets)
            pl_reducer_finish(reducer);
        *reducer = kept->lanes[i].reducer;
    }
    if (t->units.list != kept->units.list)
        pl_units_finish(&t->units);
    t->units = kept->units;
    params->units = kept->used;
    params->shard = kept->shard;
    params->own_from = kept->own_from;
    params->own_to = kept->own_to;
}

int pl_memory_need_as(struct pl_trainer *trainer,
                      const struct pl_memory_as *as,
                      struct pl_memory_need *ret,
                      struct pl_error *err)
{
    _cleanup_free_ struct kept *kept = calloc(1, sizeof(*kept));
    struct pl_memory_need need;
    int r = 0;

    if (!kept)
        return pl_error_nomem(err);
    set_tapes(trainer, as, kept, false);
    if (as->shard)
        r = set_shards(trainer, as, kept, err);
    if (r == 0)
        r = pl_memory_need(trainer, &need, err);
    if (as->shard)
        reset_shards(trainer, kept);
    set_tapes(trainer, as, kept, true);
    if (r == 0)
        *ret = need;
    return r;
}

/* ---- limits ---- */

/* Address space that libc, kernels' scratch and threads still take, such as a loader's stack. */
#define LATER_BYTES (16.0 * (1 << 20))

/* Bytes that this process has mapped, `which` as in the file's manual: 0 all, 5 data and stacks. */
static double mapped(int which)
{
    double page = (double)sysconf(_SC_PAGESIZE), pages = 0;
    _cleanup_free_ char *text = NULL;
    char *at;

    if (pl_file_read("/proc/self/statm", 256, &text, NULL, NULL) < 0)
        return 0;
    at = text;
    for (int i = 0; i <= which; i++)
        pages = strtod(at, &at);
    return pages * page;
}

double pl_memory_limit(struct pl_trainer *trainer)
{
    double pages = (double)sysconf(_SC_PHYS_PAGES), page = (double)sysconf(_SC_PAGESIZE);
    struct pl_device_memory memory = {0};
    double limit = INFINITY, beside;
    struct rlimit space;

    trainer->dev->ops->memory(trainer->dev, &memory);
    if (!trainer->dev->ops->host)
        return memory.total ? (double)memory.total : INFINITY;
    if (pages > 0 && page > 0)
        limit = fmin(pages * page, (double)pl_memory_of_groups(NULL, NULL)) /
                PL_MAX(trainer->comm->world.local_size, 1u);
    for (int i = 0; i < 2; i++)
        if (getrlimit(i ? RLIMIT_AS : RLIMIT_DATA, &space) == 0 &&
            space.rlim_cur != RLIM_INFINITY) {
            beside = fmax(mapped(i ? 0 : 5) - (double)memory.used, 0) + LATER_BYTES;
            limit = fmin(limit, fmax((double)space.rlim_cur - beside, 1));
        }
    return limit;
}

int pl_memory_check_group(const struct pl_trainer *t, struct pl_error *err)
{
    const struct pl_params *params = &t->ctx.params;
    double share = (double)pl_memory_of_groups(NULL, NULL) / PL_MAX(t->comm->world.local_size, 1u);
    double ranks = t->strategy.shard ? t->group.shards->size : 1, bytes = 0, grads;
    char text[2][PL_MEMORY_TEXT];

    if (!t->dev->ops->host || t->pipe.on) /* a cut fits by itself */
        return 0;
    for (size_t i = 0; i < params->n; i++)
        bytes += (double)(params->list[i]->tensor->count * pl_real_size(params->real));
    grads = params->evaluates ? 0 : bytes;
    if (t->strategy.shard >= PL_SHARD_GRAD)
        grads /= ranks;
    if (t->strategy.shard >= PL_SHARD_PARAM)
        bytes /= ranks;
    if (bytes + grads <= share)
        return 0;
    return pl_error_set(err, -ENOMEM,
                        "they need more than %s; the control group's limit leaves a rank %s",
                        pl_memory_text(bytes + grads, text[0]), pl_memory_text(share, text[1]));
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
