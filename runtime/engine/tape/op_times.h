/* SPDX-License-Identifier: MIT */
/* Measures each op of a traced step on this device: its time forward and backward, and the bytes
 * that it keeps for backward. It runs one op after another, each with memory for itself only, and
 * so can measure a step that does not fit the memory. */
#ifndef PL_RUNTIME_ENGINE_TAPE_OP_TIMES_H
#define PL_RUNTIME_ENGINE_TAPE_OP_TIMES_H

#include "runtime/engine/tape/tape_stage.h"

/* ret_seconds, ret_kept: of each node, forward and backward together. Views cost nothing. Inputs
 * are zeros, batches are used as they are. -ENOMEM, -EIO. */
int pl_op_times(const struct pl_tape *whole,
                const struct pl_tape_flow *flow,
                const plume_tensor *loss,
                double *ret_seconds,
                double *ret_kept,
                struct pl_error *err);

#endif
