/* SPDX-License-Identifier: MIT */
/* A step's program as text. Its arguments, in this order: each parameter (params->order); the
 * optimizers' slots of each parameter that has some; each buffer; the sums of gradients so far, of
 * the parameters that have one; the batch's fields; ui32[4]: seed and step of dropout; the classes'
 * numbers (lower_update.h). Its results in training: parameters, slots and buffers, in place; then,
 * if the step is not due, the sums of gradients; last the reported values. Without training: these
 * alone. */
#ifndef PL_RUNTIME_ENGINE_XLA_PROGRAM_H
#define PL_RUNTIME_ENGINE_XLA_PROGRAM_H

#include "runtime/engine/xla/lower_update.h"
#include "runtime/engine/xla/xla.h"

struct pl_program_spec {
    unsigned replicas; /* of the program, whose gradients it adds up; >= 1 */
    const struct pl_params *params;
    const struct pl_optimizers *optimizers;
    const struct pl_clip_rule *clip;
    const struct pl_xla_step *step;
    const struct pl_xla_part *part; /* of the step: that of a replica */
    bool training;
    const bool *summed; /* by parameter: has a sum of gradients from earlier batches */
};

/* By parameter, in params->order; the caller allocates. */
struct pl_program_plan {
    bool *grad;         /* the step has a gradient for it, or a sum of some */
    unsigned *class_of; /* of those that are updated */
    unsigned n_classes;
};

/* Sets class_of and n_classes by `grad`: parameters of one optimizer and group that have missed as
 * many steps are a class. */
void pl_program_classes(const struct pl_program_spec *spec, struct pl_program_plan *plan);

/* Appends the module's text. plan->grad and the classes are set if `training`. *ret_outputs: number
 * of results. */
int pl_program_text(const struct pl_program_spec *spec,
                    struct pl_program_plan *plan,
                    struct pl_buf *text,
                    size_t *ret_outputs,
                    struct pl_error *err);

#endif
