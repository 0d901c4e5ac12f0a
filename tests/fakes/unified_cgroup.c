/* SPDX-License-Identifier: MIT */
/* slurmd preloads this library on a machine that has control groups of version 1, too. It hides
 * version 1: /proc/PID/cgroup then has the line of version 2 alone. Slurm's plugin for version 2
 * refuses to run beside version 1. From 23.11 on that plugin takes the group of process 1 for the
 * root, so this library shows a group outside of slurmd's namespace ("/../..") as "/". */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

/* /proc/self/cgroup and /proc/PID/cgroup. */
static bool is_group_of_process(const char *path)
{
    static const char proc[] = "/proc/";
    size_t pid;

    if (strncmp(path, proc, strlen(proc)) != 0)
        return false;
    path += strlen(proc);
    pid = strspn(path, "0123456789");
    if (strncmp(path, "self", 4) == 0)
        pid = 4;
    return pid && strcmp(path + pid, "/cgroup") == 0;
}

/* A file with that line of fd, which it closes. */
static int line_of_version_2(int fd)
{
    char text[65536];
    ssize_t n = read(fd, text, sizeof(text) - 1);
    int copy = memfd_create("cgroup", MFD_CLOEXEC);
    const char *line;

    close(fd);
    if (n < 0 || copy < 0)
        return -1;
    text[n] = '\0';
    for (line = text; *line && strncmp(line, "0::", 3) != 0; line += *line == '\n')
        line += strcspn(line, "\n");
    if (strncmp(line, "0::/..", 6) == 0)
        line = "0::/";
    n = (ssize_t)strcspn(line, "\n");
    if (write(copy, line, (size_t)n) != n || write(copy, "\n", 1) != 1 ||
        lseek(copy, 0, SEEK_SET) < 0)
        return -1;
    return copy;
}

static int open_file(const char *path, int flags, mode_t mode)
{
    int fd = openat(AT_FDCWD, path, flags, mode);

    return fd >= 0 && is_group_of_process(path) ? line_of_version_2(fd) : fd;
}

/* By the names in the object: open() of the header may be either. */
#define OPEN(name, symbol)                                                                         \
    VISIBLE int name(const char *path, int flags, ...) __asm__(symbol);                            \
    VISIBLE int name(const char *path, int flags, ...)                                             \
    {                                                                                              \
        mode_t mode;                                                                               \
        va_list ap;                                                                                \
                                                                                                   \
        va_start(ap, flags);                                                                       \
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;                             \
        va_end(ap);                                                                                \
        return open_file(path, flags, mode);                                                       \
    }

OPEN(open_plain, "open")
OPEN(open_large, "open64")
