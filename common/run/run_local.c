/* SPDX-License-Identifier: MIT */
#include "common/run/run_local.h"
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/run_folder_private.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LOCK_FILE "local.lock"
#define LOCK_MAX 4096

static const json_t *option(const struct pl_run *run)
{
    return json_object_get(pl_run_options(run), "local");
}

bool pl_run_is_local(const struct pl_run *run)
{
    return option(run) != NULL;
}

unsigned pl_run_local_number(const struct pl_run *run, const char *key)
{
    const char *text = pl_json_string(option(run), key);
    int64_t n = 0;

    if (text)
        pl_parse_int(text, 0, PL_RUN_TRIAL_LIMIT, &n, NULL);
    else
        pl_json_int(option(run), key, &n);
    return (unsigned)n;
}

int pl_run_local_lock(const struct pl_run *run, int *ret, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    int r;

    if (run->dir_fd < 0)
        return pl_error_set(err, -EACCES, "run folder '%s' was opened for reading", run->dir);
    r = pl_own_file_open(run->dir_fd, LOCK_FILE, O_RDWR | O_CREAT, 0600, &fd, err);
    if (r < 0)
        return r;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? pl_error_set(err, -EBUSY,
                                  "trials of %s still run on this machine: try again when they "
                                  "have ended, or cancel them",
                                  pl_run_sweep(run))
                   : pl_error_errno(err, errno, "cannot lock '%s/%s'", run->dir, LOCK_FILE);
    *ret = PL_TAKE_FD(fd);
    return 0;
}

static void own_host(char host[HOST_NAME_MAX + 1])
{
    host[0] = '\0';
    if (gethostname(host, HOST_NAME_MAX) == 0)
        host[HOST_NAME_MAX] = '\0';
}

int pl_run_local_note(int lock, struct pl_error *err)
{
    char host[HOST_NAME_MAX + 1];
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r;

    own_host(host);
    o = json_pack("{s:s, s:i}", "host", host, "pid", (int)getpid());
    if (!o || pl_json_dump_line(o, &text) < 0)
        return pl_error_nomem(err);
    r = ftruncate(lock, 0) < 0 || lseek(lock, 0, SEEK_SET) < 0
            ? -errno
            : pl_write_all(lock, pl_buf_str(&text), text.len);
    if (r == 0) /* or other hosts do not see it */
        r = pl_fd_sync(lock);
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", LOCK_FILE) : 0;
}

enum pl_local_state pl_run_local_state(const struct pl_run *run, pid_t *ret_pid, char **ret_host)
{
    _cleanup_free_ char *path = pl_path_join(run->dir, LOCK_FILE), *text = NULL;
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_close_ int fd = -EBADF;
    char own[HOST_NAME_MAX + 1];
    const char *host;
    int64_t pid;
    size_t len;

    if (path)
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return PL_LOCAL_ENDED;
    if (pl_fd_read(fd, path, LOCK_MAX, &text, &len, NULL) < 0 ||
        pl_json_parse(text, len, LOCK_MAX, &o, NULL) < 0)
        host = NULL; /* it has just started */
    else
        host = pl_json_string(o, "host");
    own_host(own);
    if (ret_host && host)
        *ret_host = strdup(host);
    if (flock(fd, LOCK_SH | LOCK_NB) == 0)
        return host && strcmp(host, own) != 0 ? PL_LOCAL_ELSEWHERE : PL_LOCAL_ENDED;
    if (ret_pid && host && strcmp(host, own) == 0 && pl_json_int(o, "pid", &pid) == 0)
        *ret_pid = (pid_t)pid;
    return PL_LOCAL_RUNS;
}
