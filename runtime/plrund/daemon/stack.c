/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/stack.h"
#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "runtime/plrund/daemon/probe.h"
#include "runtime/plrund/daemon/ras.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROCESSES_MAX 4 /* whose stacks are taken */
#define THREADS_MAX 128 /* of each */
#define SECTION_MAX 65536
#define TOOL_MS 6000
#define PYTHON_MS 1000 /* for faulthandler to write */
#define PYTHON_POLL_MS 20
#define PYTHON_FD "/memfd:plume-stack" /* plume.py's */

static void write_text(int fd, const char *text)
{
    pl_write_all(fd, text, strlen(text));
}

/* A file of /proc; empty if it cannot be read. NUL bytes become blanks. */
static void read_proc(const char *path, char *ret, size_t size)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, ret, size - 1);

    n = PL_MAX(n, (ssize_t)0);
    for (ssize_t i = 0; i < n; i++)
        if (!ret[i])
            ret[i] = ' ';
    while (n > 0 && (ret[n - 1] == '\n' || ret[n - 1] == ' '))
        n--;
    ret[n] = '\0';
}

/* ---- threads ---- */

static void add_thread(int fd, pid_t pid, const char *tid)
{
    char path[96], name[64], wchan[64], call[256], stack[4096], letter = '?';
    _cleanup_free_ char *line = NULL;
    char stat[1024], *p;

    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/comm", (int)pid, tid);
    read_proc(path, name, sizeof(name));
    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)pid, tid);
    read_proc(path, stat, sizeof(stat));
    p = strrchr(stat, ')');
    if (p && p[1] == ' ')
        letter = p[2];
    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/wchan", (int)pid, tid);
    read_proc(path, wchan, sizeof(wchan));
    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/syscall", (int)pid, tid);
    read_proc(path, call, sizeof(call));
    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stack", (int)pid, tid); /* root only */
    read_proc(path, stack, sizeof(stack));
    line = pl_strf("  %-8.20s %-16s %c  %s%s%s%s%s\n", tid, name, letter, wchan,
                   *call ? "  syscall " : "", call, *stack ? "\n" : "", stack);
    if (line)
        write_text(fd, line);
}

static void add_threads(int fd, pid_t pid)
{
    char path[64], words[512];
    _cleanup_free_ char *head = NULL;
    const struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    read_proc(path, words, sizeof(words));
    head = pl_strf("== process %d: %s\n  thread   name            state  place in the kernel\n",
                   (int)pid, words);
    if (head)
        write_text(fd, head);
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    for (int n = 0; dir && n < THREADS_MAX && (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            add_thread(fd, pid, e->d_name);
            n++;
        }
    if (dir)
        closedir(dir);
    else
        write_text(fd, "  it has ended\n");
}

/* ---- Python's own fault handler ---- */

/* The file that plume.py registered for its stacks; -1 = none. */
static int open_python_file(pid_t pid)
{
    char path[64], target[PATH_MAX];
    const struct dirent *e;
    int fd = -1;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    while (dir && fd < 0 && (e = readdir(dir))) {
        ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

        if (len >= (ssize_t)strlen(PYTHON_FD) && memcmp(target, PYTHON_FD, strlen(PYTHON_FD)) == 0)
            fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    if (dir)
        closedir(dir);
    return fd;
}

/* True if the process handles SIGURG, which ends nobody: its default is to be ignored. */
static bool handles_urg(pid_t pid)
{
    char path[64], text[4096];
    const char *caught;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    read_proc(path, text, sizeof(text));
    caught = strstr(text, "SigCgt:");
    return caught && (strtoull(caught + 7, NULL, 16) >> (SIGURG - 1) & 1);
}

static void add_python(int fd, pid_t pid)
{
    _cleanup_close_ int file = open_python_file(pid);
    _cleanup_free_ char *text = calloc(1, SECTION_MAX);
    struct stat before, after;
    off_t last = -1;
    ssize_t n;

    if (file < 0 || !text || fstat(file, &before) < 0 || !handles_urg(pid) || kill(pid, SIGURG) < 0)
        return;
    after = before;
    /* Its end is not announced: it has ended when it grows no more. */
    for (int ms = 0; ms < PYTHON_MS && (after.st_size == before.st_size || after.st_size != last);
         ms += PYTHON_POLL_MS) {
        last = after.st_size;
        poll(NULL, 0, PYTHON_POLL_MS);
        if (fstat(file, &after) < 0)
            return;
    }
    n = pread(file, text, SECTION_MAX - 1, before.st_size);
    write_text(fd, "== Python (faulthandler)\n");
    write_text(fd, n > 0 ? text : "  no answer\n");
}

/* ---- tools ---- */

static bool is_python(pid_t pid)
{
    char path[64], target[PATH_MAX];
    const char *name;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    n = readlink(path, target, sizeof(target) - 1);
    if (n <= 0)
        return false;
    target[n] = '\0';
    name = strrchr(target, '/');
    return name && strncmp(name + 1, "python", 6) == 0;
}

/* Adds a tool's output. False: there is no such tool. */
static bool add_tool(int fd, const char *const *argv)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    struct pl_error err = {0};
    _cleanup_free_ char *head = pl_strf("== %s\n", argv[0]);
    const struct pl_buf *parts[] = {&child.out, &child.err};
    int r = pl_child_run(argv, NULL, TOOL_MS, &child, &err);

    if (r == -ENOENT)
        return false;
    if (head)
        write_text(fd, head);
    for (size_t i = 0; i < PL_COUNT(parts); i++)
        if (i == 0 || child.status != 0) /* warnings of a good end are of no interest */
            pl_write_all(fd, parts[i]->data, PL_MIN(parts[i]->len, (size_t)SECTION_MAX));
    if (r < 0)
        write_text(fd, pl_error_text(&err));
    write_text(fd, r < 0 ? "\n" : "");
    return true;
}

static void add_stacks(int fd, pid_t pid)
{
    char number[16];
    const char *py_spy[] = {"py-spy", "dump", "--pid", number, NULL};
    const char *gdb[] = {
        "gdb", "-nx",  "-batch", "-ex", "set pagination off", "-ex", "thread apply all bt 48",
        "-p",  number, NULL};
    const char *eu_stack[] = {"eu-stack", "-p", number, NULL};

    snprintf(number, sizeof(number), "%d", (int)pid);
    add_python(fd, pid);
    if (is_python(pid))
        add_tool(fd, py_spy);
    if (!add_tool(fd, gdb) && !add_tool(fd, eu_stack))
        write_text(fd, "  neither gdb nor eu-stack is in PATH\n");
}

void pl_stack_report(pid_t pid, int fd)
{
    pid_t list[PL_PROBE_PIDS_MAX];
    size_t n = PL_MIN(pl_probe_tree(pid, list), (size_t)PROCESSES_MAX);
    struct pl_probe probe;

    unsetenv("DEBUGINFOD_URLS"); /* gdb would download */
    for (size_t i = 0; i < n; i++)
        add_threads(fd, list[i]);
    pl_probe_look(pid, &probe);
    add_stacks(fd, probe.pid);
    pl_ras_report(probe.pid, fd);
}
