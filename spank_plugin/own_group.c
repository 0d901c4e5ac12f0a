/* SPDX-License-Identifier: MIT */
#include "spank_plugin/own_group.h"
#include "common/base/macros.h"
#include "spank_plugin/own_group_private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OURS "/plume"
#define PROCS "/cgroup.procs"
#define SLUID_LEN 15  /* with its '/' */
#define PAUSES_MAX 20 /* of 10 ms */

/* A folder of a job, "/job_N" or, of Slurm 26.05, "/" and the run's SLUID: 's' and 13 digits of
 * base 32. */
static bool is_job(const char *folder, size_t len)
{
    static const char numbered[] = "/job_", lettered[] = "/s";
    bool by_number = len > strlen(numbered) && memcmp(folder, numbered, strlen(numbered)) == 0;
    size_t at = by_number ? strlen(numbered) : strlen(lettered);

    if (!by_number && (len != SLUID_LEN || memcmp(folder, lettered, strlen(lettered)) != 0))
        return false;
    for (; at < len; at++)
        if ((folder[at] < '0' || folder[at] > '9') &&
            (by_number || folder[at] < 'A' || folder[at] > 'Z'))
            return false;
    return true;
}

bool pl_own_group_path(char *text, char ret[PATH_MAX], size_t *ret_job)
{
    static const char root[] = "/sys/fs/cgroup", theirs[] = "/slurm", step_start[] = "/step_";
    char *line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    char *end, *step, *job;
    size_t len;

    line = line ? strchr(line, '/') : NULL;
    end = line ? strchr(line, '\n') : NULL;
    if (!end)
        return false;
    *end = '\0';
    len = (size_t)(end - line);
    if (len <= strlen(theirs) || strcmp(end - strlen(theirs), theirs) != 0 ||
        strlen(root) + len + sizeof(PROCS) > PATH_MAX)
        return false;
    step = memrchr(line, '/', len - strlen(theirs));
    if (!step || strncmp(step, step_start, strlen(step_start)) != 0)
        return false;
    job = memrchr(line, '/', (size_t)(step - line));
    if (!job || !is_job(job, (size_t)(step - job)))
        return false;
    memcpy(end - strlen(theirs), OURS, strlen(OURS)); /* of the same length */
    memcpy(ret, root, strlen(root));
    memcpy(ret + strlen(root), line, len + 1);
    *ret_job = strlen(root) + (size_t)(job - line);
    return true;
}

/* The path of the group next to our own, which must be Slurm's. */
static bool find(char ret[PATH_MAX], size_t *ret_job)
{
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    char text[PATH_MAX];
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = '\0';
    return pl_own_group_path(text, ret, ret_job);
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
    size_t job;
    int fd;

    if (!find(group, &job) || (mkdir(group, 0755) < 0 && errno != EEXIST))
        return;
    fd = open_procs(group, O_WRONLY);
    if (fd < 0)
        return;
    (void)!write(fd, "0", 1); /* the writer */
    close(fd);
}

/* Moves the hub of other nodes' tasks to a group that all such hubs of the node share, and that
 * stays: Slurm can then remove those of the step and the job. Their limits hold for it no more. */
static void move_out(const char *group, size_t job)
{
    char shared[PATH_MAX] = "", pids[4096], *pid, *rest;
    int from = open_procs(group, O_RDONLY), to = -1;
    ssize_t n = from < 0 ? -1 : read(from, pids, sizeof(pids) - 1);

    if (n > 0) {
        pids[n] = '\0';
        memcpy(shared, group, job);
        memcpy(shared + job, OURS, sizeof(OURS));
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
    size_t job;

    if (geteuid() != 0 || !find(group, &job))
        return;
    for (int i = 0; rmdir(group) < 0 && errno == EBUSY && i < PAUSES_MAX; i++) {
        if (i == PAUSES_MAX / 2) /* none of these processes ends: they have more to do */
            move_out(group, job);
        nanosleep(&pause, NULL);
    }
}
