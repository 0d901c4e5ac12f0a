/* SPDX-License-Identifier: MIT */
/* The implementation of struct plume_context: the functions that modules call. */
#ifndef PL_RUNTIME_ENGINE_MODULE_CONTEXT_H
#define PL_RUNTIME_ENGINE_MODULE_CONTEXT_H

#include "runtime/engine/data/array.h"
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/params/params.h"
#include "runtime/engine/util/hparam.h"

#define PL_LOG_VALUES_MAX 32

/* The values that a stage logs: sums over batches, by name, in the order first logged. */
struct pl_logs {
    size_t n;
    char name[PL_LOG_VALUES_MAX][64];
    double sum[PL_LOG_VALUES_MAX][2]; /* value * factor, weight */
    bool closed;                      /* names are complete: a new one is an error */
    /* Values of the running step, known after the tape has run. */
    struct pl_log_pending {
        size_t index;
        plume_tensor *value;
        double factor, weight;
    } pending[PL_LOG_VALUES_MAX];
    size_t n_pending;
};

#define PL_PARTS_MAX PL_NODE_INPUTS_MAX
#define PL_OUTPUTS_MAX 9 /* the loss, and the named ones */

#define PL_KEPT_MAX 64 /* tensors that a step keeps, in all parts */

struct pl_checkpoint;
struct pl_split;

/* A tensor that the newest training_step keeps for plume_read(), in one part of the batch. */
struct pl_kept {
    char name[64];
    unsigned part;
    plume_tensor *t;
};

/* The outputs of one step; list[0] is the loss. */
struct plume_outputs {
    unsigned parts;
    size_t n;
    struct pl_output {
        char name[64];
        plume_tensor *part[PL_PARTS_MAX];
        plume_tensor *whole; /* NULL until requested */
    } list[PL_OUTPUTS_MAX];
};

/* Clears the outputs, for a step in this many parts. */
void pl_outputs_begin(struct plume_outputs *outputs, unsigned parts);

/* Sets the loss of a part. */
void pl_outputs_loss(struct plume_outputs *outputs, unsigned part, plume_tensor *loss);

/* Checks that every part gave all outputs. -EINVAL names the missing one. */
int pl_outputs_check(const struct plume_outputs *outputs, struct pl_error *err);

/* The functions that a module may call while its manual_step runs. */
struct pl_manual_calls {
    int (*backward)(void *ctx, unsigned optimizer, double *ret_loss, struct pl_error *err);
    int (*step)(void *ctx, unsigned optimizer, struct pl_error *err);
    int (*zero_grad)(void *ctx, unsigned optimizer, struct pl_error *err);
};

struct pl_context {
    struct plume_context pub; /* must be first: hooks get its address */
    const struct pl_hparams *hparams;
    struct pl_params params;
    struct pl_tape *tape; /* of the running step; NULL outside */
    struct pl_logs *logs; /* of the running step; NULL outside */
    bool configuring;     /* parameters may be declared */
    struct plume_optimizer
        optimizers[PL_OPTIMIZERS_MAX]; /* while configuring; the hook's argument is the first */
    size_t n_optimizers;               /* 0 while not configuring */
    struct plume_optimizer optimizer_defaults;
    struct pl_group_options groups[PL_OPTIMIZERS_MAX * PL_GROUPS_MAX]; /* the same */
    size_t n_groups;
    struct plume_array **arrays;
    size_t n_arrays;
    struct pl_checkpoint *checkpoint;  /* the one that is made or read; NULL otherwise */
    struct plume_outputs *outputs;     /* of the running step; NULL outside */
    const struct plume_outputs *ended; /* of a step whose *_step_end runs; NULL otherwise */
    bool told_of_output;               /* that no hook takes: a warning has been given */
    unsigned part;                     /* index of the batch's part */
    struct pl_kept kept[PL_KEPT_MAX];  /* in the order of parts */
    size_t n_kept;
    bool keeping;             /* training_step runs */
    bool kept_ready;          /* its backward pass has run, too */
    struct pl_comm *comm;     /* for the module's own collectives; borrowed */
    unsigned share, n_shares; /* of the samples: rank and world size, or of pipelines */
    struct pl_comm *copies;   /* of the ranks that train the same parameters: all, or a stage's */
    struct pl_split *split;   /* tensor parallel (split.h); NULL: hooks trace the tape that runs.
                                 Borrowed */
    const struct pl_manual_calls *manual; /* while manual_step runs; else NULL */
    void *manual_ctx;
    struct pl_error error; /* the first failure in the running hook */
};

extern const struct plume_dist_api pl_context_dist;

/* Keeps the error of a function that the running hook has called. Only the first error counts: the
 * others follow from it. */
void pl_context_keep(struct pl_context *ctx, int code, const struct pl_error *err);

/* Makes and keeps a new error; returns code. */
int PL_PRINTF(3, 4) pl_context_refuse(struct pl_context *ctx, int code, const char *fmt, ...);

/* False for the result of an op of an earlier step, or of another part's, which has other numbers
 * by now, or none. A *_step_end gets the results of parts that gave an output. A result of an
 * earlier step that this step has made again cannot be told from the new one. */
bool pl_context_is_of_step(const struct pl_context *ctx, const plume_tensor *t);

#define PL_IS_OF_EARLIER                                                                           \
    "is the result of an op of an earlier step: results are valid until the hook returns"

/* hparams and dev (the parameters' device) are borrowed. Allocates state_size bytes of zeroed state
 * for the module. -ENOMEM. */
int pl_context_init(struct pl_context *ctx,
                    struct pl_device *dev,
                    const struct pl_hparams *hparams,
                    enum pl_real real,
                    size_t state_size,
                    unsigned rank,
                    unsigned world_size,
                    struct pl_error *err);
void pl_context_finish(struct pl_context *ctx);

/* Adds the step's logged values, after its tape has run on `dev`. `home` has parameters and
 * buffers. -EIO. */
int pl_logs_collect(struct pl_logs *logs,
                    struct pl_device *dev,
                    struct pl_device *home,
                    struct pl_error *err);

/* Combines a hook's return value r and the errors of the functions it called into one result;
 * `hook` names it in the text. */
int pl_context_result(struct pl_context *ctx, int r, const char *hook, struct pl_error *err);

#endif
