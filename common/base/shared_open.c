/* SPDX-License-Identifier: MIT */
#include "common/base/shared_open.h"
#include "common/base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a file of a foreign folder by a descriptor that only names it, so that nobody can put
 * another one in its place after the checks. */
static int foreign_open(int folder_fd, const char *name, int flags)
{
    _cleanup_close_ int place = openat(folder_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    char again[32];
    struct stat st;
    int fd;

    if (place < 0 || fstat(place, &st) < 0)
        return -errno;
    if (S_ISLNK(st.st_mode)) {
        uid_t owner = st.st_uid;

        close(PL_TAKE_FD(place));
        place = openat(folder_fd, name, O_PATH | O_CLOEXEC);
        if (place < 0 || fstat(place, &st) < 0)
            return -errno;
        if (owner != 0 && owner != geteuid() && st.st_uid != owner)
            return -EPERM;
    }
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    snprintf(again, sizeof(again), "/proc/self/fd/%d", place);
    fd = open(again, flags);
    return fd < 0 ? -errno : fd;
}

int pl_shared_open_at(int folder_fd, const char *name)
{
    static const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    struct stat st;
    int fd;

    if (fstat(folder_fd, &st) < 0)
        return -errno;
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return foreign_open(folder_fd, name, flags);
    fd = openat(folder_fd, name, flags);
    return fd < 0 ? -errno : fd;
}

int pl_shared_open(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    _cleanup_free_ char *folder =
        slash ? strndup(path, (size_t)PL_MAX(slash - path, 1)) : strdup(".");
    _cleanup_close_ int folder_fd = -EBADF;

    if (!folder)
        return -ENOMEM;
    folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0)
        return -errno;
    return pl_shared_open_at(folder_fd, *name ? name : ".");
}
