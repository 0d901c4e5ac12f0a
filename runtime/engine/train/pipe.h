/* SPDX-License-Identifier: MIT */
/* A pipeline: the ops of a training step are cut into stages, one per rank, and a batch into
 * microbatches that go through them one after another (GPipe: Huang et al., arXiv 1811.06965; 1F1B:
 * Narayanan et al., SOSP 2019 and SC 2021). World size / stages pipelines train side by side, each
 * with its share of the samples, as ranks do under ddp.
 *
 * Every rank traces every microbatch, which costs little, and runs its own stage's ops
 * (tape_stage.h). So all ranks know what crosses each cut, and no rank describes it to another.
 * Neighbours are joined by a communicator of two, a link: one all-gather of both sides' parts sends
 * in both directions, with any backend.
 *
 *     open -> (stages are opened) -> cut -> (layout, optimizers, values) -> settle -> train, ... */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PIPE_H
#define PL_RUNTIME_ENGINE_TRAIN_PIPE_H

#include "runtime/engine/params/stages.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/tape/stage_cut.h"
#include "runtime/engine/tape/tape_stage.h"
#include "runtime/engine/train/stage.h"

/* One microbatch on its way: traced whole, and this stage's ops of it. */
struct pl_pipe_slot {
    struct pl_lane lane;
    struct plume_batch batch;
    plume_tensor fields[PLUME_FIELDS_MAX];
    plume_tensor *loss; /* of the whole trace; of predict_step it is the output */
    struct pl_stage_tape own;
    uint64_t recordings, version; /* of the trace and the cut that `own` is made of; 0: none */
    const plume_tensor *built_loss;
    size_t first_row;
    uint64_t batch_no; /* of the training batch it is a part of (pl_pipe's n_batches) */
};

/* The slots of a stage (training, validation, test). A shorter last microbatch has its own. */
struct pl_pipe_slots {
    struct pl_pipe_slot **list, *tail;
    size_t n;
};

enum { PL_PIPE_PREVIOUS, PL_PIPE_NEXT };

/* A neighbour. */
struct pl_pipe_link {
    struct pl_comm *comm; /* of two: the earlier stage first; NULL: there is no such neighbour */
    char *message;        /* device memory */
    size_t cap;
};

/* The measured cost of each op of a microbatch. */
struct pl_pipe_costs {
    size_t n;
    const struct pl_op **ops;
    double *seconds;         /* stages * n, as measured before the run */
    double *kept, *entering; /* bytes */
    double *transfer;        /* seconds */
    bool *forbidden;
    struct pl_cut_use *uses;
    size_t n_uses;
    size_t *buffer_op;         /* of each buffer: the last op that uses it; SIZE_MAX: none */
    double *limit, *in_flight; /* per stage */
    bool keeps_nothing;        /* `kept` was given up: too much for any cut, and --recompute */
    size_t rows;               /* of the microbatch */
    double measured_bytes;     /* at most in use until all ops were measured */
};

struct pl_pipe {
    bool on;
    unsigned n_stages, stage, n_pipes, pipe;
    const struct pl_train_options *options;
    struct pl_params *params;
    struct pl_stage *stages; /* by enum plume_stage */
    size_t slots_assumed;    /* arrays of state per parameter: the optimizers come later */
    struct pl_comm *world;   /* borrowed */
    struct pl_comm *comm;    /* this pipeline, in the order of stages */
    struct pl_comm *copies;  /* this stage in all pipelines */
    struct pl_comm *peers;   /* those that have parts of this stage; NULL: it is whole. Borrowed */
    struct pl_pipe_link link[2];
    char *held; /* gradients that wait for their message; device memory */
    size_t held_cap;
    struct pl_pipe_slots slots[3]; /* by enum plume_stage */
    struct pl_pipe_costs costs;
    double needs[PL_STAGES_MAX], limits[PL_STAGES_MAX]; /* pl_memory_stages() */
    size_t *cut;                                        /* n_stages + 1 nodes of the costs' ops */
    uint64_t version;                                   /* of the cut, from 1 */
    uint64_t n_batches;                                 /* of training, so far */
    /* The slots whose parameters were marked last (mark() in pipe_schedule.c). */
    size_t n_marked;
    bool tail_marked;
    /* Since the last look at the balance: this stage's busy time, steps, and microbatches. */
    uint64_t busy_ns, steps, microbatches;
    uint64_t all_microbatches;     /* of the run */
    unsigned looks;                /* in a row at which another cut was better */
    bool moved;                    /* at the last look */
    char failed[PL_COMM_TEXT_MAX]; /* why this rank gave up; "": it did not */
};

/* Splits the world. Leaves the pipeline off if the strategy is another one. Everything is borrowed
 * until finish. Collective. With tensor parallel the world is of the ranks that have the same parts
 * of the model, and peers are those that have the others; else NULL. */
int pl_pipe_open(struct pl_pipe *pipe,
                 const struct pl_strategy *strategy,
                 const struct pl_train_options *options,
                 struct pl_params *params,
                 struct pl_stage *stages,
                 struct pl_comm *world,
                 struct pl_comm *peers,
                 struct pl_error *err);
void pl_pipe_finish(struct pl_pipe *pipe);

/* The first cut: measures the ops of a microbatch, and sets what the layout needs. -EINVAL: there
 * are fewer ops than stages, or ranks trace different ops; -ENOSPC: no cut fits the memory.
 * Collective. */
int pl_pipe_cut(struct pl_pipe *pipe, struct pl_error *err);

/* pipe_loss.c: warns, on rank 0, of a loss that is not a mean over rows and so is another one if
 * the batch is cut: it divides by a number of the whole batch. Traces that in the slot. */
int pl_pipe_check_loss(struct pl_pipe *pipe,
                       struct pl_pipe_slot *slot,
                       const struct plume_batch *whole,
                       struct pl_error *err);

/* The tape that the parameters are laid out by. */
const struct pl_tape *pl_pipe_tape(const struct pl_pipe *pipe);

/* Finds tied parameters and the owners of buffers, from the cut. */
int pl_pipe_note_uses(struct pl_pipe *pipe, struct pl_error *err);

/* Call after the layout: that, and gives tied parameters their memory. */
int pl_pipe_settle(struct pl_pipe *pipe, struct pl_error *err);

/* Gives all ranks the state that belongs to them after the values were set. Collective. */
int pl_pipe_share(struct pl_pipe *pipe, struct pl_error *err);

/* The microbatches of a batch of so many rows, and the rows of each but a shorter last one. */
size_t pl_pipe_microbatches(const struct pl_pipe *pipe, size_t rows, size_t *ret_chunk);

/* "rank R gave up" or the text of a lost rank goes to all ranks that wait for this one. */
void pl_pipe_fail(struct pl_pipe *pipe, int r, const struct pl_error *err);

/* Gives all ranks the buffers. Collective. */
int pl_pipe_spread_buffers(struct pl_pipe *pipe, struct pl_error *err);

/* A training batch, for its closure. */
struct pl_pipe_batch {
    const struct plume_batch *batch;
    bool first, due; /* in the optimizer step: its first batch; its last */
    double seed;     /* of the loss's gradient */
    uint64_t draw;
};

/* Forward and backward of all microbatches; adds to the gradients of this stage. With `due` tied
 * gradients are summed. *ret_loss: the batch's, on all ranks; each microbatch counts by its rows.
 * -EINVAL: no loss. Collective over the pipeline. */
int pl_pipe_train(struct pl_pipe *pipe,
                  const struct pl_pipe_batch *what,
                  double *ret_loss,
                  struct pl_error *err);

/* A batch of validation or test: one microbatch. Adds to the lane's logged values what this stage
 * computes. */
int pl_pipe_evaluate(struct pl_pipe *pipe,
                     enum plume_stage stage,
                     const struct plume_batch *batch,
                     uint64_t draw,
                     struct pl_error *err);

/* This stage's training tape, whose profile has the times of all microbatches if they were timed.
 * -ENOMEM. */
int pl_pipe_timed(struct pl_pipe *pipe, struct pl_tape **ret, struct pl_error *err);

/* As pl_lane_check_labels(), of this stage's ops. */
int pl_pipe_check_labels(const struct pl_pipe *pipe, enum plume_stage stage, struct pl_error *err);

/* Gives the ranks that have parts of a stage the largest of their numbers, so that all of them cut
 * alike. Collective over peers. */
int pl_pipe_most_of_peers(struct pl_pipe *pipe, double *list, size_t n, struct pl_error *err);

/* For pipe_balance.c: the costs as a problem, and its optimum, the same on all ranks. Collective.
 */
struct pl_cut_problem pl_pipe_problem(const struct pl_pipe *pipe);
int pl_pipe_choose(struct pl_pipe *pipe,
                   const struct pl_cut_problem *problem,
                   size_t *ret_cut,
                   double *ret_seconds,
                   struct pl_error *err);
/* The optimum of the costs, with --recompute if need be without what ops keep. */
int pl_pipe_choose_first(struct pl_pipe *pipe, size_t *ret_cut, struct pl_error *err);

/* For memory_need.c: bytes of the message whose time is measured; the microbatches that a stage
 * keeps at a time; the bytes of its messages: those of either link, and gradients that wait for
 * theirs. */
#define PL_PIPE_PROBE_BYTES (1024 * 1024)
#define PL_PIPE_MESSAGES 3
size_t pl_pipe_kept_by(const struct pl_pipe *pipe, unsigned stage, size_t microbatches);
size_t pl_pipe_in_flight(const struct pl_pipe *pipe, size_t microbatches);
void pl_pipe_messages(const struct pl_stage_tape *own, size_t ret[PL_PIPE_MESSAGES]);

/* For pipe_schedule.c: makes a slot's stage from a microbatch. */
int pl_pipe_begin(struct pl_pipe *pipe,
                  enum plume_stage stage,
                  struct pl_pipe_slot *slot,
                  const struct plume_batch *batch,
                  size_t first,
                  size_t rows,
                  struct pl_error *err);
/* Slot `index` of a stage; SIZE_MAX: that of the shorter last microbatch. NULL: out of memory. */
int pl_pipe_slot(struct pl_pipe *pipe,
                 enum plume_stage stage,
                 size_t index,
                 struct pl_pipe_slot **ret,
                 struct pl_error *err);

#endif
