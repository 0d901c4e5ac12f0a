/* SPDX-License-Identifier: MIT */
/* Parts of Plume that are shared objects, as they need libraries that few machines have
 * (plume-mpi.so, plume-cuda.so): loaded when they are asked for and never before. */
#ifndef PL_RUNTIME_ENGINE_UTIL_PLUGIN_H
#define PL_RUNTIME_ENGINE_UTIL_PLUGIN_H

#include "common/base/error.h"

/* Loads `file`, a name without folders, from $PLUME_PLUGIN_DIR, from beside the program or from
 * where Plume is installed; what cannot be loaded in one is looked for in the next. flags as
 * dlopen(3)'s; *ret is its handle. -ENOTSUP: "FILE is not installed", or what the loader said of
 * the last one that is there. */
int pl_plugin_load(const char *file, int flags, void **ret, struct pl_error *err);

#endif
