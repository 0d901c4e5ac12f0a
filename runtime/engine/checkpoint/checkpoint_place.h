/* SPDX-License-Identifier: MIT */
/* A file is made beside its path and renamed when it is complete. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PLACE_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PLACE_H

#include "common/base/error.h"

/* A temporary name beside the path that no other process uses; caller frees. NULL: out of memory.
 */
char *pl_checkpoint_temp(const char *path);

/* Renames temp to path and has the folder written to the disk. A failed rename removes temp. */
int pl_checkpoint_place(const char *temp, const char *path, struct pl_error *err);

#endif
