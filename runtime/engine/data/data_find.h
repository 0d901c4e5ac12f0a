/* SPDX-License-Identifier: MIT */
/* The search for data files. */
#ifndef PL_RUNTIME_ENGINE_DATA_DATA_FIND_H
#define PL_RUNTIME_ENGINE_DATA_DATA_FIND_H

#include "common/base/error.h"

/* Resolves each of the paths (separated by ':'): an absolute one as it is, else the first that
 * exists in $PLUME_DATA_DIR, in data/ next to this program, in the installed data folder. The
 * caller frees *ret. -ENOENT names the missing one and the folders searched. */
int pl_data_find(const char *paths, char **ret, struct pl_error *err);

#endif
