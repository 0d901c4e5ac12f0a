/* SPDX-License-Identifier: MIT */
#include "common/base/own.h"
#include "common/base/fs.h"

#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>

/* The path of an open descriptor for messages; `name` if the system does not tell it. */
static void show_path(int fd, const char *name, char ret[PATH_MAX])
{
    char link[32];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, ret, PATH_MAX - 1);
    if (n > 0)
        ret[n] = '\0';
    else
        snprintf(ret, PATH_MAX, "%s", name);
}

/* The path of `name` in the folder dir_fd, for messages. */
static void show_path_in(int dir_fd, const char *name, char ret[PATH_MAX])
{
    char dir[PATH_MAX];

    show_path(dir_fd, ".", dir);
    if (dir_fd == AT_FDCWD || name[0] == '/' ||
        snprintf(ret, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        snprintf(ret, PATH_MAX, "%s", name);
}

static int check(int fd, const char *what, const char *name, struct pl_error *err)
{
    char path[PATH_MAX], number[24];
    const struct passwd *pw;
    const char *owner;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at '%s'", name);
    if (st.st_uid == geteuid() && !(st.st_mode & PL_OWN_MASK))
        return 0;
    show_path(fd, name, path);
    snprintf(number, sizeof(number), "uid %u", (unsigned)st.st_uid);
    pw = getpwuid(st.st_uid);
    owner = pw ? pw->pw_name : number;
    if (st.st_uid != geteuid())
        return pl_error_set(err, -EPERM,
                            "refused: %s '%s' has owner %s, mode %04o; it must be your own", what,
                            path, owner, (unsigned)st.st_mode & 07777);
    return pl_error_set(err, -EPERM,
                        "refused: %s '%s' has owner %s, mode %04o; others may write to it: chmod "
                        "go-w",
                        what, path, owner, (unsigned)st.st_mode & 07777);
}

int pl_own_folder_open(int dir_fd, const char *path, int *ret_fd, struct pl_error *err)
{
    _cleanup_close_ int fd =
        openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
    char shown[PATH_MAX];
    struct stat st;
    int r;

    if (fd < 0) {
        r = errno;
        /* With O_DIRECTORY a link is ENOTDIR, too. */
        if (r == ENOTDIR && fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(st.st_mode))
            r = ELOOP;
        show_path_in(dir_fd, path, shown);
        return pl_error_errno(err, r, "cannot open folder '%s'", shown);
    }
    r = check(fd, "folder", path, err);
    if (r == 0)
        *ret_fd = PL_TAKE_FD(fd);
    return r;
}

int pl_own_folder_make(int dir_fd, const char *path, mode_t mode, int *ret_fd, struct pl_error *err)
{
    char shown[PATH_MAX];

    if (mkdirat(dir_fd, path, mode & ~(mode_t)PL_OWN_MASK) < 0 && errno != EEXIST) {
        int code = errno;

        show_path_in(dir_fd, path, shown);
        return pl_error_errno(err, code, "cannot make folder '%s'", shown);
    }
    return pl_own_folder_open(dir_fd, path, ret_fd, err);
}

mode_t pl_own_mode(int folder_fd, mode_t bits)
{
    struct stat st;

    if (fstat(folder_fd, &st) < 0)
        st.st_mode = 0700;
    return bits & (st.st_mode | 0700) & 0777 & ~(mode_t)PL_OWN_MASK;
}

int pl_own_file_open(
    int folder_fd, const char *name, int flags, mode_t mode, int *ret_fd, struct pl_error *err)
{
    _cleanup_close_ int fd =
        openat(folder_fd, name, (flags & ~O_TRUNC) | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
               mode & ~(mode_t)PL_OWN_MASK);
    char shown[PATH_MAX];
    struct stat st;
    int r;

    if (fd < 0) {
        r = errno;
        show_path_in(folder_fd, name, shown);
        return pl_error_errno(err, r, "cannot open '%s'", shown);
    }
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        show_path(fd, name, shown);
        return pl_error_set(err, -EINVAL, "'%s' is not a regular file", shown);
    }
    r = check(fd, "file", name, err);
    if (r == 0 && (flags & O_TRUNC) && ftruncate(fd, 0) < 0)
        r = pl_error_errno(err, errno, "cannot empty '%s'", name);
    if (r == 0)
        *ret_fd = PL_TAKE_FD(fd);
    return r;
}

int pl_own_file_read(int folder_fd,
                     const char *name,
                     size_t max_bytes,
                     char **ret,
                     size_t *ret_len,
                     struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char shown[PATH_MAX];
    int r = pl_own_file_open(folder_fd, name, O_RDONLY, 0, &fd, err);

    if (r < 0)
        return r;
    show_path(fd, name, shown);
    return pl_fd_read(fd, shown, max_bytes, ret, ret_len, err);
}
