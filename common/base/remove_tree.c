/* SPDX-License-Identifier: MIT */
#include "common/base/remove_tree.h"
#include "common/base/macros.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define DEPTH_MAX 200

static int remove_entry(int dir_fd, const char *name, unsigned depth);

/* Removes what is in the folder fd, which it closes. */
static int empty_folder(int fd, unsigned depth)
{
    DIR *list = fdopendir(fd);
    struct dirent *entry;
    int r = 0, first = 0;

    if (!list) {
        close(fd);
        return -ENOMEM;
    }
    while ((entry = readdir(list))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        r = remove_entry(dirfd(list), entry->d_name, depth + 1);
        if (r < 0 && first == 0)
            first = r;
    }
    closedir(list);
    return first;
}

static int remove_entry(int dir_fd, const char *name, unsigned depth)
{
    int fd, r = 0;

    if (unlinkat(dir_fd, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    if (depth > DEPTH_MAX)
        return -ELOOP;
    fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    r = empty_folder(fd, depth);
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && r == 0)
        r = -errno;
    return r;
}

int pl_remove_tree(int dir_fd, const char *name)
{
    return remove_entry(dir_fd, name, 0);
}
