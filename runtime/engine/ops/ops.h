/* SPDX-License-Identifier: MIT */
/* The ops that modules call. Each checks shapes and traces nodes. Shapes and meaning: plume/ops.h;
 * arithmetic: kernels/args_*.h. To add an op: its number in plume/module.h, its function in
 * plume/ops.h, a builder in the op_*.c of its family, a line in the table of ops.c. */
#ifndef PL_RUNTIME_ENGINE_OPS_OPS_H
#define PL_RUNTIME_ENGINE_OPS_OPS_H

#include "runtime/engine/tape/tape.h"

/* Traces the op that a module asks for. Returns 0 with *ret set (owned by the tape), -EINVAL with a
 * text that names the op and the shapes, -ENOSYS for an op that this engine does not know, -ENOMEM.
 * args may be NULL: all zero. */
int pl_op_call(struct pl_tape *tape,
               enum plume_op op,
               plume_tensor *const *in,
               size_t n_in,
               const struct plume_op_args *args,
               plume_tensor **ret,
               struct pl_error *err);

/* Looks for a label that the last forward run of the tape met and that is no class. -EDOM with a
 * text, 0 (all labels are classes), or the error of reading the device. For a loss that is not a
 * number: it costs a copy of all labels. */
int pl_op_check_labels(const struct pl_tape *tape, struct pl_error *err);

/* True for in[0] / in[1]. */
bool pl_op_divides(const struct pl_node *node);

/* Returns the name of the function that calls the op with these numbers (NULL: all zero), such as
 * "linear"; "?" for an unknown op. */
const char *pl_op_name(enum plume_op op, const struct plume_op_args *args);

/* "w (input 1)" into buf, always terminated: the name of an argument, if it has one. */
void pl_op_input_name(enum plume_op op,
                      const struct plume_op_args *args,
                      size_t n_in,
                      size_t i,
                      char *buf,
                      size_t size);

#endif
