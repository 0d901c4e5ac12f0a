/* SPDX-License-Identifier: MIT */
#include "common/base/trace.h"
#include "common/base/env.h"
#include "common/base/log.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>

#define NAME_BYTES 64 /* of a name in a line */

static int trace_fd = -1;
static pid_t trace_pid; /* the file's; a child without exec opens its own */
static const char *trace_program = "plume";

/* True if the environment is that of a user with fewer rights. */
static int has_foreign_rights(void)
{
    uid_t real_uid, uid, saved_uid;
    gid_t real_gid, gid, saved_gid;

    return getauxval(AT_SECURE) || getresuid(&real_uid, &uid, &saved_uid) < 0 ||
           getresgid(&real_gid, &gid, &saved_gid) < 0 || real_uid != uid || saved_uid != uid ||
           real_gid != gid || saved_gid != gid;
}

static int open_file(void)
{
    const char *base = pl_env_text(PL_ENV_PLUME_TRACE);
    char path[PATH_MAX];
    int fd;

    trace_pid = getpid();
    if (!base)
        return -ENOENT;
    if (snprintf(path, sizeof(path), "%s.%d", base, (int)trace_pid) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC,
              0600);
    if (fd >= 0)
        return fd;
    fd = -errno;
    pl_log_warn("trace", "cannot write PLUME_TRACE '%s': %s", path, strerror(-fd));
    return fd;
}

int pl_trace_init(const char *program)
{
    int fd;

    if (!pl_env_text(PL_ENV_PLUME_TRACE) || trace_fd >= 0)
        return 0;
    if (has_foreign_rights())
        return -EPERM;
    fd = open_file();
    if (fd < 0)
        return fd;
    trace_program = program;
    trace_fd = fd;
    return 0;
}

int pl_trace_enabled(void)
{
    return trace_fd >= 0;
}

/* Copies what may stand in JSON and on a terminal; all else becomes '?'. */
static void clean(char dst[NAME_BYTES], const char *src, size_t len)
{
    size_t n = 0;

    for (; n < len && src[n] && n < NAME_BYTES - 1; n++) {
        unsigned char c = (unsigned char)src[n];

        dst[n] = c > 0x20 && c < 0x7f && c != '"' && c != '\\' ? (char)c : '?';
    }
    dst[n] = '\0';
}

static void put(const char *event, const char *name, size_t len, const char *peer, int64_t n)
{
    int saved = errno, size;
    char safe[NAME_BYTES], to[NAME_BYTES], line[512], number[32] = "";
    struct timespec now;
    ssize_t written;

    if (trace_pid != getpid()) {
        int fd = open_file();

        close(trace_fd);
        trace_fd = fd;
    }
    clean(safe, name, len);
    clean(to, peer ? peer : "", peer ? strlen(peer) : 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (n >= 0)
        snprintf(number, sizeof(number), ",\"n\":%lld", (long long)n);
    size = snprintf(line, sizeof(line),
                    "{\"t\":%lld.%09ld,\"pid\":%d,\"program\":\"%s\",\"event\":\"%s\","
                    "\"name\":\"%s\"%s%s%s%s}\n",
                    (long long)now.tv_sec, now.tv_nsec, (int)getpid(), trace_program, event, safe,
                    peer ? ",\"peer\":\"" : "", peer ? to : "", peer ? "\"" : "", number);
    written = write(trace_fd, line, PL_MIN((size_t)size, sizeof(line) - 1));
    (void)written;
    errno = saved;
}

void pl_trace_write(const char *event, const char *name, const char *peer, int64_t n)
{
    if (pl_trace_enabled())
        put(event, name, strlen(name), peer, n);
}

void pl_trace_write_line(const char *event, const char *peer, const char *line, size_t len)
{
    static const char key[] = "\"type\"";
    const char *p = memmem(line, len, key, sizeof(key) - 1), *end = line + len, *quote;

    if (!pl_trace_enabled())
        return;
    p = p ? p + sizeof(key) - 1 : end;
    while (p < end && (*p == ' ' || *p == ':'))
        p++;
    quote = p < end && *p == '"' ? memchr(p + 1, '"', (size_t)(end - p - 1)) : NULL;
    put(event, quote ? p + 1 : "?", quote ? (size_t)(quote - p - 1) : 1, peer, (int64_t)len);
}
