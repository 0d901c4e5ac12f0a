/* SPDX-License-Identifier: MIT */
/* The microbatches of a batch: forward, backward, and what neighbours tell each other.
 *
 * GPipe runs all forwards, then all backwards. 1F1B begins with as many forwards as stages follow,
 * then alternates, so that a stage keeps no more microbatches than stages follow it and one. Both
 * run backward in the order of microbatches, so gradients have the same bits. A stage that sends
 * forward and receives back in one call meets one that sends back and receives forward: the calls
 * of a link pair up, as those of Megatron-LM's schedules do. */
#include "common/base/fs.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/pipe.h"

#include <math.h>
#include <string.h>

#define ALIGN(bytes) (((bytes) + PL_BUMP_ALIGN - 1) & ~(size_t)(PL_BUMP_ALIGN - 1))
#define NONE SIZE_MAX

struct run {
    struct pl_pipe *pipe;
    enum plume_stage stage;
    const struct pl_pipe_batch *what;
    size_t n, chunk, regular; /* microbatches; rows of each; slots that full ones share */
    double loss;
    bool marked; /* gradients are ready to be written */
};

size_t pl_pipe_microbatches(const struct pl_pipe *pipe, size_t rows, size_t *ret_chunk)
{
    uint64_t wanted = pipe->options->microbatches ? pipe->options->microbatches
                                                  : PL_PIPE_MICROBATCHES * pipe->n_stages;
    size_t n = (size_t)PL_MIN(wanted, (uint64_t)PL_PIPE_MICROBATCHES_MAX);

    n = PL_MAX(PL_MIN(n, rows), (size_t)1);
    *ret_chunk = (rows + n - 1) / n;
    return (rows + *ret_chunk - 1) / *ret_chunk;
}

static size_t rows_of(const struct run *run, size_t m)
{
    size_t rows = run->what->batch->rows;

    return PL_MIN(run->chunk, rows - m * run->chunk);
}

static int slot_of(struct run *run, size_t m, struct pl_pipe_slot **ret, struct pl_error *err)
{
    bool tail = m > 0 && rows_of(run, m) < run->chunk;

    return pl_pipe_slot(run->pipe, run->stage, tail ? SIZE_MAX : m % run->regular, ret, err);
}

/* ---- messages ---- */

static size_t message_bytes(const struct pl_pass *list, size_t n, bool grads)
{
    size_t bytes = 0;

    for (size_t i = 0; i < n; i++)
        bytes += !grads || list[i].grad ? ALIGN(list[i].bytes) : 0;
    return bytes;
}

size_t pl_pipe_kept_by(const struct pl_pipe *pipe, unsigned stage, size_t microbatches)
{
    return pipe->options->pipe_order == PL_PIPE_GPIPE
               ? microbatches
               : PL_MIN(microbatches, (size_t)(pipe->n_stages - stage));
}

size_t pl_pipe_in_flight(const struct pl_pipe *pipe, size_t microbatches)
{
    return pl_pipe_kept_by(pipe, pipe->stage, microbatches);
}

void pl_pipe_messages(const struct pl_stage_tape *own, size_t ret[PL_PIPE_MESSAGES])
{
    ret[2] = message_bytes(own->in, own->n_in, true);
    ret[PL_PIPE_PREVIOUS] = message_bytes(own->in, own->n_in, false) + ret[2];
    ret[PL_PIPE_NEXT] =
        message_bytes(own->out, own->n_out, false) + message_bytes(own->out, own->n_out, true);
}

/* Copies tensors to a message, or from it. */
static void copy_message(struct pl_device *dev,
                         const struct pl_pass *list,
                         size_t n,
                         bool grads,
                         char *message,
                         bool from)
{
    for (size_t i = 0; i < n; i++) {
        void *t = grads ? list[i].t->grad : list[i].t->data;

        if (grads && !list[i].grad)
            continue;
        dev->ops->copy(dev, from ? t : message, from ? message : t, list[i].bytes);
        message += ALIGN(list[i].bytes);
    }
}

static int
reserve(struct pl_device *dev, char **memory, size_t *cap, size_t bytes, struct pl_error *err)
{
    void *p = NULL;
    int r;

    if (bytes <= *cap)
        return 0;
    pl_device_free(dev, *memory);
    *memory = NULL;
    *cap = 0;
    r = pl_device_alloc_zero(dev, bytes, "messages between stages", &p, err);
    if (r < 0)
        return r;
    *memory = p;
    *cap = bytes;
    return 0;
}

static int swap(struct pl_pipe *pipe,
                struct pl_pipe_link *link,
                size_t forward,
                size_t back,
                struct pl_error *err)
{
    const size_t offset[] = {0, forward, forward + back};

    if (offset[2] == 0)
        return 0;
    return pl_comm_allgather_on(link->comm, pipe->params->dev, link->message, offset, err);
}

static int begin(struct run *run, size_t m, struct pl_error *err)
{
    struct pl_pipe_slot *slot;
    int r = slot_of(run, m, &slot, err);

    if (r < 0)
        return r;
    r = pl_pipe_begin(run->pipe, run->stage, slot, run->what->batch, m * run->chunk,
                      rows_of(run, m), err);
    slot->own.tape.step = run->what->draw;
    slot->batch_no = run->pipe->n_batches;
    return r;
}

/* To the next stage: sends microbatch `send` forward, and receives the gradients of `receive`. */
static int swap_next(struct run *run, size_t send, size_t receive, struct pl_error *err)
{
    struct pl_pipe *pipe = run->pipe;
    struct pl_pipe_link *link = &pipe->link[PL_PIPE_NEXT];
    struct pl_device *dev = pipe->params->dev;
    struct pl_pipe_slot *out = NULL, *back = NULL;
    size_t forward_bytes = 0, back_bytes = 0;
    int r = 0;

    if (!link->comm)
        return 0;
    if (send != NONE)
        r = slot_of(run, send, &out, err);
    if (r == 0 && receive != NONE)
        r = slot_of(run, receive, &back, err);
    if (r < 0)
        return r;
    if (out)
        forward_bytes = message_bytes(out->own.out, out->own.n_out, false);
    if (back)
        back_bytes = message_bytes(back->own.out, back->own.n_out, true);
    r = reserve(dev, &link->message, &link->cap, forward_bytes + back_bytes, err);
    if (r < 0)
        return r;
    if (out)
        copy_message(dev, out->own.out, out->own.n_out, false, link->message, false);
    r = swap(pipe, link, forward_bytes, back_bytes, err);
    if (r == 0 && back)
        copy_message(dev, back->own.out, back->own.n_out, true, link->message + forward_bytes,
                     true);
    return r;
}

/* To the stage before: sends the gradients of `send` back, and receives microbatch `receive`, which
 * it begins; this may take the memory of the other. */
static int swap_previous(struct run *run, size_t send, size_t receive, struct pl_error *err)
{
    struct pl_pipe *pipe = run->pipe;
    struct pl_pipe_link *link = &pipe->link[PL_PIPE_PREVIOUS];
    struct pl_device *dev = pipe->params->dev;
    struct pl_pipe_slot *in = NULL, *back = NULL;
    size_t forward_bytes = 0, back_bytes = 0;
    int r = 0;

    if (link->comm && send != NONE) {
        r = slot_of(run, send, &back, err);
        if (r < 0)
            return r;
        back_bytes = message_bytes(back->own.in, back->own.n_in, true);
        r = reserve(dev, &pipe->held, &pipe->held_cap, back_bytes, err);
        if (r < 0)
            return r;
        copy_message(dev, back->own.in, back->own.n_in, true, pipe->held, false);
    }
    if (receive != NONE)
        r = begin(run, receive, err);
    if (r < 0 || !link->comm)
        return r;
    if (receive != NONE)
        r = slot_of(run, receive, &in, err);
    if (r < 0)
        return r;
    if (in)
        forward_bytes = message_bytes(in->own.in, in->own.n_in, false);
    r = reserve(dev, &link->message, &link->cap, forward_bytes + back_bytes, err);
    if (r < 0)
        return r;
    if (back_bytes)
        dev->ops->copy(dev, link->message + forward_bytes, pipe->held, back_bytes);
    r = swap(pipe, link, forward_bytes, back_bytes, err);
    if (r == 0 && in)
        copy_message(dev, in->own.in, in->own.n_in, false, link->message, true);
    return r;
}

/* ---- work ---- */

static int forward(struct run *run, size_t m, struct pl_error *err)
{
    struct pl_pipe *pipe = run->pipe;
    struct pl_pipe_slot *slot;
    struct pl_logs *logs;
    uint64_t start;
    double loss;
    int r = slot_of(run, m, &slot, err);

    if (r == 0) /* for the message: a device may still wait for it */
        r = pl_device_sync(pipe->params->dev, err);
    if (r < 0)
        return r;
    start = pl_now_ns();
    logs = &slot->lane.parts.root->logs;
    r = pl_tape_forward(&slot->own.tape, err);
    if (slot->own.tape.want_grad)
        pipe->params->buffers_version++;
    if (r == 0)
        r = pl_logs_collect(logs, pipe->params->dev, pipe->params->dev, err);
    if (r == 0 && slot->own.loss && run->stage == PLUME_TRAIN) {
        r = pl_tensor_scalar(slot->own.loss, pipe->params->dev, &loss, err);
        if (r == 0 && isnan(loss)) /* now: the next microbatch takes this one's place */
            r = pl_op_check_labels(&slot->own.tape, err);
        if (r == 0)
            run->loss += loss * (double)rows_of(run, m) / (double)run->what->batch->rows;
    }
    if (r == 0)
        r = pl_device_sync(pipe->params->dev, err);
    pipe->busy_ns += pl_now_ns() - start;
    return r;
}

/* True if the slot has a microbatch of this batch, not only of one before. */
static bool takes_part(const struct pl_pipe *pipe, const struct pl_pipe_slot *slot)
{
    return slot && slot->batch_no == pipe->n_batches && slot->own.tape.planned;
}

/* The parameters that the microbatches so far have a gradient for. Call before the first gradients
 * are written: it clears those that they will add to; and after the last. */
static int mark(struct run *run, bool first, struct pl_error *err)
{
    struct pl_pipe *pipe = run->pipe;
    const struct pl_pipe_slots *slots = &pipe->slots[PLUME_TRAIN];
    const struct pl_tape *tapes[PL_PIPE_MICROBATCHES_MAX];
    size_t n = 0;
    bool tail = takes_part(pipe, slots->tail);

    for (size_t i = 0; i < slots->n && n + tail < PL_COUNT(tapes); i++)
        if (takes_part(pipe, slots->list[i]))
            tapes[n++] = &slots->list[i]->own.tape;
    if (pipe->n_marked != n || pipe->tail_marked != tail) /* other tapes */
        pl_unused_params_reset(pipe->params);
    pipe->n_marked = n;
    pipe->tail_marked = tail;
    if (tail)
        tapes[n++] = &slots->tail->own.tape;
    pl_unused_params_find(pipe->params, tapes, n);
    return pl_unused_params_mark(pipe->params, first, true, err);
}

static int backward(struct run *run, size_t m, struct pl_error *err)
{
    struct pl_pipe *pipe = run->pipe;
    struct pl_backward what = {.accumulate = m > 0 || !run->what->first};
    uint64_t start;
    struct pl_pipe_slot *slot;
    int r = slot_of(run, m, &slot, err);

    if (r == 0 && !run->marked)
        r = mark(run, run->what->first, err);
    run->marked = true;
    if (r == 0)
        r = pl_device_sync(pipe->params->dev, err);
    if (r < 0)
        return r;
    start = pl_now_ns();
    what.loss = slot->own.loss;
    what.seed = run->what->seed * (double)rows_of(run, m) / (double)run->what->batch->rows;
    r = pl_tape_backward(&slot->own.tape, &what, err);
    if (r == 0)
        r = pl_device_sync(pipe->params->dev, err);
    pipe->busy_ns += pl_now_ns() - start;
    return r;
}

static int run_gpipe(struct run *run, struct pl_error *err)
{
    int r = 0;

    for (size_t m = 0; m < run->n && r == 0; m++) {
        r = swap_previous(run, NONE, m, err);
        if (r == 0)
            r = forward(run, m, err);
        if (r == 0)
            r = swap_next(run, m, NONE, err);
    }
    for (size_t m = 0; m < run->n && r == 0; m++) {
        r = swap_next(run, NONE, m, err);
        if (r == 0)
            r = backward(run, m, err);
        if (r == 0)
            r = swap_previous(run, m, NONE, err);
    }
    return r;
}

static int run_1f1b(struct run *run, struct pl_error *err)
{
    size_t ahead = PL_MIN((size_t)(run->pipe->n_stages - run->pipe->stage - 1), run->n);
    int r = 0;

    for (size_t m = 0; m < ahead && r == 0; m++) {
        r = swap_previous(run, NONE, m, err);
        if (r == 0)
            r = forward(run, m, err);
        if (r == 0)
            r = swap_next(run, m, NONE, err);
    }
    if (r == 0 && ahead < run->n)
        r = swap_previous(run, NONE, ahead, err);
    for (size_t m = 0; m + ahead < run->n && r == 0; m++) {
        size_t next = m + ahead + 1;

        r = forward(run, m + ahead, err);
        if (r == 0)
            r = swap_next(run, m + ahead, m, err);
        if (r == 0)
            r = backward(run, m, err);
        if (r == 0)
            r = swap_previous(run, m, next < run->n ? next : NONE, err);
    }
    for (size_t m = run->n - ahead; m < run->n && r == 0; m++) {
        r = swap_next(run, NONE, m, err);
        if (r == 0)
            r = backward(run, m, err);
        if (r == 0)
            r = swap_previous(run, m, NONE, err);
    }
    return r;
}

/* ---- sums over the pipeline ---- */

/* A slot's logged values go to the stage's own lane. */
static void collect_logs(struct pl_pipe *pipe, enum plume_stage stage, double *sums)
{
    struct pl_pipe_slots *slots = &pipe->slots[stage];
    size_t n = pl_stage_logs(&pipe->stages[stage])->n;

    for (size_t i = 0; i <= slots->n; i++) {
        struct pl_pipe_slot *slot = i < slots->n ? slots->list[i] : slots->tail;
        struct pl_logs *logs = slot ? &slot->lane.parts.root->logs : NULL;

        for (size_t k = 0; logs && k < n; k++) {
            sums[2 * k] += logs->sum[k][0];
            sums[2 * k + 1] += logs->sum[k][1];
        }
        if (logs)
            memset(logs->sum, 0, sizeof(logs->sum));
    }
}

static void add_logs(struct pl_pipe *pipe, enum plume_stage stage, const double *sums)
{
    struct pl_logs *logs = &pipe->stages[stage].lanes[0].parts.root->logs;

    for (size_t k = 0; k < logs->n; k++) {
        logs->sum[k][0] += sums[2 * k];
        logs->sum[k][1] += sums[2 * k + 1];
    }
}

/* Loss, logged values and the flags of unused_params.h, in one sum. */
static int sum_up(struct run *run, double *ret_loss, struct pl_error *err)
{
    struct pl_pipe *pipe = run->pipe;
    struct pl_params *params = pipe->params;
    size_t n_logs = 2 * pl_stage_logs(&pipe->stages[PLUME_TRAIN])->n;
    size_t n_flags = params->n + PL_PARAMS_SIGNALS, n = 1 + n_logs + n_flags;
    _cleanup_free_ double *sums = calloc(n, sizeof(*sums));
    struct pl_device_map map = {0};
    int r =
        sums ? pl_device_map(params->dev, params->flag_list, n_flags * pl_real_size(params->real),
                             PL_DEVICE_READ | PL_DEVICE_WRITE, &map, err)
             : pl_error_nomem(err);

    if (r < 0)
        return r;
    sums[0] = run->loss;
    collect_logs(pipe, PLUME_TRAIN, sums + 1);
    for (size_t i = 0; i < n_flags; i++)
        sums[1 + n_logs + i] =
            params->real == PL_REAL_F64 ? ((double *)map.data)[i] : (double)((float *)map.data)[i];
    r = pl_comm_allreduce(pipe->comm, sums, n, PL_REAL_F64, 1, err);
    for (size_t i = 0; i < n_flags && r == 0; i++) {
        if (params->real == PL_REAL_F64)
            ((double *)map.data)[i] = sums[1 + n_logs + i];
        else
            ((float *)map.data)[i] = (float)sums[1 + n_logs + i];
    }
    pl_device_unmap(&map);
    if (r < 0)
        return r;
    add_logs(pipe, PLUME_TRAIN, sums + 1);
    *ret_loss = sums[0];
    return 0;
}

int pl_pipe_train(struct pl_pipe *pipe,
                  const struct pl_pipe_batch *what,
                  double *ret_loss,
                  struct pl_error *err)
{
    struct run run = {.pipe = pipe, .stage = PLUME_TRAIN, .what = what};
    bool gpipe = pipe->options->pipe_order == PL_PIPE_GPIPE;
    int r;

    pipe->n_batches++;
    run.n = pl_pipe_microbatches(pipe, what->batch->rows, &run.chunk);
    run.regular = pl_pipe_in_flight(pipe, run.n);
    r = gpipe ? run_gpipe(&run, err) : run_1f1b(&run, err);
    if (r == 0)
        r = mark(&run, false, err);
    if (r == 0)
        r = sum_up(&run, ret_loss, err);
    if (r == 0 && what->due)
        r = pl_stages_sum_grads(pipe->params, pipe->comm, err);
    pipe->microbatches += run.n;
    pipe->all_microbatches += run.n;
    return r;
}

int pl_pipe_evaluate(struct pl_pipe *pipe,
                     enum plume_stage stage,
                     const struct plume_batch *batch,
                     uint64_t draw,
                     struct pl_error *err)
{
    const struct pl_pipe_batch what = {.batch = batch, .draw = draw};
    struct run run = {
        .pipe = pipe, .stage = stage, .what = &what, .n = 1, .chunk = batch->rows, .regular = 1};
    double sums[2 * PL_LOG_VALUES_MAX] = {0};
    int r = swap_previous(&run, NONE, 0, err);

    if (r == 0)
        r = forward(&run, 0, err);
    if (r == 0)
        r = swap_next(&run, 0, NONE, err);
    if (r < 0)
        return r;
    collect_logs(pipe, stage, sums);
    add_logs(pipe, stage, sums);
    return 0;
}
