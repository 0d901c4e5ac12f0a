/* SPDX-License-Identifier: MIT */
/* Graphs on an XLA device: lowered, compiled and run there, for the host's memory of their tensors.
 */
#ifndef PL_TESTS_GRAPHS_ON_XLA_H
#define PL_TESTS_GRAPHS_ON_XLA_H

#include "runtime/engine/tape/tape.h"

/* Opens the device of this PJRT plugin, or ends the program. */
void on_xla_open(const char *plugin);
void on_xla_close(void);

/* False if the tape has an op without a lowering. */
bool on_xla_takes(const struct pl_tape *tape);

/* Runs a planned tape of f32 and i32 tensors, and the gradients of the loss (NULL: none). The
 * roots' data and the leaves' gradients are written, all others not. Ends the program if it cannot.
 */
void on_xla_run(const struct pl_tape *tape,
                plume_tensor *leaves,
                size_t n_leaves,
                plume_tensor *const *roots,
                size_t n_roots,
                const plume_tensor *loss);

#endif
