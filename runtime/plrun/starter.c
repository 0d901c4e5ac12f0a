/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/starter.h"
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/process.h"
#include "common/base/strv.h"
#include "common/base/trace.h"
#include "common/proto/rank/minijson.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/node/slurm_step.h"
#include "runtime/plrun/container.h"
#include "runtime/plrun/refuser.h"
#include "runtime/plrun/saver.h"
#include "runtime/plrun/term_look.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define READY_MS 20000      /* for the daemon to come up */
#define SOCKET_MS 60000     /* for its socket, seen from the other ranks of the node */
#define LOOK_MS 500         /* between two looks at our own daemon meanwhile */
#define VERDICT_MS 30000    /* from the rank's end to the exit code */
#define SIGNALLED_MS 2000   /* for the daemon's socket once a signal has come */
#define ORPHAN_TERM_MS 1000 /* an orphan of the rank gets SIGTERM, and after this SIGKILL */

struct starter {
    struct pl_slurm_step step;
    struct pl_rank_link link;
    int control_fd; /* to the daemon, where we started it */
    pid_t daemon, child;
    int signal_fd;
    sigset_t old_mask;
    int early_signal; /* it came before the rank's start, and would have ended the program; 0 */
    bool ended, daemon_ended, slurm_signals_all, ignores_hup;
    bool unheard;             /* the daemon has given no verdict */
    struct pl_term_look look; /* how the rank takes SIGTERM */
    int status, code;
};

static const int forwarded_signals[] = {SIGTERM, SIGINT,  SIGHUP,   SIGQUIT, SIGUSR1,
                                        SIGUSR2, SIGALRM, SIGWINCH, SIGTSTP};

/* ---- signals before the rank's start ---- */

/* Before the daemon is started: of a plrun that dies without a word it only knows that its rank has
 * not started, or that it was killed. Under nohup(1) SIGHUP stays ignored. */
static int hold_signals(struct starter *s, struct pl_error *err)
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

/* True once a signal has come that would have ended the program. */
static bool was_signalled(struct starter *s)
{
    struct signalfd_siginfo info;

    while (!s->early_signal && read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGWINCH && info.ssi_signo != SIGTSTP)
            s->early_signal = (int)info.ssi_signo;
    return s->early_signal != 0;
}

/* ---- the daemon ---- */

/* Once per step: by the plrun that starts the daemon of the first node. */
static void warn_of_unknown_variables(void)
{
    char name[128], line[512];
    char *const *entry = environ;
    const char *near;

    while (pl_env_next_unknown(&entry, name, sizeof(name), &near)) {
        pl_env_explain_unknown(name, near, line, sizeof(line));
        pl_log_warn("run", "%s", line);
    }
}

static int start_daemon(struct starter *s, const char *plrund, struct pl_error *err)
{
    struct pl_rank_link control = PL_RANK_LINK_INIT;
    _cleanup_free_ char *line = NULL, *text = NULL;
    int pair[2], r;

    if (s->step.node_id == 0)
        warn_of_unknown_variables();
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

/* The step cannot begin without this node's daemon: the step's hub must hear of it, or, on the
 * first node, all who look for the hub. In this process, since there may be no room for another
 * one. Returns if that cannot be, either. */
static void become_unable(struct starter *s, const char *plrund, const struct pl_error *err)
{
    const char *text = pl_error_text(err);

    if (was_signalled(s))
        return;
    pl_log_error("run", "%s", text);
    pl_close_from(3, NULL, 0);
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
    execl(plrund, "plrund", "--unable", text, (char *)NULL);
    pl_log_error("run", "cannot run '%s': %s", plrund, strerror(errno));
    _exit(PL_EXIT_FAILED);
}

/* Connects to the daemon. If it is ours and ends meanwhile, nobody listens any more. */
static int open_link(struct starter *s, const char *path, struct pl_error *err)
{
    unsigned limit_ms = SOCKET_MS;
    int r = -ETIMEDOUT;

    for (unsigned waited_ms = 0; r == -ETIMEDOUT && waited_ms < limit_ms; waited_ms += LOOK_MS) {
        r = pl_rank_link_open(&s->link, path, LOOK_MS, err);
        if (was_signalled(s))
            limit_ms = PL_MIN(limit_ms, waited_ms + SIGNALLED_MS);
        if (r == 0 || s->daemon <= 0 || waitpid(s->daemon, NULL, WNOHANG) != s->daemon)
            continue;
        s->daemon_ended = true;
        return pl_error_set(err, -ECONNABORTED, "the node daemon has ended");
    }
    return r;
}

/* Counts seconds without a beat of the daemon. Seconds are counted, not measured, since a suspended
 * job is not silent. True at the limit. */
static bool is_silent(unsigned *quiet_s, int poll_result)
{
    if (poll_result > 0)
        *quiet_s = 0;
    else if (poll_result == 0)
        ++*quiet_s;
    return *quiet_s * 1000ull > pl_env_ms(PL_ENV_PLUME_SILENCE);
}

/* Waits for the daemon, which serves the node's other ranks as long as they run. If plrun failed,
 * the daemon is told to leave, and gets a limit. */
static void end_daemon(struct starter *s, bool failed)
{
    uint64_t limit = pl_now_ns() + PL_DAEMON_LEAVE_MS * 1000000ull;
    struct pollfd p = {.fd = s->control_fd, .events = POLLIN};
    _cleanup_close_ int pidfd = -EBADF;
    char beats[4096];
    unsigned quiet_s = 0;

    if (s->daemon <= 0)
        return;
    if (failed)
        shutdown(s->control_fd, SHUT_WR);
    while (!s->daemon_ended && (!failed || pl_now_ns() < limit)) {
        ssize_t n = 1;
        int ready = poll(&p, 1, 1000);

        if (ready > 0)
            n = recv(s->control_fd, beats, sizeof(beats), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            break;
        if (is_silent(&quiet_s, ready))
            kill(s->daemon, SIGKILL);
    }
    if (!s->daemon_ended) /* its socket is closed: it is about to end */
        pidfd = (int)syscall(SYS_pidfd_open, s->daemon, 0);
    for (int i = 0; !s->daemon_ended && waitpid(s->daemon, NULL, WNOHANG) == 0; i++) {
        if (i == 400)
            kill(s->daemon, SIGKILL);
        p = (struct pollfd){.fd = pidfd, .events = POLLIN};
        poll(&p, 1, 5); /* an old kernel has no such descriptor, and sleeps */
    }
    s->daemon_ended = true;
}

/* ---- the program ---- */

/* True if a folder of PATH has a file of this name. */
static bool is_in_path(const char *name)
{
    const char *path = pl_env(PL_ENV_PATH);

    for (const char *p = path ? path : ""; *p; p += strcspn(p, ":"), p += *p == ':') {
        int len = (int)strcspn(p, ":");
        _cleanup_free_ char *file = pl_strf("%.*s/%s", len ? len : 1, len ? p : ".", name);

        if (file && access(file, F_OK) == 0)
            return true;
    }
    return false;
}

/* torchrun takes each of its options from a variable, unless its command line has it. */
static void set_torchrun(void)
{
    static const struct {
        const char *name;
        enum pl_env_id from;
    } of_torchrun[] = {
        {"PET_NNODES", PL_ENV_WORLD_SIZE},
        {"PET_NODE_RANK", PL_ENV_RANK},
        {"PET_MASTER_ADDR", PL_ENV_MASTER_ADDR},
        {"PET_MASTER_PORT", PL_ENV_MASTER_PORT},
    };
    const char *launch = pl_env(PL_ENV_PLUME_LAUNCH);

    if (!launch || strcmp(launch, "torchrun") != 0)
        return;
    for (size_t i = 0; i < PL_COUNT(of_torchrun); i++)
        if (pl_env(of_torchrun[i].from))
            setenv(of_torchrun[i].name, pl_env(of_torchrun[i].from), 1);
    unsetenv("PLUME_LAUNCH"); /* a step of the program's own has other ranks */
}

static int exec_program(char *const *argv)
{
    _cleanup_(pl_strv_freep) char **words = NULL;
    struct pl_error err = {0};
    int error;

    if (pl_container_is_set()) {
        if (pl_container_words(argv, &words, &err) < 0) {
            dprintf(2, "plrun: %s\n", pl_error_text(&err));
            return err.code == -ENOENT ? 127 : 126;
        }
        argv = words;
    }
    execvp(argv[0], argv);
    error = errno;
    /* execvp(3) reports EACCES if it may not search one of the folders and finds nothing. */
    if (error == EACCES && !strchr(argv[0], '/') && !is_in_path(argv[0]))
        error = ENOENT;
    dprintf(2, "plrun: cannot run '%s': %s\n", argv[0], strerror(error));
    return error == ENOENT ? 127 : 126;
}

int pl_starter_exec(char *const *argv)
{
    const char *text = pl_env_text(PL_ENV_PLUME_SAVE_COMMAND);
    _cleanup_free_ char *command = text ? strdup(text) : NULL;

    set_torchrun();
    if (!text)
        return exec_program(argv);
    if (!command) {
        dprintf(2, "plrun: out of memory\n");
        return 126;
    }
    return pl_saver_run(command, argv, exec_program);
}

static void run_child(struct starter *s, char *const *argv, const int pipes[4], bool capture)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a plrun that is killed takes its rank along */
    if (capture) {
        dup2(pipes[1], 1);
        dup2(pipes[3], 2);
    }
    for (size_t i = 0; i < PL_COUNT(forwarded_signals); i++)
        if (forwarded_signals[i] != SIGHUP || !s->ignores_hup)
            signal(forwarded_signals[i], SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
    _exit(pl_starter_exec(argv));
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

static int say_hello(struct starter *s, const int pipes[4], bool capture, struct pl_error *err)
{
    int fds[4] = {pipes[0], STDOUT_FILENO, pipes[2], STDERR_FILENO};

    return pl_rank_link_hello(&s->link, PL_RANK_ROLE_STARTER, s->step.rank, s->step.local_rank,
                              getpid(), true, fds, capture ? 4 : 0, err);
}

/* Waits until the step is complete and sets the rank's environment. A signal that would have ended
 * the program ends the wait: returns 1, and s->code is set. */
static int await_world(struct starter *s, struct pl_error *err)
{
    struct pollfd p[2] = {{.fd = s->signal_fd, .events = POLLIN},
                          {.fd = s->link.fd, .events = POLLIN}};

    for (;;) {
        if (was_signalled(s)) {
            pl_rank_link_signalled(&s->link, s->early_signal, NULL);
            pl_rank_link_exited(&s->link, s->early_signal, false, NULL);
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
static void report_end(struct starter *s)
{
    struct timespec pause = {0, 10000000};

    for (int i = 0; i < 100 && pl_rank_link_exited(&s->link, s->status,
                                                   pl_term_is_default(&s->look), NULL) == -ENOMEM;
         i++)
        nanosleep(&pause, NULL);
}

/* The rank ends before it has begun, as with a program that cannot be run: the daemon must not take
 * plrun's own end for the cause. */
static void cannot_fork(struct starter *s, const char *program, const int pipes[4], bool capture)
{
    dprintf(capture ? pipes[3] : STDERR_FILENO, "plrun: cannot start '%s': %s\n", program,
            strerror(errno));
    s->status = 126 << 8;
    s->ended = true;
    report_end(s);
}

static int spawn(struct starter *s, char *const *argv, const int pipes[4], bool capture)
{
    s->child = PL_FAULT("fork", EAGAIN) ? -1 : fork();
    if (s->child < 0) {
        cannot_fork(s, argv[0], pipes, capture);
        return 0;
    }
    if (s->child == 0)
        run_child(s, argv, pipes, capture);
    pl_trace("fork", argv[0], NULL, s->child);
    return pl_rank_link_spawned(&s->link, s->child, NULL);
}

/* ---- watching it ---- */

/* Slurm's pgid and linuxproc plugins signal every process of a step, its cgroup plugin only the
 * task. In both cases the rank must get each signal once. */
static bool slurm_signals_all(void)
{
    _cleanup_free_ char *text = NULL;

    if (pl_file_read("/proc/self/cgroup", 65536, &text, NULL, NULL) < 0)
        return false;
    return !strstr(text, "/step_") && !strstr(text, "slurmstepd");
}

static void on_signals(struct starter *s)
{
    struct signalfd_siginfo info;

    while (read(s->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        bool from_slurm = (pid_t)info.ssi_pid == getppid();

        if (info.ssi_signo == SIGCHLD)
            continue;
        if (!s->ended && !(from_slurm && s->slurm_signals_all))
            kill(s->child, (int)info.ssi_signo); /* not reaped yet, so it is still ours */
        pl_rank_link_signalled(&s->link, (int)info.ssi_signo, NULL);
    }
}

/* A child that has ended and is not reaped; 0 = none. */
static pid_t ended_child(void)
{
    siginfo_t info = {0};

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ? 0 : info.si_pid;
}

static void reap(struct starter *s)
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
            report_end(s);
        } /* else: an orphan that plrun inherited */
    }
}

/* Sends a signal to each child of plrun except the daemon. Returns their number. */
static unsigned signal_orphans(const struct starter *s, int signal)
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
static void kill_orphans(struct starter *s)
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
static void on_daemon_lost(struct starter *s, const char *what)
{
    pl_rank_link_close(&s->link);
    s->unheard = true;
    pl_log_error("net", "the node daemon %s; %s rank %u", what,
                 s->ended ? "it has not confirmed the end of" : "ending", s->step.rank);
    if (s->ended)
        return;
    pl_process_order(-1, s->child, SIGTERM);
}

/* Reads the daemon's lines. True once it gave its verdict or is gone. */
static bool on_link(struct starter *s)
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

static void watch(struct starter *s)
{
    uint64_t gone_ns = 0;
    unsigned quiet_s = 0, quiet_ms = 0; /* counted: a suspended job is not silent */
    bool verdict = false;

    while (!s->ended || !verdict) {
        struct pollfd p[2] = {{.fd = s->signal_fd, .events = POLLIN},
                              {.fd = s->link.fd, .events = POLLIN}};
        bool had = s->ended, waiting = s->ended || gone_ns;
        int ready = poll(p, 2, waiting ? 100 : 1000);

        if (!s->ended)
            pl_term_look(&s->look, s->child);
        on_signals(s);
        reap(s);
        if (s->ended && !had)
            kill_orphans(s);
        if (s->link.fd >= 0 && on_link(s)) {
            verdict = true;
            gone_ns = pl_now_ns();
        } else if (s->link.fd >= 0 && !waiting && is_silent(&quiet_s, ready)) {
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
        if (gone_ns && !s->ended && pl_now_ns() - gone_ns > 5000000000ull)
            kill(s->child, SIGKILL);
    }
}

static void set_signals_default(void)
{
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int pl_starter_run(char *const *argv, const char *plrund, struct pl_error *err)
{
    struct starter s = {.link = PL_RANK_LINK_INIT, .control_fd = -EBADF, .signal_fd = -EBADF};
    _cleanup_free_ char *path = NULL;
    int pipes[4] = {-EBADF, -EBADF, -EBADF, -EBADF};
    bool no_daemon = false;
    bool capture = !isatty(STDOUT_FILENO) && !isatty(STDERR_FILENO);
    int r = pl_slurm_step_from_env(&s.step, true, err);

    if (r < 0)
        return r;
    set_signals_default();
    s.slurm_signals_all = slurm_signals_all();
    r = pl_rank_socket_path(s.step.id.job, s.step.id.step, s.step.id.attempt, s.step.node_id, &path,
                            err);
    r = PL_MIN(r, 0); /* 1: the daemon tells where its socket is */
    if (r == 0)
        r = hold_signals(&s, err);
    if (r == 0 && s.step.local_rank == 0)
        r = start_daemon(&s, plrund, err);
    no_daemon = r < 0 && s.signal_fd >= 0 && s.step.local_rank == 0;
    if (r == 0)
        r = open_link(&s, path, err);
    if (r < 0 && s.step.local_rank == 0 && path) {
        end_daemon(&s, true);
        pl_refuser_run(path, s.step.local_ntasks - 1, pl_error_text(err));
    }
    if (no_daemon)
        become_unable(&s, plrund, err);
    if (r == 0)
        r = make_pipes(pipes, err);
    if (r == 0)
        r = say_hello(&s, pipes, capture, err);
    if (r == 0) {
        close(PL_TAKE_FD(pipes[0])); /* the daemon has them now */
        close(PL_TAKE_FD(pipes[2]));
        r = await_world(&s, err);
    }
    if (r == 0) {
        r = spawn(&s, argv, pipes, capture);
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
    end_daemon(&s, r < 0);
    if (s.daemon > 0) /* a killed daemon leaves its socket */
        unlink(path);
    return r;
}
