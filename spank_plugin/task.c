/* SPDX-License-Identifier: MIT */
#include "spank_plugin/task.h"
#include "common/proto/rank/rank_link.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#define CONNECT_MS 5000

/* Pipes for fds 1 and 2. A terminal keeps its fd; the daemon then gets a pipe that is at its end
 * already, so that its other stream (srun -u: stdout is a terminal, stderr is not) is captured. */
struct capture {
    int read_end[2], write_end[2]; /* by fd - 1 */
    bool terminal[2];
};

static void capture_finish(struct capture *c)
{
    for (int i = 0; i < 2; i++) {
        pl_closep(&c->read_end[i]);
        pl_closep(&c->write_end[i]);
    }
}

static int capture_init(struct capture *c, struct pl_error *err)
{
    *c = (struct capture){.read_end = {-EBADF, -EBADF}, .write_end = {-EBADF, -EBADF}};
    for (int i = 0; i < 2; i++)
        c->terminal[i] = isatty(i + 1) || fcntl(i + 1, F_GETFD) < 0;
    if (c->terminal[0] && c->terminal[1])
        return 0;
    for (int i = 0; i < 2; i++) {
        int ends[2];

        if (pipe2(ends, O_CLOEXEC) < 0) {
            pl_error_errno(err, errno, "cannot make a pipe");
            capture_finish(c);
            return err ? err->code : -EMFILE;
        }
        c->read_end[i] = ends[0];
        c->write_end[i] = ends[1];
        if (c->terminal[i])
            pl_closep(&c->write_end[i]), c->write_end[i] = -EBADF;
    }
    return 0;
}

static int greet(struct pl_rank_link *link,
                 const struct capture *c,
                 unsigned rank,
                 unsigned local_rank,
                 struct pl_error *err)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC), r;
    int fds[4] = {c->read_end[0], c->terminal[0] ? null : STDOUT_FILENO, c->read_end[1],
                  c->terminal[1] ? null : STDERR_FILENO};
    bool any = !(c->terminal[0] && c->terminal[1]);

    r = pl_rank_link_hello(link, PL_RANK_ROLE_STARTER, rank, local_rank, getpid(), false, fds,
                           any ? 4 : 0, err);
    pl_closep(&null);
    return r;
}

static int put(const struct capture *c, struct pl_error *err)
{
    int saved = -EBADF, r = 0;

    if (c->write_end[0] >= 0) {
        saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        if (saved < 0 || dup2(c->write_end[0], STDOUT_FILENO) < 0)
            r = -errno;
    }
    if (r == 0 && c->write_end[1] >= 0 && dup2(c->write_end[1], STDERR_FILENO) < 0) {
        r = -errno;
        if (saved >= 0)
            (void)dup2(saved, STDOUT_FILENO);
    }
    pl_closep(&saved);
    return r < 0 ? pl_error_errno(err, r, "cannot redirect the output") : 0;
}

/* Slurm 24.11 starts a task with slurmstepd's handlers, which do nothing in it: without this, a
 * task that waits for the world stays until the SIGKILL after KillWait. */
static const int ending_signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};

struct dispositions {
    struct sigaction of[PL_COUNT(ending_signals)];
};

static void let_signals_end(struct dispositions *ret_old)
{
    for (size_t i = 0; i < PL_COUNT(ending_signals); i++) {
        sigaction(ending_signals[i], NULL, &ret_old->of[i]);
        if (ret_old->of[i].sa_handler != SIG_IGN)
            signal(ending_signals[i], SIG_DFL);
    }
}

static void restore_signals(const struct dispositions *old)
{
    for (size_t i = 0; i < PL_COUNT(ending_signals); i++)
        sigaction(ending_signals[i], &old->of[i], NULL);
}

int pl_task_join(const char *socket,
                 unsigned rank,
                 unsigned local_rank,
                 unsigned timeout_ms,
                 int (*set)(void *ctx, const char *name, const char *value, bool overwrite),
                 void *ctx,
                 struct pl_error *err)
{
    _cleanup_(pl_rank_link_close) struct pl_rank_link link = PL_RANK_LINK_INIT;
    _cleanup_(capture_finish) struct capture capture;
    struct dispositions signals;
    char name[16] = "";
    int r = capture_init(&capture, err);

    if (r < 0)
        return r;
    /* proctrack/linuxproc takes a process named as slurmstepd for slurmstepd and does not signal
     * it: a cancelled step would hang until we are done, and after a minute drain the node. */
    prctl(PR_GET_NAME, name);
    prctl(PR_SET_NAME, "plume-task");
    let_signals_end(&signals);
    r = pl_rank_link_open(&link, socket, CONNECT_MS, err);
    if (r == 0)
        r = greet(&link, &capture, rank, local_rank, err);
    /* From now on only the daemon reads the pipes: a dead one is seen as EPIPE, not as a hang. */
    for (int i = 0; i < 2; i++) {
        pl_closep(&capture.read_end[i]);
        capture.read_end[i] = -EBADF;
    }
    if (r == 0)
        r = pl_rank_link_world(&link, timeout_ms, set, ctx, err);
    if (r == 0)
        r = put(&capture, err);
    restore_signals(&signals);
    prctl(PR_SET_NAME, name);
    return r;
}
