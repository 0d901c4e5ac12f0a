/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/lifeline.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "runtime/plrund/daemon/quiet_signals.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define BEAT_MS 1000
#define LOOK_MS 100 /* at the ranks that are ended */

struct ranks {
    struct pollfd *fds; /* [0]: the socket; the others: ranks that have not ended */
    size_t n, cap;
    bool silent;      /* the daemon is stopped: its end of our socket is open */
    char socket[160]; /* the daemon's path; "" = not told yet */
    int helper;       /* the daemon's end of its helper's socket; -EBADF = none */
};

static int add_rank(struct ranks *ranks, int pidfd)
{
    if (ranks->n == ranks->cap) {
        size_t cap = PL_MAX(ranks->cap * 2, (size_t)16);
        struct pollfd *grown = realloc(ranks->fds, cap * sizeof(*grown));

        if (!grown) {
            close(pidfd);
            return -ENOMEM;
        }
        ranks->fds = grown;
        ranks->cap = cap;
    }
    ranks->fds[ranks->n++] = (struct pollfd){.fd = pidfd, .events = POLLIN};
    return 0;
}

static void drop_ended(struct ranks *ranks)
{
    for (size_t i = 1; i < ranks->n;) {
        if (ranks->fds[i].revents == 0) {
            i++;
            continue;
        }
        close(ranks->fds[i].fd);
        ranks->fds[i] = ranks->fds[--ranks->n];
    }
}

static void signal_all(const struct ranks *ranks, int signal)
{
    for (size_t i = 1; i < ranks->n; i++)
        pl_process_order(ranks->fds[i].fd, 0, signal);
}

/* The step has failed, and srun knows only how the ranks end: if SIGTERM ends none for certain, as
 * they may save and exit with 0, the last of them gets SIGKILL. One whose save command runs does
 * not: a checkpoint is worth more than a code. */
static void fail_one(const struct ranks *ranks)
{
    int last = -1;

    for (size_t i = 1; i < ranks->n; i++) {
        pid_t pid = pl_process_of_pidfd(ranks->fds[i].fd);

        if (pid > 0 && !pl_process_may_survive(pid, SIGTERM))
            return;
        if (pid > 0 && !pl_process_saves(pid))
            last = ranks->fds[i].fd;
    }
    if (last >= 0)
        pl_process_order(last, 0, SIGKILL);
}

/* One packet. False once the daemon is gone. */
static bool hear(struct ranks *ranks)
{
    char packet[160];
    int pidfd = -EBADF;
    size_t n_fds = 0;
    ssize_t n = pl_recv_fds(ranks->fds[0].fd, packet, sizeof(packet), &pidfd, 1, &n_fds);

    if (n == -EAGAIN || n == -EINTR)
        return true;
    if (n > 1 && packet[0] == PL_LIFELINE_SOCKET)
        snprintf(ranks->socket, sizeof(ranks->socket), "%.*s", (int)n - 1, packet + 1);
    if (n_fds && n > 0 && packet[0] == PL_LIFELINE_HELPER && ranks->helper < 0)
        ranks->helper = pidfd;
    else if (n_fds && (n <= 0 || packet[0] != PL_LIFELINE_RANK))
        close(pidfd);
    else if (n_fds && add_rank(ranks, pidfd) < 0)
        pl_log_error("child", "out of memory: a rank is not guarded");
    return n > 0;
}

/* Waits for the daemon's end, or its silence. Quiet seconds are counted, not measured: this process
 * may have been suspended, and the daemon with it. Returns 0, or -errno. */
static int watch(struct ranks *ranks)
{
    unsigned limit_s = PL_MAX(pl_env_ms(PL_ENV_PLUME_SILENCE) / 1000u, 1u), quiet_s = 0;

    while (quiet_s <= limit_s) {
        int ready = poll(ranks->fds, ranks->n, BEAT_MS);

        if (ready < 0 && errno != EINTR)
            return -errno;
        if (ready == 0)
            quiet_s++;
        if (ready <= 0)
            continue;
        drop_ended(ranks);
        if (!ranks->fds[0].revents)
            continue;
        quiet_s = 0;
        if (!hear(ranks))
            return 0;
    }
    ranks->silent = true;
    return 0;
}

/* The process that made our socket. Its pid is not reused as long as its end is open. */
static int open_daemon(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.pid <= 1)
        return -EBADF;
    return (int)syscall(SYS_pidfd_open, cred.pid, 0);
}

/* SIGKILL to the ranks that do not save. Returns whether others are left. */
static bool kill_idle(const struct ranks *ranks)
{
    bool saves = false;

    for (size_t i = 1; i < ranks->n; i++) {
        if (pl_process_saves(pl_process_of_pidfd(ranks->fds[i].fd)))
            saves = true;
        else
            pl_process_order(ranks->fds[i].fd, 0, SIGKILL);
    }
    return saves;
}

static void end_ranks(struct ranks *ranks)
{
    uint64_t now = pl_now_ns(), limit = now + pl_env_ms(PL_ENV_PLUME_KILL_GRACE) * 1000000ull;
    uint64_t save_limit =
        now + (pl_env_ms(PL_ENV_PLUME_SAVE_GRACE) + (uint64_t)PL_SAVE_END_MS) * 1000000u;

    fail_one(ranks);
    signal_all(ranks, SIGTERM);
    while (ranks->n > 1 && (now < limit || (now < save_limit && kill_idle(ranks)))) {
        poll(ranks->fds + 1, ranks->n - 1, LOOK_MS);
        drop_ended(ranks);
        now = pl_now_ns();
    }
    signal_all(ranks, SIGKILL);
}

int pl_lifeline_run(int fd, struct pl_error *err)
{
    _cleanup_close_ int daemon = open_daemon(fd);
    struct ranks ranks = {.helper = -EBADF};
    int r;

    prctl(PR_SET_PDEATHSIG, SIGCONT); /* one that somebody has stopped goes on */
    pl_ignore_signals_of_step();
    r = add_rank(&ranks, fd); /* the first of the list is the socket */
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    r = watch(&ranks);
    if (ranks.n > 1)
        pl_log_error("child", "the node daemon is gone or stopped: ending its %zu ranks",
                     ranks.n - 1);
    if (ranks.silent)
        pl_send_fds(fd, &(char){PL_LIFELINE_GIVEN_UP}, 1, NULL, 0);
    end_ranks(&ranks);
    if (ranks.silent && daemon >= 0)
        syscall(SYS_pidfd_send_signal, daemon, SIGKILL, NULL, 0);
    if (ranks.socket[0])
        unlink(ranks.socket);
    for (size_t i = 0; i < ranks.n; i++)
        close(ranks.fds[i].fd);
    free(ranks.fds);
    pl_closep(&ranks.helper);
    prctl(PR_SET_PDEATHSIG, 0); /* LeakSanitizer stops a process that exits, and waits for that */
    return r < 0 ? pl_error_errno(err, r, "cannot wait") : 0;
}
