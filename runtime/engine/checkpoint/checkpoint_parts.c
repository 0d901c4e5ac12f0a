/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/checkpoint_parts.h"
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_place.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/xxh64.h"

#include <fcntl.h>
#include <string.h>

#define READ_BYTES ((size_t)1 << 20) /* at a time */

int pl_checkpoint_add_apart(struct pl_checkpoint *checkpoint,
                            const char *name,
                            enum plume_dtype dtype,
                            size_t rank,
                            const size_t *shape,
                            struct pl_error *err)
{
    struct pl_checkpoint_tensor t = {.dtype = dtype, .rank = rank, .apart = true};
    int r = pl_checkpoint_check_new(checkpoint, name, &t, shape, err);

    if (r < 0)
        return r;
    t.name = strdup(name);
    if (!t.name)
        return pl_error_set(err, -ENOMEM, "out of memory for a checkpoint");
    checkpoint->tensors[checkpoint->n++] = t;
    return 0;
}

size_t pl_checkpoint_count_apart(const struct pl_checkpoint *checkpoint)
{
    size_t n = 0;

    for (size_t i = 0; i < checkpoint->n; i++)
        n += checkpoint->tensors[i].apart;
    return n;
}

int pl_checkpoint_put_part(int fd, uint64_t place, const void *data, size_t bytes)
{
    const char *from = data;

    while (bytes) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)place);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        from += n;
        place += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Has this node forget the file's pages, into which other nodes write, too. The client of a network
 * file system would go on to read them, and to write them whole, over the other nodes' bytes. They
 * are clean after fsync(). */
static void forget_pages(int fd)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* Writes the tensors in memory, and notes where the others begin. *ret_end: the file's size. */
static int put_tensors(
    const struct pl_checkpoint *c, int fd, uint64_t place, uint64_t *ret_places, uint64_t *ret_end)
{
    int r = 0;

    for (size_t size = 8; size > 0; size /= 2) {
        size_t apart = 0;

        for (size_t i = 0; i < c->n && r == 0; i++) {
            const struct pl_checkpoint_tensor *t = &c->tensors[i];
            bool now = pl_dtype_size(t->dtype) == size;

            if (now && t->apart)
                ret_places[apart] = place;
            else if (now)
                r = pl_checkpoint_put_part(fd, place, t->data, t->bytes);
            apart += t->apart;
            place += now ? t->bytes : 0;
        }
    }
    *ret_end = place;
    return r;
}

int pl_checkpoint_begin(const struct pl_checkpoint *checkpoint,
                        const char *path,
                        char **ret_temp,
                        uint64_t *ret_places,
                        struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf front = {0};
    _cleanup_free_ char *temp = NULL;
    _cleanup_close_ int fd = -EBADF;
    uint64_t end = 0;
    int r = pl_checkpoint_front(checkpoint, &front, err), closed;

    if (r < 0)
        return pl_error_wrap(err, r, "cannot write checkpoint '%s'", path);
    r = pl_checkpoint_open_temp(path, &temp, &fd, err);
    if (r < 0)
        return r;
    r = pl_checkpoint_put_part(fd, 0, front.data, front.len);
    if (r == 0)
        r = put_tensors(checkpoint, fd, front.len, ret_places, &end);
    if (r == 0 && ftruncate(fd, (off_t)end) < 0)
        r = -errno;
    /* close() does not wait for the server while it has delegated the file to this node (NFS 4). */
    if (r == 0)
        r = pl_fd_sync(fd);
    closed = pl_fd_close(PL_TAKE_FD(fd)); /* a network file system writes it now */
    r = r < 0 ? r : closed;
    if (r == 0)
        fd = open(temp, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    if (fd >= 0)
        forget_pages(fd);
    if (r < 0) {
        unlink(temp);
        return pl_error_errno(err, r, "cannot write checkpoint '%s'", path);
    }
    *ret_temp = PL_TAKE(temp);
    return 0;
}

/* Adds up the whole file, whose digits are zeros. */
static int sum_file(int fd, uint64_t *ret)
{
    _cleanup_free_ char *buf = malloc(READ_BYTES);
    struct pl_xxh64 sum;
    ssize_t n;

    if (!buf)
        return -ENOMEM;
    pl_xxh64_init(&sum);
    while ((n = read(fd, buf, READ_BYTES)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        pl_xxh64_add(&sum, buf, (size_t)n);
    }
    *ret = pl_xxh64_final(&sum);
    return 0;
}

static int put_sum(const char *temp)
{
    _cleanup_close_ int fd = open(temp, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    char digits[PL_SAFETENSORS_DIGITS + 1];
    uint64_t sum = 0;
    int r;

    if (fd < 0)
        return -errno;
    forget_pages(fd);
    r = sum_file(fd, &sum);
    if (r < 0)
        return r;
    snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)sum);
    r = pl_checkpoint_put_part(fd, 8 + strlen(PL_SAFETENSORS_FRONT), digits, PL_SAFETENSORS_DIGITS);
    return r == 0 ? pl_fd_sync(fd) : r;
}

int pl_checkpoint_seal(const char *temp, const char *path, struct pl_error *err)
{
    int r = put_sum(temp);

    if (r == 0)
        return pl_checkpoint_place(temp, path, err);
    unlink(temp);
    return pl_error_errno(err, r, "cannot write checkpoint '%s'", path);
}

static int copy_bytes(int from, int to)
{
    _cleanup_free_ char *buf = malloc(READ_BYTES);
    ssize_t n;
    int r = buf ? 0 : -ENOMEM;

    while (r == 0 && (n = read(from, buf, READ_BYTES)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        r = n < 0 ? -errno : pl_write_all(to, buf, (size_t)n);
    }
    return r == 0 ? pl_fd_sync(to) : r;
}

int pl_checkpoint_copy(const char *from, const char *path, struct pl_error *err)
{
    _cleanup_close_ int source = open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY), fd = -EBADF;
    _cleanup_free_ char *temp = NULL;
    int r;

    if (source < 0)
        return pl_error_errno(err, errno, "cannot read checkpoint '%s'", from);
    r = pl_checkpoint_open_temp(path, &temp, &fd, err);
    if (r < 0)
        return r;
    r = copy_bytes(source, fd);
    if (r == 0)
        return pl_checkpoint_place(temp, path, err);
    unlink(temp);
    return pl_error_errno(err, r, "cannot write checkpoint '%s'", path);
}
