/* SPDX-License-Identifier: MIT */
/* To preload: a folder that an NFS server has forgotten. Once there is a file FAKE_STALE, calls for
 * what is open in a folder with FAKE_STALE_DIR in its path fail with ESTALE. With FAKE_STALE_LATE
 * only fsync(2) and close(2) do: the client had taken what the server then refused. With
 * FAKE_STALE_SLOW nothing fails, and fsync(2) waits until the file FAKE_STALE is gone. With
 * FAKE_STALE_BLOCKS every call waits for that: the server does not answer. With FAKE_STALE_LAGS
 * nothing fails, and each call takes a little longer. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define SLOW_S 60
#define LAG_MS 2

#define VISIBLE __attribute__((visibility("default")))

static bool is_late(void)
{
    return getenv("FAKE_STALE_LATE") != NULL;
}

static bool is_open_stale(int fd)
{
    const char *flag = getenv("FAKE_STALE"), *dir = getenv("FAKE_STALE_DIR");
    int error = errno;
    char link[32], path[4096];
    ssize_t n;

    if (!flag || !dir || access(flag, F_OK) < 0) {
        errno = error;
        return false;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    errno = error;
    if (n < 0)
        return false;
    path[n] = 0;
    if (!strstr(path, dir))
        return false;
    errno = ESTALE;
    return true;
}

static bool blocks(void)
{
    return getenv("FAKE_STALE_BLOCKS") != NULL;
}

static bool is_slow(void)
{
    return getenv("FAKE_STALE_SLOW") != NULL || blocks();
}

static void await(int fd)
{
    for (int turn = 0; turn < SLOW_S * 100 && is_open_stale(fd); turn++)
        poll(NULL, 0, 10); /* the disk is slow until the test lets it go */
}

/* True if calls do nothing but take longer. */
static bool lags(int fd)
{
    int error = errno;

    if (!getenv("FAKE_STALE_LAGS"))
        return false;
    if (is_open_stale(fd))
        poll(NULL, 0, LAG_MS);
    errno = error;
    return true;
}

static bool is_stale(int fd)
{
    if (lags(fd))
        return false;
    if (blocks())
        await(fd);
    return !is_late() && !is_slow() && is_open_stale(fd);
}

VISIBLE int fsync(int fd)
{
    static int (*real)(int);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    if (lags(fd))
        return real(fd);
    if (is_slow()) {
        await(fd);
        return real(fd);
    }
    return is_open_stale(fd) ? -1 : real(fd);
}

VISIBLE int close(int fd)
{
    static int (*real)(int);
    bool stale = is_late() && is_open_stale(fd);
    int r;

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "close");
    r = real(fd);
    if (!stale)
        return r;
    errno = ESTALE;
    return -1;
}

/* RESULT NAME(FD, ...): fails, or is libc's. */
#define STALE(result, name, fd, args, ...)                                                         \
    VISIBLE result name(__VA_ARGS__)                                                               \
    {                                                                                              \
        static result (*real)(__VA_ARGS__);                                                        \
                                                                                                   \
        if (!real)                                                                                 \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        return is_stale(fd) ? -1 : real args;                                                      \
    }

STALE(ssize_t, write, fd, (fd, data, len), int fd, const void *data, size_t len)
STALE(ssize_t, pwrite, fd, (fd, data, len, at), int fd, const void *data, size_t len, off_t at)
STALE(ssize_t, pwrite64, fd, (fd, data, len, at), int fd, const void *data, size_t len, off_t at)
STALE(int, ftruncate, fd, (fd, len), int fd, off_t len)
STALE(int, ftruncate64, fd, (fd, len), int fd, off_t len)
STALE(int, unlinkat, dir, (dir, name, flags), int dir, const char *name, int flags)
STALE(
    int, renameat, from, (from, old, to, name), int from, const char *old, int to, const char *name)

/* With FAKE_STALE_LATE, as it is on a file system without links. */
VISIBLE int symlinkat(const char *target, int dir, const char *name)
{
    static int (*real)(const char *, int, const char *);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "symlinkat");
    if (!is_late() || !is_open_stale(dir))
        return real(target, dir, name);
    errno = EPERM;
    return -1;
}

/* openat(2)'s mode is there with some flags only; to hand it on always does no harm. */
static int open_at(const char *symbol, int dir, const char *name, int flags, va_list ap)
{
    static int (*real)(int, const char *, int, ...);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, symbol);
    return is_stale(dir) ? -1 : real(dir, name, flags, va_arg(ap, unsigned));
}

#define STALE_OPEN(name)                                                                           \
    VISIBLE int name(int dir, const char *file, int flags, ...)                                    \
    {                                                                                              \
        va_list ap;                                                                                \
        int fd;                                                                                    \
                                                                                                   \
        va_start(ap, flags);                                                                       \
        fd = open_at(#name, dir, file, flags, ap);                                                 \
        va_end(ap);                                                                                \
        return fd;                                                                                 \
    }

STALE_OPEN(openat)
STALE_OPEN(openat64)
