/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/file_work.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/shared_fs.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

#define WRITE_BYTES ((size_t)32768) /* at once: a slow file system still answers in time */

void pl_file_work_finish(struct pl_file_work *w)
{
    pl_buf_finish(&w->data);
    free(w->dir);
    free(w->name);
}

static int open_file(struct pl_file_work *w, struct pl_error *err)
{
    _cleanup_close_ int dir_fd = -EBADF;
    int r = pl_own_folder_open(AT_FDCWD, w->dir, &dir_fd, err);

    if (r == -ENOENT) { /* another node made the folder: NFS may lag */
        r = pl_mkdir_p(w->dir, 0777 & ~PL_OWN_MASK, err);
        if (r == 0)
            r = pl_own_folder_open(AT_FDCWD, w->dir, &dir_fd, err);
    }
    if (r < 0)
        return r;
    return pl_own_file_open(dir_fd, w->name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND,
                            pl_own_mode(dir_fd, 0666), &w->fd, err);
}

/* On a full disk the file says where output is missing, once there is room again. False: it did
 * not take the note. */
static bool write_note(struct pl_file_work *w)
{
    char note[96] = "";
    int size =
        snprintf(note, sizeof(note), "\n[plrund: %zu bytes could not be written]\n", w->missing);
    ssize_t n = write(w->fd, note, (size_t)size);

    if (n < size) { /* no part of the note stays */
        w->error = n < 0 ? errno : ENOSPC;
        if (n > 0 && ftruncate(w->fd, lseek(w->fd, 0, SEEK_END) - n) < 0)
            pl_log_debug("child", "cannot truncate a rank's file");
        return false;
    }
    w->missing = 0;
    return true;
}

/* Returns how many bytes at the end of the data it did not take. */
static size_t write_file(struct pl_file_work *w)
{
    const char *data = w->data.data;
    size_t len = w->data.len;
    ssize_t n = 0;

    w->missing += w->skipped;
    if (w->missing && !write_note(w)) {
        w->missing += len;
        return len;
    }
    while (len) {
        n = write(w->fd, data, PL_MIN(len, WRITE_BYTES));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        pl_disk_answered(w->disk);
        data += n;
        len -= (size_t)n;
    }
    if (len)
        w->error = n < 0 ? errno : EIO;
    w->missing = len;
    return len;
}

/* Not by fstat(): it asks for times, for which an NFS client first sends what was written, and
 * waits. */
static bool is_removed(int fd)
{
    struct statx st;
    struct stat old;

    if (statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &st) == 0 && st.stx_mask & STATX_NLINK)
        return st.stx_nlink == 0;
    return fstat(fd, &old) == 0 && old.st_nlink == 0; /* a container may forbid statx() */
}

void pl_file_work(struct pl_disk_job *job)
{
    struct pl_file_work *w =
        (struct pl_file_work *)((char *)job - offsetof(struct pl_file_work, job));
    struct pl_error err = {0};

    if (w->open && (w->result = open_file(w, &err)) < 0)
        pl_log_warn("child", "%s", pl_error_text(&err));
    if (w->open)
        w->nfs = w->fd >= 0 && pl_file_is_on_nfs(w->fd);
    w->lost = w->data.len;
    if (w->fd >= 0 && (w->data.len || w->skipped || (w->close && w->missing))) {
        w->lost = write_file(w);
        w->removed = is_removed(w->fd);
    }
    if (w->send)
        pl_file_send(w->fd);
    /* a network file system writes it now */
    if (w->close && w->fd >= 0 && close(PL_TAKE_FD(w->fd)) < 0 && !w->error)
        pl_log_warn("child", "'%s' may lack output: %s", w->name, strerror(errno));
}
