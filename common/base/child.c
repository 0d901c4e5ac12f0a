/* SPDX-License-Identifier: MIT */
#include "common/base/child.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/trace.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define KILLED_MS 1000 /* a child that a file system holds outlives SIGKILL: it is left */

#define PIPES_INIT                                                                                 \
    {                                                                                              \
        {-EBADF, -EBADF}, {-EBADF, -EBADF},                                                        \
        {                                                                                          \
            -EBADF, -EBADF                                                                         \
        }                                                                                          \
    }

void pl_child_finish(struct pl_child *child)
{
    pl_buf_finish(&child->out);
    pl_buf_finish(&child->err);
}

int pl_child_said(const struct pl_child *child, const char **ret)
{
    static const char warning[] = ": warning: ";
    const char *first = pl_buf_str(&child->err), *line = first;
    size_t len = strcspn(line, "\n");

    while (line[len] && memmem(line, len, warning, strlen(warning))) {
        line += len + 1;
        len = strcspn(line, "\n");
    }
    if (!*line || memmem(line, len, warning, strlen(warning))) {
        line = first;
        len = strcspn(line, "\n");
    }
    *ret = line;
    return (int)len;
}

void pl_child_init(void)
{
    signal(SIGCHLD, SIG_DFL);
}

static void close_fd(int *fd)
{
    pl_closep(fd);
    *fd = -EBADF;
}

static void pipes_close(struct pl_child_pipes *p)
{
    for (int i = 0; i < 2; i++) {
        close_fd(&p->out[i]);
        close_fd(&p->err[i]);
        close_fd(&p->exec_error[i]);
    }
}

static void reset_signals(void)
{
    sigset_t none;

    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* In the child: fds 0 to 2, then the program. */
static void exec_child(const struct pl_child_pipes *p, const char *const *argv, char *const *env)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), code = errno;

    reset_signals();
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* a ^C at the terminal reaches our group only */
    if (null >= 0 && dup2(null, STDIN_FILENO) >= 0 && dup2(p->out[1], STDOUT_FILENO) >= 0 &&
        dup2(p->err[1], STDERR_FILENO) >= 0) {
        if (env)
            environ = (char **)(uintptr_t)env;
        execvp(argv[0], (char *const *)(uintptr_t)argv);
    }
    code = null < 0 ? code : errno;
    if (write(p->exec_error[1], &code, sizeof(code)) < 0)
        _exit(126);
    _exit(127);
}

static void call_child(const struct pl_child_pipes *p, int (*f)(void *ctx, int fd), void *ctx)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    reset_signals();
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
    _exit(f(ctx, p->out[1]));
}

/* Takes what is there from a stream; closes it at its end. */
static int drain(int *fd, struct pl_buf *buf)
{
    char data[16384];
    ssize_t n = read(*fd, data, sizeof(data));

    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? 0 : -errno;
    if (n == 0) {
        close_fd(fd);
        return 0;
    }
    if (buf->len + (size_t)n > PL_CHILD_OUTPUT_MAX)
        return -EFBIG;
    return pl_buf_add(buf, data, (size_t)n);
}

/* Milliseconds until the first of three: a call of go_on, the notice, the end of the time. */
static unsigned next_ms(const struct pl_child_limits *limits)
{
    unsigned ms = limits->timeout_ms;

    if (limits->go_on)
        ms = PL_MIN(ms, limits->patience_ms);
    return limits->notice ? PL_MIN(ms, limits->notice_ms) : ms;
}

/* Does what is due at `ms`. */
static int
at_limit(struct pl_child_limits *limits, unsigned ms, struct pl_child *child, struct pl_error *err)
{
    int r = 0;

    if (limits->go_on && limits->patience_ms == ms) {
        r = limits->go_on(err);
        limits->go_on = NULL;
    } else if (limits->notice && limits->notice_ms == ms) {
        limits->notice(pl_buf_str(&child->err));
        limits->notice = NULL;
    } else {
        r = -ETIMEDOUT;
    }
    return r;
}

static int collect(struct pl_child_pipes *p,
                   struct pl_child_limits limits,
                   struct pl_child *ret,
                   struct pl_error *err)
{
    uint64_t start = pl_now_ns(), end;
    int r = 0;

    while ((p->out[0] >= 0 || p->err[0] >= 0) && r == 0) {
        struct pollfd fds[] = {{.fd = p->out[0], .events = POLLIN},
                               {.fd = p->err[0], .events = POLLIN}};
        uint64_t now = pl_now_ns();

        end = start + next_ms(&limits) * (uint64_t)1000000;
        if (now >= end) {
            r = at_limit(&limits, next_ms(&limits), ret, err);
            continue;
        }
        if (poll(fds, 2, (int)((end - now) / 1000000u) + 1) < 0 && errno != EINTR)
            return -errno;
        if (fds[0].revents)
            r = drain(&p->out[0], &ret->out);
        if (fds[1].revents && r == 0)
            r = drain(&p->err[0], &ret->err);
    }
    return r;
}

/* Waits until the child has ended; its pipes may have been closed long before. */
static int reap(pid_t pid, unsigned timeout_ms, int *ret_status)
{
    uint64_t now = pl_now_ns(), end = now + timeout_ms * (uint64_t)1000000;
    struct pollfd ended = {.fd = -EBADF, .events = POLLIN};
    int r = 0;

    while (r == 0) {
        pid_t got = waitpid(pid, ret_status, WNOHANG);

        if (got == pid)
            break;
        if (got < 0 && errno != EINTR)
            r = -errno;
        else if (now >= end)
            r = -ETIMEDOUT;
        if (r == 0 && ended.fd < 0)
            ended.fd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (r == 0 && ended.fd >= 0)
            poll(&ended, 1, (int)PL_MIN((end - now) / 1000000 + 1, (uint64_t)INT_MAX));
        else if (r == 0) /* Linux before 5.3 */
            poll(NULL, 0, 1);
        now = pl_now_ns();
    }
    close_fd(&ended.fd);
    return r;
}

/* The parent's part. */
static int follow(struct pl_child_pipes *p,
                  pid_t pid,
                  const char *name,
                  struct pl_child_limits limits,
                  struct pl_child *ret,
                  struct pl_error *err)
{
    struct pl_error why = {0};
    int code = 0, r;

    close_fd(&p->out[1]);
    close_fd(&p->err[1]);
    close_fd(&p->exec_error[1]);
    if (p->exec_error[0] >= 0 && read(p->exec_error[0], &code, sizeof(code)) == sizeof(code)) {
        waitpid(pid, &ret->status, 0);
        return pl_error_errno(err, code, "cannot run '%s'", name);
    }
    r = collect(p, limits, ret, &why);
    if (r == 0)
        r = reap(pid, limits.timeout_ms, &ret->status);
    if (r == 0)
        return 0;
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    reap(pid, KILLED_MS, &ret->status);
    if (why.code)
        return pl_error_set(err, r, "%s", why.text);
    if (r == -ETIMEDOUT)
        return pl_error_set(err, r, "'%s' gave no answer within %u s", name,
                            limits.timeout_ms / 1000);
    return pl_error_errno(err, r, "cannot read what '%s' says", name);
}

int pl_child_start(const char *const *argv,
                   char *const *env,
                   struct pl_child_job *ret,
                   struct pl_error *err)
{
    _cleanup_(pipes_close) struct pl_child_pipes p = PIPES_INIT;
    pid_t pid;

    if (pipe2(p.out, O_CLOEXEC) < 0 || pipe2(p.err, O_CLOEXEC) < 0 ||
        pipe2(p.exec_error, O_CLOEXEC) < 0)
        return pl_error_errno(err, errno, "cannot make a pipe");
    pid = PL_FAULT("fork", EAGAIN) ? -1 : fork();
    if (pid < 0)
        return pl_error_errno(err, errno, "cannot fork");
    if (pid == 0)
        exec_child(&p, argv, env);
    pl_trace("fork", argv[0], NULL, pid);
    close_fd(&p.out[1]);
    close_fd(&p.err[1]);
    close_fd(&p.exec_error[1]);
    *ret = (struct pl_child_job){.pid = pid, .name = argv[0], .pipes = p};
    p = (struct pl_child_pipes)PIPES_INIT; /* the job's now */
    return 0;
}

static int wait_job(struct pl_child_job *job,
                    struct pl_child_limits limits,
                    struct pl_child *ret,
                    struct pl_error *err)
{
    int r = follow(&job->pipes, job->pid, job->name, limits, ret, err);

    pipes_close(&job->pipes);
    return r;
}

int pl_child_wait(struct pl_child_job *job,
                  unsigned timeout_ms,
                  struct pl_child *ret,
                  struct pl_error *err)
{
    return wait_job(job, (struct pl_child_limits){.timeout_ms = timeout_ms}, ret, err);
}

static int run(const char *const *argv,
               char *const *env,
               struct pl_child_limits limits,
               struct pl_child *ret,
               struct pl_error *err)
{
    struct pl_child_job job;
    int r = pl_child_start(argv, env, &job, err);

    return r < 0 ? r : wait_job(&job, limits, ret, err);
}

int pl_child_run(const char *const *argv,
                 char *const *env,
                 unsigned timeout_ms,
                 struct pl_child *ret,
                 struct pl_error *err)
{
    return run(argv, env, (struct pl_child_limits){.timeout_ms = timeout_ms}, ret, err);
}

int pl_child_run_patiently(const char *const *argv,
                           char *const *env,
                           const struct pl_child_limits *limits,
                           struct pl_child *ret,
                           struct pl_error *err)
{
    return run(argv, env, *limits, ret, err);
}

int pl_child_call(int (*f)(void *ctx, int fd),
                  void *ctx,
                  unsigned timeout_ms,
                  struct pl_child *ret,
                  struct pl_error *err)
{
    _cleanup_(pipes_close) struct pl_child_pipes p = PIPES_INIT;
    pid_t pid;

    if (pipe2(p.out, O_CLOEXEC) < 0)
        return pl_error_errno(err, errno, "cannot make a pipe");
    fflush(NULL);
    pid = PL_FAULT("fork", EAGAIN) ? -1 : fork();
    if (pid < 0)
        return pl_error_errno(err, errno, "cannot fork");
    if (pid == 0)
        call_child(&p, f, ctx);
    pl_trace("fork", "call", NULL, pid);
    return follow(&p, pid, "call", (struct pl_child_limits){.timeout_ms = timeout_ms}, ret, err);
}
