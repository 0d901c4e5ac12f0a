/* SPDX-License-Identifier: MIT */
/* The starter's work around its rank: it holds signals, starts the node's daemon, connects to it,
 * and waits for its end. */
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/proto/rank/minijson.h"
#include "runtime/plrun/starter_private.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define READY_MS 20000    /* for the daemon to come up */
#define SOCKET_MS 60000   /* for its socket, seen from the other ranks of the node */
#define LOOK_MS 500       /* between two looks at our own daemon meanwhile */
#define SIGNALLED_MS 2000 /* for the daemon's socket once a signal has come */

static const int forwarded_signals[] = {SIGTERM, SIGINT,   SIGHUP,  SIGQUIT,   SIGUSR1, SIGUSR2,
                                        SIGALRM, SIGABRT,  SIGXCPU, SIGVTALRM, SIGPROF, SIGIO,
                                        SIGPWR,  SIGWINCH, SIGTSTP, SIGCONT};

/* ---- signals before the rank's start ---- */

int pl_starter_hold_signals(struct pl_starter *s, struct pl_error *err)
{
    struct sigaction hup;
    sigset_t mask;

    s->ignores_hup = sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler == SIG_IGN;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < PL_COUNT(forwarded_signals); i++)
        if (forwarded_signals[i] != SIGHUP || !s->ignores_hup)
            sigaddset(&mask, forwarded_signals[i]);
    sigprocmask(SIG_BLOCK, &mask, &s->old_mask);
    s->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? pl_error_errno(err, errno, "cannot wait for signals") : 0;
}

void pl_starter_release_signals(const struct pl_starter *s)
{
    for (size_t i = 0; i < PL_COUNT(forwarded_signals); i++)
        if (forwarded_signals[i] != SIGHUP || !s->ignores_hup)
            signal(forwarded_signals[i], SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
}

bool pl_starter_was_signalled(struct pl_starter *s)
{
    struct signalfd_siginfo info;

    while (!s->early_signal && read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGWINCH && info.ssi_signo != SIGTSTP &&
            info.ssi_signo != SIGCONT) {
            s->early_signal = (int)info.ssi_signo;
            s->early_sender = (pid_t)info.ssi_pid;
        }
    return s->early_signal != 0;
}

/* ---- the daemon ---- */

/* Once per step: by the plrun that starts the daemon of the first node. */
static void warn_of_variables(void)
{
    char name[128], line[512];
    char *const *entry = environ;
    enum pl_env_id id = PL_ENV_NONE;
    const char *near;

    while (pl_env_next_no_seconds(&id, line, sizeof(line)))
        pl_log_warn("run", "%s", line);
    while (pl_env_next_unknown(&entry, name, sizeof(name), &near)) {
        pl_env_explain_unknown(name, near, line, sizeof(line));
        pl_log_warn("run", "%s", line);
    }
}

int pl_starter_start_daemon(struct pl_starter *s, const char *plrund, struct pl_error *err)
{
    struct pl_rank_link control = PL_RANK_LINK_INIT;
    _cleanup_free_ char *line = NULL, *text = NULL;
    int pair[2], r;

    if (s->step.node_id == 0)
        warn_of_variables();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pl_error_errno(err, errno, "cannot make a socket");
    s->daemon = PL_FAULT("fork", EAGAIN) ? -1 : fork();
    if (s->daemon < 0) {
        close(pair[0]);
        close(pair[1]);
        return pl_error_errno(err, errno, "cannot start the node daemon");
    }
    if (s->daemon == 0) {
        int null = open("/dev/null", O_RDWR);

        /* stderr stays open for the daemon's messages. */
        dup2(null, 0);
        dup2(null, 1);
        dup2(pair[1], 3);
        pl_close_from(4, NULL, 0);
        setsid();
        sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
        execl(plrund, "plrund", "--control-fd", "3", (char *)NULL);
        dprintf(3, "{\"type\":\"failed\",\"text\":\"cannot run plrund\"}\n");
        _exit(127);
    }
    pl_trace("fork", "plrund", NULL, s->daemon);
    close(pair[1]);
    s->control_fd = pair[0];
    control.fd = pair[0];
    r = pl_rank_link_recv(&control, READY_MS, &line, err);
    pl_buf_finish(&control.in);
    if (r < 0)
        return pl_error_wrap(err, r, "the node daemon (%s) did not start", plrund);
    if (pl_mini_is(line, "ready"))
        return 0;
    pl_mini_get_string(line, "text", &text);
    return pl_error_set(err, -ECONNABORTED, "%s", text ? text : "the node daemon did not start");
}

void pl_starter_become_unable(struct pl_starter *s, const char *plrund, const struct pl_error *err)
{
    const char *text = pl_error_text(err);

    if (pl_starter_was_signalled(s))
        return;
    pl_log_error("run", "%s", text);
    pl_close_from(3, NULL, 0);
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
    execl(plrund, "plrund", "--unable", text, (char *)NULL);
    pl_log_error("run", "cannot run '%s': %s", plrund, strerror(errno));
    _exit(PL_EXIT_FAILED);
}

int pl_starter_open_link(struct pl_starter *s, const char *path, struct pl_error *err)
{
    unsigned limit_ms = SOCKET_MS;
    int r = -ETIMEDOUT;

    for (unsigned waited_ms = 0; r == -ETIMEDOUT && waited_ms < limit_ms; waited_ms += LOOK_MS) {
        r = pl_rank_link_open(&s->link, path, LOOK_MS, err);
        if (pl_starter_was_signalled(s))
            limit_ms = PL_MIN(limit_ms, waited_ms + SIGNALLED_MS);
        if (r == 0 || s->daemon <= 0 || waitpid(s->daemon, NULL, WNOHANG) != s->daemon)
            continue;
        s->daemon_ended = true;
        return pl_error_set(err, -ECONNABORTED, "the node daemon has ended");
    }
    return r;
}

bool pl_starter_is_silent(unsigned *quiet_s, int poll_result)
{
    if (poll_result > 0)
        *quiet_s = 0;
    else if (poll_result == 0)
        ++*quiet_s;
    return *quiet_s * 1000ull > pl_env_ms(PL_ENV_PLUME_SILENCE);
}

/* Reads the daemon's lines up to its end. failed: it has been told to leave, and gets a limit. */
static void follow_daemon(struct pl_starter *s, bool failed)
{
    uint64_t limit = pl_now_ns() + PL_DAEMON_LEAVE_MS * 1000000ull;
    struct pl_rank_link control = PL_RANK_LINK_INIT;
    unsigned quiet_s = 0;

    control.fd = s->control_fd;
    while (!failed || pl_now_ns() < limit) {
        _cleanup_free_ char *line = NULL;
        int r = pl_rank_link_recv(&control, s->daemon_ended ? 0 : 1000, &line, NULL);
        int64_t code;

        if (r == -ENOMEM && !s->daemon_ended) /* a moment without memory is borne */
            poll(NULL, 0, 10);
        else if (r < 0 && (r != -ETIMEDOUT || s->daemon_ended))
            break;
        if (r == 0 && pl_mini_is(line, "verdict") && pl_mini_get_int(line, "code", &code) == 0)
            s->step_code = (int)code;
        if (r != -ENOMEM && pl_starter_is_silent(&quiet_s, r == 0))
            kill(s->daemon, SIGKILL);
    }
    pl_buf_finish(&control.in);
}

void pl_starter_end_daemon(struct pl_starter *s, bool failed)
{
    struct pollfd p = {.events = POLLIN};
    _cleanup_close_ int pidfd = -EBADF;

    if (s->daemon <= 0)
        return;
    if (failed)
        shutdown(s->control_fd, SHUT_WR);
    follow_daemon(s, failed);
    if (!s->daemon_ended) /* its socket is closed: it is about to end */
        pidfd = (int)syscall(SYS_pidfd_open, s->daemon, 0);
    for (int i = 0; !s->daemon_ended && waitpid(s->daemon, NULL, WNOHANG) == 0; i++) {
        if (i == 400)
            kill(s->daemon, SIGKILL);
        p.fd = pidfd;
        poll(&p, 1, 5); /* an old kernel has no such descriptor, and sleeps */
    }
    s->daemon_ended = true;
}
