/* SPDX-License-Identifier: MIT */
/* Shared by checkpoint.c (in memory) and checkpoint_file.c (on disk). */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PRIVATE_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PRIVATE_H

#include "runtime/engine/checkpoint/checkpoint.h"

/* NULL for a type that checkpoints do not have; 0 for an unknown name. */
const char *pl_checkpoint_dtype_name(enum plume_dtype dtype);
enum plume_dtype pl_checkpoint_dtype_find(const char *name);

/* Makes room for one more tensor. */
int pl_checkpoint_room(struct pl_checkpoint *checkpoint, struct pl_error *err);

static inline size_t pl_checkpoint_pad(size_t bytes)
{
    return (bytes + PL_CHECKPOINT_ALIGN - 1) / PL_CHECKPOINT_ALIGN * PL_CHECKPOINT_ALIGN;
}

#endif
