/* SPDX-License-Identifier: MIT */
/* The copy of a snapshot's files. */
#include "common/base/fs.h"
#include "launcher/plsubmit/snapshot_private.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK ((size_t)128 * 1024)

/* ---- folders ---- */

void pl_snapshot_place_finish(struct pl_snapshot_place *p)
{
    if (p->fd >= 0)
        close(p->fd);
    free(p->folder);
}

int pl_snapshot_place_open(struct pl_snapshot_place *p,
                           const char *path,
                           bool make,
                           const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    _cleanup_close_ int fd = -EBADF;

    *ret_name = slash ? slash + 1 : path;
    if (p->folder && strlen(p->folder) == len && strncmp(p->folder, path, len) == 0)
        return p->fd;
    fd = fcntl(p->root, F_DUPFD_CLOEXEC, 3);
    for (size_t at = 0; fd >= 0 && at < len;) {
        size_t part = strcspn(path + at, "/");
        _cleanup_free_ char *name = strndup(path + at, part);
        int next;

        if (!name)
            return -ENOMEM;
        if (make && mkdirat(fd, name, 0700) < 0 && errno != EEXIST)
            return -errno;
        next = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            return -errno;
        close(fd);
        fd = next;
        at += part + 1;
    }
    if (fd < 0)
        return -errno;
    free(p->folder);
    p->folder = strndup(path, len);
    if (!p->folder)
        return -ENOMEM;
    if (p->fd >= 0)
        close(p->fd);
    p->fd = PL_TAKE_FD(fd);
    return p->fd;
}

bool pl_snapshot_is_below(const char *path, const char *folder)
{
    size_t len = folder ? strlen(folder) : 0;

    return len && strncmp(path, folder, len) == 0 && path[len] == '/';
}

char *pl_snapshot_clean_path(const char *path)
{
    _cleanup_free_ char *out = calloc(1, strlen(path) + 2);
    size_t n = 0;

    while (out && *path) {
        size_t len = strcspn(path, "/");

        if (len == 2 && strncmp(path, "..", 2) == 0) {
            if (n == 0)
                return NULL;
            while (n > 0 && out[--n] != '/')
                ;
        } else if (len > 0 && !(len == 1 && *path == '.')) {
            if (n > 0)
                out[n++] = '/';
            memcpy(out + n, path, len);
            n += len;
        }
        path += len + (path[len] == '/');
    }
    if (out)
        out[n] = '\0';
    return PL_TAKE(out);
}

/* ---- the copy ---- */

static int copy_bytes(int from, int to, void *buffer)
{
    ssize_t n;

    while ((n = read(from, buffer, CHUNK)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (pl_write_all(to, buffer, (size_t)n) < 0)
            return errno ? -errno : -EIO;
    }
    return 0;
}

/* The copy is the user's alone, and has the time of the original: make(1) sees nothing to do. */
static int copy_regular(int from_dir, int to_dir, const char *name, void *buffer)
{
    _cleanup_close_ int from = -EBADF, to = -EBADF;
    struct stat st;
    int r;

    from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (from < 0 || fstat(from, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    to = openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                st.st_mode & S_IXUSR ? 0700 : 0600);
    if (to < 0)
        return -errno;
    r = copy_bytes(from, to, buffer);
    if (r == 0 && futimens(to, (struct timespec[2]){st.st_atim, st.st_mtim}) < 0)
        r = -errno;
    if (close(PL_TAKE_FD(to)) < 0 && r == 0) /* a network file system writes it now */
        r = -errno;
    return r;
}

/* A link that leads out of the repository, or to one of its files by an absolute path, gets a
 * target that leads to the same place from the copy, or to the copy of the file. The caller frees
 * *ret; NULL: the target stays as it is. */
static int new_target(const struct pl_snapshot *s,
                      const char *path,
                      const char *target,
                      const char *run_dir,
                      char **ret)
{
    const char *slash = strrchr(path, '/');
    _cleanup_free_ char *whole = NULL, *clean = NULL;

    *ret = NULL;
    if (target[0] == '/') {
        if (strcmp(target, s->root) != 0 && !pl_snapshot_is_below(target, s->root))
            return 0;
        *ret = pl_strf("%s/" PL_RUN_SNAPSHOT "%s", run_dir, target + strlen(s->root));
        return *ret ? 0 : -ENOMEM;
    }
    whole = pl_strf("%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, target);
    clean = whole ? pl_snapshot_clean_path(whole) : NULL;
    if (!whole)
        return -ENOMEM;
    if (!clean)
        *ret = pl_strf("%s/%s", s->root, whole);
    return clean || *ret ? 0 : -ENOMEM;
}

static int copy_link(const struct pl_snapshot *s,
                     int from_dir,
                     int to_dir,
                     const char *path,
                     const char *name,
                     const char *run_dir)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(from_dir, name, target, sizeof(target) - 1);
    _cleanup_free_ char *other = NULL;
    int r;

    if (n < 0)
        return -errno;
    target[n] = '\0';
    r = new_target(s, path, target, run_dir, &other);
    if (r < 0)
        return r;
    if (symlinkat(other ? other : target, to_dir, name) == 0)
        return 0;
    return errno == EPERM ? -EOPNOTSUPP : -errno; /* EPERM is for folders that are another's */
}

static int copy_file(const struct pl_snapshot *s,
                     struct pl_snapshot_place *from,
                     struct pl_snapshot_place *to,
                     const char *path,
                     const char *run_dir,
                     void *buffer)
{
    const char *name;
    struct stat st;
    int from_dir = pl_snapshot_place_open(from, path, false, &name);
    int to_dir = from_dir < 0 ? from_dir : pl_snapshot_place_open(to, path, true, &name);

    if (to_dir < 0)
        return to_dir;
    if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return S_ISLNK(st.st_mode) ? copy_link(s, from_dir, to_dir, path, name, run_dir)
                               : copy_regular(from_dir, to_dir, name, buffer);
}

int pl_snapshot_copy(const struct pl_snapshot *s,
                     int dir_fd,
                     const char *run_dir,
                     struct pl_error *err)
{
    _cleanup_close_ int root = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC), top = -EBADF;
    _cleanup_(pl_snapshot_place_finish) struct pl_snapshot_place from = {.root = root,
                                                                         .fd = -EBADF},
                                                                 to = {.fd = -EBADF};
    _cleanup_free_ void *buffer = malloc(CHUNK);
    const char *name;
    int r = 0;

    if (!buffer)
        return pl_error_nomem(err);
    if (root < 0)
        return pl_error_errno(err, errno, "--snapshot: cannot open '%.300s'", s->root);
    if (mkdirat(dir_fd, PL_RUN_SNAPSHOT, 0700) < 0 ||
        (top = openat(dir_fd, PL_RUN_SNAPSHOT, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) <
            0)
        return pl_error_errno(err, errno, "cannot make the folder of the snapshot");
    to.root = top;
    for (size_t i = 0; i < s->n_files && r == 0; i++) {
        r = copy_file(s, &from, &to, s->files[i].path, run_dir, buffer);
        if (r < 0)
            pl_error_errno(err, r, "cannot copy '%.300s' to the snapshot", s->files[i].path);
    }
    if (r == 0 && *s->prefix) { /* the current folder may have no file */
        _cleanup_free_ char *inner = pl_strf("%s/", s->prefix);

        r = inner ? PL_MIN(pl_snapshot_place_open(&to, inner, true, &name), 0) : -ENOMEM;
        if (r < 0)
            pl_error_errno(err, r, "cannot make the folder of the snapshot");
    }
    if (r == 0 && syncfs(top) < 0) /* Slurm is about to know of the run */
        r = pl_error_errno(err, errno, "cannot write the snapshot to the disk");
    return r;
}
