/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/open.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "runtime/engine/data/npy.h"
#include "runtime/engine/util/file_map.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* The maximum total of several files, or of a folder, which are copied into memory. */
#define JOINED_MAX ((size_t)16 << 30)

static int parse_npy(const void *bytes,
                     size_t len,
                     const struct plume_source *source,
                     struct plume_array *ret,
                     struct pl_error *err)
{
    (void)source;
    return pl_npy_parse(bytes, len, ret, err);
}

static const struct format {
    const char *name;
    const char *end; /* file name extension, for PLUME_FORMAT_AUTO */
    pl_array_parser parse;
    bool joins;  /* several files may be concatenated */
    bool shares; /* the parser itself takes the share */
} formats[] = {
    [PLUME_FORMAT_NPY] = {"npy", ".npy", parse_npy, false, false},
    [PLUME_FORMAT_IDX] = {"idx", "-ubyte", pl_idx_parse, false, false},
    [PLUME_FORMAT_CIFAR10] = {"cifar10", NULL, pl_cifar10_parse, true, false},
    [PLUME_FORMAT_TOKENS_U16] = {"u16 tokens", NULL, pl_tokens_parse, true, true},
    [PLUME_FORMAT_TOKENS_U32] = {"u32 tokens", NULL, pl_tokens_parse, true, true},
    [PLUME_FORMAT_CSV] = {"csv", ".csv", pl_csv_read, false, false},
    [PLUME_FORMAT_TEXT] = {"text", ".txt", pl_text_parse, true, true},
    [PLUME_FORMAT_SYNTHETIC] = {"synthetic", NULL, pl_synthetic_parse, false, true},
};

static bool ends_with(const char *s, const char *end)
{
    size_t len = strlen(s), n = strlen(end);

    return len >= n && strcmp(s + len - n, end) == 0;
}

int pl_array_format(const char *path, enum plume_format *ret, struct pl_error *err)
{
    for (size_t i = 1; i < PL_COUNT(formats); i++) {
        if (formats[i].end && ends_with(path, formats[i].end)) {
            *ret = (enum plume_format)i;
            return 0;
        }
    }
    if (ends_with(path, ".idx")) {
        *ret = PLUME_FORMAT_IDX;
        return 0;
    }
    return pl_error_set(err, -EINVAL, "the name of '%s' does not give its format: set the format",
                        path);
}

static int
take_share(const struct plume_source *source, struct plume_array *a, struct pl_error *err)
{
    size_t begin, end;
    int r;

    if (source->begin == 0 && (source->end == 0 || source->end == 1))
        return 0;
    if (a->rank < 1)
        return pl_error_set(err, -EINVAL, "an array without dimensions has no share");
    r = pl_array_share(source, a->shape[0], &begin, &end, err);
    if (r < 0)
        return r;
    a->data = (const char *)a->data + begin * a->stride;
    a->count = a->shape[0] ? a->count / a->shape[0] * (end - begin) : 0;
    a->shape[0] = end - begin;
    return 0;
}

int pl_array_parse(const void *bytes,
                   size_t len,
                   const struct plume_source *source,
                   struct plume_array *ret,
                   struct pl_error *err)
{
    size_t format = (size_t)source->format;
    struct plume_array a = {0};
    int r;

    if (format < 1 || format >= PL_COUNT(formats))
        return pl_error_set(err, -EINVAL, "unknown data format %zu", format);
    r = formats[format].parse(bytes, len, source, &a, err);
    if (r == 0 && a.rank && a.shape[0] && a.count == 0) /* any number of them fits into a file */
        r = pl_error_set(err, -EINVAL, "the array's %zu samples have no elements", a.shape[0]);
    if (r == 0 && !formats[format].shares)
        r = take_share(source, &a, err);
    if (r < 0) {
        pl_array_close(&a);
        return r;
    }
    *ret = a;
    return 0;
}

/* Opens a regular file that is not empty. */
static int open_file(const char *path, int *ret_fd, size_t *ret_len, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;

    if (fd < 0)
        return pl_error_errno(err, errno, "cannot open '%s'", path);
    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at '%s'", path);
    if (!S_ISREG(st.st_mode) || st.st_size == 0)
        return pl_error_set(err, -EINVAL, "'%s' is empty or no regular file", path);
    *ret_fd = PL_TAKE_FD(fd);
    *ret_len = (size_t)st.st_size;
    return 0;
}

static int append_file(struct pl_buf *all, const char *path, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    size_t len = 0;
    int r = open_file(path, &fd, &len, err);

    if (r < 0)
        return r;
    r = len > JOINED_MAX - all->len ? -EFBIG : pl_buf_reserve(all, len);
    while (len > 0 && r == 0) {
        ssize_t n = read(fd, all->data + all->len, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* 0: somebody has made it shorter */
            r = n < 0 ? -errno : -EIO;
        else
            all->len += (size_t)n;
        len -= r == 0 ? (size_t)n : 0;
    }
    return r < 0 ? pl_error_errno(err, r, "cannot read '%s'", path) : 0;
}

static int is_file(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN);
}

/* By bytes in any locale (unlike alphasort). */
static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int append_folder(struct pl_buf *all, const char *path, struct pl_error *err)
{
    struct dirent **list = NULL;
    int n = scandir(path, &list, is_file, by_bytes), r = 0;

    if (n < 0)
        return pl_error_errno(err, errno, "cannot read folder '%s'", path);
    for (int i = 0; i < n; i++) {
        _cleanup_free_ char *full = pl_path_join(path, list[i]->d_name);
        struct stat st;

        if (!full)
            r = pl_error_nomem(err);
        else if (r == 0 && lstat(full, &st) < 0) /* without it the run would have less data */
            r = pl_error_errno(err, errno, "cannot look at '%s'", full);
        if (r == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
            r = append_file(all, full, err);
        free(list[i]);
    }
    free(list);
    if (r == 0 && all->len == 0)
        return pl_error_set(err, -EINVAL, "folder '%s' has no files to read", path);
    return r;
}

/* True if source->path is more than one file. A ':' may also be part of a name. */
static bool is_joined(const struct plume_source *source)
{
    struct stat st;

    if ((size_t)source->format >= PL_COUNT(formats) || !formats[source->format].joins)
        return false;
    if (stat(source->path, &st) == 0)
        return S_ISDIR(st.st_mode);
    return strchr(source->path, ':') != NULL;
}

/* Several files, or a folder of texts, concatenated in memory. */
static int
open_joined(const struct plume_source *source, struct plume_array *ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf all = {0};
    _cleanup_free_ char *paths = strdup(source->path);
    char *state = NULL;
    struct plume_array a;
    struct stat st;
    bool one = stat(source->path, &st) == 0;
    int r = paths ? 0 : pl_error_nomem(err);

    for (char *p = !paths || one ? paths : strtok_r(paths, ":", &state); p && r == 0;
         p = one ? NULL : strtok_r(NULL, ":", &state)) {

        if (source->format == PLUME_FORMAT_TEXT && stat(p, &st) == 0 && S_ISDIR(st.st_mode))
            r = append_folder(&all, p, err);
        else
            r = append_file(&all, p, err);
    }
    if (r < 0)
        return r;
    r = pl_array_parse(pl_buf_str(&all), all.len, source, &a, err);
    if (r < 0)
        return pl_error_wrap(err, r, "while reading '%s'", source->path);
    if (!a.own)
        a.own = pl_buf_take(&all); /* the array points into it */
    *ret = a;
    return 0;
}

int pl_array_open(const struct plume_source *source, struct plume_array *ret, struct pl_error *err)
{
    struct plume_source s = *source;
    _cleanup_close_ int fd = -EBADF;
    struct plume_array a;
    size_t len;
    void *map;
    int r;

    if (s.format == PLUME_FORMAT_SYNTHETIC)
        return pl_array_parse(NULL, 0, &s, ret, err);
    r = s.format == PLUME_FORMAT_AUTO ? pl_array_format(s.path, &s.format, err) : 0;

    if (r == 0 && is_joined(&s))
        return open_joined(&s, ret, err);
    if (r == 0)
        r = open_file(s.path, &fd, &len, err);
    if (r < 0)
        return r;
    r = pl_file_map(fd, s.path, len, &map);
    if (r < 0)
        return pl_error_errno(err, r, "cannot map '%s'", s.path);
    r = pl_array_parse(map, len, &s, &a, err);
    if (r < 0) {
        bool gzip = len > 2 && memcmp(map, "\x1f\x8b", 2) == 0;

        pl_file_unmap(map, len);
        return gzip ? pl_error_set(err, r, "'%s' is compressed: unpack it by gunzip", s.path)
                    : pl_error_wrap(err, r, "while reading '%s'", s.path);
    }
    if (a.own) { /* the file is not needed any more */
        pl_file_unmap(map, len);
    } else {
        a.map = map;
        a.map_bytes = len;
    }
    *ret = a;
    return 0;
}
