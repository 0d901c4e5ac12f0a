/* SPDX-License-Identifier: MIT */
/* Shared by xla.c, which keeps the state, xla_program.c, which finds programs, and xla_run.c, which
 * runs them. */
#ifndef PL_RUNTIME_ENGINE_XLA_XLA_PRIVATE_H
#define PL_RUNTIME_ENGINE_XLA_XLA_PRIVATE_H

#include "runtime/engine/util/sha256.h"
#include "runtime/engine/xla/pjrt_table.h"
#include "runtime/engine/xla/program.h"

/* A program that the device has compiled. */
struct pl_compiled {
    uint8_t hash[PL_SHA256_BYTES]; /* of its text */
    struct pl_pjrt_program *program;
    size_t outputs;
};

/* The compiled program of a tape, so that the same step is not lowered again. */
struct pl_recent {
    const struct pl_tape *tape;
    uint64_t recordings;
    bool training, first, due;
    double scale;
    size_t n_values;
    const plume_tensor *values[PL_TAPE_ROOTS_MAX];
    struct pl_program_plan plan;
    bool *summed;    /* as pl_xla's, when it was lowered */
    size_t compiled; /* index */
};

struct pl_xla {
    const struct pl_pjrt_table *table;
    struct pl_pjrt *client;
    unsigned replicas; /* devices of the client */
    unsigned world;    /* of the clients of all hosts */
    const char *dump;
    bool cache; /* compiled programs are kept */
    struct pl_params *params;
    struct pl_optimizers *optimizers;
    struct pl_clip_rule clip;

    size_t n_params, n_buffers; /* close() is called after those of attach() are gone */

    /* On the device: */
    bool loaded, newer;                  /* it has the state; a newer one than the host */
    bool apart;                          /* replicas may have other buffers than the first */
    struct pl_pjrt_array **value, **sum; /* by parameter */
    struct pl_pjrt_array *(*slot)[PL_OPTIMIZER_SLOTS];
    struct pl_pjrt_array **buffer;
    bool *summed;

    struct pl_compiled *compiled;
    size_t n_compiled;
    struct pl_recent *recent;
    size_t n_recent;
};

/* Brings the host's state to the device if that has none. -EIO. */
int pl_xla_load_state(struct pl_xla *x, struct pl_error *err);

/* Frees an array, and sets it to NULL. */
void pl_xla_forget(struct pl_xla *x, struct pl_pjrt_array **array);

/* The program of a step: the tape's last one, or another that is compiled already, or a new one.
 * *ret is valid until the next call. -ENOTSUP, -EINVAL, -EIO, -ENOMEM. */
int pl_xla_find_program(struct pl_xla *x,
                        const struct pl_program_spec *spec,
                        struct pl_recent **ret,
                        struct pl_error *err);

#endif
