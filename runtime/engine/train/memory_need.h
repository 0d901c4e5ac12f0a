/* SPDX-License-Identifier: MIT */
/* The memory of the device that a rank's training needs: by arithmetic on what the trainer has
 * built and on plans of its steps, before any of them runs. It is what the engine's allocator will
 * have counted at its peak (struct pl_device_memory). */
#ifndef PL_RUNTIME_ENGINE_TRAIN_MEMORY_NEED_H
#define PL_RUNTIME_ENGINE_TRAIN_MEMORY_NEED_H

#include "runtime/engine/train/trainer.h"

/* Bytes. */
struct pl_memory_need {
    double params;   /* values that this rank keeps */
    double gathered; /* --shard param: units of the others', at most at a time */
    double grads;    /* own ones, and buckets that share memory */
    double state;    /* of the optimizers */
    double average;  /* --ema, */
    double spare;    /* and what it exchanges at a time; at O3, what rounding has at a time */
    double buffers;
    double borrowed;       /* pipelines: tied weights of other stages, */
    double messages;       /* and what goes between neighbours */
    double step, unshared; /* tensors of a training step; without reuse */
    double evaluation;     /* tensors of validation and test */
    double batches;        /* on a device that is not the host */
    double all;            /* the sum, without `unshared` */
};

/* Traces a full batch of each stage. In a pipeline it is that of this rank's stage. -ENOMEM, or the
 * error of a hook. */
int pl_memory_need(struct pl_trainer *trainer, struct pl_memory_need *ret, struct pl_error *err);

/* Options that a run might have. Zeros: as it has them. */
struct pl_memory_as {
    size_t batch;             /* rows */
    bool recompute;           /* on */
    enum pl_shard_kind shard; /* at least the run's kind, */
    unsigned ranks;           /* among so many */
};

/* The same with other options, of the rank that needs most, and the trainer is as before. Of a
 * pipeline it is this rank's stage, and `batch` alone counts (pipe_as.h has the rest). */
int pl_memory_need_as(struct pl_trainer *trainer,
                      const struct pl_memory_as *as,
                      struct pl_memory_need *ret,
                      struct pl_error *err);

/* Bytes of memory that this process may use: the device's; on a CPU this rank's share of the
 * machine's or of its control group's, or what its own limits (setrlimit(2)) leave for the engine
 * beside its programs and threads, if that is lower. INFINITY if unknown. */
double pl_memory_limit(struct pl_trainer *trainer);

/* Call before the parameters' layout. No allocation fails at the limit of a control group: the
 * kernel ends the process. -ENOMEM: that is certain, by parameters and gradients alone. */
int pl_memory_check_group(const struct pl_trainer *trainer, struct pl_error *err);

#define PL_MEMORY_TEXT 32

/* "3.1 GB", "12.5 MB"; infinity is "an unknown size". Returns ret. */
const char *pl_memory_text(double bytes, char ret[PL_MEMORY_TEXT]);

#endif
