/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/node_processes.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/process.h"
#include "launcher/plstat/node_processes_private.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PARENTS_MAX 64

void pl_node_process_finish(struct pl_node_process *p)
{
    free(p->command);
    free(p->run_dir);
    free(p->slurm_conf);
    *p = (struct pl_node_process){0};
}

/* The real user, from the line "Uid:": the owner of /proc/PID is root for some processes. */
static int read_uid(pid_t pid, uid_t *ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int r = pl_process_file_read(pid, "status", 65536, &text);
    const char *line = r == 0 ? strstr(pl_buf_str(&text), "\nUid:\t") : NULL;

    if (!line)
        return r == 0 || r == -ENOENT ? -ESRCH : r;
    *ret = (uid_t)strtoul(line + 6, NULL, 10);
    return 0;
}

/* Slurm's groups are called ../slurm/uid_U/job_N/step_S/.. and ../slurmstepd.scope/job_N/.., of
 * 26.05 ../slurmstepd.scope/SLUID/step_S/..., and that of our hubs that stay
 * ../slurmstepd.scope/plume/job_N or SLUID. */
int64_t pl_node_process_group(const char *text, char ret_sluid[PL_SLUID_SIZE])
{
    static const char base_32[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    const size_t len = PL_SLUID_SIZE - 1;
    const char *slurm = strstr(text, "slurm"), *p = slurm ? strstr(slurm, "/job_") : NULL;

    *ret_sluid = '\0';
    if (p && p[5] >= '0' && p[5] <= '9')
        return strtoll(p + 5, NULL, 10);
    for (p = slurm ? strstr(slurm, "/s") : NULL; p; p = strstr(p + 1, "/s"))
        if (strspn(p + 2, base_32) == len - 1 &&
            (p[1 + len] == '\n' || strncmp(p + 1 + len, "/step_", 6) == 0)) {
            memcpy(ret_sluid, p + 1, len);
            ret_sluid[len] = '\0';
            break;
        }
    return -1;
}

static void read_group(struct pl_node_process *p)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    p->job = p->cgroup_job = -1;
    if (pl_process_file_read(p->pid, "cgroup", 65536, &text) == 0)
        p->job = p->cgroup_job = pl_node_process_group(pl_buf_str(&text), p->sluid);
}

/* Reads the process's memory. 0 or -ENOMEM. A memory that cannot be read leaves its facts empty, as
 * when the user has as many processes as `ulimit -u` allows, or the child that reads was killed for
 * want of memory: the other processes are looked at all the same. */
static int read_memory(struct pl_node_process *p, pid_t thread, const char *name)
{
    struct pl_process_memory memory;

    p->silent = pl_process_memory_read(thread, p->uid, &memory);
    p->seen = memory.seen;
    /* The number of an environment that came from another run is another job's. */
    if (p->job < 0 && (!*p->sluid || !*memory.sluid || strcmp(p->sluid, memory.sluid) == 0))
        p->job = memory.job;
    p->command = *memory.command ? strdup(memory.command) : pl_strf("[%s]", name);
    p->run_dir = memory.has_run_dir ? strdup(memory.run_dir) : NULL;
    p->slurm_conf = memory.has_slurm_conf ? strdup(memory.slurm_conf) : NULL;
    return p->command && !memory.has_run_dir == !p->run_dir &&
                   !memory.has_slurm_conf == !p->slurm_conf
               ? 0
               : -ENOMEM;
}

/* True below a slurmstepd of root's, or of ours where Slurm runs as one user. */
static bool descends_from_step(pid_t pid)
{
    struct pl_process_stat stat;
    uid_t uid;

    for (int depth = 0; depth < PARENTS_MAX && pid > 1; depth++) {
        if (pl_process_stat(pid, &stat) < 0)
            return false;
        if (strcmp(stat.name, "slurmstepd") == 0 && read_uid(pid, &uid) == 0 &&
            (uid == 0 || uid == geteuid()))
            return true;
        pid = stat.parent;
    }
    return false;
}

static double age_of(uint64_t start)
{
    struct timespec now;

    if (clock_gettime(CLOCK_BOOTTIME, &now) < 0)
        return -1;
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
           (double)start / (double)sysconf(_SC_CLK_TCK);
}

int pl_node_process_get(pid_t pid, struct pl_node_process *ret)
{
    struct pl_node_process p = {.pid = pid};
    struct pl_process_stat stat;
    int r = pl_process_stat(pid, &stat);

    if (r == 0 && (stat.state == 'Z' || stat.state == 'X'))
        r = -ESRCH;
    if (r == 0)
        r = read_uid(pid, &p.uid);
    if (r < 0)
        return r;
    p.start = stat.start;
    p.age_s = age_of(stat.start);
    read_group(&p);
    p.in_step = descends_from_step(pid);
    r = read_memory(&p, stat.thread, stat.name);
    if (r < 0)
        pl_node_process_finish(&p);
    else
        *ret = p;
    return r;
}

int pl_node_processes_each(int (*f)(void *ctx, struct pl_node_process *p),
                           void *ctx,
                           struct pl_error *err)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int64_t pid;
    int r = 0;

    if (!proc)
        return pl_error_errno(err, errno, "cannot list the processes in /proc");
    while (r == 0 && (errno = 0, entry = readdir(proc))) {
        struct pl_node_process p = {0};

        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' ||
            pl_parse_int(entry->d_name, 1, INT32_MAX, &pid, NULL) < 0 || pid == getpid() ||
            pl_process_memory_is_child((pid_t)pid))
            continue;
        r = pl_node_process_get((pid_t)pid, &p);
        if (r == 0)
            r = f(ctx, &p);
        else if (r == -ESRCH || r == -EACCES || r == -EPERM)
            r = 0; /* it has ended meanwhile, or is another user's where /proc hides those */
        pl_node_process_finish(&p);
    }
    if (r == 0 && errno)
        r = -errno;
    closedir(proc);
    pl_process_memory_finish();
    if (r == -ENOMEM)
        return pl_error_nomem(err);
    return r < 0 ? pl_error_errno(err, r, "cannot look at the node's processes") : 0;
}
