/* SPDX-License-Identifier: MIT */
/* Sockets of daemons, and of `pltrain --processes`, that were killed: the next daemon of the user
 * on the node removes them. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/plrund/daemon/daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>

#define STALE_S 60      /* younger ones may be about to listen */
#define SWEEP_MAX 10000 /* entries looked at */

/* A socket of another node, in a folder that nodes share, has no listener here either. */
static bool is_of_this_node(int folder)
{
    static const unsigned long local[] = {TMPFS_MAGIC,       EXT4_SUPER_MAGIC,      XFS_SUPER_MAGIC,
                                          BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, RAMFS_MAGIC};
    struct statfs fs;

    if (fstatfs(folder, &fs) < 0)
        return false;
    for (size_t i = 0; i < PL_COUNT(local); i++)
        if ((unsigned long)fs.f_type == local[i])
            return true;
    return false;
}

/* JOB.STEP.ATTEMPT.NODE, see pl_rank_socket_path(); pltrain's job is local-PID. */
static bool is_socket_name(const char *name)
{
    static const char local[] = "local-";
    unsigned dots = 0;

    if (strncmp(name, local, strlen(local)) == 0)
        name += strlen(local);
    for (const char *p = name; *p; p++) {
        if (*p == '.' && p[1] >= '0' && p[1] <= '9')
            dots++;
        else if (*p < '0' || *p > '9')
            return false;
    }
    return dots == 3 && name[0] != '.';
}

static bool nobody_listens(const char *folder, const char *name)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    _cleanup_close_ int fd = -EBADF;

    if (snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s", folder, name) >=
        (int)sizeof(addr.sun_path))
        return false;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 &&
           errno == ECONNREFUSED;
}

static bool is_old(int folder, const char *name)
{
    struct stat st;

    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(st.st_mode) &&
           st.st_uid == geteuid() && st.st_mtime <= time(NULL) - STALE_S;
}

void pl_daemon_sweep(const char *socket_path)
{
    const char *slash = strrchr(socket_path, '/');
    _cleanup_free_ char *folder = strndup(socket_path, slash ? (size_t)(slash - socket_path) : 0);
    DIR *dir = folder && *folder ? opendir(folder) : NULL;
    const struct dirent *entry;

    for (unsigned i = 0; dir && is_of_this_node(dirfd(dir)) && i < SWEEP_MAX; i++) {
        entry = readdir(dir);
        if (!entry)
            break;
        /* Its age is asked again: meanwhile another daemon may have made it anew. */
        if (is_socket_name(entry->d_name) && is_old(dirfd(dir), entry->d_name) &&
            nobody_listens(folder, entry->d_name) && is_old(dirfd(dir), entry->d_name) &&
            unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            pl_log_debug("daemon", "removed the socket '%s' of a daemon that was killed",
                         entry->d_name);
    }
    if (dir)
        closedir(dir);
}
