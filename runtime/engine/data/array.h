/* SPDX-License-Identifier: MIT */
/* Data files as read-only arrays of samples: one table of formats, each with a parser that works on
 * the file's bytes and, where it can, points into them (files are mapped). Formats are described in
 * plume/data.h. */
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
    size_t stride;                /* bytes from a sample to the next, which may overlap;
                                     0: one right behind the other */
    const void *data;             /* maybe not aligned to its type: read by memcpy */
    void *map;                    /* NULL where nothing is mapped */
    size_t map_bytes;
    void *own;                 /* memory to free; NULL where there is none */
    unsigned char *vocabulary; /* of a text */
    size_t n_vocabulary;
    bool synthetic; /* there is no data: samples come from pl_synthetic_make() */
    uint64_t key;
    uint32_t classes;
    size_t first; /* what sample 0 is called there */
};

/* A format's parser: the array points into bytes, or into own memory. Of `source` the path is not
 * looked at. -EINVAL says what is wrong, -ENOTSUP what is not read, -ENOMEM. */
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

/* Sets shape, count and (for samples one behind the other) stride. -EINVAL where it is too much. */
int pl_array_set_shape(struct plume_array *array,
                       size_t rank,
                       const size_t *shape,
                       struct pl_error *err);

/* Number of a share's borders among n: [*ret_begin, *ret_end). -EINVAL. */
int pl_array_share(const struct plume_source *source,
                   size_t n,
                   size_t *ret_begin,
                   size_t *ret_end,
                   struct pl_error *err);

#endif
