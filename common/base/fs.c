/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/base/fs.h"
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/shared_fs.h"
#include "common/base/shared_open.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define FDS_PAUSE_MS 2
#define FDS_LIMIT_MS 10000
#define APPEND_LOCK_MS 2000 /* for others that append: each takes milliseconds */

char *pl_strf(const char *fmt, ...)
{
    va_list ap;
    char *s;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : s;
}

char *pl_path_join(const char *dir, const char *name)
{
    size_t len = dir ? strlen(dir) : 0;

    if (!dir || !name) /* no memory for it */
        return NULL;
    if (name[0] == '/' || len == 0)
        return strdup(name);
    return pl_strf("%s%s%s", dir, dir[len - 1] == '/' ? "" : "/", name);
}

int pl_mkdir_p(const char *path, mode_t mode, struct pl_error *err)
{
    _cleanup_free_ char *copy = strdup(path);
    struct stat st;

    if (!copy)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (!*copy)
        return pl_error_set(err, -ENOENT, "cannot make a folder without a name");
    /* On a file system that takes no writes, mkdir(2) waits even if the folder exists. */
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    for (char *p = copy + 1;; p++) {
        char c = *p;

        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(copy, mode) < 0 && errno != EEXIST)
            return pl_error_errno(err, errno, "cannot make folder '%s'", copy);
        *p = c;
        if (c == '\0')
            break;
    }
    if (stat(path, &st) < 0)
        return pl_error_errno(err, errno, "cannot make folder '%s'", path);
    if (!S_ISDIR(st.st_mode))
        return pl_error_set(err, -ENOTDIR, "'%s' exists but is not a directory", path);
    return 0;
}

int pl_mkdir_private(const char *path, struct pl_error *err)
{
    struct stat st;
    bool there = lstat(path, &st) == 0; /* mkdir(2) may wait even then: see pl_mkdir_p() */

    if (!there && mkdir(path, 0700) < 0 && errno != EEXIST)
        return pl_error_errno(err, errno, "cannot make folder '%s'", path);
    if (!there && lstat(path, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at '%s'", path);
    if (!S_ISDIR(st.st_mode))
        return pl_error_set(err, -ENOTDIR, "'%s' exists but is not a directory", path);
    if (st.st_uid != geteuid())
        return pl_error_set(err, -EPERM, "folder '%s' belongs to another user (uid %u)", path,
                            (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return pl_error_set(err, -EPERM, "folder '%s' is open to others: chmod 700 it", path);
    return 0;
}

int pl_fd_read(
    int fd, const char *path, size_t max_bytes, char **ret, size_t *ret_len, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at '%s'", path);
    if (!S_ISREG(st.st_mode))
        return pl_error_set(err, -EINVAL, "'%s' is not a regular file", path);
    if (st.st_size > 0 && (uintmax_t)st.st_size > max_bytes)
        return pl_error_set(err, -EFBIG, "'%s' is larger than %zu bytes", path, max_bytes);
    if (pl_buf_reserve(&buf, (size_t)st.st_size + 4096) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (;;) {
        if (pl_buf_reserve(&buf, 4096) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
        n = read(fd, buf.data + buf.len, buf.cap - buf.len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pl_error_errno(err, errno, "cannot read '%s'", path);
        if (n == 0)
            break;
        buf.len += (size_t)n;
        buf.data[buf.len] = '\0';
        if (buf.len > max_bytes)
            return pl_error_set(err, -EFBIG, "'%s' is larger than %zu bytes", path, max_bytes);
    }
    if (ret_len)
        *ret_len = buf.len;
    *ret = pl_buf_take(&buf);
    return 0;
}

int pl_file_read(
    const char *path, size_t max_bytes, char **ret, size_t *ret_len, struct pl_error *err)
{
    _cleanup_close_ int fd = pl_shared_open(path);

    if (fd == -ENOENT && pl_dir_renew_of(path)) /* another host may have made it */
        fd = pl_shared_open(path);
    if (fd == -EINVAL)
        return pl_error_set(err, -EINVAL, "'%s' is not a regular file", path);
    if (fd == -EPERM)
        return pl_error_set(err, -EPERM,
                            "'%s' is another user's link to a file that is not theirs: not read",
                            path);
    if (fd < 0)
        return pl_error_errno(err, fd, "cannot open '%s'", path);
    return pl_fd_read(fd, path, max_bytes, ret, ret_len, err);
}

char *pl_program_folder(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    if (n <= 0)
        return NULL;
    path[n] = '\0';
    slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    return strdup(path);
}

int pl_write_all(int fd, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = PL_FAULT("write", ENOSPC) ? -1 : write(fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int pl_fd_sync(int fd)
{
    int r;

    do
        r = fsync(fd);
    while (r < 0 && errno == EINTR);
    return r < 0 && errno != EINVAL ? -errno : 0;
}

int pl_fd_close(int fd)
{
    return close(fd) < 0 && errno != EINTR ? -errno : 0;
}

int pl_file_place(int dir_fd, const char *temp, const char *path)
{
    struct stat made, now;
    int error;

    if (fstatat(dir_fd, temp, &made, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (renameat(dir_fd, temp, dir_fd, path) == 0)
        return 0;
    error = errno;
    if (fstatat(dir_fd, path, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == made.st_dev &&
        now.st_ino == made.st_ino)
        return 0;
    return -error;
}

char *pl_temp_name(const char *path)
{
    unsigned char bytes[8];
    char hex[2 * sizeof(bytes) + 1];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return NULL;
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    return pl_strf("%s.%s", path, hex);
}

int pl_file_write_at(int dir_fd,
                     const char *path,
                     const void *data,
                     size_t len,
                     mode_t mode,
                     bool sync,
                     struct pl_error *err)
{
    _cleanup_free_ char *temp = pl_temp_name(path);
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (!temp)
        return pl_error_set(err, -ENOMEM, "out of memory");
    fd =
        openat(dir_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, mode);
    if (fd < 0)
        return pl_error_errno(err, errno, "cannot write '%s'", path);
    r = pl_write_all(fd, data, len);
    if (r == 0 && sync)
        r = pl_fd_sync(fd);
    if (close(PL_TAKE_FD(fd)) < 0 && r == 0) /* a network file system writes it now */
        r = -errno;
    if (r == 0)
        r = pl_file_place(dir_fd, temp, path);
    if (r < 0) {
        unlinkat(dir_fd, temp, 0);
        return pl_error_errno(err, r, "cannot write '%s'", path);
    }
    return 0;
}

int pl_file_write_atomic(
    const char *path, const void *data, size_t len, mode_t mode, struct pl_error *err)
{
    return pl_file_write_at(AT_FDCWD, path, data, len, mode, true, err);
}

int pl_file_replace(
    const char *path, const void *data, size_t len, mode_t mode, struct pl_error *err)
{
    return pl_file_write_at(AT_FDCWD, path, data, len, mode, false, err);
}

int pl_dir_sync(const char *dir, const char *const *names, size_t n, struct pl_error *err)
{
    _cleanup_close_ int dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fds[8], r = dir_fd < 0 ? -errno : 0;
    size_t opened = 0;

    /* With delayed allocation a file system places the data of all files before the first
     * fsync commits its journal: the others then find their part done. */
    while (r == 0 && opened < PL_MIN(n, PL_COUNT(fds))) {
        fds[opened] = openat(dir_fd, names[opened], O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
        if (fds[opened] < 0)
            r = -errno;
        else
            sync_file_range(fds[opened++], 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    for (size_t i = 0; i < opened; i++) {
        if (r == 0)
            r = pl_fd_sync(fds[i]);
        close(fds[i]);
    }
    if (r == 0)
        r = pl_fd_sync(dir_fd);
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s' to the disk", dir) : 0;
}

/* True if the last line has no newline because its writer died or its disk was full. A line that
 * another process writes at this moment looks the same, since the kernel may show its first part up
 * to the end of a page. So this looks for up to 50 ms. */
static bool line_is_torn(int fd)
{
    for (int look = 0; look < 50; look++) {
        off_t size = lseek(fd, 0, SEEK_END);
        char last;

        if (size <= 0 || pread(fd, &last, 1, size - 1) != 1 || last == '\n')
            return false;
        poll(NULL, 0, 1);
    }
    return true;
}

int pl_file_append(
    const char *path, const void *data, size_t len, mode_t mode, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, mode);
    int r = 0;

    if (fd < 0)
        return pl_error_errno(err, errno, "cannot open '%s'", path);
    if (len > 0)
        (void)pl_file_lock(fd, APPEND_LOCK_MS); /* without one, as before there were locks */
    if (len > 0 && line_is_torn(fd))
        r = pl_write_all(fd, "\n", 1);
    if (r == 0)
        r = pl_write_all(fd, data, len);
    if (close(PL_TAKE_FD(fd)) < 0 && r == 0) /* a network file system writes it now */
        r = -errno;
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", path) : 0;
}

int pl_secret_read(const char *path, void *ret, size_t len, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    char data[257];
    struct stat st;
    ssize_t n;

    if (fd < 0)
        return pl_error_errno(err, errno, "cannot open key '%s'", path);
    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at key '%s'", path);
    if (!S_ISREG(st.st_mode))
        return pl_error_set(err, -EPERM, "key '%s' is not a regular file", path);
    if (st.st_uid != geteuid())
        return pl_error_set(err, -EPERM, "key '%s' belongs to another user (uid %u)", path,
                            (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return pl_error_set(err, -EPERM, "key '%s' is open to others: chmod 600 it", path);
    if (st.st_nlink > 2) /* 2 for an instant while pl_secret_create() links it */
        return pl_error_set(err, -EPERM, "key '%s' has more than one name", path);
    if (len >= sizeof(data))
        return pl_error_set(err, -EINVAL, "key length");
    n = read(fd, data, len + 1);
    if (n < 0)
        return pl_error_errno(err, errno, "cannot read key '%s'", path);
    if ((size_t)n != len)
        return pl_error_set(err, -EINVAL, "key '%s' must be %zu bytes long", path, len);
    memcpy(ret, data, len);
    explicit_bzero(data, sizeof(data));
    return 0;
}

int pl_secret_create(const char *path, const void *data, size_t len, struct pl_error *err)
{
    _cleanup_free_ char *temp = pl_strf("%s.XXXXXX", path);
    _cleanup_close_ int fd = -EBADF;
    int r = 0;

    if (!temp)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (access(path, F_OK) == 0)
        return 0;
    fd = mkostemp(temp, O_CLOEXEC); /* 0600 */
    if (fd < 0)
        return pl_error_errno(err, errno, "cannot make key '%s'", path);
    r = pl_write_all(fd, data, len);
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    if (r == 0 && link(temp, path) < 0 && errno != EEXIST)
        r = -errno;
    unlink(temp);
    return r < 0 ? pl_error_errno(err, r, "cannot make key '%s'", path) : 0;
}

char *pl_home_dir(struct pl_error *err)
{
    const char *dir = pl_env(PL_ENV_PLUME_HOME), *home = pl_env(PL_ENV_HOME);
    char *path;
    int r;

    if (!dir || !*dir) {
        if (!home || home[0] != '/') {
            struct passwd *pw = getpwuid(geteuid());

            home = pw ? pw->pw_dir : NULL;
        }
        if (!home) {
            pl_error_set(err, -ENOENT, "no home folder: set HOME or PLUME_HOME");
            return NULL;
        }
        path = pl_path_join(home, ".plume");
    } else {
        path = strdup(dir);
    }
    if (!path) {
        pl_error_set(err, -ENOMEM, "out of memory");
        return NULL;
    }
    r = pl_mkdir_private(path, err);
    if (r < 0) {
        pl_home_hint(err, r);
        free(path);
        return NULL;
    }
    return path;
}

int pl_home_hint(struct pl_error *err, int code)
{
    static const int elsewhere[] = {-ENOENT, -EROFS, -EACCES, -ENOSPC, -EDQUOT};

    for (size_t i = 0; i < PL_COUNT(elsewhere); i++)
        if (code == elsewhere[i])
            return pl_error_wrap(err, code, "set PLUME_HOME to a folder that all nodes share");
    return code;
}

int pl_send_fds(int sock, const void *data, size_t len, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (n_fds > 4)
        return -EINVAL;
    if (n_fds) {
        struct cmsghdr *c;

        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    for (unsigned waited_ms = 0;; waited_ms += FDS_PAUSE_MS) {
        struct timespec pause = {0, FDS_PAUSE_MS * 1000000L};

        do
            n = sendmsg(sock, &msg, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        /* The user has as many on their way as the limit of open files allows: see unix(7). */
        if (n >= 0 || errno != ETOOMANYREFS || waited_ms >= FDS_LIMIT_MS)
            break;
        nanosleep(&pause, NULL);
    }
    if (n < 0)
        return -errno;
    while ((size_t)n < len) {
        ssize_t m = send(sock, (const char *)data + n, len - (size_t)n, MSG_NOSIGNAL);

        if (m < 0 && errno != EINTR)
            return -errno;
        n += m > 0 ? m : 0;
    }
    return 0;
}

ssize_t pl_recv_fds(int sock, void *data, size_t size, int *fds, size_t max_fds, size_t *ret_n_fds)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = data, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.space,
                         .msg_controllen = sizeof(control.space)};
    ssize_t n;

    *ret_n_fds = 0;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (*ret_n_fds < max_fds)
                fds[(*ret_n_fds)++] = fd;
            else
                close(fd);
        }
    }
    return n;
}

uint64_t pl_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int pl_left_ms(uint64_t limit_ns)
{
    uint64_t now = pl_now_ns();

    return now >= limit_ns ? 0 : (int)PL_MIN((limit_ns - now) / 1000000u + 1, (uint64_t)INT_MAX);
}

double pl_wall_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

const char *pl_clock_id(char buf[PL_CLOCK_ID_MAX])
{
    _cleanup_free_ char *boot = NULL, *offsets = NULL;
    const char *monotonic;
    long long s = 0, ns = 0;

    buf[0] = '\0';
    if (pl_file_read("/proc/sys/kernel/random/boot_id", 64, &boot, NULL, NULL) < 0)
        return buf;
    boot[strcspn(boot, "\n")] = '\0';
    /* No such file before Linux 5.6, which has no time namespaces either. */
    if (pl_file_read("/proc/self/timens_offsets", 256, &offsets, NULL, NULL) == 0) {
        monotonic = strstr(offsets, "monotonic");
        if (!monotonic || sscanf(monotonic, "monotonic %lld %lld", &s, &ns) != 2)
            return buf;
    }
    snprintf(buf, PL_CLOCK_ID_MAX, "%s:%lld:%lld", boot, s, ns);
    return buf;
}
