/* SPDX-License-Identifier: MIT */
/* Reads checkpoints of release 0.1, little-endian:
 *    0  "PLUMECKP"             8  u32 format version (1), u32 0
 *   16  u64 bytes of header   24  u64 bytes of data
 *   32  u64 XXH64 of header   40  u64 XXH64 of data     48  zeros
 *   64  header: one JSON object, padded with blanks to a multiple of 64 bytes
 *       data: the tensors, each at a multiple of 64 bytes
 *
 * The header has the keys and "tensors": [{"name", "dtype", "shape", "offset" (in data)}, ...],
 * whose names begin with state_dict/, optimizer_states/ or extras/. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/xxh64.h"

#include <string.h>

#define FORMAT_VERSION 1
#define FRONT_BYTES 64
#define ALIGN 64

static enum plume_dtype find_dtype(const char *name)
{
    for (int i = PLUME_F32; i <= PLUME_U8; i++)
        if (strcmp(pl_dtype_name((enum plume_dtype)i), name) == 0)
            return (enum plume_dtype)i;
    return 0;
}

/* The name of today; NULL: no memory. */
static char *new_name(const char *name)
{
    static const char values[] = "state_dict/";
    bool is_value = strncmp(name, values, sizeof(values) - 1) == 0;

    return is_value ? strdup(name + sizeof(values) - 1) : pl_strf(PL_CHECKPOINT_PREFIX "%s", name);
}

/* Parses an entry of "tensors". Tensors must be in order, within the data. */
static int read_tensor(struct pl_checkpoint *c,
                       const struct pl_mini_value *entry,
                       const char *data,
                       size_t data_bytes,
                       size_t *least)
{
    _cleanup_free_ char *text = strndup(entry->start, entry->len), *name = NULL, *dtype = NULL;

    struct pl_checkpoint_tensor t = {0};
    int64_t offset;

    if (!text)
        return -ENOMEM;
    if (pl_mini_get_string(text, "name", &name) < 0 || !*name ||
        strlen(name) > PL_CHECKPOINT_NAME_MAX || pl_mini_get_string(text, "dtype", &dtype) < 0 ||
        pl_mini_get_int(text, "offset", &offset) < 0 || offset < 0 || offset % ALIGN ||
        (size_t)offset < *least)
        return -EINVAL;
    t.dtype = find_dtype(dtype);
    if (!t.dtype || pl_checkpoint_read_shape(text, &t) < 0 || (size_t)offset > data_bytes ||
        t.bytes > data_bytes - (size_t)offset)
        return -EINVAL;
    *least = (size_t)offset + t.bytes;
    if (pl_checkpoint_room(c, NULL) < 0)
        return -EINVAL;
    t.data = data + offset;
    t.name = new_name(name);
    if (!t.name)
        return -ENOMEM;
    c->tensors[c->n++] = t;
    return 0;
}

static int read_header(struct pl_checkpoint *c, const char *data, size_t data_bytes)
{
    struct pl_mini_value list, entry;
    size_t pos = 0, least = 0;
    int r;

    if (pl_mini_find(c->header, "tensors", &list) < 0 || list.type != PL_MINI_ARRAY)
        return -EINVAL;
    while ((r = pl_mini_next(&list, &pos, &entry)) == 1) {
        r = read_tensor(c, &entry, data, data_bytes, &least);
        if (r < 0)
            return r;
    }
    return r < 0 ? r : pl_checkpoint_check_names(c);
}

int pl_checkpoint_parse_old(const void *bytes,
                            size_t len,
                            struct pl_checkpoint *ret,
                            struct pl_error *err)
{
    const unsigned char *b = bytes;
    struct pl_checkpoint c = {0};
    uint64_t header, data;
    int r;

    if (len < FRONT_BYTES || memcmp(b, PL_CHECKPOINT_OLD_MAGIC, 8) != 0)
        return pl_error_set(err, -EINVAL, "not a checkpoint of Plume");
    if (pl_checkpoint_get_number(b + 8, 4) != FORMAT_VERSION)
        return pl_error_set(err, -EPROTO,
                            "the checkpoint has format version %u, this release reads %d",
                            (unsigned)pl_checkpoint_get_number(b + 8, 4), FORMAT_VERSION);
    header = pl_checkpoint_get_number(b + 16, 8);
    data = pl_checkpoint_get_number(b + 24, 8);
    if (header > PL_CHECKPOINT_HEADER_MAX || header > len - FRONT_BYTES ||
        data > len - FRONT_BYTES - header)
        return pl_error_set(err, -EINVAL, "the checkpoint is truncated: it has %zu bytes of %llu",
                            len, (unsigned long long)(FRONT_BYTES + header + data));
    if (data != len - FRONT_BYTES - header)
        return pl_error_set(err, -EINVAL, "the checkpoint is damaged: bytes follow its end");
    if (pl_checkpoint_get_number(b + 12, 4) || pl_checkpoint_get_number(b + 48, 8) ||
        pl_checkpoint_get_number(b + 56, 8) ||
        pl_xxh64(b + FRONT_BYTES, header) != pl_checkpoint_get_number(b + 32, 8) ||
        pl_xxh64(b + FRONT_BYTES + header, data) != pl_checkpoint_get_number(b + 40, 8))
        return pl_error_set(err, -EINVAL, "the checkpoint is damaged: its checksum is wrong");
    c.header = strndup((const char *)b + FRONT_BYTES, header);
    if (!c.header)
        return pl_error_nomem(err);
    r = read_header(&c, (const char *)b + FRONT_BYTES + header, data);
    if (r < 0) {
        pl_checkpoint_finish(&c);
        return pl_error_set(
            err, r, r == -ENOMEM ? "out of memory" : "the checkpoint's header is malformed");
    }
    *ret = c;
    return 0;
}
