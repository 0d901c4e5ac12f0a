/* SPDX-License-Identifier: MIT */
#include "spank_plugin/node_daemon.h"
#include "common/base/fs.h"
#include "common/proto/rank/minijson.h"
#include "common/proto/rank/rank_line.h"
#include "spank_plugin/daemon_said.h"
#include "spank_plugin/own_group.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define CONTROL_FD 3
#define LINE_MAX_BYTES (64 * 1024)
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

/* -- The child's side. From here to the next mark: async-signal-safe calls only, as the child of a
 * threaded process may make no others; and system calls instead of set*id(), which in glibc talk
 * to threads that are not there. -- */

struct child {
    void (*run)(const struct child *child); /* does not return */
    const char *path;
    char *const *env;
    const struct pl_daemon_user *user;
    int control; /* its end */
    int said;    /* its stderr; -EBADF: none */
};

/* slurmstepd is spared by the kernel's out-of-memory killer; a user's process must not be. Needs
 * root, while it is still there. */
static void become_killable(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    (void)!write(fd, "0", 1);
    close(fd);
}

/* Writes n in decimal: snprintf(3) may allocate. */
static void write_number(char *ret, size_t size, unsigned long n)
{
    char *p = ret + size;

    *--p = '\0';
    do
        *--p = (char)('0' + n % 10);
    while ((n /= 10) && p > ret);
    memmove(ret, p, (size_t)(ret + size - p));
}

/* As root, without following a link: the user's folder in one that only root can rename things in.
 * A failure shows later: plrund, as the user, checks the folder. */
static void make_runtime_dir(const struct pl_daemon_user *user)
{
    int dir = open(user->runtime_dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    char name[24];

    if (dir < 0)
        return;
    write_number(name, sizeof(name), user->uid);
    if (fstat(dir, &st) == 0 && st.st_uid == 0 &&
        (!(st.st_mode & (S_IWGRP | S_IWOTH)) || (st.st_mode & S_ISVTX)) &&
        mkdirat(dir, name, 0700) == 0)
        (void)!fchownat(dir, name, user->uid, user->gid, AT_SYMLINK_NOFOLLOW);
    close(dir);
}

/* As root. The path is the site's, in a folder of root's; whatever it is, setns(2) takes nothing
 * but a mount namespace. */
static int join_namespace(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), r;

    if (fd < 0)
        return -errno;
    r = syscall(SYS_setns, fd, CLONE_NEWNS) < 0 ? -errno : 0;
    close(fd);
    return r < 0 ? r : chdir("/") < 0 ? -errno : 0;
}

/* daemon: this process becomes one, and may outlive the step's tasks. */
static int drop_root(const struct pl_daemon_user *user, bool daemon)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    if (getuid() != 0)
        return 0;
    if (syscall(SYS_setresuid, -1, 0, -1) < 0)
        return -errno;
    become_killable();
    if (daemon)
        pl_own_group_enter();
    if (user->runtime_dir) /* by the node's paths: those of a namespace may be the user's */
        make_runtime_dir(user);
    if (user->namespace) {
        int r = join_namespace(user->namespace);

        if (r < 0)
            return r;
    }
    if (syscall(SYS_setgroups, user->n_groups, user->groups) < 0 ||
        syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0 ||
        syscall(SYS_setresuid, user->uid, user->uid, user->uid) < 0)
        return -errno;
    if (user->uid != 0 && syscall(SYS_setresuid, -1, 0, -1) == 0)
        return -EPERM; /* must have been impossible */
    return 0;
}

static void reset_signals(void)
{
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    sigset_t none;

    sigemptyset(&none);
    for (int s = 1; s < NSIG; s++)
        sigaction(s, &dfl, NULL);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Leaves fds 0, 1 (/dev/null), 2 (what it says, or /dev/null) and 3 (control). */
static int arrange_fds(const struct child *child)
{
    int high = fcntl(child->control, F_DUPFD_CLOEXEC, 16);
    int null = high < 0 ? -1 : open("/dev/null", O_RDWR);
    int said = fcntl(child->said, F_DUPFD_CLOEXEC, 16);

    if (said < 0)
        said = null;
    if (high < 0 || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(said, 2) < 0 ||
        dup2(high, CONTROL_FD) < 0)
        return -errno;
    pl_close_from(CONTROL_FD + 1, NULL, 0);
    return 0;
}

static void say_errno(int fd, int code)
{
    char text[] = "{\"type\":\"failed\",\"errno\":    }\n";
    char *p = text + sizeof(text) - 3; /* after the last digit's place */

    for (int i = 0; i < 4 && code > 0; i++, code /= 10)
        *--p = (char)('0' + code % 10);
    (void)!write(fd, text, sizeof(text) - 1);
}

__attribute__((noreturn)) static void run_daemon(const struct child *child)
{
    char *argv[] = {"plrund", "--control-fd", "3", NULL};
    int r = arrange_fds(child);
    char go;

    if (r < 0)
        _exit(127);
    /* The parent takes a handle on this process first, while it cannot have ended. */
    if (read(CONTROL_FD, &go, 1) != 1)
        _exit(127);
    umask(0);
    r = drop_root(child->user, true);
    umask(child->user->umask);
    if (r == 0) {
        reset_signals();
        execve(child->path, argv, child->env);
        r = -errno;
    }
    say_errno(CONTROL_FD, -r);
    _exit(127);
}

/* Opens a path that the user has chosen, as the user, and hands the descriptor over: the path may
 * lie on a file system that does not answer, and then this process hangs. */
__attribute__((noreturn)) static void run_open(const struct child *child)
{
    int fd = -1, code;
    char go;

    /* It may outlive slurmstepd, and must not hold its pipes. */
    if (arrange_fds(child) < 0 || read(CONTROL_FD, &go, 1) != 1)
        _exit(127);
    code = -drop_root(child->user, false);
    if (code == 0) {
        fd = open(child->path, O_PATH | O_CLOEXEC | O_NOFOLLOW);
        code = fd < 0 ? errno : 0;
    }
    pl_send_fds(CONTROL_FD, &code, sizeof(code), &fd, fd >= 0);
    _exit(0);
}

/* Between slurmstepd and the child: a daemon that is slurmstepd's child gets the ranks' signals,
 * and its end would be taken for a task's. */
__attribute__((noreturn)) static void run_middle(const struct child *child)
{
    pid_t pid;

    setsid();
    pid = fork();
    if (pid == 0)
        child->run(child);
    _exit(pid > 0 && write(child->control, &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
}

/* -- slurmstepd's side. -- */

static int wait_readable(int fd, uint64_t limit_ns)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int r = poll(&p, 1, pl_left_ms(limit_ns));

        if (r < 0 && errno == EINTR)
            continue;
        return r < 0 ? -errno : r == 0 ? -ETIMEDOUT : 0;
    }
}

/* The pid that run_middle() wrote. -EPIPE, -ETIMEDOUT. */
static int read_pid(int fd, uint64_t limit_ns, pid_t *ret)
{
    size_t got = 0;

    while (got < sizeof(*ret)) {
        int r = wait_readable(fd, limit_ns);
        ssize_t n;

        if (r < 0)
            return r;
        n = read(fd, (char *)ret + got, sizeof(*ret) - got);
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n == 0)
            return -EPIPE;
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int read_line(int fd, uint64_t limit_ns, char **ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf in = {0};

    while (in.len < LINE_MAX_BYTES) {
        int r = wait_readable(fd, limit_ns);
        char *newline;
        ssize_t n;

        if (r < 0)
            return r;
        if (pl_buf_reserve(&in, 4096) < 0)
            return -ENOMEM;
        n = read(fd, in.data + in.len, in.cap - in.len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EPIPE;
        newline = memchr(in.data + in.len, '\n', (size_t)n);
        in.len += (size_t)n;
        in.data[in.len] = '\0';
        if (newline) {
            *newline = '\0';
            *ret = pl_buf_take(&in);
            return 0;
        }
    }
    return -EMSGSIZE;
}

/* Starts child->run; control is our end of the pair that child->control is of. */
static int
start_process(int control, const struct child *child, uint64_t limit_ns, struct pl_process *ret)
{
    pid_t middle = fork(), pid;
    int status, r;

    if (middle < 0)
        return -errno;
    if (middle == 0)
        run_middle(child);
    do
        r = waitpid(middle, &status, 0) < 0 ? -errno : 0;
    while (r == -EINTR);
    if (r < 0 && r != -ECHILD)
        return r;
    if (r == 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return -EAGAIN;
    r = read_pid(control, limit_ns, &pid);
    if (r < 0)
        return r;
    pl_process_open(ret, pid);
    return send(control, "\n", 1, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

/* Opens `path` (O_PATH, no link) in a child. *ret_fd on success; -ETIMEDOUT, -errno of open(2). */
static int
open_as_user(const char *path, const struct pl_daemon_user *user, uint64_t limit_ns, int *ret_fd)
{
    struct pl_daemon_user plain = *user;
    struct child child = {.run = run_open, .path = path, .user = &plain, .said = -EBADF};
    struct pl_process process = PL_PROCESS_INIT;
    _cleanup_close_ int ours = -EBADF;
    int pair[2], code = 0, fd = -EBADF, r;
    size_t n_fds = 0;

    plain.runtime_dir = NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    ours = pair[0];
    child.control = pair[1];
    r = start_process(ours, &child, limit_ns, &process);
    close(pair[1]);
    if (r == 0)
        r = wait_readable(ours, limit_ns);
    if (r == 0 && pl_recv_fds(ours, &code, sizeof(code), &fd, 1, &n_fds) != sizeof(code))
        r = -EPIPE;
    if (r < 0)
        pl_process_kill(&process); /* it may hang for ever */
    pl_process_close(&process);
    if (r == 0 && n_fds == 0)
        r = code > 0 ? -code : -EPIPE;
    if (r == 0)
        *ret_fd = fd;
    else if (n_fds > 0)
        close(fd);
    return r;
}

/* The daemon's first line. */
static int take_answer(struct pl_node_daemon *daemon,
                       const struct child *child,
                       uint64_t limit_ns,
                       const char *line,
                       struct pl_error *err)
{
    _cleanup_free_ char *text = NULL, *socket = NULL;
    const char *path = child->path;
    int64_t code;
    int r;

    if (pl_mini_is(line, "failed") && pl_mini_get_int(line, "errno", &code) == 0 && code > 0 &&
        code < 4096)
        return pl_error_errno(err, (int)code,
                              child->user->namespace ? "cannot run '%s' in the mount namespace '%s'"
                                                     : "cannot run '%s'",
                              path, child->user->namespace);
    if (pl_mini_is(line, "failed") && pl_mini_get_string(line, "text", &text) == 0)
        return pl_error_set(err, -ECONNABORTED, "%s", text);
    if (pl_mini_is(line, "ready") && pl_mini_get_string(line, "socket", &socket) == 0) {
        r = open_as_user(socket, child->user, limit_ns, &daemon->socket_fd);
        if (r < 0)
            return pl_error_errno(err, r, "'%s' listens at '%s', which cannot be reached", path,
                                  socket);
        daemon->socket = PL_TAKE(socket);
        return 0;
    }
    return pl_error_set(err, -EPROTO, "'%s' gave an answer that this plugin does not know", path);
}

static int wait_ready(struct pl_node_daemon *daemon,
                      const struct child *child,
                      unsigned timeout_ms,
                      uint64_t limit_ns,
                      struct pl_error *err)
{
    _cleanup_free_ char *line = NULL;
    const char *path = child->path;
    int r = read_line(daemon->control, limit_ns, &line);

    switch (r) {
    case 0:
        return take_answer(daemon, child, limit_ns, line, err);
    case -ETIMEDOUT:
        return pl_error_set(err, r, "'%s' was not ready after %u ms", path, timeout_ms);
    case -EPIPE:
    case -ECONNRESET:
        return pl_error_set(err, -EPIPE, "'%s' ended before it was ready", path);
    default:
        return pl_error_errno(err, r, "cannot read from '%s'", path);
    }
}

static void finish(struct pl_node_daemon *daemon)
{
    pl_closep(&daemon->control);
    pl_process_close(&daemon->process);
    pl_closep(&daemon->socket_fd);
    pl_closep(&daemon->said);
    free(daemon->socket);
    *daemon = (struct pl_node_daemon)PL_NODE_DAEMON_INIT;
}

int pl_node_daemon_start(struct pl_node_daemon *daemon,
                         const char *path,
                         char *const *env,
                         const struct pl_daemon_user *user,
                         unsigned timeout_ms,
                         struct pl_error *err)
{
    uint64_t limit_ns = pl_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct child child = {
        .run = run_daemon, .path = path, .env = env, .user = user, .said = -EBADF};
    int pair[2], said[2], r;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pl_error_errno(err, errno, "cannot make a socket");
    /* A descriptor that came along would be closed by slurmstepd, which that may hold up: a TCP
     * socket lingers as long as its owner likes. Older kernels cannot refuse them. */
    (void)setsockopt(pair[0], SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int));
    daemon->control = pair[0];
    child.control = pair[1];
    if (pl_daemon_said_open(said) == 0) { /* else nobody reads what it says */
        daemon->said = said[0];
        child.said = said[1];
    }
    r = start_process(daemon->control, &child, limit_ns, &daemon->process);
    close(pair[1]);
    pl_closep(&child.said);
    if (r < 0)
        pl_error_errno(err, r, "cannot start '%s'", path);
    else
        r = wait_ready(daemon, &child, timeout_ms, limit_ns, err);
    if (r < 0) {
        pl_process_kill(&daemon->process);
        finish(daemon);
        pl_own_group_remove(false);
    }
    return r;
}

/* r: what the line's writer returned. */
static void tell(struct pl_node_daemon *daemon, struct pl_buf *line, int r)
{
    /* A line this short goes whole or not at all. */
    if (daemon->control >= 0 && r == 0 && pl_buf_addc(line, '\n') == 0)
        (void)!send(daemon->control, line->data, line->len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void pl_node_daemon_spawned(struct pl_node_daemon *daemon, unsigned rank, pid_t pid)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    tell(daemon, &line, pl_rank_line_spawned(&line, rank, pid));
}

void pl_node_daemon_exited(struct pl_node_daemon *daemon, unsigned rank, int status)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    tell(daemon, &line, pl_rank_line_exited(&line, rank, status, 0, -1));
}

/* Waits until the daemon's end is closed (0) or it says that it is busy (1): the hub of a step of
 * which other nodes still have tasks. */
static int wait_end(int fd, uint64_t limit_ns)
{
    char rest[4096];

    for (;;) {
        int r = wait_readable(fd, limit_ns);
        ssize_t n;

        if (r < 0)
            return r;
        n = read(fd, rest, sizeof(rest) - 1);
        if (n == 0 || (n < 0 && errno != EINTR))
            return 0;
        if (n > 0) {
            rest[n] = '\0';
            if (strstr(rest, "\"busy\""))
                return 1;
        }
        if (pl_now_ns() >= limit_ns)
            return -ETIMEDOUT;
    }
}

int pl_node_daemon_settle(struct pl_node_daemon *daemon, unsigned timeout_ms)
{
    uint64_t limit_ns = pl_now_ns() + (uint64_t)timeout_ms * 1000000u;

    if (daemon->control < 0)
        return 0;
    shutdown(daemon->control, SHUT_WR);
    /* One that is stopped would never tell how the tasks ended, and a step whose tasks all did well
     * would be a failed one. Whoever stopped it has no task left here. */
    pl_process_signal(&daemon->process, SIGCONT);
    daemon->end = wait_end(daemon->control, limit_ns);
    return PL_MIN(daemon->end, 0);
}

int pl_node_daemon_stop(struct pl_node_daemon *daemon, unsigned timeout_ms)
{
    uint64_t limit_ns = pl_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int r, killed;
    bool stays;

    if (daemon->control < 0)
        return 0;
    if (daemon->end < 0)
        pl_node_daemon_settle(daemon, timeout_ms);
    r = daemon->end;
    stays = r == 1;
    if (r == 0) /* whoever closes its socket may stay nevertheless */
        r = pl_process_wait(&daemon->process, limit_ns);
    if (r < 0) {
        killed = pl_process_kill(&daemon->process);
        r = killed < 0 ? killed : r;
    }
    finish(daemon);
    pl_own_group_remove(stays);
    return PL_MIN(r, 0);
}

void pl_node_daemon_forget(struct pl_node_daemon *daemon)
{
    if (daemon->control >= 0)
        close(daemon->control);
    daemon->control = -EBADF;
    pl_closep(&daemon->said);
    daemon->said = -EBADF;
    pl_process_close(&daemon->process);
}
