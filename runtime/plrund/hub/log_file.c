/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/log_file.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/shared_fs.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define WAITING_MAX ((size_t)1024 * 1024) /* bytes of lines in memory */

int pl_log_file_open(struct pl_log_file *log, int folder_fd, const char *name, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    struct stat st;
    int r = pl_own_file_open(folder_fd, name, O_WRONLY | O_CREAT | O_APPEND,
                             pl_own_mode(folder_fd, 0666), &fd, err);

    if (r < 0)
        return r;
    if (fstat(fd, &st) < 0)
        return pl_error_errno(err, errno, "cannot look at '%s'", name);
    *log = (struct pl_log_file){.name = name, .size = st.st_size, .nfs = pl_file_is_on_nfs(fd)};
    log->fd = PL_TAKE_FD(fd);
    return 0;
}

int pl_log_file_reopen(struct pl_log_file *log, int folder_fd, struct pl_error *err)
{
    struct pl_log_file now = PL_LOG_FILE_INIT;
    int r = pl_log_file_open(&now, folder_fd, log->name, err);

    if (r < 0)
        return r;
    close(log->fd);
    log->fd = now.fd;
    log->size = now.size;
    return 0;
}

void pl_log_file_finish(struct pl_log_file *log)
{
    if (log->fd >= 0)
        close(log->fd);
    pl_buf_finish(&log->waiting);
    *log = (struct pl_log_file)PL_LOG_FILE_INIT;
}

/* As many of these bytes as the file takes; *ret_error is 0 if it took all. */
static size_t write_part(int fd, const char *data, size_t len, int *ret_error)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n = PL_FAULT("write", ENOSPC) ? -1 : write(fd, data + done, len - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            *ret_error = n < 0 ? -errno : -EIO;
            return done;
        }
        done += (size_t)n;
    }
    *ret_error = 0;
    return done;
}

/* The bytes of the whole lines among the first len bytes. */
static size_t whole_lines(const char *data, size_t len)
{
    const char *newline = len ? memrchr(data, '\n', len) : NULL;

    return newline ? (size_t)(newline - data) + 1 : 0;
}

void pl_log_file_flush(struct pl_log_file *log)
{
    size_t done, whole;

    if (log->fd < 0 || !log->waiting.len)
        return;
    done = write_part(log->fd, log->waiting.data, log->waiting.len, &log->error);
    whole = whole_lines(log->waiting.data, done);
    log->size += (off_t)whole;
    log->unsent = log->unsent || done;
    if (done > whole && ftruncate(log->fd, log->size) < 0 && !log->error)
        log->error = -errno;
    pl_buf_consume(&log->waiting, whole);
}

void pl_log_file_append(struct pl_log_file *log, const char *lines, size_t len)
{
    if (log->fd < 0)
        return;
    while (len) {
        const char *newline = memchr(lines, '\n', len);
        size_t n = newline ? (size_t)(newline - lines) + 1 : len;

        if (log->waiting.len + n > WAITING_MAX)
            pl_log_file_flush(log);
        if (log->waiting.len + n > WAITING_MAX || pl_buf_add(&log->waiting, lines, n) < 0)
            log->n_lost++;
        lines += n;
        len -= n;
    }
    pl_log_file_flush(log);
}

void pl_log_file_put(struct pl_log_file *log, const char *lines, size_t len)
{
    int old_error = log->error;

    pl_log_file_append(log, lines, len);
    if (log->error && !old_error)
        pl_log_warn("run", "cannot write '%s': %s; the run goes on", log->name,
                    strerror(-log->error));
}

void pl_log_file_sync(struct pl_log_file *log)
{
    int r = log->fd < 0 ? 0 : pl_fd_sync(log->fd);

    if (r < 0) {
        log->error = r;
        log->unsure = true;
    }
}

void pl_log_file_send(struct pl_log_file *log)
{
    if (log->fd >= 0 && log->nfs && log->unsent)
        pl_file_send(log->fd);
    log->unsent = false;
}

size_t pl_log_file_missing(const struct pl_log_file *log)
{
    size_t n = log->n_lost;

    for (size_t i = 0; i < log->waiting.len; i++)
        n += log->waiting.data[i] == '\n';
    return n;
}
