/* SPDX-License-Identifier: MIT */
/* plrund(8): the node daemon. Started by plrun of local rank 0, or by the SPANK plugin. */
#include "common/base/buf.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/parse.h"
#include "common/base/site.h"
#include "common/base/trace.h"
#include "common/proto/rank/rank_line.h"
#include "common/proto/sealed.h"
#include "runtime/node/thread.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/gpu_watch.h"
#include "runtime/plrund/daemon/helper.h"
#include "runtime/plrund/daemon/lifeline.h"
#include "runtime/plrund/daemon/prober.h"
#include "runtime/plrund/daemon/quiet_signals.h"
#include "runtime/plrund/daemon/stack.h"
#include "runtime/plrund/daemon/step_limits.h"
#include "runtime/plrund/hub/hub.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

struct fds {
    int control, gpus, lifeline, helper, prober, stack;
    bool sample;
    const char *unable;
};

static const struct pl_option options[] = {
    {"control-fd", 0, "FD", "Options", "socket to the process that starts this daemon (required)",
     PL_OPTION_INT(struct fds, control, 0, 1 << 20)},
    {"watch-gpus", 0, "FD", NULL, "run as the child that reports GPUs to the daemon, on this pipe",
     PL_OPTION_INT(struct fds, gpus, 0, 1 << 20)},
    {"sample-gpus", 0, NULL, NULL, "print the state of this node's GPUs once, for plstat ghosts",
     PL_OPTION_TRUE(struct fds, sample)},
    {"lifeline", 0, "FD", NULL, "run as the child that ends the ranks if the daemon is killed",
     PL_OPTION_INT(struct fds, lifeline, 0, 1 << 20)},
    {"helper", 0, "FD", NULL, "run as the child that does what the confined daemon may not",
     PL_OPTION_INT(struct fds, helper, 0, 1 << 20)},
    {"unable", 0, "TEXT", NULL,
     "only tell the step's hub that this node cannot serve the step, and why",
     PL_OPTION_STRING(struct fds, unable)},
    {"prober", 0, "FD", NULL, "run as the child that looks at the processes of ranks",
     PL_OPTION_INT(struct fds, prober, 0, 1 << 20)},
    {"stack", 0, "PID", NULL, "print the stacks of a process and its children once",
     PL_OPTION_INT(struct fds, stack, 2, INT32_MAX)},
    {0},
};

static const struct pl_command command = {
    .name = "plrund",
    .synopsis = "--control-fd FD\n--watch-gpus FD\n--sample-gpus\n--lifeline FD\n--helper FD\n"
                "--unable TEXT\n--prober FD\n--stack PID",
    .summary = "Serves the ranks of one Slurm step on this node. plrun or the SPANK plugin starts "
               "it; users do not.",
    .options = options,
};

/* Sends one line to the owner: ready, or the error. */
static void tell_owner(int fd, const struct pl_daemon *d, const struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if ((err ? pl_rank_line_failed(&line, pl_error_text(err))
             : pl_rank_line_ready(&line, getpid(), d->socket_path)) < 0 ||
        pl_buf_addc(&line, '\n') < 0)
        return;
    pl_send_fds(fd, line.data, line.len, NULL, 0);
}

/* A rank takes eight descriptors: many ranks pass the usual soft limit of 1024. */
static void raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* The daemon's child that asks the GPU driver; silent, since most machines have none. */
static int watch_gpus(int fd)
{
    struct pl_error err = {0};
    int r;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pl_ignore_signals_of_step();
    r = pl_gpu_watch_run(fd, &err);
    if (r < 0)
        pl_log_debug("gpu", "%s", pl_error_text(&err));
    return r < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

/* plstat's child that asks the GPU driver, which may block. */
static int sample_gpus(void)
{
    struct pl_error err = {0};
    int r = pl_gpu_watch_sample(STDOUT_FILENO, &err);

    if (r < 0)
        pl_log_error("gpu", "%s", pl_error_text(&err));
    return r == -ENOENT || r == -ENODEV ? PL_EXIT_NOT_FOUND : r < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int run_prober(int fd)
{
    struct pl_error err = {0};
    int r;

    prctl(PR_SET_NAME, "plume-prober");
    r = pl_prober_run(fd, &err);
    return r < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int run_lifeline(int fd)
{
    struct pl_error err = {0};
    int r;

    prctl(PR_SET_NAME, "plume-lifeline");
    r = pl_lifeline_run(fd, &err);
    if (r < 0)
        pl_log_error("child", "lifeline: %s", pl_error_text(&err));
    return r < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int run_helper(int fd)
{
    struct pl_error err = {0};
    int r;

    prctl(PR_SET_NAME, "plume-helper");
    r = pl_helper_run(fd, &err);
    if (r < 0)
        pl_log_error("child", "helper: %s", pl_error_text(&err));
    return r < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
}

/* ---- a node's process: the daemon, and on node 0 the hub ---- */

struct node {
    uv_loop_t *loop;
    struct pl_daemon daemon;
    struct pl_hub *hub; /* NULL on other nodes */
};

static void on_hub_finished(void *ctx)
{
    struct node *n = ctx;

    pl_daemon_release(&n->daemon);
}

static void on_daemon_finished(void *ctx)
{
    struct node *n = ctx;

    pl_hub_close(n->hub);
}

/* Starts the hub and connects it with this node's daemon by a pair; *ret_own is the daemon's end.
 */
static int start_hub(uv_loop_t *loop,
                     const struct pl_slurm_step *step,
                     const unsigned char secret[PL_KEY_SIZE],
                     void (*on_finished)(void *ctx),
                     void *ctx,
                     struct pl_hub **ret,
                     struct pl_hub_conn **ret_own,
                     struct pl_error *err)
{
    json_t *hello = json_pack("{s:s}", "role", "daemon");
    struct pl_hub_conn *ends[2];
    int r = pl_hub_conn_pair(loop, hello, ends);

    json_decref(hello);
    if (r < 0)
        return pl_error_set(err, r, "cannot connect the daemon with its hub");
    r = pl_hub_start(loop, step, secret, on_finished, ctx, ret, err);
    if (r == 0 && (r = pl_hub_add_pair(*ret, ends[0])) < 0)
        pl_error_set(err, r, "out of memory");
    if (r < 0) {
        pl_hub_conn_close(ends[0]);
        pl_hub_conn_close(ends[1]);
        return r;
    }
    *ret_own = ends[1];
    return 0;
}

static int run(struct node *n)
{
    struct pl_daemon *d = &n->daemon;
    struct pl_hub_conn *own = NULL;
    struct pl_error err = {0};
    bool served;
    int r = 0;

    d->on_finished = on_daemon_finished;
    d->ctx = n;
    if (d->step.node_id == 0)
        r = start_hub(n->loop, &d->step, d->secret, on_hub_finished, n, &n->hub, &own, &err);
    if (r == 0)
        r = pl_daemon_start(d, own, &err);
    if (r < 0)
        pl_daemon_on_hub_lost(d, pl_error_text(&err)); /* it refuses its ranks, and ends */
    uv_run(n->loop, UV_RUN_DEFAULT);
    served = d->world != NULL;
    if (pl_thread_is_left()) /* a file system holds it up, and it uses our memory */
        _exit(served ? PL_EXIT_OK : PL_EXIT_FAILED);
    pl_hub_destroy(n->hub);
    pl_daemon_finish(d);
    return served ? PL_EXIT_OK : PL_EXIT_FAILED;
}

/* ---- a node without a daemon: only the hub hears of it, or on node 0 all who come ---- */

struct unable {
    struct pl_slurm_step step;
    unsigned char secret[PL_KEY_SIZE];
    struct pl_uplink *uplink;
    struct pl_hub *hub; /* NULL on other nodes */
};

static void on_unable_answer(void *ctx, json_t *message)
{
    struct unable *u = ctx;
    struct pl_msg m;

    if (pl_msg_read(message, PL_WIRE_HUB_TO_NODE, &m) == 0 && m.type == PL_MSG_HUB_REFUSED)
        pl_uplink_close(u->uplink);
}

static void on_unable_lost(void *ctx, const char *text)
{
    struct unable *u = ctx;

    pl_log_error("net", "%s", text);
    pl_uplink_close(u->uplink);
}

static void on_unable_hub_finished(void *ctx)
{
    struct unable *u = ctx;

    pl_hub_close(u->hub);
}

/* Returns 1 if no hub can hear of it. */
static int join_unable(struct unable *u, uv_loop_t *loop, const char *text, struct pl_error *err)
{
    static const struct pl_uplink_ops ops = {.message = on_unable_answer, .lost = on_unable_lost};
    struct pl_hub_conn *own = NULL;
    enum pl_encrypt encrypt;
    int r = pl_slurm_step_from_env(&u->step, false, err);

    /* That is the reason, which plrun has given, and no session begins: do not wait for one. */
    if (r == 0 && u->step.node_id != 0 && pl_encrypt_read(&encrypt, NULL) < 0)
        return 1;
    if (r == 0)
        r = pl_key_load(u->step.run_dir, u->secret, err);
    if (r == 0 && u->step.node_id == 0)
        r = start_hub(loop, &u->step, u->secret, on_unable_hub_finished, u, &u->hub, &own, err);
    if (r == 0)
        r = pl_uplink_create(loop, &u->step, u->secret, &ops, u, &u->uplink);
    if (r < 0) {
        pl_hub_conn_close(own);
        return err->code ? r : pl_error_nomem(err);
    }
    pl_uplink_unable(u->uplink, text);
    if (own)
        pl_uplink_use(u->uplink, own);
    return own ? 0 : pl_uplink_search(u->uplink, err);
}

static int run_unable(const char *text)
{
    uv_loop_t *loop = uv_default_loop();
    struct unable u = {0};
    struct pl_error err = {0};
    _cleanup_free_ char *valid = pl_buf_dup_text(text); /* it travels as JSON */
    int r;

    r = join_unable(&u, loop, valid ? valid : "?", &err);
    if (r < 0)
        pl_log_error("net", "%s", pl_error_text(&err));
    if (r != 0) {
        pl_uplink_close(u.uplink);
        pl_hub_close(u.hub);
    }
    uv_run(loop, UV_RUN_DEFAULT);
    if (pl_thread_is_left())
        _exit(PL_EXIT_FAILED);
    pl_hub_destroy(u.hub);
    pl_uplink_destroy(u.uplink);
    return PL_EXIT_FAILED;
}

int main(int argc, char **argv)
{
    struct pl_error err = {0};
    struct node n = {.loop = uv_default_loop()};
    struct fds fds = {
        .control = -1, .gpus = -1, .lifeline = -1, .helper = -1, .stack = -1, .prober = -1};
    int control_fd, rest, r;
    bool done;

    pl_std_open();
    pl_child_init();
    pl_log_init("plrund");
    pl_trace_init("plrund");
    if (!n.loop) {
        pl_log_error("child", "no memory for an event loop");
        return PL_EXIT_FAILED;
    }
    r = pl_options_parse(&command, argc, argv, &fds, &rest, &done, &err);
    if (r == 0 && done)
        return PL_EXIT_OK;
    control_fd = fds.control;
    if (r == 0) {
        r = pl_site_load(&err);
        if (r < 0 && control_fd >= 0) /* under the plugin nobody reads the log */
            tell_owner(control_fd, &n.daemon, &err);
    }
    if (r == 0 &&
        ((control_fd >= 0) + (fds.gpus >= 0) + (fds.lifeline >= 0) + (fds.helper >= 0) +
                 (fds.stack >= 0) + (fds.prober >= 0) + fds.sample + (fds.unable != NULL) !=
             1 ||
         rest < argc))
        r = pl_error_set(&err, -EINVAL, "needs --control-fd and nothing else: see plrund --help");
    if (r == 0 && fds.gpus >= 0)
        return watch_gpus(fds.gpus);
    if (r == 0 && fds.sample)
        return sample_gpus();
    if (r == 0 && fds.prober >= 0)
        return run_prober(fds.prober);
    if (r == 0 && fds.stack >= 0) {
        pl_stack_report((pid_t)fds.stack, STDOUT_FILENO);
        return PL_EXIT_OK;
    }
    if (r == 0 && fds.lifeline >= 0)
        return run_lifeline(fds.lifeline);
    if (r == 0 && fds.helper >= 0)
        return run_helper(fds.helper);
    if (r == 0 && fds.unable) {
        pl_ignore_signals_of_step();
        return run_unable(fds.unable);
    }
    if (r == 0 && fcntl(control_fd, F_SETFD, FD_CLOEXEC) < 0)
        r = pl_error_errno(&err, errno, "--control-fd %d", control_fd);
    if (r < 0) {
        pl_log_error("daemon", "%s", pl_error_text(&err));
        return PL_EXIT_USAGE;
    }
    /* Slurm signals every process of a step, and the daemon must report how its ranks ended. A
     * user's limit for the size of files is no reason to end: the write fails. */
    pl_ignore_signals_of_step();
    if (pl_env(PL_ENV_PLUME_PLUGIN)) /* plrun's daemon has them from its task */
        pl_step_limits_apply(environ);
    raise_file_limit();
    prctl(PR_SET_DUMPABLE, 0); /* it holds the run's secret */
    r = pl_daemon_init(&n.daemon, n.loop, control_fd, &err);
    tell_owner(control_fd, &n.daemon, r < 0 ? &err : NULL);
    if (r < 0) {
        if (n.daemon.socket_path)
            unlink(n.daemon.socket_path);
        pl_daemon_finish(&n.daemon);
        return PL_EXIT_FAILED;
    }
    return run(&n);
}
