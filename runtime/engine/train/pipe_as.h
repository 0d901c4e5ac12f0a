/* SPDX-License-Identifier: MIT */
/* A pipeline as it would be with other options, while its memory is planned. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PIPE_AS_H
#define PL_RUNTIME_ENGINE_TRAIN_PIPE_AS_H

#include "runtime/engine/train/pipe.h"

/* Zeros: as they are. */
struct pl_pipe_as {
    uint64_t microbatches;
    bool in_turn;   /* --schedule 1f1b */
    bool recompute; /* on */
    /* A multiple of those that there are, on devices like these, cut anew as evenly as the memory
     * allows: times are measured, and another run measures others. */
    unsigned stages;
    const size_t *cut; /* of the stages that there are; NULL: their own */
};

/* The state that pl_pipe_as_end() restores. */
struct pl_pipe_was {
    struct pl_train_options options; /* the other ones */
    const struct pl_train_options *before;
    unsigned n_stages, stage;
    size_t *cut, own_from, own_to;
    struct pl_pipe_costs costs;
    struct pl_param_stages stages;
    bool cuts;      /* another cut */
    double fullest; /* if it is made here: what its fullest device has by the estimates, by limit */
};

/* Starts. With `stages` it finds their cut, which may need more memory than there is: -EINVAL if
 * there is none, and the pipeline is as before. It must not run until pl_pipe_as_end(). -ENOMEM.
 * Collective with `stages`. */
int pl_pipe_as_begin(struct pl_pipe *pipe,
                     const struct pl_pipe_as *as,
                     struct pl_pipe_was *was,
                     struct pl_error *err);

/* With another cut: this rank has that stage. -ENOMEM. */
int pl_pipe_as_stage(struct pl_pipe *pipe, unsigned stage, struct pl_error *err);

/* As pl_pipe_cut(). If no cut fits, the error also names options with which one does, by the same
 * estimates. */
int pl_pipe_cut_as(struct pl_pipe *pipe, struct pl_error *err);

void pl_pipe_as_end(struct pl_pipe *pipe, struct pl_pipe_was *was);

#endif
