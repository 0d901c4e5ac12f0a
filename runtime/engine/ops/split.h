/* SPDX-License-Identifier: MIT */
/* Tensor parallel: the linear layers and attentions of a tape, split among ranks by columns, rows
 * and heads (Megatron-LM: Shoeybi et al. 2019, arXiv 1909.08053, 3).
 *
 * A region begins with linear layers whose outputs are split by columns, goes on with ops that work
 * on a part as on the whole (elementwise ops, dropout, attention by heads), and ends in linear
 * layers that are split by rows, whose outputs the ranks add up. Inside it each rank has its part
 * of each tensor and parameter; outside it all ranks have the same numbers. A region has one sum
 * over the ranks forward, after its last layers, and one backward, before its first.
 *
 * Modules know nothing of this: they trace whole tensors. pl_split_find() looks for regions in such
 * tapes; pl_split_trace() traces the tape that a rank runs. What is in no region stays whole.
 *
 *     init -> find -> trace ... finish */
#ifndef PL_RUNTIME_ENGINE_OPS_SPLIT_H
#define PL_RUNTIME_ENGINE_OPS_SPLIT_H

#include "runtime/engine/tape/split_at.h"
#include "runtime/engine/tape/tape.h"

struct pl_split_counts {
    size_t linears, attentions; /* of a tape */
    size_t split_linears, split_attentions;
    size_t indivisible; /* linear layers that are whole because the ranks do not divide a size */
};

struct pl_split {
    unsigned n, rank;
    size_t numbers;                    /* of parameters and buffers */
    struct pl_split_at *params;        /* by number - 1 */
    plume_tensor **local;              /* by number - 1: this rank's part; NULL: it is whole */
    bool decided;                      /* by pl_split_find() */
    const struct pl_tape_peers *peers; /* of the tapes that run. Borrowed */
};

/* A tape as the module traces it, and what was made of it. */
struct pl_split_tape {
    struct pl_tape whole;
    plume_tensor *roots[PL_TAPE_ROOTS_MAX]; /* what is read after the run must be whole */
    size_t n_roots;
    plume_tensor **made; /* by node of `whole`: the tensor of the tape that runs */
    size_t made_cap;
    bool ready; /* `made` is of the last trace */
};

/* n, rank and peers are set. numbers: of all parameters and buffers, some of which will be split.
 * -ENOMEM. */
int pl_split_init(struct pl_split *split, size_t numbers, struct pl_error *err);
void pl_split_finish(struct pl_split *split);
void pl_split_tape_finish(struct pl_split_tape *tape);

/* Decides which parameters are split: those that have the same part in each of these tapes.
 * ret_counts: of tapes[0]. -ENOMEM. */
int pl_split_find(struct pl_split *split,
                  const struct pl_split_tape *const *tapes,
                  size_t n_tapes,
                  struct pl_split_counts *ret_counts,
                  struct pl_error *err);

/* Traces on `run` what this rank runs of a traced tape, if that has changed. -EINVAL if the module
 * uses a split parameter in another way than when it was split: *ret_number is its number. */
int pl_split_trace(const struct pl_split *split,
                   struct pl_split_tape *from,
                   struct pl_tape *run,
                   unsigned *ret_number,
                   struct pl_error *err);

/* Bytes that a node of `run` adds up over the ranks, forward and backward together; most add up
 * nothing. */
size_t pl_split_summed_bytes(const struct pl_tape *run, const struct pl_node *node);

/* The tensor of `run` for one of the whole tape. Parameters that are whole, and batches, are
 * themselves. */
plume_tensor *pl_split_made(const struct pl_split_tape *from, plume_tensor *t);

#endif
