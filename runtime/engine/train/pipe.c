/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/pipe.h"
#include "runtime/engine/comm/comm_gpu.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/tape/profile.h"

#include <string.h>

#define ALIGN_MAX ((size_t)1 << 24) /* pairs of ops that are compared */

/* The links between stages s and s + 1; collective over the world, as all splits. */
static int open_links(struct pl_pipe *pipe, struct pl_error *err)
{
    int r = 0;

    for (unsigned s = 0; s + 1 < pipe->n_stages && r == 0; s++) {
        bool in = pipe->stage == s || pipe->stage == s + 1;

        r = pl_comm_split(pipe->world, in ? (int)pipe->pipe : -1, (int)pipe->stage,
                          pipe->stage == s ? &pipe->link[PL_PIPE_NEXT].comm
                          : in             ? &pipe->link[PL_PIPE_PREVIOUS].comm
                                           : &(struct pl_comm *){NULL},
                          err);
    }
    return r;
}

/* NCCL joins this part of the ranks if it joins all of them. */
static int join_gpu(struct pl_pipe *pipe, struct pl_comm *comm, struct pl_error *err)
{
    return comm && pipe->world->gpu ? pl_comm_gpu_create(comm, pipe->params->dev, true, err) : 0;
}

static int join_gpus(struct pl_pipe *pipe, struct pl_error *err)
{
    int r = join_gpu(pipe, pipe->copies, err);

    if (r == 0)
        r = join_gpu(pipe, pipe->link[PL_PIPE_PREVIOUS].comm, err);
    return r < 0 ? r : join_gpu(pipe, pipe->link[PL_PIPE_NEXT].comm, err);
}

int pl_pipe_open(struct pl_pipe *pipe,
                 const struct pl_strategy *strategy,
                 const struct pl_train_options *options,
                 struct pl_params *params,
                 struct pl_stage *stages,
                 struct pl_comm *world,
                 struct pl_comm *peers,
                 struct pl_error *err)
{
    int r;

    *pipe = (struct pl_pipe){
        .options = options, .params = params, .stages = stages, .world = world, .peers = peers};
    if (!strategy->stages)
        return 0;
    pipe->n_stages = strategy->stages;
    pipe->n_pipes = world->size / strategy->stages;
    pipe->stage = world->rank % strategy->stages;
    pipe->pipe = world->rank / strategy->stages;
    pipe->version = 1;
    pipe->on = true;
    r = pl_comm_split(world, (int)pipe->pipe, (int)pipe->stage, &pipe->comm, err);
    if (r == 0)
        r = pl_comm_split(world, (int)pipe->stage, (int)pipe->pipe, &pipe->copies, err);
    if (r == 0)
        r = open_links(pipe, err);
    if (r == 0)
        r = join_gpus(pipe, err);
    if (r == 0)
        pipe->comm->ordered = pipe->copies->ordered = options->deterministic;
    return r < 0 ? pl_error_wrap(err, r, "while joining the stages of the pipeline") : 0;
}

static void finish_slot(struct pl_pipe_slot *slot)
{
    if (!slot)
        return;
    pl_stage_tape_finish(&slot->own);
    pl_parts_finish(&slot->lane.parts);
    free(slot);
}

static void finish_costs(struct pl_pipe_costs *costs)
{
    free(costs->ops);
    free(costs->seconds);
    free(costs->kept);
    free(costs->entering);
    free(costs->transfer);
    free(costs->forbidden);
    free(costs->uses);
    free(costs->buffer_op);
    free(costs->limit);
    free(costs->in_flight);
}

static void close_comm(const struct pl_pipe *pipe, struct pl_comm *comm)
{
    if (comm)
        pl_comm_gpu_destroy(comm, pipe->failed[0] ? pipe->failed : NULL);
    pl_comm_destroy(comm);
}

void pl_pipe_finish(struct pl_pipe *pipe)
{
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < pipe->slots[i].n; k++)
            finish_slot(pipe->slots[i].list[k]);
        finish_slot(pipe->slots[i].tail);
        free(pipe->slots[i].list);
    }
    for (int i = 0; i < 2; i++) {
        if (pipe->link[i].message)
            pl_device_free(pipe->params->dev, pipe->link[i].message);
        close_comm(pipe, pipe->link[i].comm);
    }
    if (pipe->held)
        pl_device_free(pipe->params->dev, pipe->held);
    close_comm(pipe, pipe->copies);
    close_comm(pipe, pipe->comm);
    finish_costs(&pipe->costs);
    free(pipe->cut);
    *pipe = (struct pl_pipe){0};
}

static void abort_on(struct pl_comm *comm, const char *text)
{
    if (comm)
        comm->ops->abort(comm, text);
    if (comm && comm->gpu)
        comm->gpu->ops->abort(comm->gpu, text);
}

void pl_pipe_fail(struct pl_pipe *pipe, int r, const struct pl_error *err)
{
    char *text = pipe->failed;

    if (!pipe->on)
        return;
    if (r == -ECONNRESET)
        snprintf(text, sizeof(pipe->failed), "%s", pl_error_text(err));
    else
        snprintf(text, sizeof(pipe->failed), "rank %u gave up: %s",
                 pipe->world->world_ranks[pipe->world->rank], pl_error_text(err));
    abort_on(pipe->world, text);
    abort_on(pipe->comm, text);
    abort_on(pipe->copies, text);
    abort_on(pipe->link[PL_PIPE_PREVIOUS].comm, text);
    abort_on(pipe->link[PL_PIPE_NEXT].comm, text);
}

/* ---- slots ---- */

static struct pl_pipe_slot *
new_slot(struct pl_pipe *pipe, enum plume_stage stage, struct pl_error *err)
{
    struct pl_pipe_slot *slot = calloc(1, sizeof(*slot));

    if (!slot || pl_lane_init(&pipe->stages[stage], &slot->lane, 0, err) < 0) {
        free(slot);
        return NULL;
    }
    /* The dry step of the stage's own lane has found the names. Its sums are those of earlier
     * batches. */
    slot->lane.parts.root->logs = *pl_stage_logs(&pipe->stages[stage]);
    memset(slot->lane.parts.root->logs.sum, 0, sizeof(slot->lane.parts.root->logs.sum));
    return slot;
}

int pl_pipe_slot(struct pl_pipe *pipe,
                 enum plume_stage stage,
                 size_t index,
                 struct pl_pipe_slot **ret,
                 struct pl_error *err)
{
    struct pl_pipe_slots *slots = &pipe->slots[stage];
    struct pl_pipe_slot **list;

    if (index == SIZE_MAX) {
        if (!slots->tail)
            slots->tail = new_slot(pipe, stage, err);
        *ret = slots->tail;
        return slots->tail ? 0 : pl_error_nomem(err);
    }
    while (slots->n <= index) {
        list = reallocarray(slots->list, slots->n + 1, sizeof(struct pl_pipe_slot *));
        if (!list)
            return pl_error_nomem(err);
        slots->list = list;
        list[slots->n] = new_slot(pipe, stage, err);
        if (!list[slots->n])
            return pl_error_nomem(err);
        slots->n++;
    }
    *ret = slots->list[index];
    return 0;
}

/* ---- the stages of a trace ---- */

static struct pl_param *param_of(const struct pl_params *params, const plume_tensor *t)
{
    const plume_tensor *root = t && t->base ? t->base : t;

    for (size_t i = 0; root && root->is_param && i < params->n; i++)
        if (params->list[i]->tensor == root)
            return params->list[i];
    return NULL;
}

static bool same_ops(const struct pl_pipe *pipe, const struct pl_tape *tape)
{
    if (tape->n != pipe->costs.n)
        return false;
    for (size_t i = 0; i < tape->n; i++)
        if (tape->nodes[i].op != pipe->costs.ops[i])
            return false;
    return true;
}

static unsigned stage_of(const struct pl_pipe *pipe, size_t op)
{
    unsigned s = 0;

    while (s + 1 < pipe->n_stages && op >= pipe->cut[s + 1])
        s++;
    return s;
}

/* The cut of a trace that has nearly the measured ops: a batch of one row needs fewer copies, for
 * instance. An op is where the one that it matches in a longest common subsequence is, or the next.
 * False if this takes too much memory. */
static bool cut_beside(const struct pl_pipe *pipe, const struct pl_tape *tape, size_t *ret)
{
    const struct pl_pipe_costs *c = &pipe->costs;
    size_t n = tape->n, m = c->n, width = m + 1, stage = 0, at = 0;
    _cleanup_free_ uint16_t *length = NULL; /* of ops i.. and j..: length[i * width + j] */

    if (n + m >= UINT16_MAX || (n + 1) * width > ALIGN_MAX ||
        !(length = calloc((n + 1) * width, sizeof(*length))))
        return false;
    for (size_t i = n; i-- > 0;)
        for (size_t j = m; j-- > 0;)
            length[i * width + j] =
                tape->nodes[i].op == c->ops[j]
                    ? (uint16_t)(length[(i + 1) * width + j + 1] + 1)
                    : PL_MAX(length[(i + 1) * width + j], length[i * width + j + 1]);
    ret[0] = 0;
    for (size_t i = 0; i < n; i++) {
        bool match;

        while (at < m && tape->nodes[i].op != c->ops[at] &&
               length[i * width + at + 1] > length[(i + 1) * width + at])
            at++;
        while (stage < stage_of(pipe, PL_MIN(at, m - 1)))
            ret[++stage] = i;
        match = at < m && tape->nodes[i].op == c->ops[at];
        at += match;
    }
    while (stage < pipe->n_stages)
        ret[++stage] = n;
    return true;
}

/* An op is in the first stage, not before that of the op before it, that owns its parameters. */
static void cut_by_owners(const struct pl_pipe *pipe, const struct pl_tape *tape, size_t *ret)
{
    unsigned stage = 0;

    ret[0] = 0;
    for (size_t i = 0; i < tape->n; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in; k++) {
            const struct pl_param *p = param_of(pipe->params, tape->nodes[i].in[k]);

            while (p && stage < pl_stages_owner(&pipe->params->stages, p))
                ret[++stage] = i;
        }
    while (stage < pipe->n_stages)
        ret[++stage] = tape->n;
}

/* True if each stage has the parameters of its ops, of its own or borrowed. */
static bool holds(const struct pl_pipe *pipe, const struct pl_tape *tape, const size_t *cut)
{
    for (unsigned s = 0; s < pipe->n_stages; s++)
        for (size_t i = cut[s]; i < cut[s + 1]; i++)
            for (size_t k = 0; k < tape->nodes[i].n_in; k++) {
                const struct pl_param *p = param_of(pipe->params, tape->nodes[i].in[k]);

                if (p && !(p->borrowers & (1ull << s)) &&
                    pl_stages_owner(&pipe->params->stages, p) != s)
                    return false;
            }
    return true;
}

/* The cut of any trace: the measured one, for the ops that are the same. */
static void cut_of(const struct pl_pipe *pipe, const struct pl_tape *tape, size_t *ret)
{
    if (same_ops(pipe, tape)) {
        memcpy(ret, pipe->cut, (pipe->n_stages + 1) * sizeof(*ret));
        return;
    }
    if (!cut_beside(pipe, tape, ret) || !holds(pipe, tape, ret))
        cut_by_owners(pipe, tape, ret);
}

/* Notes what each stage uses. *ret_new: a parameter that it did not use before, or NULL. */
static void note_uses(struct pl_pipe *pipe,
                      const struct pl_tape *tape,
                      const size_t *cut,
                      const struct pl_param **ret_new)
{
    for (unsigned s = 0; s < pipe->n_stages; s++)
        for (size_t i = cut[s]; i < cut[s + 1]; i++)
            for (size_t k = 0; k < tape->nodes[i].n_in; k++) {
                struct pl_param *p = param_of(pipe->params, tape->nodes[i].in[k]);

                if (p && pl_stages_use(pipe->params, s, p))
                    *ret_new = p;
            }
}

/* The same for the measured ops. The stage that changes a buffer has the truth. */
static void note_measured(struct pl_pipe *pipe)
{
    const struct pl_pipe_costs *c = &pipe->costs;

    for (size_t i = 0; i < c->n_uses; i++)
        pl_stages_use(pipe->params, stage_of(pipe, c->uses[i].op),
                      pipe->params->list[c->uses[i].param]);
    for (size_t b = 0; b < pipe->params->n_buffers; b++)
        if (c->buffer_op[b] != SIZE_MAX)
            pipe->params->buffers[b].stage = stage_of(pipe, c->buffer_op[b]);
}

const struct pl_tape *pl_pipe_tape(const struct pl_pipe *pipe)
{
    return &pipe->slots[PLUME_TRAIN].list[0]->lane.parts.root->tape;
}

int pl_pipe_note_uses(struct pl_pipe *pipe, struct pl_error *err)
{
    _cleanup_free_ size_t *cut = calloc(pipe->n_stages + 1, sizeof(*cut));
    const struct pl_param *unused = NULL;

    if (!cut)
        return pl_error_nomem(err);
    note_measured(pipe);
    for (int i = PLUME_TRAIN; i <= PLUME_TEST; i++)
        if (pipe->stages[i].present) {
            const struct pl_tape *tape = pl_stage_tape(&pipe->stages[i]);

            cut_of(pipe, tape, cut);
            note_uses(pipe, tape, cut, &unused);
        }
    return 0;
}

int pl_pipe_settle(struct pl_pipe *pipe, struct pl_error *err)
{
    int r = pl_pipe_note_uses(pipe, err);

    return r < 0 ? r : pl_stages_borrow(pipe->params, err);
}

int pl_pipe_share(struct pl_pipe *pipe, struct pl_error *err)
{
    return pipe->on ? pl_stages_share_values(pipe->params, pipe->comm, err) : 0;
}

int pl_pipe_spread_buffers(struct pl_pipe *pipe, struct pl_error *err)
{
    int r = pl_params_spread_buffers(pipe->params, pipe->copies, err);

    return r < 0 ? r : pl_stages_share_buffers(pipe->params, pipe->comm, err);
}

static int build(struct pl_pipe *pipe, struct pl_pipe_slot *slot, struct pl_error *err)
{
    const struct pl_tape *whole = &slot->lane.parts.root->tape;
    _cleanup_(pl_tape_flow_finish) struct pl_tape_flow flow = {0};
    _cleanup_free_ size_t *cut = calloc(pipe->n_stages + 1, sizeof(*cut));
    const struct pl_param *p = NULL;
    int r = cut ? pl_tape_flow_init(&flow, whole, slot->loss, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    cut_of(pipe, whole, cut);
    note_uses(pipe, whole, cut, &p);
    if (p)
        return pl_error_set(err, -ENOTSUP,
                            "this batch uses parameter '%s' where no batch did before: strategy "
                            "pipeline needs the same uses of parameters in all batches",
                            p->name);
    slot->recordings = 0;
    r = pl_stage_tape_build(&slot->own, whole, &flow, cut[pipe->stage], cut[pipe->stage + 1],
                            &(struct pl_stage_build){.loss = slot->loss}, err);
    if (r < 0)
        return r;
    slot->recordings = whole->recordings;
    slot->version = pipe->version;
    slot->built_loss = slot->loss;
    return 0;
}

/* Keeps the logged values that this stage computes. Those of leaves are the first stage's. */
static size_t own_logs(const struct pl_pipe *pipe, struct pl_pipe_slot *slot, plume_tensor **ret)
{
    struct pl_logs *logs = &slot->lane.parts.root->logs;
    size_t n = 0;

    for (size_t i = 0; i < logs->n_pending; i++) {
        struct pl_log_pending pending = logs->pending[i];

        if (pending.value->tape ? !pl_stage_tape_makes(&slot->own, pending.value)
                                : pipe->stage != 0)
            continue;
        pending.value = pl_stage_tape_find(&slot->own, pending.value);
        ret[n] = pending.value;
        logs->pending[n++] = pending;
    }
    return logs->n_pending = n;
}

int pl_pipe_begin(struct pl_pipe *pipe,
                  enum plume_stage stage,
                  struct pl_pipe_slot *slot,
                  const struct plume_batch *batch,
                  size_t first,
                  size_t rows,
                  struct pl_error *err)
{
    struct pl_tape *whole = &slot->lane.parts.root->tape;
    plume_tensor *logs[PL_LOG_VALUES_MAX];
    size_t n;
    int r;

    pl_batch_slice(batch, first, rows, slot->fields, &slot->batch);
    slot->loss = NULL;
    r = pl_lane_trace(&pipe->stages[stage], &slot->lane, &slot->batch, &slot->loss, err);
    if (r == 0 && stage == PLUME_TRAIN && !slot->loss)
        return pl_error_set(err, -EINVAL,
                            "hook training_step gave no loss: strategy pipeline needs one of each "
                            "microbatch");
    if (r == 0 && (slot->recordings != whole->recordings || slot->version != pipe->version ||
                   slot->built_loss != slot->loss))
        r = build(pipe, slot, err);
    if (r < 0)
        return r;
    slot->first_row = first;
    slot->own.tape.timed = pl_stage_tape(&pipe->stages[stage])->timed;
    slot->own.tape.timeline = pl_stage_tape(&pipe->stages[stage])->timeline;
    slot->own.tape.first_row = first;
    slot->own.tape.rows = rows < batch->rows ? rows : 0;
    n = own_logs(pipe, slot, logs);
    return pl_stage_tape_prepare(&slot->own, logs, n, err);
}

int pl_pipe_timed(struct pl_pipe *pipe, struct pl_tape **ret, struct pl_error *err)
{
    struct pl_pipe_slots *slots = &pipe->slots[PLUME_TRAIN];
    struct pl_tape *first = &slots->list[0]->own.tape;
    int r = 0;

    for (size_t i = 1; i < slots->n && r == 0; i++)
        r = pl_profile_merge(first, &slots->list[i]->own.tape, err);
    if (slots->tail && r == 0)
        r = pl_profile_merge(first, &slots->tail->own.tape, err);
    if (r == 0)
        *ret = first;
    return r;
}

int pl_pipe_check_labels(const struct pl_pipe *pipe, enum plume_stage stage, struct pl_error *err)
{
    const struct pl_pipe_slots *slots = &pipe->slots[stage];
    int r = 0;

    for (size_t i = 0; i < slots->n && r == 0; i++)
        if (slots->list[i]->own.tape.planned)
            r = pl_op_check_labels(&slots->list[i]->own.tape, err);
    if (r == 0 && slots->tail && slots->tail->own.tape.planned)
        r = pl_op_check_labels(&slots->tail->own.tape, err);
    return r;
}
