/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/senders.h"
#include "common/base/fs.h"
#include "common/base/process.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ANCESTORS_MAX 16 /* scripts between slurmstepd and us */

/* A line of /proc/self/cgroup, "ID:CONTROLLERS:PATH": true if Slurm's cgroup plugin tracks the step
 * by that group, in version 2 or by the freezer of version 1. Its task plugin makes groups of other
 * controllers beside any tracker. */
static bool tracks_step(const char *line)
{
    const char *controllers = strchr(line, ':'), *path = controllers;

    path = path ? strchr(path + 1, ':') : NULL;
    if (!path || (path > controllers + 1 &&
                  !memmem(controllers, (size_t)(path - controllers), "freezer", strlen("freezer"))))
        return false;
    return strstr(path, "/step_") || strstr(path, "slurmstepd");
}

/* Slurm's pgid and linuxproc plugins signal every process of a step, its cgroup plugin only the
 * task. */
static bool slurm_signals_all(void)
{
    _cleanup_free_ char *text = NULL;
    char *rest, *line;

    if (pl_file_read("/proc/self/cgroup", 65536, &text, NULL, NULL) < 0)
        return false;
    rest = text;
    while ((line = strsep(&rest, "\n")))
        if (tracks_step(line))
            return false;
    return true;
}

void pl_senders_find(struct pl_senders *ret)
{
    struct pl_process_stat stat;
    pid_t pid = getppid();
    size_t n = 0;

    *ret = (struct pl_senders){.stepd_fd = -EBADF, .slurm_signals_all = slurm_signals_all()};
    for (int i = 0; i < ANCESTORS_MAX && pid > 1; i++, pid = stat.parent) {
        _cleanup_close_ int fd = (int)syscall(SYS_pidfd_open, pid, 0);

        if (pl_process_stat(pid, &stat) < 0) { /* of root, where /proc is mounted with hidepid */
            ret->stepd = ret->local[0] ? 0 : pid;
            return;
        }
        if (strcmp(stat.name, PL_PROCESS_EXECUTOR) == 0 && n < PL_COUNT(ret->local))
            ret->local[n++] = pid;
        if (strcmp(stat.name, "slurmstepd") == 0) {
            ret->stepd = pid;
            ret->stepd_fd = fd >= 0 ? PL_TAKE_FD(fd) : -EBADF;
            return;
        }
    }
}

void pl_senders_before_fork(struct pl_senders *s)
{
    sigpending(&s->missed);
}

bool pl_senders_reach(struct pl_senders *s, int code, pid_t sender, int sig, pid_t child)
{
    bool is_of_group = pl_process_is_of_terminal(code, sig);

    if (sigismember(&s->missed, sig) == 1) {
        sigdelset(&s->missed, sig);
        return false;
    }
    for (size_t i = 0; i < PL_COUNT(s->local); i++)
        is_of_group |= sender > 0 && sender == s->local[i];
    if (is_of_group)
        return getpgid(child) == getpgrp();
    return sender > 0 && sender == s->stepd && s->slurm_signals_all;
}
