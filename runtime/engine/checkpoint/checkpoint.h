/* SPDX-License-Identifier: MIT */
/* A checkpoint: values by key (JSON) and tensors by name, in memory and as a file. train_state.h
 * defines its contents.
 *
 * The file, little-endian:
 *    0  "PLUMECKP"             8  u32 format version (1), u32 0
 *   16  u64 bytes of header   24  u64 bytes of data
 *   32  u64 XXH64 of header   40  u64 XXH64 of data     48  zeros
 *   64  header: one JSON object, padded with blanks to a multiple of 64 bytes
 *       data: the tensors, each at a multiple of 64 bytes
 *
 * The header has the keys and "tensors": [{"name", "dtype", "shape", "offset" (in data)}, ...]. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_H

#include "common/proto/rank/minijson.h"
#include "runtime/engine/device/tensor.h"

#define PL_CHECKPOINT_ALIGN 64
#define PL_CHECKPOINT_HEADER_MAX ((size_t)64 << 20) /* bytes */
#define PL_CHECKPOINT_TENSORS_MAX 65536
#define PL_CHECKPOINT_NAME_MAX 255 /* bytes of a key or name */

struct pl_checkpoint_tensor {
    char *name;
    enum plume_dtype dtype;
    size_t rank, shape[PLUME_RANK_MAX];
    size_t bytes, offset;
    const void *data;
};

/* Zeroed memory is an empty checkpoint. */
struct pl_checkpoint {
    struct pl_buf keys; /* "key":value,... without braces, while the checkpoint is made */
    char *header;       /* the JSON text of a checkpoint that was read */
    struct pl_checkpoint_tensor *tensors;
    size_t n;
    bool owns_data; /* tensors' data are malloc()ed, not in the map or the given text */
    void *map;
    size_t map_bytes;
};

void pl_checkpoint_finish(struct pl_checkpoint *checkpoint);

/* Making a checkpoint. Keys and names must be new; data is copied. -EINVAL, -EEXIST, -ENOMEM. The
 * caller puts several values of one key into one JSON text. */
int pl_checkpoint_set(struct pl_checkpoint *checkpoint, const char *key, const char *json);
int pl_checkpoint_add(struct pl_checkpoint *checkpoint,
                      const char *name,
                      enum plume_dtype dtype,
                      size_t rank,
                      const size_t *shape,
                      const void *data,
                      struct pl_error *err);

/* Writes the file atomically: PATH.tmp-N, fsync, rename, fsync of the folder. */
int pl_checkpoint_write(const struct pl_checkpoint *checkpoint,
                        const char *path,
                        struct pl_error *err);

/* Maps and checks a file. -ENOENT, -EINVAL (no checkpoint, truncated or damaged: the text says
 * which), -EPROTO (another format version). */
int pl_checkpoint_read(const char *path, struct pl_checkpoint *ret, struct pl_error *err);

/* Reads one from memory, which must outlive it. */
int pl_checkpoint_parse(const void *bytes,
                        size_t len,
                        struct pl_checkpoint *ret,
                        struct pl_error *err);

/* Reading a checkpoint: a key's JSON text as a new string (the caller frees it; NULL if the key is
 * missing or memory ran out), a whole number, a tensor (NULL if missing). */
char *pl_checkpoint_get(const struct pl_checkpoint *checkpoint, const char *key);
int pl_checkpoint_get_int(const struct pl_checkpoint *checkpoint, const char *key, int64_t *ret);
const struct pl_checkpoint_tensor *pl_checkpoint_find(const struct pl_checkpoint *checkpoint,
                                                      const char *name);

/* Doubles in JSON, in any locale: 17 digits, and "nan", "inf", "-inf" as strings. get returns
 * -ENOENT or -EINVAL. */
int pl_json_add_double(struct pl_buf *buf, double value);
int pl_json_get_double(const char *text, const char *key, double *ret);
/* The JSON text of an object's key as a new string; NULL if it is missing. */
char *pl_json_get_text(const char *text, const char *key);

#endif
