/* SPDX-License-Identifier: MIT */
/* The time that a tape's ops took, by op, compute type and output shape. It is counted by these
 * lines and not by node, since another batch size records the nodes anew. */
#ifndef PL_RUNTIME_ENGINE_TAPE_PROFILE_H
#define PL_RUNTIME_ENGINE_TAPE_PROFILE_H

#include "runtime/engine/tape/tape.h"

/* Call before a timed run forward of the planned tape: finds the nodes' lines if the plan is new,
 * and counts a call of each. -ENOMEM. */
int pl_profile_begin(struct pl_tape *tape, struct pl_error *err);

/* Counts a run of the node, which took so many nanoseconds. done: by the device's libraries, and by
 * own kernels. */
void pl_profile_add(struct pl_tape *tape,
                    const struct pl_node *node,
                    bool backward,
                    uint64_t ns,
                    struct pl_device_calls done);

/* Moves the lines of a tape on the same device to another one's. -ENOMEM. */
int pl_profile_merge(struct pl_tape *to, struct pl_tape *from, struct pl_error *err);

/* Writes a table to out, the most expensive first: one line per op, compute type and output shape
 * (the first 200, then their rest), with calls per step, milliseconds per step forward and
 * backward, share of the total, GFLOP/s, and the GB/s of the bytes that pl_node_traffic() counts;
 * on a device with libraries also products, convolutions and attentions per step by the library and
 * by own kernels, which do what it has nothing for, and their sums. `steps`: steps while the tape
 * was timed. `seconds`: their total time including optimizer, data and collectives, which the last
 * line shows. */
void pl_profile_print(struct pl_tape *tape, uint64_t steps, double seconds, FILE *out);

/* Forgets the times and calls so far. */
void pl_profile_clear(struct pl_tape *tape);

#endif
