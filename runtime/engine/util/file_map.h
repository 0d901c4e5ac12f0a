/* SPDX-License-Identifier: MIT */
/* Files in memory. A page that the file system cannot read, or that somebody has cut off, is
 * SIGBUS: the report of the crash (crash.h) names the file. */
#ifndef PL_RUNTIME_ENGINE_UTIL_FILE_MAP_H
#define PL_RUNTIME_ENGINE_UTIL_FILE_MAP_H

#include <stddef.h>

/* Maps the whole file, to read. path: for the report, copied. -errno. */
int pl_file_map(int fd, const char *path, size_t bytes, void **ret);
void pl_file_unmap(void *map, size_t bytes);

/* The path of the file whose map has the address; NULL: none, or not known. Async-signal-safe. */
const char *pl_file_map_find(const void *address);

#endif
