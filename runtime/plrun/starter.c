/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/starter.h"
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/process.h"
#include "common/base/trace.h"
#include "common/proto/rank/minijson.h"
#include "runtime/plrun/program.h"
#include "runtime/plrun/refuser.h"
#include "runtime/plrun/starter_private.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>

#define VERDICT_MS 30000    /* from the rank's end to the exit code */
#define ORPHAN_TERM_MS 1000 /* an orphan of the rank gets SIGTERM, and after this SIGKILL */

/* ---- the program ---- */

static void run_child(struct pl_starter *s, char *const *argv, const int pipes[4])
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a plrun that is killed takes its rank along */
    if (pipes[1] >= 0)
        dup2(pipes[1], 1);
    if (pipes[3] >= 0)
        dup2(pipes[3], 2);
    pl_starter_release_signals(s);
    _exit(pl_program_exec(argv));
}

/* Pipes for fds 1 and 2: {out_read, out_write, err_read, err_write}. */
static int make_pipes(int pipes[4], struct pl_error *err)
{
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return pl_error_errno(err, errno, "cannot make a pipe");
    if (pipe2(pipes + 2, O_CLOEXEC) < 0) {
        close(pipes[0]);
        close(pipes[1]);
        return pl_error_errno(err, errno, "cannot make a pipe");
    }
    return 0;
}

static void close_pipes(int pipes[4])
{
    for (int i = 0; i < 4; i++)
        if (pipes[i] >= 0)
            close(PL_TAKE_FD(pipes[i]));
}

/* The rank keeps a terminal. The daemon then gets a pipe that is at its end already, so that the
 * other stream (srun -u: stdout is a terminal, stderr is not) is captured. */
static void keep_terminals(int pipes[4])
{
    for (int i = 0; i < 2; i++)
        if (isatty(i + 1))
            close(PL_TAKE_FD(pipes[2 * i + 1]));
}

static int say_hello(struct pl_starter *s, const int pipes[4], struct pl_error *err)
{
    _cleanup_close_ int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int fds[4] = {pipes[0], pipes[1] >= 0 ? STDOUT_FILENO : null, pipes[2],
                  pipes[3] >= 0 ? STDERR_FILENO : null};
    bool capture = pipes[1] >= 0 || pipes[3] >= 0;

    return pl_rank_link_hello(&s->link, PL_RANK_ROLE_STARTER, s->step.rank, s->step.local_rank,
                              getpid(), true, fds, capture ? 4 : 0, err);
}

/* Waits until the step is complete and sets the rank's environment. A signal that would have ended
 * the program ends the wait: returns 1, and s->code is set. */
static int await_world(struct pl_starter *s, struct pl_error *err)
{
    struct pollfd p[2] = {{.fd = s->signal_fd, .events = POLLIN},
                          {.fd = s->link.fd, .events = POLLIN}};

    for (;;) {
        if (pl_starter_was_signalled(s)) {
            pl_rank_link_signalled(&s->link, s->early_signal, s->early_sender, NULL);
            pl_rank_link_exited(&s->link, s->early_signal, -1, NULL);
            s->code = 128 + s->early_signal;
            return 1;
        }
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return pl_error_errno(err, errno, "cannot wait for the node daemon");
        if (p[1].revents)
            return pl_rank_link_world(&s->link, UINT_MAX, NULL, NULL, err);
    }
}

/* The daemon waits for this: a moment without memory is borne. */
static void report_end(struct pl_starter *s)
{
    struct timespec pause = {0, 10000000};

    for (int i = 0; i < 100 && pl_rank_link_exited(&s->link, s->status, pl_term_default(&s->look),
                                                   NULL) == -ENOMEM;
         i++)
        nanosleep(&pause, NULL);
}

/* The rank ends before it has begun, as with a program that cannot be run: the daemon must not take
 * plrun's own end for the cause. */
static void cannot_fork(struct pl_starter *s, const char *program, const int pipes[4])
{
    dprintf(pipes[3] >= 0 ? pipes[3] : STDERR_FILENO, "plrun: cannot start '%s': %s\n", program,
            strerror(errno));
    s->status = 126 << 8;
    s->ended = true;
    report_end(s);
}

static int spawn(struct pl_starter *s, char *const *argv, const int pipes[4])
{
    pl_senders_before_fork(&s->senders);
    s->child = PL_FAULT("fork", EAGAIN) ? -1 : fork();
    if (s->child < 0) {
        cannot_fork(s, argv[0], pipes);
        return 0;
    }
    if (s->child == 0)
        run_child(s, argv, pipes);
    pl_trace("fork", argv[0], NULL, s->child);
    return pl_rank_link_spawned(&s->link, s->child, NULL);
}

/* ---- watching it ---- */

static void on_signals(struct pl_starter *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        if (!s->ended && !pl_senders_reach(&s->senders, info.ssi_code, (pid_t)info.ssi_pid,
                                           (int)info.ssi_signo, s->child))
            kill(s->child, (int)info.ssi_signo); /* not reaped yet, so it is still ours */
        pl_rank_link_signalled(&s->link, (int)info.ssi_signo, (pid_t)info.ssi_pid, NULL);
    }
}

/* A child that has ended and is not reaped; 0 = none. */
static pid_t ended_child(void)
{
    siginfo_t info = {0};

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ? 0 : info.si_pid;
}

static void reap(struct pl_starter *s)
{
    int status;
    pid_t pid;

    while ((pid = ended_child()) > 0) {
        if (pid == s->child)
            pl_term_look_last(&s->look, pid);
        if (waitpid(pid, &status, WNOHANG) != pid)
            return;
        if (pid == s->daemon) {
            s->daemon_ended = true;
        } else if (pid == s->child) {
            s->ended = true;
            s->status = status;
            s->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            if (!s->stepd_gone)
                report_end(s);
        } /* else: an orphan that plrun inherited */
    }
}

/* Sends a signal to each child of plrun except the daemon. Returns their number. */
static unsigned signal_orphans(const struct pl_starter *s, int signal)
{
    _cleanup_free_ char *path = pl_strf("/proc/self/task/%d/children", (int)getpid());
    _cleanup_free_ char *text = NULL;
    char *word, *rest;
    unsigned n = 0;
    int64_t pid;

    if (!path || pl_file_read(path, 1 << 20, &text, NULL, NULL) < 0)
        return 0;
    for (word = strtok_r(text, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        if (pl_parse_int(word, 2, INT32_MAX, &pid, NULL) < 0 || (pid_t)pid == s->daemon)
            continue;
        kill((pid_t)pid, signal); /* an unreaped child: its pid is not reused */
        n++;
    }
    return n;
}

/* plrun is the subreaper of everything that the rank started, so nothing of it escapes. */
static void kill_orphans(struct pl_starter *s)
{
    uint64_t start = pl_now_ns();
    struct timespec pause = {0, 2000000};

    reap(s);
    if (!signal_orphans(s, SIGTERM))
        return;
    while (pl_now_ns() - start < 10000000000ull) {
        bool late = pl_now_ns() - start > ORPHAN_TERM_MS * 1000000ull;

        nanosleep(&pause, NULL);
        reap(s);
        /* Each that dies may leave its children to plrun. */
        if (!signal_orphans(s, late ? SIGKILL : 0))
            return;
    }
    pl_log_warn("child", "processes of rank %u could not be ended", s->step.rank);
}

/* Without its daemon nobody records what the rank does: it is ended. */
static void on_daemon_lost(struct pl_starter *s, const char *what)
{
    pl_rank_link_close(&s->link);
    s->unheard = true;
    pl_log_error("net", "the node daemon %s; %s rank %u", what,
                 s->ended ? "it has not confirmed the end of" : "ending", s->step.rank);
    if (s->ended)
        return;
    pl_process_order(-1, s->child, SIGTERM);
}

/* Slurm neither ends nor counts the processes of a step whose slurmstepd was killed, and nobody
 * sees what the rank writes: it is ended. */
static void on_stepd_gone(struct pl_starter *s)
{
    pl_closep(&s->senders.stepd_fd);
    s->senders.stepd_fd = -EBADF;
    s->stepd_gone = true;
    pl_log_error("child", "slurmstepd was killed; ending rank %u", s->step.rank);
    pl_process_order(-1, s->child, SIGTERM);
}

/* Reads the daemon's lines. True once it gave its verdict or is gone. */
static bool on_link(struct pl_starter *s)
{
    int64_t n;

    for (;;) {
        _cleanup_free_ char *line = NULL;
        int r = pl_rank_link_recv(&s->link, 0, &line, NULL);

        if (r == -ETIMEDOUT)
            return false;
        if (r < 0)
            break;
        if (pl_mini_is(line, "signal") && pl_mini_get_int(line, "signal", &n) == 0 && !s->ended)
            pl_process_order(-1, s->child, (int)n);
        if (pl_mini_is(line, "verdict") && pl_mini_get_int(line, "code", &n) == 0) {
            s->code = (int)n;
            return true;
        }
    }
    on_daemon_lost(s, "is gone");
    return true;
}

static void watch(struct pl_starter *s)
{
    uint64_t gone_ns = 0, grace_ns = pl_env_ms(PL_ENV_PLUME_KILL_GRACE) * 1000000ull;
    uint64_t save_ns = (pl_env_ms(PL_ENV_PLUME_SAVE_GRACE) + (uint64_t)PL_SAVE_END_MS) * 1000000u;
    unsigned quiet_s = 0, quiet_ms = 0; /* counted: a suspended job is not silent */
    bool verdict = false;

    while (!s->ended || !verdict) {
        struct pollfd p[3] = {{.fd = s->signal_fd, .events = POLLIN},
                              {.fd = s->link.fd, .events = POLLIN},
                              {.fd = s->senders.stepd_fd, .events = POLLIN}};
        bool had = s->ended, waiting = s->ended || gone_ns;
        int ready = poll(p, 3, waiting ? 100 : 1000);

        if (!s->ended)
            pl_term_look(&s->look, s->child);
        on_signals(s);
        reap(s);
        if (s->ended && !had)
            kill_orphans(s);
        if (p[2].revents && !s->ended) {
            on_stepd_gone(s);
            gone_ns = pl_now_ns();
        }
        if (s->stepd_gone && s->ended) /* the daemon takes it for our end, and records that */
            return;
        if (s->link.fd >= 0 && on_link(s)) {
            verdict = true;
            gone_ns = pl_now_ns();
        } else if (s->link.fd >= 0 && !waiting && pl_starter_is_silent(&quiet_s, ready)) {
            on_daemon_lost(s, "does not answer");
            if (s->daemon > 0) /* it does not serve the node's other ranks either */
                kill(s->daemon, SIGKILL);
            verdict = true;
            gone_ns = pl_now_ns();
        }
        quiet_ms += had && ready == 0 ? 100 : 0;
        if (s->ended && !verdict && quiet_ms > VERDICT_MS) {
            on_daemon_lost(s, "does not answer");
            return;
        }
        if (gone_ns && !s->ended && pl_now_ns() - gone_ns > grace_ns &&
            (pl_now_ns() - gone_ns > save_ns || !pl_process_saves(s->child)))
            kill(s->child, SIGKILL);
    }
}

static void set_signals_default(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* our message may find the job's output as large as it may be */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int pl_starter_run(char *const *argv, const char *plrund, struct pl_error *err)
{
    struct pl_starter s = {.link = PL_RANK_LINK_INIT, .control_fd = -EBADF, .signal_fd = -EBADF};
    _cleanup_free_ char *path = NULL;
    int pipes[4] = {-EBADF, -EBADF, -EBADF, -EBADF};
    bool no_daemon = false;
    int r = pl_slurm_step_from_env(&s.step, true, err);

    if (r < 0)
        return r;
    set_signals_default();
    pl_senders_find(&s.senders);
    r = pl_rank_socket_path(s.step.id.job, s.step.id.step, s.step.id.attempt, s.step.node_id, &path,
                            err);
    r = PL_MIN(r, 0); /* 1: the daemon tells where its socket is */
    if (r == 0)
        r = pl_starter_hold_signals(&s, err);
    if (r == 0 && s.step.local_rank == 0)
        r = pl_starter_start_daemon(&s, plrund, err);
    no_daemon = r < 0 && s.signal_fd >= 0 && s.step.local_rank == 0;
    if (r == 0)
        r = pl_starter_open_link(&s, path, err);
    if (r < 0 && s.step.local_rank == 0 && path) {
        pl_starter_end_daemon(&s, true);
        pl_refuser_run(path, s.step.local_ntasks - 1, pl_error_text(err));
    }
    if (no_daemon)
        pl_starter_become_unable(&s, plrund, err);
    if (r == 0)
        r = make_pipes(pipes, err);
    if (r == 0) {
        keep_terminals(pipes);
        r = say_hello(&s, pipes, err);
    }
    if (r == 0) {
        close(PL_TAKE_FD(pipes[0])); /* the daemon has them now */
        close(PL_TAKE_FD(pipes[2]));
        r = await_world(&s, err);
    }
    if (r == 0) {
        r = spawn(&s, argv, pipes);
        if (r < 0)
            pl_error_errno(err, r, "cannot start '%s'", argv[0]);
    }
    close_pipes(pipes); /* the daemon waits for their end */
    if (r == 0)
        watch(&s);
    if (r >= 0)
        r = s.code;
    if (r == 0 && s.unheard) /* the rank may have failed in the log, or nobody wrote one */
        r = PL_EXIT_FAILED;
    if (r < 0 && s.early_signal) /* no daemon to tell it to */
        r = 128 + s.early_signal;
    pl_rank_link_close(&s.link);
    pl_closep(&s.senders.stepd_fd);
    pl_starter_end_daemon(&s, r < 0);
    if (r == 0)
        r = s.step_code;
    if (s.daemon > 0) /* a killed daemon leaves its socket */
        unlink(path);
    return r;
}
