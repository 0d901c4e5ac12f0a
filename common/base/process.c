/* SPDX-License-Identifier: MIT */
#include "common/base/process.h"
#include "common/base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

/* Fields of /proc/PID/stat. */
#define STAT_STATE 3
#define STAT_PARENT 4
#define STAT_FLAGS 9
#define STAT_THREADS 20
#define STAT_START 22
#define STAT_ENV_START 50
#define STAT_ENV_END 51

/* PF_* of linux/sched.h. */
#define FLAG_EXITING 0x00000004ul
#define FLAG_KTHREAD 0x00200000ul

#define PAUSE_NS 10000000

/* The start of a file of /proc. 0, -ESRCH (the process has ended) or another negative errno. */
static int read_proc(const char *path, char *ret, size_t size)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);
    int code = n < 0 ? errno : 0;

    ret[PL_MAX(n, (ssize_t)0)] = '\0';
    return n > 0 ? 0 : n == 0 || code == ENOENT ? -ESRCH : -code;
}

/* Of a process, or of one of its threads alone. */
static int
read_stat(const char *path, pid_t thread, struct pl_process_stat *ret, unsigned long *ret_threads)
{
    unsigned long long env_start = 0, env_end = 0;
    char text[1024], *name, *p;
    int r;

    *ret_threads = 0;
    r = read_proc(path, text, sizeof(text));
    if (r < 0)
        return r;
    name = strchr(text, '(');
    p = strrchr(text, ')'); /* ends field 2, the name, which may hold anything */
    if (!name || !p)
        return -ESRCH;
    *ret = (struct pl_process_stat){.thread = thread};
    snprintf(ret->name, sizeof(ret->name), "%.*s", (int)(p - name - 1), name + 1);
    for (int field = STAT_STATE; p && field <= STAT_ENV_END; field++) {
        p = strchr(p + 1, ' ');
        if (p && field == STAT_STATE)
            ret->state = p[1];
        else if (p && field == STAT_PARENT)
            ret->parent = (pid_t)strtol(p + 1, NULL, 10);
        else if (p && field == STAT_FLAGS) {
            ret->kernel = strtoul(p + 1, NULL, 10) & FLAG_KTHREAD;
            ret->exiting = strtoul(p + 1, NULL, 10) & FLAG_EXITING;
        } else if (p && field == STAT_THREADS)
            *ret_threads = strtoul(p + 1, NULL, 10);
        else if (p && field == STAT_START)
            ret->start = strtoull(p + 1, NULL, 10);
        else if (p && field == STAT_ENV_START)
            env_start = strtoull(p + 1, NULL, 10);
        else if (p && field == STAT_ENV_END)
            env_end = strtoull(p + 1, NULL, 10);
    }
    ret->bare = env_start && env_start == env_end; /* in execve(2) both are 0 at first */
    return ret->start ? 0 : -ESRCH;
}

static bool has_ended(const struct pl_process_stat *stat)
{
    return stat->state == 'Z' || stat->state == 'X';
}

/* Any thread that has not ended. False: there is none. */
static bool find_thread(pid_t pid, struct pl_process_stat *ret)
{
    char path[64];
    const struct dirent *e;
    unsigned long threads;
    bool found = false;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    while (dir && !found && (e = readdir(dir))) {
        pid_t thread = (pid_t)strtol(e->d_name, NULL, 10);

        snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)thread);
        found = thread > 0 && read_stat(path, thread, ret, &threads) == 0 && !has_ended(ret);
    }
    if (dir)
        closedir(dir);
    return found;
}

int pl_process_stat(pid_t pid, struct pl_process_stat *ret)
{
    struct pl_process_stat other;
    unsigned long threads;
    char path[32];
    int r;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    r = read_stat(path, pid, ret, &threads);
    if (r < 0 || !has_ended(ret) || threads < 2 || !find_thread(pid, &other))
        return r;
    other.start = ret->start;
    *ret = other;
    return 0;
}

/* Returns the number after `name` in a text of /proc; `fallback` if the text lacks the name. */
static unsigned long long
proc_value(const char *text, const char *name, int base, unsigned long long fallback)
{
    const char *line = strstr(text, name);

    return line ? strtoull(line + strlen(name), NULL, base) : fallback;
}

bool pl_process_may_survive(pid_t pid, int sig)
{
    static const char *const sets[] = {"\nSigBlk:", "\nSigIgn:", "\nSigCgt:"};
    unsigned long long mask = 0;
    char path[32], text[4096];

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    if (read_proc(path, text, sizeof(text)) < 0)
        return true;
    for (size_t i = 0; i < PL_COUNT(sets); i++)
        mask |= proc_value(text, sets[i], 16, ~0ull);
    return mask >> (sig - 1) & 1;
}

bool pl_process_saves(pid_t pid)
{
    struct pl_process_stat stat;

    return pl_process_stat(pid, &stat) == 0 && strcmp(stat.name, PL_PROCESS_SAVES) == 0;
}

pid_t pl_process_of_pidfd(int pidfd)
{
    char path[40], text[512];
    long long pid;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    if (read_proc(path, text, sizeof(text)) < 0)
        return 0;
    pid = (long long)proc_value(text, "\nPid:", 10, 0);
    return pid > 0 ? (pid_t)pid : 0;
}

/* Start time of a process; 0 if it has ended (also where nobody has reaped it) or cannot be seen.
 */
static uint64_t start_of(pid_t pid)
{
    struct pl_process_stat stat;

    if (pl_process_stat(pid, &stat) < 0 || stat.state == 'Z' || stat.state == 'X')
        return 0;
    return stat.start;
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
        int left_ms = pl_left_ms(limit_ns);

        if (process->pidfd < 0 && start_of(process->pid) != process->start)
            return 0;
        if (process->pidfd >= 0 && poll(&p, 1, left_ms) > 0)
            return 0;
        if (left_ms == 0)
            return -ETIMEDOUT;
        if (process->pidfd < 0)
            nanosleep(&pause, NULL);
    }
}

int pl_process_signal(const struct pl_process *process, int sig)
{
    int r;

    if (process->pidfd >= 0)
        r = syscall(SYS_pidfd_send_signal, process->pidfd, sig, NULL, 0) < 0 ? -errno : 0;
    else if (!process->start)
        return -ESRCH;
    else if (start_of(process->pid) != process->start)
        return 0;
    else /* a pid is not reused within the instant since this look */
        r = kill(process->pid, sig) < 0 ? -errno : 0;
    return r == -ESRCH ? 0 : r;
}

int pl_process_kill(const struct pl_process *process)
{
    return pl_process_signal(process, SIGKILL);
}

/* SI_USER is what kill(2) gives, by whomever. */
int pl_process_order(int fd, pid_t pid, int sig)
{
    siginfo_t info = {.si_signo = sig, .si_code = SI_QUEUE};
    int r;

    info.si_pid = getpid();
    info.si_uid = getuid();
    if (fd >= 0)
        r = (int)syscall(SYS_pidfd_send_signal, fd, sig, &info, 0);
    else
        r = sigqueue(pid, sig, (union sigval){0});
    return r < 0 ? -errno : 0;
}

bool pl_process_is_order(int si_code)
{
    return si_code == SI_QUEUE;
}

bool pl_process_is_of_terminal(int si_code, int sig)
{
    return si_code == SI_KERNEL &&
           (sig == SIGINT || sig == SIGQUIT || sig == SIGTSTP || sig == SIGWINCH);
}
