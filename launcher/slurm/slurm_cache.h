/* SPDX-License-Identifier: MIT */
/* Slurm's last answer, in a file of ~/.plume/cache that all plstat processes of a user share. It
 * is a document with "time". Whoever has it open holds its lock, so one of them asks Slurm. */
#ifndef PL_LAUNCHER_SLURM_SLURM_CACHE_H
#define PL_LAUNCHER_SLURM_SLURM_CACHE_H

#include "common/base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#define PL_SLURM_CACHE_MAX_BYTES ((size_t)256 * 1024 * 1024)

/* Opens and locks the file of this name, of this user's answers; each cluster has its own. Returns
 * a descriptor, or -EBADF if there is no such file and none can be made, or somebody has held its
 * lock for 8 s: the other functions bear that. */
int pl_slurm_cache_open(const char *name, uid_t uid);

/* The same for a file whose lock nobody keeps while asking Slurm: waits for 0.2 s at most. */
int pl_slurm_cache_open_soon(const char *name, uid_t uid);

/* Reads the document. Negative: there is none. */
int pl_slurm_cache_read(int fd, json_t **ret);
void pl_slurm_cache_write(int fd, const struct pl_buf *text);

/* True if the document is younger than age_s. False after pl_slurm_cache_expire(). */
bool pl_slurm_cache_is_recent(int fd, const json_t *doc, double age_s);

/* The next pl_slurm_cache_is_recent() is false, whatever the document's time is. */
void pl_slurm_cache_expire(const char *name, uid_t uid);

#endif
