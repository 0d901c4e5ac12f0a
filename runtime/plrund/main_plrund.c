/* SPDX-License-Identifier: MIT */
/* plrund(8): the node daemon. Started by plrun of local rank 0, or by the SPANK plugin. */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "common/proto/rank/rank_line.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/gpu_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

struct fds {
    int control, gpus;
};

static const struct pl_option options[] = {
    {"control-fd", 0, "FD", "Options", "socket to whoever starts this daemon (required)",
     PL_OPTION_INT(struct fds, control, 0, 1 << 20)},
    {"watch-gpus", 0, "FD", NULL, "tell the daemon about GPUs, on this pipe",
     PL_OPTION_INT(struct fds, gpus, 0, 1 << 20)},
    {0},
};

static const struct pl_command command = {
    .name = "plrund",
    .synopsis = "--control-fd FD\n--watch-gpus FD",
    .summary = "Serve the ranks of one Slurm step on this node. Started by plrun or by the SPANK "
               "plugin; people do not start it by hand.",
    .options = options,
};

/* One line to the owner: ready, or why not. */
static void tell_owner(int fd, const struct pl_daemon *d, const struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if ((err ? pl_rank_line_failed(&line, pl_error_text(err))
             : pl_rank_line_ready(&line, getpid(), d->socket_path)) < 0 ||
        pl_buf_addc(&line, '\n') < 0)
        return;
    pl_send_fds(fd, line.data, line.len, NULL, 0);
}

/* Seven files a rank pass the usual soft limit of 1024 where a node has many ranks. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* The daemon's child that speaks with the driver; silent, since most machines have none. */
static int watch_gpus(int fd)
{
    struct pl_error err = {0};
    int r;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    r = pl_gpu_watch_run(fd, &err);
    if (r < 0)
        pl_log_debug("gpu", "%s", pl_error_text(&err));
    return r < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

int main(int argc, char **argv)
{
    static const int ignored[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2};
    struct pl_error err = {0};
    struct pl_daemon d;
    struct fds fds = {-1, -1};
    int control_fd, rest, r;
    bool done;

    pl_log_init("plrund");
    r = pl_options_parse(&command, argc, argv, &fds, &rest, &done, &err);
    if (r == 0 && done)
        return PL_EXIT_OK;
    control_fd = fds.control;
    if (r == 0 && ((control_fd < 0) == (fds.gpus < 0) || rest < argc))
        r = pl_error_set(&err, -EINVAL, "needs --control-fd and nothing else: see plrund --help");
    if (r == 0 && fds.gpus >= 0)
        return watch_gpus(fds.gpus);
    if (r == 0 && fcntl(control_fd, F_SETFD, FD_CLOEXEC) < 0)
        r = pl_error_errno(&err, errno, "--control-fd %d", control_fd);
    if (r < 0) {
        pl_log_error("daemon", "%s", pl_error_text(&err));
        return PL_EXIT_USAGE;
    }
    /* Slurm signals every process of a step; the daemon outlives its ranks to tell the tale. */
    for (size_t i = 0; i < PL_COUNT(ignored); i++)
        signal(ignored[i], SIG_IGN);
    raise_file_limit();
    prctl(PR_SET_DUMPABLE, 0); /* it holds the run's secret */
    r = pl_daemon_init(&d, control_fd, &err);
    tell_owner(control_fd, &d, r < 0 ? &err : NULL);
    if (r < 0) {
        if (d.socket_path)
            unlink(d.socket_path);
        pl_daemon_finish(&d);
        return PL_EXIT_FAILED;
    }
    return pl_daemon_run(&d);
}
