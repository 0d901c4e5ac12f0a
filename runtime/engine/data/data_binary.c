/* SPDX-License-Identifier: MIT */
/* Binary formats: MNIST's IDX, CIFAR-10, tokens, and texts as tokens. */
#include "common/base/macros.h"
#include "runtime/engine/data/array.h"
#include "runtime/engine/device/tensor.h"

#include <string.h>

#define CIFAR_CLASSES 10
#define CIFAR_IMAGE (3 * 32 * 32)
#define CIFAR_RECORD (1 + CIFAR_IMAGE)

/* The element types of IDX (yann.lecun.com/exdb/mnist). */
static const struct idx_type {
    unsigned char code;
    size_t bytes;
    enum plume_dtype dtype;
    bool is_signed;
} idx_types[] = {
    {0x08, 1, PLUME_U8, false}, {0x09, 1, PLUME_I32, true},  {0x0b, 2, PLUME_I32, true},
    {0x0c, 4, PLUME_I32, true}, {0x0d, 4, PLUME_F32, false}, {0x0e, 8, PLUME_F64, false},
};

static uint64_t big_endian(const unsigned char *p, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value = value << 8 | p[i];
    return value;
}

/* Converts count big-endian elements into own memory. */
static int turn(const unsigned char *p, const struct idx_type *type, struct plume_array *a)
{
    size_t size = pl_dtype_size(a->dtype);
    char *to = calloc(PL_MAX(a->count, (size_t)1), size);

    if (!to)
        return -ENOMEM;
    a->own = to;
    a->data = to;
    for (size_t i = 0; i < a->count; i++) {
        uint64_t value = big_endian(p + i * type->bytes, type->bytes), sign;

        if (type->is_signed) { /* extends the sign */
            sign = (uint64_t)1 << (8 * type->bytes - 1);
            value = (value ^ sign) - sign;
        }
        if (size == 8) {
            memcpy(to + i * size, &value, 8);
        } else {
            uint32_t low = (uint32_t)value;

            memcpy(to + i * size, &low, 4);
        }
    }
    return 0;
}

int pl_idx_parse(const void *bytes,
                 size_t len,
                 const struct plume_source *source,
                 struct plume_array *ret,
                 struct pl_error *err)
{
    const unsigned char *b = bytes;
    const struct idx_type *type = NULL;
    size_t shape[PLUME_RANK_MAX], rank, start, want;
    int r;

    (void)source;
    if (len < 4 || b[0] || b[1])
        return pl_error_set(err, -EINVAL, "not an IDX file");
    for (size_t i = 0; i < PL_COUNT(idx_types) && !type; i++)
        if (idx_types[i].code == b[2])
            type = &idx_types[i];
    if (!type)
        return pl_error_set(err, -ENOTSUP, "IDX files of type 0x%02x are not supported", b[2]);
    rank = b[3];
    if (rank < 1 || rank > PLUME_RANK_MAX)
        return pl_error_set(err, -ENOTSUP, "IDX files of %zu dimensions are not supported", rank);
    start = 4 + 4 * rank;
    if (len < start)
        return pl_error_set(err, -EINVAL, "the IDX header is truncated");
    for (size_t i = 0; i < rank; i++)
        shape[i] = (size_t)big_endian(b + 4 + 4 * i, 4);
    ret->dtype = type->dtype;
    r = pl_array_set_shape(ret, rank, shape, err);
    if (r < 0)
        return r;
    want = ret->count * type->bytes;
    if (len - start != want)
        return pl_error_set(err, -EINVAL, "the IDX file has %zu bytes of data, not %zu",
                            len - start, want);
    ret->data = b + start;
    if (type->dtype != PLUME_U8 && turn(b + start, type, ret) < 0)
        return pl_error_nomem(err);
    return 0;
}

int pl_cifar10_parse(const void *bytes,
                     size_t len,
                     const struct plume_source *source,
                     struct plume_array *ret,
                     struct pl_error *err)
{
    const unsigned char *b = bytes;
    size_t n = len / CIFAR_RECORD;
    int r;

    if (len == 0 || len % CIFAR_RECORD)
        return pl_error_set(err, -EINVAL,
                            "not a file of CIFAR-10: its length is not a multiple of %d",
                            CIFAR_RECORD);
    if (source->field != 0 && source->field != 1)
        return pl_error_set(err, -EINVAL, "CIFAR-10 has the fields 0 and 1, not %d", source->field);
    for (size_t i = 0; i < n; i++)
        if (b[i * CIFAR_RECORD] >= CIFAR_CLASSES)
            return pl_error_set(err, -EINVAL, "not a file of CIFAR-10: sample %zu has label %d", i,
                                b[i * CIFAR_RECORD]);
    ret->dtype = PLUME_U8;
    if (source->field == 0)
        r = pl_array_set_shape(ret, 4, (size_t[]){n, 3, 32, 32}, err);
    else
        r = pl_array_set_shape(ret, 1, &n, err);
    ret->stride = CIFAR_RECORD;
    ret->data = b + (source->field == 0 ? 1 : 0);
    return r;
}

/* Makes windows of the n tokens at data; see struct plume_source. */
static int cut_windows(const struct plume_source *source,
                       const void *data,
                       size_t n,
                       struct plume_array *ret,
                       struct pl_error *err)
{
    size_t size = pl_dtype_size(ret->dtype), begin, end, samples;
    size_t step = source->stride ? source->stride : source->window;
    int r = pl_array_share(source, n, &begin, &end, err);

    if (r < 0)
        return r;
    if (source->window == 0)
        return pl_error_set(err, -EINVAL,
                            "a source of tokens needs the length of its samples: set 'window'");
    if (source->ahead > 1)
        return pl_error_set(err, -EINVAL, "'ahead' is 0 or 1, not %zu", source->ahead);
    n = end - begin;
    if (n <= source->window)
        return pl_error_set(err, -EINVAL, "%zu tokens are too few for a window of %zu and one more",
                            n, source->window);
    samples = (n - source->window - 1) / step + 1;
    r = pl_array_set_shape(ret, 2, (size_t[]){samples, source->window}, err);
    ret->stride = step * size;
    ret->data = (const char *)data + (begin + source->ahead) * size;
    return r;
}

int pl_tokens_parse(const void *bytes,
                    size_t len,
                    const struct plume_source *source,
                    struct plume_array *ret,
                    struct pl_error *err)
{
    size_t size = source->format == PLUME_FORMAT_TOKENS_U16 ? 2 : 4;

    if (len % size)
        return pl_error_set(
            err, -EINVAL,
            "a file of %zu-byte tokens cannot have %zu bytes: is the format the right one?", size,
            len);
    ret->dtype = size == 2 ? PLUME_U16 : PLUME_I32;
    return cut_windows(source, bytes, len / size, ret, err);
}

int pl_text_parse(const void *bytes,
                  size_t len,
                  const struct plume_source *source,
                  struct plume_array *ret,
                  struct pl_error *err)
{
    const unsigned char *b = bytes;
    unsigned char place[256] = {0}, *tokens = malloc(PL_MAX(len, (size_t)1));
    bool seen[256] = {0};

    ret->own = tokens;
    ret->vocabulary = malloc(256);
    if (!tokens || !ret->vocabulary)
        return pl_error_set(err, -ENOMEM, "out of memory for a text of %zu bytes", len);
    for (size_t i = 0; i < len; i++)
        seen[b[i]] = true;
    for (size_t c = 0; c < 256; c++) {
        if (seen[c]) {
            place[c] = (unsigned char)ret->n_vocabulary;
            ret->vocabulary[ret->n_vocabulary++] = (unsigned char)c;
        }
    }
    for (size_t i = 0; i < len; i++)
        tokens[i] = place[b[i]];
    ret->dtype = PLUME_U8;
    return cut_windows(source, tokens, len, ret, err);
}
