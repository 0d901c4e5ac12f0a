/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_place.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/file_map.h"
#include "runtime/engine/util/xxh64.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define READ_BYTES ((size_t)1 << 20) /* at a time */

/* Walks over the data, wide types first: writes it to a file (fd >= 0), or adds it to the checksum.
 */
static int walk_data(const struct pl_checkpoint *c, int fd, struct pl_xxh64 *sum)
{
    int r = 0;

    for (size_t size = 8; size > 0; size /= 2)
        for (size_t i = 0; i < c->n && r == 0; i++) {
            const struct pl_checkpoint_tensor *t = &c->tensors[i];

            if (pl_dtype_size(t->dtype) != size)
                continue;
            if (fd >= 0)
                r = pl_write_all(fd, t->data, t->bytes);
            else
                pl_xxh64_add(sum, t->data, t->bytes);
        }
    return r;
}

int pl_checkpoint_front(const struct pl_checkpoint *c, struct pl_buf *ret, struct pl_error *err)
{
    int r = pl_buf_add(ret, "\0\0\0\0\0\0\0", 8);

    if (r == 0)
        r = pl_safetensors_header(c, ret);
    if (r < 0)
        return pl_error_nomem(err);
    if (ret->len > PL_CHECKPOINT_HEADER_MAX)
        return pl_error_set(err, -EFBIG, "its header is too long");
    pl_checkpoint_put((unsigned char *)ret->data, ret->len - 8, 8);
    return 0;
}

/* The front, with its checksum. */
static int make_front(const struct pl_checkpoint *c, struct pl_buf *ret, struct pl_error *err)
{
    char digits[PL_SAFETENSORS_DIGITS + 1];
    struct pl_xxh64 sum;
    int r = pl_checkpoint_front(c, ret, err);

    if (r < 0)
        return r;
    pl_xxh64_init(&sum);
    pl_xxh64_add(&sum, ret->data, ret->len);
    walk_data(c, -1, &sum);
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)pl_xxh64_final(&sum));
    memcpy(ret->data + 8 + strlen(PL_SAFETENSORS_FRONT), digits, PL_SAFETENSORS_DIGITS);
    return 0;
}

int pl_checkpoint_open_temp(const char *path, char **ret_temp, int *ret_fd, struct pl_error *err)
{
    _cleanup_free_ char *temp = pl_checkpoint_temp(path);
    int fd;

    if (!temp)
        return pl_error_nomem(err);
    fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0666);
    if (fd < 0)
        return pl_error_errno(err, errno, "cannot write checkpoint '%s'", path);
    *ret_temp = PL_TAKE(temp);
    *ret_fd = fd;
    return 0;
}

int pl_checkpoint_write(const struct pl_checkpoint *checkpoint,
                        const char *path,
                        struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf front = {0};
    _cleanup_free_ char *temp = NULL;
    _cleanup_close_ int fd = -EBADF;
    int r = make_front(checkpoint, &front, err);

    if (r < 0)
        return pl_error_wrap(err, r, "cannot write checkpoint '%s'", path);
    r = pl_checkpoint_open_temp(path, &temp, &fd, err);
    if (r < 0)
        return r;
    r = pl_write_all(fd, front.data, front.len);
    if (r == 0)
        r = walk_data(checkpoint, fd, NULL);
    if (r == 0 && fsync(fd) < 0 && errno != EINVAL)
        r = -errno;
    if (r < 0) {
        unlink(temp);
        return pl_error_errno(err, r, "cannot write checkpoint '%s'", path);
    }
    return pl_checkpoint_place(temp, path, err);
}

int pl_checkpoint_parse(const void *bytes,
                        size_t len,
                        struct pl_checkpoint *ret,
                        struct pl_error *err)
{
    if (len >= 8 && memcmp(bytes, PL_CHECKPOINT_OLD_MAGIC, 8) == 0)
        return pl_checkpoint_parse_old(bytes, len, ret, err);
    return pl_safetensors_parse(bytes, len, ret, err);
}

/* Reads all of it once: a page of the map that cannot be read is SIGBUS, without an errno. */
static int read_through(int fd, size_t bytes)
{
    _cleanup_free_ char *buf = malloc(READ_BYTES);
    size_t at = 0;

    if (!buf)
        return -ENOMEM;
    while (at < bytes) {
        ssize_t n = pread(fd, buf, PL_MIN(READ_BYTES, bytes - at), (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* 0: somebody has made it shorter */
            return n < 0 ? -errno : -EIO;
        at += (size_t)n;
    }
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
        return pl_error_set(err, -EINVAL, "'%s' is %s: name a checkpoint or a safetensors file",
                            path,
                            S_ISDIR(st.st_mode)   ? "a directory"
                            : S_ISREG(st.st_mode) ? "empty"
                                                  : "not a regular file");
    r = read_through(fd, (size_t)st.st_size);
    if (r < 0)
        return pl_error_errno(err, r, "cannot read checkpoint '%s'", path);
    r = pl_file_map(fd, path, (size_t)st.st_size, &map);
    if (r < 0)
        return pl_error_errno(err, r, "cannot map checkpoint '%s'", path);
    r = pl_checkpoint_parse(map, (size_t)st.st_size, &c, err);
    if (r < 0) {
        pl_file_unmap(map, (size_t)st.st_size);
        return pl_error_wrap(err, r, "while reading '%s'", path);
    }
    c.map = map;
    c.map_bytes = (size_t)st.st_size;
    *ret = c;
    return 0;
}
