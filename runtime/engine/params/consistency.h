/* SPDX-License-Identifier: MIT */
/* Checks that all ranks agree, without which the sum of their gradients has no meaning: on the
 * parameters and their layout in the arenas, on the optimizers, and after training on the values.
 * Collective; a world of one does nothing. If a rank differs from rank 0, all ranks return the same
 * text. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_CONSISTENCY_H
#define PL_RUNTIME_ENGINE_PARAMS_CONSISTENCY_H

#include "runtime/engine/params/params.h"

/* Compares names, types and shapes of parameters and buffers with rank 0's, then copies rank 0's
 * order to params->order. -EINVAL names the first rank that differs, and its declaration; -ENOMEM.
 */
int pl_agree_on_layout(struct pl_params *params, struct pl_comm *comm, struct pl_error *err);

/* Compares a text with rank 0's, line by line. -EINVAL: "rank R VERB this line where rank 0 VERB
 * that line: HOOK the same on all ranks"; -ENOMEM. */
int pl_agree_on_lines(const char *mine,
                      const char *verb,
                      const char *hook,
                      struct pl_comm *comm,
                      struct pl_error *err);

/* Compares the parameters' values; `hash` is the result of pl_params_hash(). -EBADMSG names the
 * first rank that differs and its first parameter that does; -EIO, -ENOMEM. */
int pl_agree_on_values(const struct pl_params *params,
                       const char hash[PL_PARAMS_HASH],
                       struct pl_comm *comm,
                       struct pl_error *err);

#endif
