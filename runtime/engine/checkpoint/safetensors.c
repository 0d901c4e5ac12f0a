/* SPDX-License-Identifier: MIT */
/* The header of safetensors files; checkpoint.h describes it. Files of other programs may have
 * types and dimensions that Plume lacks: such tensors are kept, with dtype 0. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/xxh64.h"

#include <string.h>

#define METADATA "__metadata__"
#define PREFIX_LEN (sizeof(PL_CHECKPOINT_PREFIX) - 1)
#define ALIGN 64

static const char *const dtypes[] = {
    [PLUME_F32] = "F32",   [PLUME_F64] = "F64", [PLUME_I32] = "I32", [PLUME_U8] = "U8",
    [PLUME_BF16] = "BF16", [PLUME_F16] = "F16", [PLUME_U16] = "U16",
};

/* ---- writing ---- */

/* "plume.KEY":"JSON text" for each key. The keys end in a comma: an empty one ends the object. */
static int add_metadata(const struct pl_checkpoint *c, struct pl_buf *b)
{
    _cleanup_(pl_buf_finish) struct pl_buf keys = {0};
    struct pl_mini_value all, key, value;
    size_t pos = 0;
    int r = pl_buf_addf(&keys, "{%s\"\":0}", pl_buf_str(&c->keys));

    if (r == 0)
        r = pl_mini_parse(pl_buf_str(&keys), &all);
    while (r == 0 && pl_mini_member(&all, &pos, &key, &value) == 1 && key.len > 2) {
        _cleanup_free_ char *text = strndup(value.start, value.len);

        r = text ? pl_buf_addf(b, ",\n\"" PL_CHECKPOINT_PREFIX "%.*s:", (int)key.len - 1,
                               key.start + 1)
                 : -ENOMEM;
        if (r == 0)
            r = pl_mini_quote(b, text);
    }
    return r;
}

static int add_tensor(struct pl_buf *b, const struct pl_checkpoint_tensor *t, size_t offset)
{
    int r = pl_buf_adds(b, ",\n");

    if (r == 0)
        r = pl_mini_quote(b, t->name);
    if (r == 0)
        r = pl_buf_addf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[t->dtype]);
    for (size_t i = 0; i < t->rank && r == 0; i++)
        r = pl_buf_addf(b, i ? ",%zu" : "%zu", t->shape[i]);
    return r < 0 ? r : pl_buf_addf(b, "],\"data_offsets\":[%zu,%zu]}", offset, offset + t->bytes);
}

int pl_safetensors_header(const struct pl_checkpoint *c, struct pl_buf *b)
{
    size_t offset = 0;
    int r = pl_buf_adds(b, PL_SAFETENSORS_FRONT PL_SAFETENSORS_ZEROS "\",\"format\":\"pt\"");

    if (r == 0)
        r = add_metadata(c, b);
    if (r == 0)
        r = pl_buf_addc(b, '}');
    for (size_t size = 8; size > 0; size /= 2)
        for (size_t i = 0; i < c->n && r == 0; i++)
            if (pl_dtype_size(c->tensors[i].dtype) == size) {
                r = add_tensor(b, &c->tensors[i], offset);
                offset += c->tensors[i].bytes;
            }
    if (r == 0)
        r = pl_buf_addc(b, '}');
    while (r == 0 && b->len % ALIGN)
        r = pl_buf_addc(b, ' ');
    return r;
}

/* ---- reading ---- */

static int two_numbers(const char *text, const char *key, size_t ret[2])
{
    struct pl_mini_value list, entry;
    size_t pos = 0;
    int64_t n;

    if (pl_mini_find(text, key, &list) < 0 || list.type != PL_MINI_ARRAY)
        return -EINVAL;
    for (int i = 0; i < 2; i++) {
        if (pl_mini_next(&list, &pos, &entry) != 1 || pl_mini_int(&entry, &n) < 0 || n < 0)
            return -EINVAL;
        ret[i] = (size_t)n;
    }
    return pl_mini_next(&list, &pos, &entry) == 0 ? 0 : -EINVAL;
}

static enum plume_dtype find_dtype(const char *name)
{
    for (size_t i = 1; i < PL_COUNT(dtypes); i++)
        if (strcmp(dtypes[i], name) == 0)
            return (enum plume_dtype)i;
    return 0;
}

/* -EINVAL: a key of a tensor is there twice, and readers would differ on the one that counts. */
static int check_keys(const struct pl_mini_value *object)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    bool seen[PL_COUNT(keys)] = {false};
    struct pl_mini_value key, value;
    size_t pos = 0;
    int more, r;

    while ((more = pl_mini_member(object, &pos, &key, &value)) == 1) {
        _cleanup_free_ char *name = NULL;

        r = pl_mini_string(&key, &name);
        if (r < 0)
            return r;
        for (size_t i = 0; i < PL_COUNT(keys); i++) {
            if (strcmp(name, keys[i]) != 0)
                continue;
            if (seen[i])
                return -EINVAL;
            seen[i] = true;
        }
    }
    return more;
}

/* Takes over the name on success. *end is raised to the end of the tensor's data. */
static int read_tensor(struct pl_checkpoint *c,
                       char *name,
                       const struct pl_mini_value *value,
                       const char *data,
                       size_t *end)
{
    _cleanup_free_ char *text = strndup(value->start, value->len), *dtype = NULL;
    struct pl_checkpoint_tensor t = {0};
    size_t offset[2];

    if (!text)
        return -ENOMEM;
    if (value->type != PL_MINI_OBJECT || check_keys(value) < 0 ||
        pl_mini_get_string(text, "dtype", &dtype) < 0 ||
        two_numbers(text, "data_offsets", offset) < 0 || offset[1] < offset[0])
        return -EINVAL;
    t.dtype = find_dtype(dtype);
    t.bytes = offset[1] - offset[0];
    if (t.dtype && pl_checkpoint_read_shape(text, &t) < 0) {
        if (t.rank < PLUME_RANK_MAX)
            return -EINVAL;
        t.dtype = 0;
    }
    if (t.bytes != offset[1] - offset[0] || pl_checkpoint_room(c, NULL) < 0)
        return -EINVAL;
    t.data = data + offset[0];
    t.name = name;
    c->tensors[c->n++] = t;
    *end = PL_MAX(*end, offset[1]);
    return 0;
}

/* Makes one object of the keys of Plume. */
static int read_metadata(struct pl_checkpoint *c, const struct pl_mini_value *object)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    struct pl_mini_value key, value;
    size_t pos = 0;
    int r = pl_buf_addc(&b, '{'), more = 0;

    while (r == 0 && (more = pl_mini_member(object, &pos, &key, &value)) == 1) {
        _cleanup_free_ char *name = NULL, *text = NULL;

        r = pl_mini_string(&key, &name);
        if (r == 0)
            r = pl_mini_string(&value, &text);
        if (r < 0 || strncmp(name, PL_CHECKPOINT_PREFIX, PREFIX_LEN) != 0 ||
            strcmp(name + PREFIX_LEN, "xxh64") == 0)
            continue;
        if (c->foreign) /* the checksum is not in its place */
            return -EBADMSG;
        r = b.len > 1 ? pl_buf_addc(&b, ',') : 0;
        if (r == 0)
            r = pl_mini_quote(&b, name + PREFIX_LEN);
        if (r == 0)
            r = pl_buf_addf(&b, ":%s", text);
    }
    if (r == 0)
        r = pl_buf_addc(&b, '}');
    if (r == 0 && more < 0)
        r = -EINVAL;
    if (r == 0)
        r = pl_mini_parse(pl_buf_str(&b), &value);
    if (r == 0 && !(c->header = pl_buf_take(&b)))
        r = -ENOMEM;
    return r;
}

static int by_place(const void *a, const void *b)
{
    const struct pl_checkpoint_tensor *const *x = a, *const *y = b;
    const char *x_end = (const char *)(*x)->data + (*x)->bytes;
    const char *y_end = (const char *)(*y)->data + (*y)->bytes;

    if ((*x)->data != (*y)->data)
        return (const char *)(*x)->data < (const char *)(*y)->data ? -1 : 1;
    return x_end < y_end ? -1 : x_end > y_end;
}

/* By the format, the tensors fill the data without holes, and do not overlap. */
static int check_places(const struct pl_checkpoint *c, const char *data)
{
    _cleanup_free_ const struct pl_checkpoint_tensor **list = calloc(c->n + 1, sizeof(*list));

    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < c->n; i++)
        list[i] = &c->tensors[i];
    qsort(list, c->n, sizeof(*list), by_place);
    for (size_t i = 0; i < c->n; data += list[i++]->bytes)
        if (list[i]->data != data)
            return -EINVAL;
    return pl_checkpoint_check_names(c);
}

/* *ret_bytes: of the data that the header describes. */
static int
read_header(struct pl_checkpoint *c, const char *text, const char *data, size_t *ret_bytes)
{
    struct pl_mini_value all, key, value;
    size_t pos = 0;
    int r = pl_mini_parse(text, &all);

    *ret_bytes = 0;
    while (r == 0) {
        _cleanup_free_ char *name = NULL;
        int more = pl_mini_member(&all, &pos, &key, &value);

        if (more <= 0)
            return more < 0 ? more : check_places(c, data);
        r = pl_mini_string(&key, &name);
        if (r == 0 && strcmp(name, METADATA) == 0)
            r = c->header ? -EINVAL : read_metadata(c, &value);
        else if (r == 0 && (r = read_tensor(c, name, &value, data, ret_bytes)) == 0)
            name = NULL;
    }
    return r;
}

static int check_sum(const unsigned char *b, size_t len)
{
    const char *have = (const char *)b + 8 + strlen(PL_SAFETENSORS_FRONT);
    char digits[PL_SAFETENSORS_DIGITS + 1];
    size_t before = (size_t)(have - (const char *)b), after = before + PL_SAFETENSORS_DIGITS;
    struct pl_xxh64 sum;

    pl_xxh64_init(&sum);
    pl_xxh64_add(&sum, b, before);
    pl_xxh64_add(&sum, PL_SAFETENSORS_ZEROS, PL_SAFETENSORS_DIGITS);
    pl_xxh64_add(&sum, b + after, len - after);
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)pl_xxh64_final(&sum));
    return memcmp(digits, have, PL_SAFETENSORS_DIGITS) == 0 ? 0 : -EINVAL;
}

static int not_safetensors(const unsigned char *b, size_t len, struct pl_error *err)
{
    if (len >= 4 && memcmp(b, "PK\3\4", 4) == 0)
        return pl_error_set(err, -EINVAL,
                            "neither a checkpoint of Plume nor a safetensors file, but a ZIP "
                            "archive: examples/weights/to_safetensors.py converts PyTorch's files");
    return pl_error_set(err, -EINVAL, "neither a checkpoint of Plume nor a safetensors file");
}

/* Checks the file as a whole, after its header was read. */
static int check_file(const struct pl_checkpoint *c,
                      int header,
                      const unsigned char *b,
                      size_t len,
                      size_t expected,
                      struct pl_error *err)
{
    if (header == -ENOMEM)
        return pl_error_nomem(err);
    if (header < 0 && header != -EBADMSG)
        return pl_error_set(err, header, "the file's header is malformed");
    if (len < expected)
        return pl_error_set(err, -EINVAL, "the file is truncated: it has %zu bytes of %zu", len,
                            expected);
    if (len > expected)
        return pl_error_set(err, -EINVAL, "the file is damaged: bytes follow its end");
    if (header == -EBADMSG || (!c->foreign && check_sum(b, len) < 0))
        return pl_error_set(err, -EINVAL,
                            "the file is damaged, or another program changed it: its checksum "
                            "(plume.xxh64) is wrong");
    return 0;
}

int pl_safetensors_parse(const void *bytes,
                         size_t len,
                         struct pl_checkpoint *ret,
                         struct pl_error *err)
{
    const unsigned char *b = bytes;
    size_t front = strlen(PL_SAFETENSORS_FRONT) + PL_SAFETENSORS_DIGITS, data = 0;
    _cleanup_free_ char *text = NULL;
    struct pl_checkpoint c = {0};
    uint64_t header;
    int r;

    if (len < 9 || b[8] != '{')
        return not_safetensors(b, len, err);
    header = pl_checkpoint_get_number(b, 8);
    if (header > PL_CHECKPOINT_HEADER_MAX)
        return pl_error_set(err, -EINVAL, "the file's header is malformed");
    if (header > len - 8)
        return pl_error_set(err, -EINVAL, "the file is truncated: it has %zu bytes of at least %zu",
                            len, (size_t)header + 8);
    text = strndup((const char *)b + 8, header);
    if (!text)
        return pl_error_nomem(err);
    if (strlen(text) != header) /* a zero byte: nothing below may look behind it */
        return pl_error_set(err, -EINVAL, "the file's header is malformed");
    c.foreign =
        header < front || memcmp(text, PL_SAFETENSORS_FRONT, strlen(PL_SAFETENSORS_FRONT)) != 0;
    r = read_header(&c, text, (const char *)b + 8 + header, &data);
    if (data > SIZE_MAX - 8 - header)
        r = -EINVAL;
    r = check_file(&c, r, b, len, 8 + (size_t)header + data, err);
    if (r < 0) {
        pl_checkpoint_finish(&c);
        return r;
    }
    *ret = c;
    return 0;
}
