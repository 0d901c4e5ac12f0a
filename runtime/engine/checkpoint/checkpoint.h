/* SPDX-License-Identifier: MIT */
/* A checkpoint: values by key (JSON) and tensors by name, in memory and as a file. train_state.h
 * defines its contents.
 *
 * The file is a safetensors file (github.com/huggingface/safetensors, README), little-endian:
 *    0  u64 bytes of header
 *    8  header: one JSON object, padded with blanks
 *       data: the tensors without gaps; wide types first, so that elements are aligned
 *
 *   {"__metadata__": {"plume.xxh64": "16 digits", "format": "pt", "plume.KEY": "JSON text", ...},
 *    "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * plume.xxh64 comes first: the XXH64 of the whole file, with zeros in place of its digits. Files of
 * other programs have none. checkpoint_old.c reads files of release 0.1 ("PLUMECKP"). */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CHECKPOINT_H

#include "common/proto/rank/minijson.h"
#include "runtime/engine/device/tensor.h"

#define PL_CHECKPOINT_HEADER_MAX ((size_t)64 << 20) /* bytes */
#define PL_CHECKPOINT_TENSORS_MAX 65536
#define PL_CHECKPOINT_NAME_MAX 255    /* bytes of a key or name */
#define PL_CHECKPOINT_PREFIX "plume." /* of tensors that are no parameter or buffer */

struct pl_checkpoint_tensor {
    char *name;
    enum plume_dtype dtype; /* 0: a type or a number of dimensions that Plume does not have */
    size_t rank, shape[PLUME_RANK_MAX];
    size_t bytes;
    const void *data; /* may be unaligned in files of other programs */
    bool apart;       /* being saved: processes write it into the file (checkpoint_parts.h) */
};

/* Zeroed memory is an empty checkpoint. */
struct pl_checkpoint {
    struct pl_buf keys; /* "key":value,... without braces, while the checkpoint is made */
    char *header;       /* the JSON text of a checkpoint that was read */
    struct pl_checkpoint_tensor *tensors;
    size_t n;
    bool foreign;   /* read from a safetensors file of another program */
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

/* Maps and checks a file, of Plume or of another program. -ENOENT, -EINVAL (no safetensors file,
 * truncated or damaged: the text says which), -EPROTO (another format version). */
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

/* True if elements of one type can be made of those of the other: both are real, or the same. */
bool pl_checkpoint_convertible(enum plume_dtype to, enum plume_dtype from);
/* Copies all elements as type `to_type`. transpose: exchanges the two dimensions of a matrix. */
void pl_checkpoint_convert(const struct pl_checkpoint_tensor *from,
                           bool transpose,
                           enum plume_dtype to_type,
                           void *to);

/* Doubles in JSON, in any locale: 17 digits, and "nan", "inf", "-inf" as strings. get returns
 * -ENOENT or -EINVAL. */
int pl_json_add_double(struct pl_buf *buf, double value);
int pl_json_get_double(const char *text, const char *key, double *ret);
/* The JSON text of an object's key as a new string; NULL if it is missing. */
char *pl_json_get_text(const char *text, const char *key);

#endif
