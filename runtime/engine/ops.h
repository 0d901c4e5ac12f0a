/* SPDX-License-Identifier: MIT */
/* The ops that modules call: each checks shapes and records a node on the tape. Shapes and
 * meaning: plume/module.h; arithmetic: kernels/kernels.h. All return 0 with *ret set (owned by the
 * tape), or -EINVAL with a text that names the op and the shapes. */
#ifndef PL_RUNTIME_ENGINE_OPS_H
#define PL_RUNTIME_ENGINE_OPS_H

#include "runtime/engine/tape.h"

int pl_op_linear(struct pl_tape *tape,
                 plume_tensor *x,
                 plume_tensor *w,
                 plume_tensor *b,
                 enum plume_activation act,
                 plume_tensor **ret,
                 struct pl_error *err);
int pl_op_relu(struct pl_tape *tape, plume_tensor *x, plume_tensor **ret, struct pl_error *err);
int pl_op_cross_entropy(struct pl_tape *tape,
                        plume_tensor *logits,
                        plume_tensor *labels,
                        plume_tensor **ret,
                        struct pl_error *err);
int pl_op_correct(struct pl_tape *tape,
                  plume_tensor *logits,
                  plume_tensor *labels,
                  plume_tensor **ret,
                  struct pl_error *err);

#endif
