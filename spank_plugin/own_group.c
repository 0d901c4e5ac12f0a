/* SPDX-License-Identifier: MIT */
#include "spank_plugin/own_group.h"
#include "common/base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OURS "/plume"
#define PROCS "/cgroup.procs"
#define PAUSES_MAX 20 /* of 10 ms */

/* The path of the group next to our own, which must be Slurm's; room for PROCS stays. */
static bool find(char ret[PATH_MAX])
{
    static const char root[] = "/sys/fs/cgroup", theirs[] = "/slurm";
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    char text[PATH_MAX], *line, *end;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    size_t len;

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    line = line ? strchr(line, '/') : NULL;
    end = line ? strchr(line, '\n') : NULL;
    if (!end)
        return false;
    *end = '\0';
    len = (size_t)(end - line);
    if (len <= strlen(theirs) || strcmp(end - strlen(theirs), theirs) != 0 ||
        !strstr(line, "/job_") || !strstr(line, "/step_") ||
        strlen(root) + len + sizeof(PROCS) > PATH_MAX)
        return false;
    memcpy(end - strlen(theirs), OURS, strlen(OURS)); /* of the same length */
    memcpy(ret, root, strlen(root));
    memcpy(ret + strlen(root), line, len + 1);
    return true;
}

/* Opens GROUP/cgroup.procs. -1. */
static int open_procs(const char *group, int flags)
{
    char path[PATH_MAX];

    if (strlen(group) + sizeof(PROCS) > sizeof(path))
        return -1;
    memcpy(path, group, strlen(group));
    memcpy(path + strlen(group), PROCS, sizeof(PROCS));
    return open(path, flags | O_CLOEXEC);
}

void pl_own_group_enter(void)
{
    char group[PATH_MAX];
    int fd;

    if (!find(group) || (mkdir(group, 0755) < 0 && errno != EEXIST))
        return;
    fd = open_procs(group, O_WRONLY);
    if (fd < 0)
        return;
    (void)!write(fd, "0", 1); /* the writer */
    close(fd);
}

/* Moves the hub of other nodes' tasks to a group that all such hubs of the node share, and that
 * stays: Slurm can then remove those of the step and the job. Their limits hold for it no more. */
static void move_out(const char *group)
{
    char shared[PATH_MAX] = "", pids[4096], *pid, *rest;
    const char *job = strstr(group, "/job_");
    int from = open_procs(group, O_RDONLY), to = -1;
    ssize_t n = from < 0 ? -1 : read(from, pids, sizeof(pids) - 1);

    if (job && n > 0) {
        pids[n] = '\0';
        memcpy(shared, group, (size_t)(job - group));
        memcpy(shared + (job - group), OURS, sizeof(OURS));
        if (mkdir(shared, 0755) == 0 || errno == EEXIST)
            to = open_procs(shared, O_WRONLY);
        for (pid = strtok_r(pids, "\n", &rest); pid && to >= 0; pid = strtok_r(NULL, "\n", &rest))
            (void)!write(to, pid, strlen(pid));
    }
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
}

void pl_own_group_remove(void)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    char group[PATH_MAX];

    if (geteuid() != 0 || !find(group))
        return;
    for (int i = 0; rmdir(group) < 0 && errno == EBUSY && i < PAUSES_MAX; i++) {
        if (i == PAUSES_MAX / 2) /* none of these processes ends: they have more to do */
            move_out(group);
        nanosleep(&pause, NULL);
    }
}
