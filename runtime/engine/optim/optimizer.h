/* SPDX-License-Identifier: MIT */
/* The optimizers of a model: each over a part of the parameters, with its state, learning rate and
 * schedule. A step is at most two passes over the gradients, by kernels/args_optim.h: one that
 * unscales, looks for overflow and sums squares (if a scaler or clipping needs it), one that
 * clips and updates.
 *
 * All ranks have the same gradients, so they decide alike and stay alike. Under strategy sharded
 * each rank has the gradients and state of its shard (shard.h) and updates these parameters; the
 * ranks add up what they have measured. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_OPTIMIZER_H
#define PL_RUNTIME_ENGINE_OPTIM_OPTIMIZER_H

#include "runtime/engine/optim/clip.h"
#include "runtime/engine/optim/grad_graph.h"
#include "runtime/engine/optim/scaler.h"
#include "runtime/engine/optim/schedule.h"
#include "runtime/engine/params/params.h"
#include "runtime/engine/util/hparam.h"

#define PL_OPTIMIZERS_MAX 8
#define PL_OPTIMIZER_SLOTS 3 /* momentum; Adam's two means; RMSprop's three */
#define PL_GROUPS_MAX 8      /* of an optimizer */

/* Neighbouring parameters of a group, updated at once unless some are unused (unused_params.h). */
struct pl_optimizer_range {
    size_t offset, count;  /* elements of the parameters' arenas */
    size_t own, own_count; /* those that this rank updates */
    size_t state;          /* start of their state, in elements of a slot */
    size_t first, n;       /* the parameters, as laid out */
    size_t group;          /* from 1; 0 = the optimizer's own numbers */
};

/* A group that a module has asked for (plume_add_group()). */
struct pl_group_options {
    size_t optimizer;    /* index */
    const char *pattern; /* borrowed */
    struct plume_group numbers;
};

/* A group's numbers; its schedule runs beside the optimizer's, from its own rate. */
struct pl_group {
    const char *pattern; /* borrowed, of the module's state */
    double weight_decay;
    struct pl_schedule schedule;
};

struct pl_optimizer {
    struct plume_optimizer options; /* pointers in it are not used after init */
    struct pl_schedule schedule;    /* the learning rate is schedule.lr */
    char monitor[80];
    uint64_t steps; /* completed, without skipped ones; a parameter's own number is less by its
                       `missed` */
    struct pl_optimizer_range *ranges;
    size_t n_ranges, count; /* elements of a slot */
    struct pl_group groups[PL_GROUPS_MAX];
    size_t n_groups;
    void *slot[PL_OPTIMIZER_SLOTS];
    size_t lent; /* bytes of slots that are the communicator's and count as this rank's */
};

/* Elements that this rank updates at once, with the number of this step of theirs. */
struct pl_optimizer_segment {
    const struct pl_optimizer *optimizer;
    const struct pl_optimizer_range *range;
    size_t from, to;
    uint64_t step;
};

struct pl_optimizers {
    const struct pl_params *params;
    struct pl_optimizer list[PL_OPTIMIZERS_MAX];
    size_t n;
    struct pl_comm *comm; /* of the ranks that have the other shards; NULL = none */
    bool by_blocks; /* squares are summed by block (shard.h): the same bits under every strategy */
    struct pl_range_stats *stats; /* per range, or per block; in the order of optimizers; device
                                     memory */
    void **mirrors; /* one per rank of the node, with params->by_node (node_update.h) */
    double *clip;   /* two numbers behind stats: the sum of squares, the factor that clips */
    bool graphs;    /* may be used if the device has them; set by the user */
    struct pl_grad_graph captured[PL_OPTIMIZERS_MAX]; /* of steps from this optimizer on */
};

/* Statistics of a range or block, by grad_stats. */
struct pl_range_stats {
    double squares;
    bool finite;
};

/* Result of a step. */
struct pl_optimizers_result {
    bool measured; /* norm is set */
    bool skipped;  /* an optimizer made no step: its gradients were not finite */
    double norm;   /* L2 of all optimizers' gradients, before clipping */
};

/* "sgd", "adam", "adamw", "rmsprop" or "adagrad". -EINVAL. */
int pl_optimizer_kind_parse(const char *name, enum plume_optimizer_kind *ret, struct pl_error *err);
const char *pl_optimizer_kind_name(enum plume_optimizer_kind kind);

/* Values that configure_optimizers may change: kind, the hyper-parameters lr, momentum and
 * weight_decay, and PyTorch's defaults for the rest. */
void pl_optimizer_defaults(const struct pl_hparams *hparams,
                           enum plume_optimizer_kind kind,
                           struct plume_optimizer *ret);

/* Number of state slots, and PyTorch's name of each ("momentum_buffer", "exp_avg", "exp_avg_sq",
 * "square_avg", "grad_avg", "sum"). */
size_t pl_optimizer_slots(const struct pl_optimizer *optimizer);
const char *pl_optimizer_slot_name(const struct pl_optimizer *optimizer, size_t slot);

/* Call after the layout of params (borrowed). struct plume_optimizer says how parameters are shared
 * out. -EINVAL names the wrong option, -EEXIST a parameter that two optimizers have, -ENOENT a
 * prefix without a parameter; -ENOMEM. */
int pl_optimizers_init(struct pl_optimizers *optimizers,
                       const struct pl_params *params,
                       const struct plume_optimizer *options,
                       size_t n,
                       struct pl_error *err);

/* The same with groups. -EEXIST too for a parameter in two of them, -ENOENT for a pattern without a
 * parameter. */
int pl_optimizers_init_groups(struct pl_optimizers *optimizers,
                              const struct pl_params *params,
                              const struct plume_optimizer *options,
                              size_t n,
                              const struct pl_group_options *groups,
                              size_t n_groups,
                              struct pl_error *err);

/* Call after init: sets these members. comm is borrowed. -ENOMEM. */
int pl_optimizers_share(struct pl_optimizers *optimizers,
                        struct pl_comm *comm,
                        bool by_blocks,
                        struct pl_error *err);
void pl_optimizers_finish(struct pl_optimizers *optimizers);

/* Unscales by the scaler (NULL = none), clips, updates all but unused parameters, and lets the
 * scaler adapt. Gradients are unscaled in place. ret may be NULL. Collective if there are shards
 * and the norm or a scaler is needed, and over the node with params->meets: when it returns, all
 * of the node's ranks have updated. -EIO, -ENOMEM, -ECONNRESET. */
int pl_optimizers_step(struct pl_optimizers *optimizers,
                       const struct pl_kernels *kernels,
                       const struct pl_clip_rule *clip,
                       struct pl_scaler *scaler,
                       struct pl_optimizers_result *ret,
                       struct pl_error *err);

/* The same for the n optimizers from `first` on. */
int pl_optimizers_step_some(struct pl_optimizers *optimizers,
                            size_t first,
                            size_t n,
                            const struct pl_kernels *kernels,
                            const struct pl_clip_rule *clip,
                            struct pl_scaler *scaler,
                            struct pl_optimizers_result *ret,
                            struct pl_error *err);

/* Call for each range after raising the optimizer's step number, with *at 0 at first: the next
 * neighbours that are used and have missed as many steps, mostly the whole range. Counts the missed
 * steps of the unused parameters between them. Returns false at the range's end. */
bool pl_optimizer_next_segment(const struct pl_optimizers *optimizers,
                               const struct pl_optimizer *optimizer,
                               const struct pl_optimizer_range *range,
                               size_t *at,
                               struct pl_optimizer_segment *ret);

/* Updates how->n elements of a segment from `begin` on. how: with n, grad and mirrors, and with
 * what all updates of the step have in common. */
void pl_optimizer_update(const struct pl_optimizers *optimizers,
                         const struct pl_optimizer_segment *segment,
                         size_t begin,
                         const struct pl_kernels *kernels,
                         const struct pl_update *how);

/* Places the own parts of an optimizer's ranges, and allocates their state, which is zero. Called
 * by init. -ENOMEM. */
int pl_optimizer_make_state(struct pl_optimizer *optimizer,
                            const struct pl_params *params,
                            struct pl_error *err);

/* Call after pl_stages_move(): the state follows the parameters. old: the former bounds. Collective
 * over the pipeline. -ENOMEM, -EIO, -ECONNRESET. */
int pl_optimizers_move(struct pl_optimizers *optimizers, const size_t *old, struct pl_error *err);

/* True if the optimizer has this parameter. */
bool pl_optimizer_has(const struct pl_optimizer *optimizer, const struct pl_param *param);

/* Steps the schedules by optimizer step (per_step), or those by epoch. value finds a metric by name
 * (NaN: none), or returns false: a plateau has nothing to check now. -ENOENT if a plateau lacks its
 * metric. */
int pl_optimizers_schedule(struct pl_optimizers *optimizers,
                           bool per_step,
                           bool (*value)(void *ctx, const char *name, double *ret),
                           void *ctx,
                           struct pl_error *err);

/* Multiplies all learning rates (horovod: by the world size). */
void pl_optimizers_scale(struct pl_optimizers *optimizers, double factor);

/* An element of a slot's arena; NULL if the optimizer does not have the slot. */
static inline void *pl_optimizer_slot_at(const struct pl_params *params,
                                         const struct pl_optimizer *o,
                                         size_t slot,
                                         size_t element)
{
    char *arena = o->slot[slot];

    return arena ? arena + element * pl_real_size(params->real) : NULL;
}

/* This rank's state of a parameter: that of its elements [*ret_from, *ret_from + *ret_count), in
 * the arenas' type and device memory; all elements without shards. NULL: it has none of it. */
void *pl_optimizer_state(const struct pl_optimizers *optimizers,
                         const struct pl_optimizer *optimizer,
                         size_t slot,
                         const struct pl_param *param,
                         size_t *ret_from,
                         size_t *ret_count);

#endif
