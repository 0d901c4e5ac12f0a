/* SPDX-License-Identifier: MIT */
/* Data files as read-only arrays of samples. Each format has a parser that works on the file's
 * bytes and points into them if it can (files are mapped). plume/data.h describes the formats;
 * open.c has their table. */
#ifndef PL_RUNTIME_ENGINE_DATA_ARRAY_H
#define PL_RUNTIME_ENGINE_DATA_ARRAY_H

#include "common/base/error.h"
#include "plume/data.h"

#include <stdbool.h>

struct plume_array {
    enum plume_dtype dtype;
    size_t rank;
    size_t shape[PLUME_RANK_MAX]; /* [0] is the number of samples */
    size_t count;                 /* elements: the product of shape */
    size_t stride;    /* bytes from one sample to the next, which may overlap; 0: contiguous */
    const void *data; /* may be unaligned: read it by memcpy */
    void *map;        /* NULL if nothing is mapped */
    size_t map_bytes;
    void *own;                 /* memory to free, or NULL */
    unsigned char *vocabulary; /* of a text */
    size_t n_vocabulary;
    bool synthetic; /* no data: pl_synthetic_make() computes the samples */
    uint64_t key;
    uint32_t classes;
    size_t first; /* number of sample 0 in the whole set */
};

/* A format's parser: the array points into bytes, or into own memory. source->path is ignored.
 * -EINVAL: malformed; -ENOTSUP: a variant that is not supported; -ENOMEM. */
typedef int (*pl_array_parser)(const void *bytes,
                               size_t len,
                               const struct plume_source *source,
                               struct plume_array *ret,
                               struct pl_error *err);

int pl_idx_parse(const void *bytes,
                 size_t len,
                 const struct plume_source *source,
                 struct plume_array *ret,
                 struct pl_error *err);
int pl_cifar10_parse(const void *bytes,
                     size_t len,
                     const struct plume_source *source,
                     struct plume_array *ret,
                     struct pl_error *err);
int pl_tokens_parse(const void *bytes,
                    size_t len,
                    const struct plume_source *source,
                    struct plume_array *ret,
                    struct pl_error *err);
int pl_text_parse(const void *bytes,
                  size_t len,
                  const struct plume_source *source,
                  struct plume_array *ret,
                  struct pl_error *err);
int pl_csv_read(const void *bytes,
                size_t len,
                const struct plume_source *source,
                struct plume_array *ret,
                struct pl_error *err);
int pl_synthetic_parse(const void *bytes,
                       size_t len,
                       const struct plume_source *source,
                       struct plume_array *ret,
                       struct pl_error *err);

/* Elements [begin, begin + n) of a sample, of the array's type; begin is a multiple of 4. */
void pl_synthetic_make(
    const struct plume_array *array, size_t sample, size_t begin, size_t n, uint32_t *ret);

/* Frees what the array owns: memory and the mapping. */
void pl_array_close(struct plume_array *array);

/* Sets shape, count and the stride of contiguous samples. -EINVAL if it is too large. */
int pl_array_set_shape(struct plume_array *array,
                       size_t rank,
                       const size_t *shape,
                       struct pl_error *err);

/* The range [*ret_begin, *ret_end) of a share of n samples. -EINVAL. */
int pl_array_share(const struct plume_source *source,
                   size_t n,
                   size_t *ret_begin,
                   size_t *ret_end,
                   struct pl_error *err);

#endif
