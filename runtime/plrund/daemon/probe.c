/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/probe.h"
#include "common/base/macros.h"
#include "common/base/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREADS_MAX 256 /* of a process, whose children are looked for */
#define SHELLS_MAX 8    /* one in the other */
#define FILE_TAIL 48    /* bytes of a file's path, its end */
#define STAT_UTIME 14   /* fields of /proc/PID/stat */
#define STAT_STIME 15

const char *pl_probe_state_name(enum pl_probe_state state)
{
    static const char *const names[] = {"wait", "sleep", "busy", "stopped", "gone"};

    return names[state];
}

/* Reads a file of /proc as a text without its last newline; empty if it cannot be read. */
static void read_text(pid_t pid, const char *name, char *ret, size_t size)
{
    char path[96];
    _cleanup_close_ int fd = -EBADF;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? 0 : read(fd, ret, size - 1);
    ret[PL_MAX(n, (ssize_t)0)] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
}

/* ---- the state of a thread ---- */

/* The number of the system call, and one of its arguments. -1: not in one, or not shown. */
static long long call_number(const char *text, unsigned argument, unsigned long long *ret)
{
    char *end;
    long long number = strtoll(text, &end, 10);

    *ret = 1;
    if (end == text)
        return -1;
    for (unsigned i = 0; i <= argument && *end; i++)
        *ret = strtoull(end, &end, 16);
    return number;
}

static bool is_sleep(const char *text)
{
    unsigned long long first, second;
    long long number = call_number(text, 0, &first);

    call_number(text, 1, &second);
    switch (number) {
#ifdef SYS_nanosleep
    case SYS_nanosleep:
#endif
    case SYS_clock_nanosleep:
#ifdef SYS_pause
    case SYS_pause:
#endif
    case SYS_flock:
        return true;
#ifdef SYS_select
    case SYS_select:
#endif
    case SYS_pselect6:
        return first == 0; /* of no descriptor: time.sleep() of older Pythons */
#ifdef SYS_poll
    case SYS_poll:
#endif
    case SYS_ppoll:
        return second == 0;
    default:
        return false;
    }
}

static bool is_disk(const char *text)
{
    unsigned long long first;

    switch (call_number(text, 0, &first)) {
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync:
    case SYS_syncfs:
    case SYS_pread64:
    case SYS_pwrite64:
        return true;
    default:
        return false;
    }
}

enum pl_probe_state pl_probe_classify(char letter, const char *syscall, const char *wchan)
{
    static const char *const sleeps[] = {"nanosleep", "locks_lock", "flock", "sigsuspend"};

    if (letter == 'T' || letter == 't')
        return PL_PROBE_STOPPED;
    if (letter == 'Z' || letter == 'X' || !letter)
        return PL_PROBE_GONE;
    if (letter == 'R' || letter == 'D' || is_disk(syscall))
        return PL_PROBE_BUSY;
    if (is_sleep(syscall))
        return PL_PROBE_SLEEP;
    for (size_t i = 0; i < PL_COUNT(sleeps); i++)
        if (strstr(wchan, sleeps[i]))
            return PL_PROBE_SLEEP;
    return PL_PROBE_WAIT;
}

/* True for calls that read or write their first argument, a descriptor. */
static bool is_io(long long number)
{
    static const long long calls[] = {SYS_read,     SYS_write,     SYS_readv,     SYS_writev,
                                      SYS_pread64,  SYS_pwrite64,  SYS_preadv,    SYS_fsync,
                                      SYS_pwritev,  SYS_fdatasync, SYS_ftruncate, SYS_fallocate,
                                      SYS_sendfile, SYS_syncfs,    SYS_getdents64};

    for (size_t i = 0; i < PL_COUNT(calls); i++)
        if (number == calls[i])
            return true;
    return false;
}

bool pl_probe_file(pid_t pid, const char *syscall, const char *wchan, char *ret, size_t size)
{
    static const char *const others[] = {"/dev/", "/proc/", "/sys/"};
    unsigned long long fd;
    long long number = call_number(syscall, 0, &fd);
    char link[64], path[4096];
    const char *tail;
    ssize_t n;

    if (!is_io(number) || strstr(wchan, "pipe")) /* a FIFO has a path, too */
        return false;
    snprintf(link, sizeof(link), "/proc/%d/fd/%llu", (int)pid, fd);
    n = readlink(link, path, sizeof(path) - 1);
    if (n <= 0 || path[0] != '/')
        return false;
    path[n] = '\0';
    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (strncmp(path, others[i], strlen(others[i])) == 0)
            return false;
    for (char *c = path; *c; c++) /* foreign text; its end may be cut within a character */
        if (*c < ' ' || *c > '~')
            *c = '?';
    tail = (size_t)n > FILE_TAIL ? path + n - FILE_TAIL : path;
    snprintf(ret, size, PL_PROBE_AT "%s%s", tail == path ? "" : "...", tail);
    return true;
}

/* ---- processes ---- */

static size_t add_children(pid_t pid, pid_t *list, size_t n)
{
    char path[64], text[4096];
    const struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    for (int threads = 0; dir && threads < THREADS_MAX && (e = readdir(dir)); threads++) {
        char name[64], *end = text;

        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof(name), "task/%.20s/children", e->d_name);
        read_text(pid, name, text, sizeof(text));
        for (;;) {
            const char *from = end;
            pid_t child = (pid_t)strtol(from, &end, 10);

            if (end == from || n == PL_PROBE_PIDS_MAX)
                break;
            list[n++] = child;
        }
    }
    if (dir)
        closedir(dir);
    return n;
}

size_t pl_probe_tree(pid_t pid, pid_t ret[PL_PROBE_PIDS_MAX])
{
    size_t n = 1;

    ret[0] = pid;
    for (size_t i = 0; i < n; i++)
        n = add_children(ret[i], ret, n);
    return n;
}

static void add_times(pid_t pid, struct pl_probe *to)
{
    char text[1024], io[1024], *p;
    unsigned long long ticks = 0;
    long per_second = sysconf(_SC_CLK_TCK);

    read_text(pid, "stat", text, sizeof(text));
    p = strrchr(text, ')'); /* ends field 2 */
    for (int field = 3; p && field <= STAT_STIME; field++) {
        p = strchr(p + 1, ' ');
        if (p && field >= STAT_UTIME)
            ticks += strtoull(p + 1, NULL, 10);
    }
    to->cpu_ms += (int64_t)(ticks * 1000 / (unsigned long long)PL_MAX(per_second, 1l));
    snprintf(io, sizeof(io), "/proc/%d/io", (int)pid);
    {
        _cleanup_close_ int fd = open(io, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? 0 : read(fd, io, sizeof(io) - 1);

        if (n <= 0)
            return;
        io[n] = '\0';
    }
    to->io_bytes = PL_MAX(to->io_bytes, (int64_t)0);
    for (p = io; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncmp(p, "rchar:", 6) == 0 || strncmp(p, "wchar:", 6) == 0)
            to->io_bytes += strtoll(p + 6, NULL, 10);
}

/* A shell that waits for its child does nothing itself. */
static pid_t find_worker(pid_t pid)
{
    for (int depth = 0; depth < SHELLS_MAX; depth++) {
        char wchan[64], text[256];
        unsigned long long unused;
        pid_t list[PL_PROBE_PIDS_MAX];
        long long number;

        read_text(pid, "wchan", wchan, sizeof(wchan));
        read_text(pid, "syscall", text, sizeof(text));
        number = call_number(text, 0, &unused);
        if (number != SYS_wait4 && number != SYS_waitid && !strstr(wchan, "do_wait"))
            return pid;
        if (add_children(pid, list, 0) == 0)
            return pid;
        pid = list[0];
    }
    return pid;
}

void pl_probe_look(pid_t pid, struct pl_probe *ret)
{
    char wchan[64], text[256];
    pid_t list[PL_PROBE_PIDS_MAX];
    size_t n = pl_probe_tree(pid, list);
    struct pl_process_stat stat;

    *ret = (struct pl_probe){.pid = find_worker(pid), .io_bytes = -1};
    read_text(ret->pid, "wchan", wchan, sizeof(wchan));
    read_text(ret->pid, "syscall", text, sizeof(text));
    ret->state = pl_process_stat(ret->pid, &stat) < 0 ? PL_PROBE_GONE
                                                      : pl_probe_classify(stat.state, text, wchan);
    if (pl_process_stat(pid, &stat) == 0 && (stat.state == 'T' || stat.state == 't'))
        ret->state = PL_PROBE_STOPPED;
    if (strcmp(wchan, "0") != 0)
        snprintf(ret->doing, sizeof(ret->doing), "%s", wchan);
    if (pl_probe_file(ret->pid, text, wchan, ret->doing, sizeof(ret->doing)) &&
        ret->state == PL_PROBE_WAIT) /* some file systems let a signal end the wait */
        ret->state = PL_PROBE_BUSY;
    for (size_t i = 0; i < n; i++)
        add_times(list[i], ret);
}
