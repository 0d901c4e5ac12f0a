/* SPDX-License-Identifier: MIT */
/* Opens data files: the table of formats leads to each format's parser. A new format: its line in
 * plume/data.h and in the table of open.c, its parser in a data_*.c. */
#ifndef PL_RUNTIME_ENGINE_DATA_OPEN_H
#define PL_RUNTIME_ENGINE_DATA_OPEN_H

#include "runtime/engine/data/array.h"

/* Parses bytes by source->format (not AUTO), then takes the share begin..end of the samples. */
int pl_array_parse(const void *bytes,
                   size_t len,
                   const struct plume_source *source,
                   struct plume_array *ret,
                   struct pl_error *err);

/* The format that the path's extension stands for; -EINVAL if there is none. */
int pl_array_format(const char *path, enum plume_format *ret, struct pl_error *err);

/* Opens source->path as it is: it searches no folders, and a ':' in the name of an existing file
 * separates nothing. Close with pl_array_close(). */
int pl_array_open(const struct plume_source *source, struct plume_array *ret, struct pl_error *err);

#endif
