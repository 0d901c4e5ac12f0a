/* SPDX-License-Identifier: MIT */
/* Tensor parallel (--tensor-parallel K): K ranks of a node, a group, train one copy of the model.
 * They read the same samples, and each has a part of the parameters that pl_split_find() splits;
 * all other parameters have the same numbers on all of them. Groups are to each other what ranks
 * are in ddp, in strategy sharded, or in pipelines. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_TENSOR_PARALLEL_H
#define PL_RUNTIME_ENGINE_TRAIN_TENSOR_PARALLEL_H

#include "runtime/engine/ops/split.h"
#include "runtime/engine/params/params.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/train/stage.h"

struct pl_tensor_parallel {
    bool on;
    unsigned group, n_groups;
    struct pl_comm *world;  /* borrowed */
    struct pl_comm *peers;  /* of the ranks of this group */
    struct pl_comm *copies; /* of the ranks that have this rank's parts, one per group */
    struct pl_comm *savers; /* see pl_tensor_parallel_join(); NULL: others, or not joined */
    struct pl_device *dev;
    struct pl_tape_peers sum;
    struct pl_split split;
    struct pl_split_counts counts; /* of the training step */
    char failed[PL_COMM_TEXT_MAX]; /* why this rank gives up; "" = it does not */
};

/* Joins the ranks, if the strategy says so; else *tp is off. -EINVAL if a node has not a multiple
 * of K ranks. Collective over world. Zeroed memory may be finished. */
int pl_tensor_parallel_open(struct pl_tensor_parallel *tp,
                            const struct pl_strategy *strategy,
                            struct pl_comm *world,
                            struct pl_device *dev,
                            struct pl_error *err);
void pl_tensor_parallel_finish(struct pl_tensor_parallel *tp);

/* Joins the ranks that have a copy of the model between them. first: this rank has a part of the
 * first copy; then *ret are its ranks, in the order of the world's. copy: the ranks that share this
 * rank's parts; NULL: it has all of these. May be &copy. Collective over the world. -ENOMEM,
 * -ECONNRESET. */
int pl_tensor_parallel_join(struct pl_tensor_parallel *tp,
                            bool first,
                            const struct pl_comm *copy,
                            struct pl_comm **ret,
                            struct pl_error *err);

/* Call after a failure, before finish: tells the other ranks. */
void pl_tensor_parallel_fail(struct pl_tensor_parallel *tp, int r, const struct pl_error *err);

/* Splits the parameters by the dry steps of the stages, three of them. -EINVAL if there is nothing
 * to split. */
int pl_tensor_parallel_split(struct pl_tensor_parallel *tp,
                             struct pl_stage *stages,
                             struct pl_params *params,
                             struct pl_error *err);

/* Gives all ranks of the group the flags of unused_params.h that any of them has. Collective. */
int pl_tensor_parallel_share_flags(const struct pl_tensor_parallel *tp,
                                   struct pl_params *params,
                                   struct pl_error *err);

/* Says what was split. */
void pl_tensor_parallel_print(const struct pl_tensor_parallel *tp,
                              const struct pl_params *params,
                              FILE *out);

/* True on the rank of the group that counts what all of its ranks have. */
static inline bool pl_tensor_parallel_counts(const struct pl_tensor_parallel *tp)
{
    return !tp->on || tp->split.rank == 0;
}

#endif
