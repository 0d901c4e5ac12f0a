/* SPDX-License-Identifier: MIT */
/* Orphans of ranks, and processes that the kernel killed for lack of memory. */
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "runtime/plrund/daemon/daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define ENVIRON_MAX ((size_t)4 * 1024 * 1024)
/* Passes over /proc: at least so many while there is something to wait for, however late the clock
 * is, as a machine may stand still. Between them pauses of 1, 2, 4, ... ms. */
#define PASSES_MIN 10
#define PAUSE_MAX_NS 64000000

/* True if the block of NUL-ended entries has this one. */
static bool has_entry(const char *block, size_t len, const char *entry)
{
    size_t want = strlen(entry);

    for (const char *p = block; p < block + len; p += strnlen(p, (size_t)(block + len - p)) + 1)
        if (strnlen(p, (size_t)(block + len - p)) == want && memcmp(p, entry, want) == 0)
            return true;
    return false;
}

/* pl_file_read() takes regular files only, and reports an error for a process that ends meanwhile.
 */
static int read_environ(int dir_fd, const char *pid, struct pl_buf *ret)
{
    char path[64];
    _cleanup_close_ int fd = -EBADF;
    ssize_t n;

    snprintf(path, sizeof(path), "%.20s/environ", pid);
    ret->len = 0;
    fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    do {
        if (ret->len > ENVIRON_MAX || pl_buf_reserve(ret, 65536) < 0)
            return -EFBIG;
        n = read(fd, ret->data + ret->len, 65536);
        if (n > 0)
            ret->len += (size_t)n;
    } while (n > 0);
    return n < 0 ? -errno : 0;
}

/* Entries that every process of the ranks has in its environment. Our own processes, Slurm's and
 * those of other steps lack at least one of them. */
struct marks {
    char job[64], step[64], node[64];
    char rank[64]; /* a full entry, or only "SLURM_PROCID=" for all ranks: Slurm's helpers have none
                    */
    bool of_rank;
    pid_t spare;  /* 0 = none */
    pid_t daemon; /* spared, and its children, which may have the environment of local rank 0 */
};

/* Processes that got SIGKILL. Under load they take a while to end, and start nothing meanwhile. */
struct killed {
    struct {
        pid_t pid;
        uint64_t start;
    } * list;
    size_t n, cap;
};

enum look {
    LOOK_OTHER,
    LOOK_BETWEEN, /* it has no environment yet: it is between two programs (execve(2)) */
    LOOK_ORPHAN,  /* a rank's process or a descendant */
};

static bool has_marks(const struct marks *marks, const struct pl_buf *env)
{
    return (marks->of_rank
                ? has_entry(env->data, env->len, marks->rank)
                : memmem(env->data, env->len, marks->rank, strlen(marks->rank)) != NULL) &&
           has_entry(env->data, env->len, marks->job) &&
           has_entry(env->data, env->len, marks->step) &&
           has_entry(env->data, env->len, marks->node);
}

static enum look look_at(const struct marks *marks,
                         int proc,
                         const char *pid,
                         struct pl_buf *env,
                         struct pl_process_stat *ret)
{
    struct stat st;
    char thread[16];
    int r;

    if (fstatat(proc, pid, &st, 0) < 0 || st.st_uid != geteuid())
        return LOOK_OTHER;
    r = read_environ(proc, pid, env); /* fails if the first thread has ended */
    if ((env->len && !has_marks(marks, env)) ||
        pl_process_stat((pid_t)strtol(pid, NULL, 10), ret) < 0 || ret->state == 'Z' ||
        ret->exiting || ret->kernel || ret->parent == marks->daemon)
        return LOOK_OTHER;
    if (env->len)
        return LOOK_ORPHAN;
    snprintf(thread, sizeof(thread), "%d", (int)ret->thread);
    if (strcmp(thread, pid) == 0)
        return r < 0 || ret->bare ? LOOK_OTHER : LOOK_BETWEEN;
    r = read_environ(proc, thread, env);
    if (r < 0 || !env->len) /* also that thread has ended, or executes a program as the first */
        return r < 0 || !ret->bare ? LOOK_BETWEEN : LOOK_OTHER;
    return has_marks(marks, env) ? LOOK_ORPHAN : LOOK_OTHER;
}

static bool is_killed(const struct killed *killed, pid_t pid, uint64_t start)
{
    for (size_t i = 0; i < killed->n; i++)
        if (killed->list[i].pid == pid && killed->list[i].start == start)
            return true;
    return false;
}

/* Without memory it is forgotten, and gets SIGKILL again. */
static void remember(struct killed *killed, pid_t pid, uint64_t start)
{
    if (killed->n == killed->cap) {
        size_t cap = PL_MAX(killed->cap * 2, (size_t)16);
        void *grown = realloc(killed->list, cap * sizeof(*killed->list));

        if (!grown)
            return;
        killed->list = grown;
        killed->cap = cap;
    }
    killed->list[killed->n].pid = pid;
    killed->list[killed->n++].start = start;
}

/* Returns the number of processes that got SIGKILL for the first time; *ret_between: of those that
 * are between two programs. */
static unsigned kill_marked(const struct marks *marks, struct killed *killed, unsigned *ret_between)
{
    _cleanup_(pl_buf_finish) struct pl_buf env = {0};
    DIR *dir = opendir("/proc");
    struct pl_process_stat stat;
    struct dirent *e;
    unsigned n = 0;

    *ret_between = 0;
    while (dir && (e = readdir(dir))) {
        enum look look;
        int64_t pid;
        int fd;

        if (pl_parse_int(e->d_name, 2, INT32_MAX, &pid, NULL) < 0 || pid == marks->daemon ||
            pid == marks->spare || pid == getpid())
            continue;
        look = look_at(marks, dirfd(dir), e->d_name, &env, &stat);
        *ret_between += look == LOOK_BETWEEN;
        if (look != LOOK_ORPHAN || is_killed(killed, (pid_t)pid, stat.start))
            continue;
        /* By descriptor, and checked again: pids are reused. */
        fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
        if (fd < 0)
            continue;
        look = look_at(marks, dirfd(dir), e->d_name, &env, &stat);
        *ret_between += look == LOOK_BETWEEN;
        if (look == LOOK_ORPHAN) {
            pl_log_info("child", "ending process %d, an orphan of the step", (int)pid);
            syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
            remember(killed, (pid_t)pid, stat.start);
            n++;
        }
        close(fd);
    }
    if (dir)
        closedir(dir);
    return n;
}

unsigned pl_kill_orphans(const struct pl_slurm_step *step,
                         unsigned rank,
                         pid_t spare,
                         pid_t daemon,
                         unsigned limit_ms,
                         bool *ret_all)
{
    struct marks marks = {.of_rank = rank != UINT_MAX, .spare = spare, .daemon = daemon};
    uint64_t limit_ns = pl_now_ns() + limit_ms * 1000000ull;
    struct timespec pause = {0, 1000000};
    struct killed killed = {0};
    unsigned fresh, between, clean = 0, sum = 0;

    snprintf(marks.job, sizeof(marks.job), "SLURM_JOB_ID=%s", step->id.job);
    snprintf(marks.step, sizeof(marks.step), "SLURM_STEP_ID=%s", step->id.step);
    snprintf(marks.node, sizeof(marks.node), "SLURM_NODEID=%u", step->node_id);
    if (marks.of_rank)
        snprintf(marks.rank, sizeof(marks.rank), "SLURM_PROCID=%u", rank);
    else
        snprintf(marks.rank, sizeof(marks.rank), "SLURM_PROCID=");
    /* A process may have forked while the folder was read, and its child may have a pid that the
     * reader had passed: two passes find nothing. */
    for (unsigned i = 0; clean < 2 && (i < PASSES_MIN || pl_now_ns() < limit_ns); i++) {
        fresh = kill_marked(&marks, &killed, &between);
        sum += fresh;
        clean = fresh || between ? 0 : clean + 1;
        if (between) {
            nanosleep(&pause, NULL);
            pause.tv_nsec = PL_MIN(pause.tv_nsec * 2, (long)PAUSE_MAX_NS);
        }
    }
    free(killed.list);
    if (ret_all)
        *ret_all = clean == 2;
    return sum;
}

/* Reads "oom_kill N" of a file in the memory cgroup. */
static int64_t oom_kill_line(const char *path)
{
    _cleanup_free_ char *text = NULL;
    char *p, *end;
    int64_t n;

    if (pl_file_read(path, 65536, &text, NULL, NULL) < 0)
        return -1;
    p = strstr(text, "oom_kill ");
    if (!p)
        return -1;
    p += strlen("oom_kill ");
    end = p + strcspn(p, "\n");
    *end = '\0';
    return pl_parse_int(p, 0, INT64_MAX, &n, NULL) == 0 ? n : -1;
}

/* Cuts a path off after the step's group. Those of its tasks are below it: Slurm calls them
 * ../step_S/task_T, in version 2 ../step_S/user/task_T. */
static void cut_to_step(char *folder)
{
    char *step = strstr(folder, "/step_"), *rest = step ? strchr(step + 1, '/') : NULL;

    if (rest)
        *rest = '\0';
}

/* Version 1 counts in the group of the process alone: sums those of the step's tasks. */
static int64_t sum_of_tasks(const char *folder)
{
    _cleanup_free_ char *own = pl_strf("%s/memory.oom_control", folder);
    int64_t sum = own ? oom_kill_line(own) : -1;
    const struct dirent *e;
    DIR *dir = sum >= 0 ? opendir(folder) : NULL;

    while (dir && (e = readdir(dir))) {
        _cleanup_free_ char *path = NULL;
        int64_t n;

        if (strncmp(e->d_name, "task_", 5) != 0)
            continue;
        path = pl_strf("%s/%s/memory.oom_control", folder, e->d_name);
        n = path ? oom_kill_line(path) : -1;
        sum += PL_MAX(n, (int64_t)0);
    }
    if (dir)
        closedir(dir);
    return sum;
}

int64_t pl_daemon_oom_kills(void)
{
    /* The mount point; tests set their own. */
    const char *root = pl_env(PL_ENV_PLUME_CGROUP_ROOT);
    _cleanup_free_ char *text = NULL, *path = NULL;
    char *line, *rest;

    if (!root || !*root)
        root = "/sys/fs/cgroup";
    if (pl_file_read("/proc/self/cgroup", 65536, &text, NULL, NULL) < 0)
        return -1;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *folder = strrchr(line, ':');
        int64_t n;

        if (!folder)
            continue;
        cut_to_step(folder + 1);
        free(PL_TAKE(path));
        n = -1;
        if (strncmp(line, "0::", 3) == 0) { /* version 2, which counts what is below, too */
            path = pl_strf("%s%s/memory.events", root, folder + 1);
            n = path ? oom_kill_line(path) : -1;
        } else if (strstr(line, ":memory:")) {
            path = pl_strf("%s/memory%s", root, folder + 1);
            n = path ? sum_of_tasks(path) : -1;
        }
        if (n >= 0)
            return n;
    }
    return -1;
}
