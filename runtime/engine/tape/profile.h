/* SPDX-License-Identifier: MIT */
/* Where a tape's time went. */
#ifndef PL_RUNTIME_ENGINE_TAPE_PROFILE_H
#define PL_RUNTIME_ENGINE_TAPE_PROFILE_H

#include "runtime/engine/tape/tape.h"

/* Writes a table to out, a line for each op, type that it runs in and shape of its output, the
 * dearest first: calls in a step, milliseconds of a step forward and backward, their share of all,
 * GFLOP/s. `steps` is how often the tape ran while it was timed, `seconds` how long all of that
 * took, optimizer, data and collectives counted, which the last line has. Nodes are those of the
 * last recording; where it changed in between, what came before is not counted. */
void pl_profile_print(const struct pl_tape *tape, uint64_t steps, double seconds, FILE *out);

#endif
