/* SPDX-License-Identifier: MIT */
#include "spank_plugin/own_group.h"
#include "common/base/macros.h"
#include "common/base/process.h"
#include "spank_plugin/own_group_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define OURS "/plume"
#define PROCS "/cgroup.procs"
#define KILL "/cgroup.kill"
#define SLUID_LEN 15   /* with its '/' */
#define PAUSES_MAX 100 /* of 10 ms */

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

/* Appends a path. False: there is no room, also for "/cgroup.procs". */
static bool append(char ret[PATH_MAX], const char *more, size_t len)
{
    size_t at = strlen(ret);

    if (at + len + sizeof(PROCS) > PATH_MAX)
        return false;
    memcpy(ret + at, more, len);
    ret[at + len] = '\0';
    return true;
}

/* The group of this job's hubs that stay, "../plume/job_N" next to the job's, which it makes. Its
 * name tells an epilog whose they are. */
static bool make_stay(const char *group, size_t job, char ret[PATH_MAX])
{
    const char *step = strchr(group + job + 1, '/');
    size_t len = step ? (size_t)(step - group) - job : 0;

    *ret = '\0';
    return step && append(ret, group, job) && append(ret, OURS, strlen(OURS)) &&
           (mkdir(ret, 0755) == 0 || errno == EEXIST) && append(ret, group + job, len) &&
           (mkdir(ret, 0755) == 0 || errno == EEXIST);
}

/* Removes the groups of hubs that have ended. Others are not empty: rmdir(2) refuses. */
static void remove_stays(const char *group, size_t job)
{
    char shared[PATH_MAX] = "";
    const struct dirent *entry;
    DIR *dir;

    if (!append(shared, group, job) || !append(shared, OURS, strlen(OURS)))
        return;
    dir = opendir(shared);
    while (dir && (entry = readdir(dir)))
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
    if (dir)
        closedir(dir);
}

/* Reads the pids of the group, a line each; they may be more than it sees at once. False: none. */
static bool read_procs(const char *group, char ret[4096])
{
    int fd = open_procs(group, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, 4095);
    char *end;

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    ret[n] = '\0';
    end = strrchr(ret, '\n'); /* half a number is another process's */
    if (!end)
        return false;
    *end = '\0';
    return true;
}

static void each_process(const char *group, void (*f)(const char *group, pid_t pid, int to), int to)
{
    char pids[4096], *pid, *rest;

    if (!read_procs(group, pids))
        return;
    for (pid = strtok_r(pids, "\n", &rest); pid; pid = strtok_r(NULL, "\n", &rest))
        f(group, (pid_t)strtol(pid, NULL, 10), to);
}

static void move_to(const char *group, pid_t pid, int to)
{
    char number[24];
    int len = snprintf(number, sizeof(number), "%d", (int)pid);

    (void)!write(to, number, (size_t)len);
}

/* Slurm can then remove the groups of the step and the job. Their limits hold for the hub no more.
 */
static void move_out(const char *group, size_t job)
{
    char stay[PATH_MAX];
    int to = make_stay(group, job, stay) ? open_procs(stay, O_WRONLY) : -1;

    if (to < 0)
        return;
    each_process(group, move_to, to);
    close(to);
}

static bool has_process(const char *group, pid_t pid)
{
    char pids[4096], *at, *rest;

    if (!read_procs(group, pids))
        return false;
    for (at = strtok_r(pids, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest))
        if (strtol(at, NULL, 10) == pid)
            return true;
    return false;
}

/* The number may be another process's since it was read: it is held before the second look. */
static void kill_one(const char *group, pid_t pid, int to)
{
    struct pl_process process;

    if (pid <= 1)
        return;
    pl_process_open(&process, pid);
    if (has_process(group, pid))
        pl_process_kill(&process);
    pl_process_close(&process);
}

void pl_own_group_kill_each(const char *group)
{
    each_process(group, kill_one, -1);
}

/* The kernel kills all at once from 5.14 on; else one that forks as fast as others are killed gets
 * a look each 10 ms. */
static void kill_all(const char *group)
{
    char path[PATH_MAX] = "";
    int fd;

    if (!append(path, group, strlen(group)) || !append(path, KILL, strlen(KILL)))
        return;
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "1", 1) != 1)
        pl_own_group_kill_each(group);
    if (fd >= 0)
        close(fd);
}

void pl_own_group_remove(bool stays)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    char group[PATH_MAX];
    size_t job;

    if (geteuid() != 0 || !find(group, &job))
        return;
    for (int i = 0; rmdir(group) < 0 && errno == EBUSY && i < PAUSES_MAX; i++) {
        if (stays)
            move_out(group, job);
        else if (i >= PAUSES_MAX / 2) /* it is the user's, and nobody would end it after us */
            kill_all(group);
        nanosleep(&pause, NULL);
    }
    remove_stays(group, job);
}
