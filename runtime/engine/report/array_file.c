/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/array_file.h"
#include "common/base/buf.h"
#include "common/base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NPY_ALIGN 64 /* of the data in the file */
#define HEX 16       /* digits of pl_temp_name() */
#define TRIES 100    /* to make a file that no run which clears up takes for a dead one's */

static const char *const endings[] = {
    [PL_ARRAY_NPY] = ".npy", [PL_ARRAY_SAFETENSORS] = ".safetensors", [PL_ARRAY_JSONL] = ".jsonl"};

static int format_of(const char *path, enum pl_array_format *ret, struct pl_error *err)
{
    size_t len = strlen(path);

    for (size_t i = 0; i < PL_COUNT(endings); i++) {
        size_t n = strlen(endings[i]);

        if (len > n && strcmp(path + len - n, endings[i]) == 0) {
            *ret = (enum pl_array_format)i;
            return 0;
        }
    }
    return pl_error_set(err, -EINVAL, "'%s' must end in .npy, .safetensors or .jsonl", path);
}

int pl_array_file_check(const char *path, struct pl_error *err)
{
    enum pl_array_format format;

    return format_of(path, &format, err);
}

/* numpy.lib.format: magic, version, length of the text, the text padded by blanks and a newline. */
static int npy_header(struct pl_buf *b, bool f64, size_t rank, const size_t *shape)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    size_t len;
    int r = pl_buf_addf(&text, "{'descr': '<f%d', 'fortran_order': False, 'shape': (", f64 ? 8 : 4);

    for (size_t d = 0; d < rank && r >= 0; d++)
        r = pl_buf_addf(&text, "%s%zu%s", d ? " " : "", shape[d],
                        d + 1 < rank || rank == 1 ? "," : "");
    if (r >= 0)
        r = pl_buf_addf(&text, "), }");
    len = (10 + text.len + 1 + NPY_ALIGN - 1) / NPY_ALIGN * NPY_ALIGN - 10;
    while (r >= 0 && text.len + 1 < len)
        r = pl_buf_addc(&text, ' ');
    if (r >= 0)
        r = pl_buf_addc(&text, '\n');
    if (r >= 0)
        r = pl_buf_add(b, "\x93NUMPY\x01\x00", 8);
    if (r >= 0)
        r = pl_buf_addc(b, (char)(len & 0xff));
    if (r >= 0)
        r = pl_buf_addc(b, (char)(len >> 8));
    return r < 0 ? r : pl_buf_add(b, text.data, text.len);
}

static int safetensors_header(struct pl_buf *b, bool f64, size_t rank, const size_t *shape)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    uint64_t bytes = f64 ? 8 : 4;
    int r = pl_buf_addf(&text, "{\"output\":{\"dtype\":\"F%d\",\"shape\":[", f64 ? 64 : 32);

    for (size_t d = 0; d < rank && r >= 0; d++) {
        bytes *= shape[d];
        r = pl_buf_addf(&text, "%s%zu", d ? "," : "", shape[d]);
    }
    if (r >= 0)
        r = pl_buf_addf(&text, "],\"data_offsets\":[0,%llu]}}", (unsigned long long)bytes);
    while (r >= 0 && text.len % 8)
        r = pl_buf_addc(&text, ' ');
    for (int i = 0; i < 8 && r >= 0; i++)
        r = pl_buf_addc(b, (char)(text.len >> (8 * i) & 0xff));
    return r < 0 ? r : pl_buf_add(b, text.data, text.len);
}

static int write_failed(const struct pl_array_file *f, struct pl_error *err)
{
    return pl_error_errno(err, errno ? errno : EIO, "cannot write '%s'", f->path);
}

/* True for NAME.HEX, as pl_temp_name() makes it. */
static bool is_temporary_of(const char *entry, const char *name)
{
    size_t len = strlen(name);

    return strncmp(entry, name, len) == 0 && entry[len] == '.' && strlen(entry + len + 1) == HEX &&
           strspn(entry + len + 1, "0123456789abcdef") == HEX;
}

/* A living writer holds a lock on its file: see create(). Where there are no locks nothing is
 * removed. */
static void remove_if_dead(int dir_fd, const char *name)
{
    _cleanup_close_ int fd =
        openat(dir_fd, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(dir_fd, name, 0);
}

/* Removes what killed writers of this path left. Failures are ignored. */
static void remove_leftovers(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    _cleanup_free_ char *folder =
        slash ? strndup(path, PL_MAX((size_t)(slash - path), (size_t)1)) : strdup(".");
    DIR *list = folder ? opendir(folder) : NULL;
    const struct dirent *entry;

    while (list && (entry = readdir(list)))
        if (is_temporary_of(entry->d_name, name))
            remove_if_dead(dirfd(list), entry->d_name);
    if (list)
        closedir(list);
}

/* Makes a temporary file and locks it. A run that clears up may have it locked or removed before:
 * then another one is made. Returns the descriptor or -errno; *ret_temporary is NULL then. */
static int create(const char *path, char **ret_temporary)
{
    for (int i = 0; i < TRIES; i++) {
        _cleanup_free_ char *name = pl_temp_name(path);
        _cleanup_close_ int fd = -EBADF;
        struct stat st;

        if (!name)
            return -ENOMEM;
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0)
            return -errno;
        if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
            continue;
        if (fstat(fd, &st) == 0 && st.st_nlink == 0)
            continue;
        *ret_temporary = PL_TAKE(name);
        return PL_TAKE_FD(fd);
    }
    return -EBUSY;
}

int pl_array_file_open(struct pl_array_file *f,
                       const char *path,
                       bool f64,
                       size_t rank,
                       const size_t *shape,
                       struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf header = {0};
    int fd, r;

    *f = (struct pl_array_file){.path = path, .f64 = f64, .width = 1, .rows = shape[0]};
    r = format_of(path, &f->format, err);
    if (r < 0)
        return r;
    for (size_t d = 1; d < rank; d++)
        f->width *= shape[d];
    r = f->format == PL_ARRAY_NPY           ? npy_header(&header, f64, rank, shape)
        : f->format == PL_ARRAY_SAFETENSORS ? safetensors_header(&header, f64, rank, shape)
                                            : 0;
    if (r < 0)
        return pl_error_nomem(err);
    remove_leftovers(path);
    fd = create(path, &f->temporary);
    if (fd < 0)
        return pl_error_errno(err, fd, "cannot write '%s'", path);
    f->file = fdopen(fd, "w");
    if (!f->file) {
        r = write_failed(f, err);
        close(fd);
        return r;
    }
    if (header.len && fwrite(header.data, header.len, 1, f->file) != 1)
        return write_failed(f, err);
    return 0;
}

void pl_number_text(char ret[32], double value, bool f64)
{
    for (int digits = f64 ? 15 : 6;; digits++) {
        double again;

        snprintf(ret, 32, "%.*g", digits, value);
        again = strtod(ret, NULL);
        if (digits == (f64 ? 17 : 9) || (f64 ? again == value : (float)again == (float)value))
            return;
    }
}

/* JSON has no numbers that are not finite. */
static const char *json_number(char text[32], double value, bool f64)
{
    if (isnan(value))
        return "\"nan\"";
    if (isinf(value))
        return value > 0 ? "\"inf\"" : "\"-inf\"";
    pl_number_text(text, value, f64);
    return text;
}

static void json_row(const struct pl_array_file *f, const void *numbers)
{
    char text[32];

    fprintf(f->file, "{\"index\":%zu,\"output\":[", f->row);
    for (size_t i = 0; i < f->width; i++) {
        double value = f->f64 ? ((const double *)numbers)[i] : (double)((const float *)numbers)[i];

        fprintf(f->file, "%s%s", i ? "," : "", json_number(text, value, f->f64));
    }
    fputs("]}\n", f->file);
}

int pl_array_file_row(struct pl_array_file *f, const void *numbers, struct pl_error *err)
{
    errno = 0;
    if (f->format == PL_ARRAY_JSONL)
        json_row(f, numbers);
    else if (f->width)
        fwrite(numbers, f->width * (f->f64 ? sizeof(double) : sizeof(float)), 1, f->file);
    f->row++;
    return ferror(f->file) ? write_failed(f, err) : 0;
}

int pl_array_file_finish(struct pl_array_file *f, struct pl_error *err)
{
    errno = 0;
    if (f->row != f->rows)
        return pl_error_set(err, -EINVAL, "'%s': %zu rows were written, not %zu", f->path, f->row,
                            f->rows);
    if (fflush(f->file) != 0 || (fsync(fileno(f->file)) < 0 && errno != EINVAL) ||
        rename(f->temporary, f->path) < 0)
        return write_failed(f, err);
    free(PL_TAKE(f->temporary));
    return 0;
}

void pl_array_file_close(struct pl_array_file *f)
{
    if (f->file)
        fclose(f->file);
    if (f->temporary)
        unlink(f->temporary);
    free(f->temporary);
    *f = (struct pl_array_file){0};
}
