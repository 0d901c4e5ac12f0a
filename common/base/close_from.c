/* SPDX-License-Identifier: MIT */
/* Closes descriptors between fork and exec, and opens those that a program must have:
 * async-signal-safe calls only. */
#include "common/base/close_from_private.h"
#include "common/base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define LAST_RESORT_MAX 1048576 /* the kernel's own default limit, fs.nr_open */

/* The number that a name of /proc/self/fd is; -1 for "." and "..". */
static int number_of(const char *name)
{
    unsigned n = 0;

    for (const char *p = name; *p; p++) {
        if (*p < '0' || *p > '9' || n > INT_MAX / 10)
            return -1;
        n = n * 10 + (unsigned)(*p - '0');
    }
    return n > INT_MAX ? -1 : (int)n;
}

/* Closes the descriptors from first to last that /proc/self/fd lists. False if there is no /proc.
 */
static bool close_listed(unsigned first, unsigned last)
{
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    union {
        struct dirent64 align;
        char bytes[4096];
    } buf;
    bool closed;
    long n;

    if (dir < 0)
        return false;
    do { /* closing changes the list: read it until nothing is left to close */
        closed = false;
        lseek(dir, 0, SEEK_SET);
        while ((n = syscall(SYS_getdents64, dir, buf.bytes, sizeof(buf))) > 0) {
            for (long at = 0; at < n;) {
                const struct dirent64 *entry = (const void *)(buf.bytes + at);
                int fd = number_of(entry->d_name);

                at += entry->d_reclen;
                if (fd < 0 || (unsigned)fd < first || (unsigned)fd > last || fd == dir)
                    continue;
                close(fd);
                closed = true;
            }
        }
    } while (closed && n == 0);
    close(dir);
    return n == 0;
}

static void close_one_by_one(unsigned first, unsigned last)
{
    struct rlimit limit;
    rlim_t max = LAST_RESORT_MAX;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < max)
        max = limit.rlim_max;
    for (unsigned fd = first; fd <= last && fd < max; fd++)
        close((int)fd);
}

static void close_slowly(unsigned first, unsigned last)
{
    if (!close_listed(first, last))
        close_one_by_one(first, last);
}

static void close_fast(unsigned first, unsigned last)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, last, 0) == 0)
        return;
#endif
    close_slowly(first, last);
}

static void
close_others(int first, const int *keep, size_t n_keep, void (*range)(unsigned, unsigned))
{
    unsigned from = (unsigned)first;

    for (size_t i = 0; i < n_keep; i++) {
        if (keep[i] < (int)from)
            continue;
        if ((unsigned)keep[i] > from)
            range(from, (unsigned)keep[i] - 1);
        from = (unsigned)keep[i] + 1;
    }
    range(from, UINT_MAX);
}

void pl_close_from(int first, const int *keep, size_t n_keep)
{
    close_others(first, keep, n_keep, close_fast);
}

void pl_close_from_slow(int first, const int *keep, size_t n_keep)
{
    close_others(first, keep, n_keep, close_slowly);
}

void pl_std_open(void)
{
    int fd;

    /* open() takes the lowest free number. */
    do
        fd = open("/dev/null", fcntl(STDIN_FILENO, F_GETFD) < 0 ? O_WRONLY : O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}
