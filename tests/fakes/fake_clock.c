/* SPDX-License-Identifier: MIT */
/* To preload: a wall clock that is wrong, or jumps. The monotonic clock stays as it is, as with a
 * clock that an administrator or NTP sets.
 *
 *   FAKE_CLOCK=FILE  its first 8 bytes, an int64_t, are added to the time, in nanoseconds; they may
 *                    change while the program runs. "%n" in the name stands for $SLURM_NODEID. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))
#define SECOND_NS 1000000000ll

static const _Atomic int64_t none;
static const _Atomic int64_t *offset_ns = &none;

__attribute__((constructor)) static void open_clock(void)
{
    const char *name = getenv("FAKE_CLOCK"), *node = getenv("SLURM_NODEID");
    const char *mark = name ? strstr(name, "%n") : NULL;
    char path[4096];
    void *p;
    int fd;

    if (!name)
        return;
    if (mark)
        snprintf(path, sizeof(path), "%.*s%s%s", (int)(mark - name), name, node ? node : "0",
                 mark + 2);
    else
        snprintf(path, sizeof(path), "%s", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    p = mmap(NULL, sizeof(*offset_ns), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (p != MAP_FAILED)
        offset_ns = p;
}

VISIBLE int clock_gettime(clockid_t id, struct timespec *ts)
{
    int r = (int)syscall(SYS_clock_gettime, id, ts);
    int64_t ns;

    if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        ns = ts->tv_sec * SECOND_NS + ts->tv_nsec + atomic_load(offset_ns);
        ts->tv_sec = ns / SECOND_NS;
        ts->tv_nsec = ns % SECOND_NS;
    }
    return r;
}

VISIBLE int gettimeofday(struct timeval *tv, void *tz)
{
    struct timespec ts;
    int r = clock_gettime(CLOCK_REALTIME, &ts);

    (void)tz;
    if (r == 0)
        *tv = (struct timeval){.tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000};
    return r;
}

VISIBLE time_t time(time_t *t)
{
    struct timespec ts = {0};

    clock_gettime(CLOCK_REALTIME, &ts);
    if (t)
        *t = ts.tv_sec;
    return ts.tv_sec;
}
