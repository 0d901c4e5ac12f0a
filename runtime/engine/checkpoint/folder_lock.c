/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/folder_lock.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/shared_fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* NFS releases the locks of a lost node after its lease of 90 s. */
#define EXPIRE_MS 120000
#define AGAIN_MS 500
#define TRIES 100 /* others remove their locks meanwhile */

static bool unsupported(int error)
{
    return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

/* NFS 3 answers ESTALE for a file that another node removed. */
static bool is_gone(int error)
{
    return error == ENOENT || error == ESTALE;
}

/* Returns 0, 1 (another run holds it), or -errno. *ret_fd = -1: there are no locks. */
static int try_lock(const char *path, int *ret_fd)
{
    for (int turn = 0; turn < TRIES; turn++) {
        _cleanup_close_ int fd =
            open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0666);
        struct stat held, named;

        if (fd < 0 && errno == ESTALE) /* removed on another host, as it was opened */
            continue;
        if (fd < 0)
            return -errno;
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            if (errno == ESTALE) /* or as soon as it was */
                continue;
            *ret_fd = -1;
            return errno == EWOULDBLOCK ? 1 : unsupported(errno) ? 0 : -errno;
        }
        /* The last holder removes the file: a lock on a removed file is none. */
        pl_dir_renew_of(path);
        if (fstat(fd, &held) < 0 || stat(path, &named) < 0) {
            if (!is_gone(errno))
                return -errno;
            continue;
        }
        if (named.st_ino == held.st_ino && named.st_dev == held.st_dev) {
            *ret_fd = PL_TAKE_FD(fd);
            return 0;
        }
    }
    return -ESTALE;
}

static const char *job_id(void)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID);

    return job ? job : "";
}

/* The first line for people, the second to compare. */
static void name_holder(int fd)
{
    char text[512], host[256] = "";
    int n;

    gethostname(host, sizeof(host) - 1);
    n = snprintf(text, sizeof(text), "process %d on %s\n%.200s\n", (int)getpid(), host, job_id());
    if (ftruncate(fd, 0) < 0 || pl_write_all(fd, text, PL_MIN((size_t)n, sizeof(text) - 1)) < 0 ||
        pl_fd_sync(fd) < 0) /* or other hosts do not see it */
        (void)0;            /* the lock counts, not the name */
}

/* Takes *job out of the text. */
static void read_holder(const char *path, char **ret_text, const char **ret_job)
{
    char *newline, *end;

    *ret_job = "";
    if (pl_file_read(path, 4096, ret_text, NULL, NULL) < 0)
        return;
    newline = strchr(*ret_text, '\n');
    if (!newline)
        return;
    *newline = '\0';
    end = strchr(newline + 1, '\n');
    if (end)
        *end = '\0';
    *ret_job = newline + 1;
}

/* Files PATH.ckpt.tmp-... (checkpoint_place.h) whose writer was killed. */
static void remove_temporaries(const char *dir)
{
    struct dirent *entry;
    DIR *d = opendir(dir);

    while (d && (entry = readdir(d))) {
        const char *end = strstr(entry->d_name, ".ckpt.tmp");

        if (end && (end[9] == '\0' || end[9] == '-'))
            unlinkat(dirfd(d), entry->d_name, 0);
    }
    if (d)
        closedir(d);
}

int pl_folder_lock(const char *dir, struct pl_folder_lock *ret, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(dir, PL_FOLDER_LOCK_NAME);
    uint64_t start = pl_now_ns();
    int fd = -1, r;

    if (!path)
        return pl_error_nomem(err);
    while ((r = try_lock(path, &fd)) > 0) {
        _cleanup_free_ char *holder = NULL;
        const char *job;

        read_holder(path, &holder, &job);
        if (!*job || strcmp(job, job_id()) != 0 || pl_now_ns() - start > EXPIRE_MS * 1000000ull)
            return pl_error_set(err, -EBUSY,
                                "another run (%s) writes checkpoints to '%s': give each run a "
                                "--checkpoint-dir of its own",
                                holder && *holder ? holder : "its name is not known", dir);
        nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * 1000000l}, NULL);
    }
    if (r < 0)
        return pl_error_errno(err, r, "cannot lock the checkpoint folder '%s'", dir);
    if (fd >= 0) {
        name_holder(fd);
        remove_temporaries(dir);
    }
    *ret = (struct pl_folder_lock){.fd = fd, .path = PL_TAKE(path)};
    return 0;
}

void pl_folder_unlock(struct pl_folder_lock *lock)
{
    if (lock->path && lock->fd >= 0)
        unlink(lock->path);
    if (lock->fd >= 0)
        close(lock->fd);
    free(lock->path);
    *lock = (struct pl_folder_lock)PL_FOLDER_LOCK_INIT;
}
