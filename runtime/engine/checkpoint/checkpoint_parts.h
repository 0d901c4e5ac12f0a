/* SPDX-License-Identifier: MIT */
/* A checkpoint file whose large tensors several processes write at the same time, each its own
 * part: no process needs memory for a whole tensor, and the file is the one that
 * pl_checkpoint_write() makes of the same contents.
 *
 *     one process: add_apart ... begin -> all: put ... -> one process: seal
 *
 * Each writes bytes that no other one writes, into a file that it has open for writing only; a
 * client of NFS then sends these bytes and no whole pages. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PARTS_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_PARTS_H

#include "runtime/engine/checkpoint/checkpoint.h"

/* As pl_checkpoint_add(), but the data come later. */
int pl_checkpoint_add_apart(struct pl_checkpoint *checkpoint,
                            const char *name,
                            enum plume_dtype dtype,
                            size_t rank,
                            const size_t *shape,
                            struct pl_error *err);

size_t pl_checkpoint_count_apart(const struct pl_checkpoint *checkpoint);

/* Makes a temporary file beside the path: the header, the tensors in memory, and room for the
 * others. *ret_temp: its name, the caller frees it. ret_places: where each of the others begins in
 * it, in the order of add_apart. On failure there is no file. -errno. */
int pl_checkpoint_begin(const struct pl_checkpoint *checkpoint,
                        const char *path,
                        char **ret_temp,
                        uint64_t *ret_places,
                        struct pl_error *err);

/* Writes bytes at a place of the file. -errno. */
int pl_checkpoint_put_part(int fd, uint64_t place, const void *data, size_t bytes);

/* Call after all parts are in the file: reads it for its checksum, and puts it at the path, as
 * pl_checkpoint_write() does. The temporary file is gone afterwards, also on failure. -errno. */
int pl_checkpoint_seal(const char *temp, const char *path, struct pl_error *err);

/* Writes a file of the same contents, atomically. -errno. */
int pl_checkpoint_copy(const char *from, const char *path, struct pl_error *err);

#endif
