/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_place.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/xxh64.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC "PLUMECKP"
#define FORMAT_VERSION 1
#define FRONT_BYTES 64

static void put(unsigned char *p, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *p, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static int add_tensor(struct pl_buf *b, const struct pl_checkpoint_tensor *t, bool first)
{
    int r = pl_buf_adds(b, first ? "{\"name\":" : ",\n{\"name\":");

    if (r == 0)
        r = pl_mini_quote(b, t->name);
    if (r == 0)
        r = pl_buf_addf(b, ",\"dtype\":\"%s\",\"shape\":[", pl_checkpoint_dtype_name(t->dtype));
    for (size_t i = 0; i < t->rank && r == 0; i++)
        r = pl_buf_addf(b, i ? ",%zu" : "%zu", t->shape[i]);
    return r < 0 ? r : pl_buf_addf(b, "],\"offset\":%zu}", t->offset);
}

static int make_header(const struct pl_checkpoint *c, struct pl_buf *b)
{
    int r = pl_buf_addc(b, '{');

    if (r == 0)
        r = pl_buf_adds(b, pl_buf_str(&c->keys));
    if (r == 0)
        r = pl_buf_adds(b, "\n\"tensors\":[");
    for (size_t i = 0; i < c->n && r == 0; i++)
        r = add_tensor(b, &c->tensors[i], i == 0);
    if (r == 0)
        r = pl_buf_adds(b, "]}\n");
    while (r == 0 && b->len % PL_CHECKPOINT_ALIGN)
        r = pl_buf_addc(b, ' ');
    return r;
}

static const char zeros[PL_CHECKPOINT_ALIGN];

/* Walks over the data with its padding: writes it to a file (fd >= 0), or computes the checksum. */
static int walk_data(const struct pl_checkpoint *c, int fd, struct pl_xxh64 *sum, size_t *ret_bytes)
{
    size_t at = 0;
    int r = 0;

    for (size_t i = 0; i <= c->n && r == 0; i++) {
        size_t end = i < c->n ? c->tensors[i].offset : pl_checkpoint_pad(at), gap = end - at;

        if (fd >= 0)
            r = pl_write_all(fd, zeros, gap);
        else
            pl_xxh64_add(sum, zeros, gap);
        at = end;
        if (i == c->n || r < 0)
            break;
        if (fd >= 0)
            r = pl_write_all(fd, c->tensors[i].data, c->tensors[i].bytes);
        else
            pl_xxh64_add(sum, c->tensors[i].data, c->tensors[i].bytes);
        at += c->tensors[i].bytes;
    }
    *ret_bytes = at;
    return r;
}

int pl_checkpoint_write(const struct pl_checkpoint *checkpoint,
                        const char *path,
                        struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf header = {0};
    _cleanup_free_ char *temp = pl_checkpoint_temp(path);
    unsigned char front[FRONT_BYTES] = MAGIC;
    _cleanup_close_ int fd = -EBADF;
    struct pl_xxh64 sum;
    size_t bytes;
    int r;

    if (!temp || make_header(checkpoint, &header) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory for checkpoint '%s'", path);
    if (header.len > PL_CHECKPOINT_HEADER_MAX)
        return pl_error_set(err, -EFBIG, "the header of checkpoint '%s' is too long", path);
    pl_xxh64_init(&sum);
    walk_data(checkpoint, -1, &sum, &bytes);
    put(front + 8, FORMAT_VERSION, 4);
    put(front + 16, header.len, 8);
    put(front + 24, bytes, 8);
    put(front + 32, pl_xxh64(header.data, header.len), 8);
    put(front + 40, pl_xxh64_final(&sum), 8);
    fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0666);
    if (fd < 0)
        return pl_error_errno(err, errno, "cannot write checkpoint '%s'", path);
    r = pl_write_all(fd, front, sizeof(front));
    if (r == 0)
        r = pl_write_all(fd, header.data, header.len);
    if (r == 0)
        r = walk_data(checkpoint, fd, NULL, &bytes);
    if (r == 0 && fsync(fd) < 0 && errno != EINVAL)
        r = -errno;
    if (r < 0) {
        unlink(temp);
        return pl_error_errno(err, r, "cannot write checkpoint '%s'", path);
    }
    return pl_checkpoint_place(temp, path, err);
}

static int read_shape(const char *text, struct pl_checkpoint_tensor *t)
{
    struct pl_mini_value list, entry;
    size_t pos = 0, count;
    int64_t n;
    int r;

    if (pl_mini_find(text, "shape", &list) < 0 || list.type != PL_MINI_ARRAY)
        return -EINVAL;
    while ((r = pl_mini_next(&list, &pos, &entry)) == 1) {
        if (t->rank == PLUME_RANK_MAX || pl_mini_int(&entry, &n) < 0 || n < 0)
            return -EINVAL;
        t->shape[t->rank++] = (size_t)n;
    }
    if (r < 0 || pl_shape_count(t->rank, t->shape, &count) < 0)
        return -EINVAL;
    t->bytes = count * pl_dtype_size(t->dtype);
    return 0;
}

/* Parses an entry of "tensors". Tensors must be in order, within the data. */
static int read_tensor(struct pl_checkpoint *c,
                       const struct pl_mini_value *entry,
                       const char *data,
                       size_t data_bytes)
{
    _cleanup_free_ char *text = strndup(entry->start, entry->len), *name = NULL, *dtype = NULL;
    size_t least = c->n ? c->tensors[c->n - 1].offset + c->tensors[c->n - 1].bytes : 0;
    struct pl_checkpoint_tensor t = {0};
    int64_t offset;

    if (!text)
        return -ENOMEM;
    if (pl_mini_get_string(text, "name", &name) < 0 || !*name ||
        strlen(name) > PL_CHECKPOINT_NAME_MAX || pl_mini_get_string(text, "dtype", &dtype) < 0 ||
        pl_mini_get_int(text, "offset", &offset) < 0 || offset < 0 ||
        offset % PL_CHECKPOINT_ALIGN || (size_t)offset < least)
        return -EINVAL;
    t.dtype = pl_checkpoint_dtype_find(dtype);
    t.offset = (size_t)offset;
    if (!t.dtype || read_shape(text, &t) < 0 || t.offset > data_bytes ||
        t.bytes > data_bytes - t.offset)
        return -EINVAL;
    if (pl_checkpoint_room(c, NULL) < 0)
        return -EINVAL;
    t.data = data + t.offset;
    t.name = PL_TAKE(name);
    c->tensors[c->n++] = t;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const struct pl_checkpoint *c)
{
    _cleanup_free_ char **names = calloc(c->n + 1, sizeof(*names));

    if (!names)
        return -ENOMEM;
    for (size_t i = 0; i < c->n; i++)
        names[i] = c->tensors[i].name;
    qsort(names, c->n, sizeof(*names), by_name);
    for (size_t i = 1; i < c->n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return -EINVAL;
    return 0;
}

static int read_header(struct pl_checkpoint *c, const char *data, size_t data_bytes)
{
    struct pl_mini_value list, entry;
    size_t pos = 0;
    int r;

    if (pl_mini_find(c->header, "tensors", &list) < 0 || list.type != PL_MINI_ARRAY)
        return -EINVAL;
    while ((r = pl_mini_next(&list, &pos, &entry)) == 1) {
        r = read_tensor(c, &entry, data, data_bytes);
        if (r < 0)
            return r;
    }
    return r < 0 ? r : check_names(c);
}

int pl_checkpoint_parse(const void *bytes,
                        size_t len,
                        struct pl_checkpoint *ret,
                        struct pl_error *err)
{
    const unsigned char *b = bytes;
    struct pl_checkpoint c = {0};
    uint64_t header, data;
    int r;

    if (len < FRONT_BYTES || memcmp(b, MAGIC, 8) != 0)
        return pl_error_set(err, -EINVAL, "not a checkpoint of Plume");
    if (get(b + 8, 4) != FORMAT_VERSION)
        return pl_error_set(err, -EPROTO,
                            "the checkpoint has format version %u, this release reads %d",
                            (unsigned)get(b + 8, 4), FORMAT_VERSION);
    header = get(b + 16, 8);
    data = get(b + 24, 8);
    if (header > PL_CHECKPOINT_HEADER_MAX || header > len - FRONT_BYTES ||
        data > len - FRONT_BYTES - header)
        return pl_error_set(err, -EINVAL, "the checkpoint is truncated: it has %zu bytes of %llu",
                            len, (unsigned long long)(FRONT_BYTES + header + data));
    if (data != len - FRONT_BYTES - header)
        return pl_error_set(err, -EINVAL, "the checkpoint is damaged: bytes follow its end");
    if (get(b + 12, 4) || get(b + 48, 8) || get(b + 56, 8) ||
        pl_xxh64(b + FRONT_BYTES, header) != get(b + 32, 8) ||
        pl_xxh64(b + FRONT_BYTES + header, data) != get(b + 40, 8))
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

int pl_checkpoint_read(const char *path, struct pl_checkpoint *ret, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct pl_checkpoint c;
    struct stat st;
    void *map;
    int r;

    if (fd < 0)
        return pl_error_errno(err, errno, "cannot open checkpoint '%s'", path);
    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at checkpoint '%s'", path);
    if (!S_ISREG(st.st_mode) || st.st_size == 0)
        return pl_error_set(err, -EINVAL, "'%s' is not a checkpoint of Plume", path);
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return pl_error_errno(err, errno, "cannot map checkpoint '%s'", path);
    r = pl_checkpoint_parse(map, (size_t)st.st_size, &c, err);
    if (r < 0) {
        munmap(map, (size_t)st.st_size);
        return pl_error_wrap(err, r, "while reading '%s'", path);
    }
    c.map = map;
    c.map_bytes = (size_t)st.st_size;
    *ret = c;
    return 0;
}
