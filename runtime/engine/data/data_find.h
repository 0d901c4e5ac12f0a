/* SPDX-License-Identifier: MIT */
/* Where data files are. */
#ifndef PL_RUNTIME_ENGINE_DATA_DATA_FIND_H
#define PL_RUNTIME_ENGINE_DATA_DATA_FIND_H

#include "common/base/error.h"

/* Of each of the paths (':' between): itself where it is absolute, else the first that is there in
 * $PLUME_DATA_DIR, in data/ beside this program, in the installed data folder. Caller frees.
 * -ENOENT names the one that is nowhere, and where it was looked for. */
int pl_data_find(const char *paths, char **ret, struct pl_error *err);

#endif
