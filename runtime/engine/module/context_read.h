/* SPDX-License-Identifier: MIT */
/* plume_read() and plume_keep() of plume/module.h. */
#ifndef PL_RUNTIME_ENGINE_MODULE_CONTEXT_READ_H
#define PL_RUNTIME_ENGINE_MODULE_CONTEXT_READ_H

#include "runtime/engine/module/context.h"

int pl_context_read(
    struct plume_context *pl, const char *name, enum plume_what what, size_t n, double *ret);

plume_tensor *pl_context_keep_tensor(struct plume_context *pl, const char *name, plume_tensor *t);

#endif
