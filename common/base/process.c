/* SPDX-License-Identifier: MIT */
#include "common/base/process.h"
#include "common/base/fs.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#define STAT_START 22 /* field of /proc/PID/stat */
#define PAUSE_NS 10000000

/* Start time of a process; 0 if it has ended (also where nobody has reaped it) or cannot be seen.
 */
static uint64_t start_of(pid_t pid)
{
    char path[32], text[1024], *p;
    _cleanup_close_ int fd = -EBADF;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    p = strrchr(text, ')'); /* ends field 2, the name, which may hold anything */
    if (!p || !p[1] || p[2] == 'Z' || p[2] == 'X')
        return 0;
    for (int field = 2; p && field < STAT_START; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

void pl_process_open(struct pl_process *process, pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    *process =
        (struct pl_process){.pid = pid, .pidfd = fd < 0 ? -EBADF : fd, .start = start_of(pid)};
}

void pl_process_close(struct pl_process *process)
{
    pl_closep(&process->pidfd);
    *process = (struct pl_process)PL_PROCESS_INIT;
}

int pl_process_wait(const struct pl_process *process, uint64_t limit_ns)
{
    struct timespec pause = {0, PAUSE_NS};

    if (process->pidfd < 0 && !process->start)
        return -ESRCH;
    for (;;) {
        struct pollfd p = {.fd = process->pidfd, .events = POLLIN};
        uint64_t now = pl_now_ns();
        int left_ms = now < limit_ns ? (int)((limit_ns - now) / 1000000u + 1) : 0;

        if (process->pidfd < 0 && start_of(process->pid) != process->start)
            return 0;
        if (process->pidfd >= 0 && poll(&p, 1, left_ms) > 0)
            return 0;
        if (now >= limit_ns)
            return -ETIMEDOUT;
        if (process->pidfd < 0)
            nanosleep(&pause, NULL);
    }
}

int pl_process_kill(const struct pl_process *process)
{
    int r;

    if (process->pidfd >= 0)
        r = syscall(SYS_pidfd_send_signal, process->pidfd, SIGKILL, NULL, 0) < 0 ? -errno : 0;
    else if (!process->start)
        return -ESRCH;
    else if (start_of(process->pid) != process->start)
        return 0;
    else /* a pid is not reused within the instant since this look */
        r = kill(process->pid, SIGKILL) < 0 ? -errno : 0;
    return r == -ESRCH ? 0 : r;
}
