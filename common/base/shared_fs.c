/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/base/shared_fs.h"
#include "common/base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#define STEP_MS 10

bool pl_dir_renew(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOCTTY);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

bool pl_dir_renew_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    _cleanup_free_ char *dir =
        slash ? strndup(path, PL_MAX((size_t)(slash - path), (size_t)1)) : strdup(".");

    return dir && pl_dir_renew(dir);
}

int pl_file_look(const char *path)
{
    int error;

    if (access(path, F_OK) == 0)
        return 0;
    error = errno;
    if (error == ENOENT && pl_dir_renew_of(path))
        error = access(path, F_OK) == 0 ? 0 : errno;
    return -error;
}

int pl_file_lock(int fd, unsigned limit_ms)
{
    for (unsigned waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited_ms += STEP_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (waited_ms >= limit_ms)
            return -ETIMEDOUT;
        poll(NULL, 0, STEP_MS);
    }
    return 0;
}

bool pl_file_is_on_nfs(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && (unsigned long)fs.f_type == NFS_SUPER_MAGIC;
}

/* fdatasync() would wait until the server has the bytes on its disk. */
void pl_file_send(int fd)
{
    int error = errno;

    (void)!sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    errno = error;
}
