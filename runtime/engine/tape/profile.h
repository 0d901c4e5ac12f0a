/* SPDX-License-Identifier: MIT */
/* Prints the time that a tape's ops took. */
#ifndef PL_RUNTIME_ENGINE_TAPE_PROFILE_H
#define PL_RUNTIME_ENGINE_TAPE_PROFILE_H

#include "runtime/engine/tape/tape.h"

/* Writes a table to out, the most expensive first: one line per op, compute type and output shape,
 * with calls per step, milliseconds per step forward and backward, share of the total, GFLOP/s,
 * and the GB/s of the bytes that pl_node_traffic() counts; on
 * a device with libraries also products, convolutions and attentions per step by the library and by
 * own kernels, which do what it has nothing for, and their sums.
 * `steps`: runs of the tape while it was timed. `seconds`: their total time including optimizer,
 * data and collectives, which the last line shows. The nodes are those of the last recording; runs
 * of earlier recordings are not counted. */
void pl_profile_print(const struct pl_tape *tape, uint64_t steps, double seconds, FILE *out);

/* Forgets the times and calls so far. */
void pl_profile_clear(struct pl_tape *tape);

#endif
