/* SPDX-License-Identifier: MIT */
/* What the tape's files share. */
#ifndef PL_RUNTIME_ENGINE_TAPE_PRIVATE_H
#define PL_RUNTIME_ENGINE_TAPE_PRIVATE_H

#include "runtime/engine/tape.h"

/* Bytes that the f32 copies of a node's 16-bit tensors and of their gradients need. */
size_t pl_tape_wide_bytes(const struct pl_node *node);

#endif
