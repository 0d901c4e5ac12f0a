/* SPDX-License-Identifier: MIT */
/* Loads the parts of Plume that are shared objects because they need rare libraries: plume-mpi.so
 * and plume-cuda.so. They are loaded on first use. */
#ifndef PL_RUNTIME_ENGINE_UTIL_PLUGIN_H
#define PL_RUNTIME_ENGINE_UTIL_PLUGIN_H

#include "common/base/error.h"

/* Loads `file`, a name without folders. It is searched in $PLUME_PLUGIN_DIR, in the folder of the
 * program and in the installation; a file that cannot be loaded is skipped. flags are dlopen(3)'s;
 * *ret is the handle. -ENOTSUP: "FILE is not installed", or the loader's text for the last file
 * that exists. */
int pl_plugin_load(const char *file, int flags, void **ret, struct pl_error *err);

#endif
