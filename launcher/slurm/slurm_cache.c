/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_cache.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "launcher/slurm/slurm_conf.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#define LOCK_MS 8000 /* more than the longest question takes, ASK_LIMIT_MS in slurm_jobs.c */
#define LOCK_SOON_MS 200
#define LOCK_STEP_MS 20
#define WRITE_MS 1000

/* One thing that writes to the folder of the cache. */
struct change {
    const char *dir, *path; /* of a file to make; NULL: a change of fd */
    int fd;
    const struct pl_buf *text; /* NULL: fd expires */
};

static int make_file(const char *dir, const char *path)
{
    _cleanup_close_ int fd = -EBADF;

    if (pl_mkdir_private(dir, NULL) < 0)
        return PL_EXIT_FAILED;
    fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int do_change(void *ctx, int answer)
{
    static const struct timespec never[2] = {{0, UTIME_OMIT}, {0, 0}};
    const struct change *c = ctx;
    const int keep[] = {PL_MIN(answer, c->fd), PL_MAX(answer, c->fd)};

    pl_close_from(STDERR_FILENO + 1, keep, PL_COUNT(keep));
    if (c->path)
        return make_file(c->dir, c->path);
    if (!c->text)
        return futimens(c->fd, never) < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
    if (ftruncate(c->fd, 0) == 0 && lseek(c->fd, 0, SEEK_SET) == 0 &&
        pl_write_all(c->fd, c->text->data, c->text->len) == 0)
        return PL_EXIT_OK;
    return ftruncate(c->fd, 0) < 0 ? PL_EXIT_PARTIAL : PL_EXIT_FAILED;
}

/* A file system that takes no writes, as a frozen one, makes the writer wait, and not even SIGKILL
 * ends it. So a child writes: it is left to its wait, and this process uses no cache any more. */
static int change(struct change c)
{
    static bool blocked;
    struct pl_child child = {0};
    struct pl_error err = {0};
    int r = blocked ? -ETIMEDOUT : pl_child_call(do_change, &c, WRITE_MS, &child, &err);

    if (r == 0 && child.status != 0)
        r = -EIO;
    if (r < 0)
        pl_log_debug("slurm", "cannot write the cache: %s",
                     err.code ? pl_error_text(&err) : strerror(-r));
    blocked = r == -ETIMEDOUT;
    pl_child_finish(&child);
    return r;
}

/* Waits as long as the process with the lock may take. A process that its user has stopped keeps
 * the lock for ever: it is not waited for. 0, -ETIMEDOUT or another negative errno. */
static int lock(int fd, unsigned limit_ms)
{
    for (unsigned waited_ms = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited_ms += LOCK_STEP_MS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (waited_ms >= limit_ms)
            return -ETIMEDOUT;
        poll(NULL, 0, LOCK_STEP_MS);
    }
    return 0;
}

/* Of what chooses the cluster that answers: slurm.conf's path, clusters of its accounting, and the
 * cluster's name. Hosts of two clusters may share a home, and have slurm.conf in the same place.
 * Without a name each host has its own answers. */
static uint64_t hash_of_cluster(void)
{
    _cleanup_free_ char *cluster = pl_slurm_conf_cluster();
    struct utsname host = {0};
    const char *name = cluster || uname(&host) < 0 ? cluster : host.nodename;
    const char *const parts[] = {pl_env(PL_ENV_SLURM_CONF), pl_env(PL_ENV_SLURM_CLUSTERS), name};
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

    for (size_t i = 0; i < PL_COUNT(parts); i++)
        for (const char *p = parts[i] ? parts[i] : "";; p++) {
            hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
            if (!*p)
                break;
        }
    return hash;
}

static int
open_locked(const char *what, uid_t uid, unsigned limit_ms, int *ret, struct pl_error *err)
{
    _cleanup_free_ char *home = pl_home_dir(err), *dir = NULL, *path = NULL, *name = NULL;
    _cleanup_close_ int fd = -EBADF;
    struct stat st;
    int r;

    if (!home)
        return err->code ? err->code : -ENOENT;
    dir = pl_path_join(home, "cache");
    name = pl_strf("%s-%u-%016llx", what, (unsigned)uid, (unsigned long long)hash_of_cluster());
    path = dir && name ? pl_path_join(dir, name) : NULL;
    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (lstat(path, &st) < 0) /* also lets open(2) find the name without a wait */
        change((struct change){.dir = dir, .path = path, .fd = -EBADF});
    r = lstat(dir, &st) == 0 ? pl_mkdir_private(dir, err)
                             : pl_error_errno(err, errno, "cannot make folder '%s'", dir);
    if (r < 0)
        return r;
    fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return pl_error_errno(err, errno, "cannot open '%s'", path);
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1 ||
        (st.st_mode & 022))
        return pl_error_set(err, -EPERM,
                            "'%s' is not a private regular file of this user: remove it", path);
    r = lock(fd, limit_ms);
    if (r < 0)
        return pl_error_errno(err, r, "cannot lock '%s'", path);
    *ret = PL_TAKE_FD(fd);
    return 0;
}

static int open_within(const char *name, uid_t uid, unsigned limit_ms)
{
    struct pl_error err = {0};
    int fd = -EBADF;

    if (open_locked(name, uid, limit_ms, &fd, &err) < 0)
        pl_log_debug("slurm", "no cache: %s", pl_error_text(&err));
    return fd;
}

int pl_slurm_cache_open(const char *name, uid_t uid)
{
    return open_within(name, uid, LOCK_MS);
}

int pl_slurm_cache_open_soon(const char *name, uid_t uid)
{
    return open_within(name, uid, LOCK_SOON_MS);
}

bool pl_slurm_cache_is_recent(int fd, const json_t *doc, double age_s)
{
    double age = pl_wall_s() - json_number_value(json_object_get(doc, "time"));
    struct stat st;

    if (fstat(fd, &st) < 0 || st.st_mtime == 0)
        return false;
    /* Hosts that share ~/.plume may have clocks that differ a little. */
    return age > -age_s && age < age_s;
}

int pl_slurm_cache_read(int fd, json_t **ret)
{
    _cleanup_free_ char *text = NULL;
    struct stat st;
    ssize_t n;

    if (fstat(fd, &st) < 0 || st.st_size == 0 || (size_t)st.st_size > PL_SLURM_CACHE_MAX_BYTES)
        return -ENOENT;
    text = malloc((size_t)st.st_size);
    if (!text)
        return -ENOMEM;
    n = pread(fd, text, (size_t)st.st_size, 0);
    if (n != st.st_size)
        return -EIO;
    return pl_json_parse(text, (size_t)n, PL_SLURM_CACHE_MAX_BYTES, ret, NULL);
}

void pl_slurm_cache_write(int fd, const struct pl_buf *text)
{
    if (change((struct change){.fd = fd, .text = text}) == -ETIMEDOUT)
        flock(fd, LOCK_UN); /* the child shares the lock and may never return */
}

void pl_slurm_cache_expire(const char *name, uid_t uid)
{
    _cleanup_close_ int fd = pl_slurm_cache_open(name, uid);

    if (fd >= 0 && change((struct change){.fd = fd}) == -ETIMEDOUT)
        flock(fd, LOCK_UN);
}
