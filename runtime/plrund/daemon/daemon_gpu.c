/* SPDX-License-Identifier: MIT */
/* The node's GPUs: a child process asks the driver (gpu_watch.h), this file replaces processes by
 * ranks and tells the hub. Processes of others are left out. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "common/base/trace.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/gpu_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>

#define LINE_MAX_BYTES ((size_t)1024 * 1024)
#define PARENTS_MAX 64

struct pl_daemon_gpu {
    struct pl_daemon *daemon;
    uv_process_t process;
    uv_poll_t poll;
    int fd;
    struct pl_buf in;
    json_t *last; /* the newest sample, with ranks */
    bool alive;   /* not reaped */
    unsigned handles;
};

/* ---- from processes to ranks ---- */

/* The rank whose program this process is, or descends from; NULL for others. */
static const struct pl_rank *owner_of(const struct pl_daemon *d, pid_t pid)
{
    struct pl_process_stat stat;

    for (int depth = 0; pid > 1 && depth < PARENTS_MAX; depth++) {
        for (unsigned i = 0; i < d->n_present; i++)
            if (d->ranks[i].running && d->ranks[i].pid == pid) /* else the pid is its starter's */
                return &d->ranks[i];
        if (pl_process_stat(pid, &stat) < 0)
            return NULL;
        pid = stat.parent;
    }
    return NULL;
}

static void add_share(json_t *share, const char *key, const json_t *process)
{
    int64_t have = 0, more;

    if (pl_json_int(process, key, &more) < 0)
        return;
    pl_json_int(share, key, &have);
    json_object_set_new(share, key, json_integer(have + more));
}

/* Puts "ranks" in place of a GPU's "processes". */
static void name_ranks(const struct pl_daemon *d, json_t *gpu)
{
    json_t *ranks = json_array(), *process, *share;
    size_t i, k;
    int64_t pid, number;

    json_array_foreach (json_object_get(gpu, "processes"), i, process) {
        const struct pl_rank *rank =
            pl_json_int(process, "pid", &pid) == 0 ? owner_of(d, (pid_t)pid) : NULL;
        json_t *found = NULL;

        if (!rank)
            continue;
        json_array_foreach (ranks, k, share)
            if (pl_json_int(share, "rank", &number) == 0 && number == (int64_t)rank->rank)
                found = share;
        if (!found) {
            found = json_pack("{s:i}", "rank", (int)rank->rank);
            json_array_append_new(ranks, found);
        }
        add_share(found, "mem", process);
        add_share(found, "util", process);
    }
    json_object_del(gpu, "processes");
    if (json_array_size(ranks))
        json_object_set(gpu, "ranks", ranks);
    json_decref(ranks);
}

/* The ranks that used this GPU in the last sample. */
static json_t *ranks_on(const struct pl_daemon_gpu *g, int64_t number)
{
    json_t *ret = json_array(), *gpu, *share;
    size_t i, k;
    int64_t n;

    json_array_foreach (g->last, i, gpu) {
        if (pl_json_int(gpu, "gpu", &n) < 0 || n != number)
            continue;
        json_array_foreach (json_object_get(gpu, "ranks"), k, share)
            json_array_append(ret, json_object_get(share, "rank"));
    }
    return ret;
}

static void take(struct pl_daemon_gpu *g, json_t *message)
{
    _cleanup_(json_decrefp) json_t *ranks = NULL;
    struct pl_msg m;
    json_t *gpu;
    size_t i;

    if (pl_msg_read(message, PL_WIRE_NODE_TO_HUB, &m) < 0)
        return;
    if (m.type == PL_MSG_NODE_GPUS) {
        json_array_foreach (m.node_gpus.gpus, i, gpu)
            name_ranks(g->daemon, gpu);
        json_decref(g->last);
        g->last = json_incref(m.node_gpus.gpus);
    } else if (m.type == PL_MSG_NODE_GPU) {
        m.node_gpu.ranks = ranks = ranks_on(g, m.node_gpu.gpu);
    } else {
        return;
    }
    pl_uplink_send(g->daemon->uplink, &m);
}

/* ---- the process ---- */

static void on_closed(uv_handle_t *handle)
{
    struct pl_daemon_gpu *g = handle->data;

    if (--g->handles)
        return;
    close(g->fd);
    pl_buf_finish(&g->in);
    json_decref(g->last);
    free(g);
}

void pl_daemon_gpu_close(struct pl_daemon *d)
{
    struct pl_daemon_gpu *g = PL_TAKE(d->gpu);

    if (!g)
        return;
    if (g->alive)
        uv_process_kill(&g->process, SIGKILL); /* not waited for: it may hang in the driver */
    uv_close((uv_handle_t *)&g->poll, on_closed);
}

static void on_exit_of_watch(uv_process_t *process, int64_t status, int term_signal)
{
    struct pl_daemon_gpu *g = process->data;

    g->alive = false;
    pl_log_debug("gpu", "the watch of GPUs ended: exit %d, signal %d", (int)status, term_signal);
    uv_close((uv_handle_t *)process, on_closed);
}

void pl_daemon_gpu_drain(struct pl_daemon *d)
{
    struct pl_daemon_gpu *g = d->gpu;
    char data[16384], *newline;
    ssize_t n;

    while (g && (n = read(g->fd, data, sizeof(data))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0 || pl_buf_add(&g->in, data, (size_t)n) < 0)
            break;
        while ((newline = memchr(g->in.data, '\n', g->in.len))) {
            _cleanup_(json_decrefp) json_t *message = NULL;
            size_t len = (size_t)(newline - g->in.data);

            if (pl_json_parse(g->in.data, len, LINE_MAX_BYTES, &message, NULL) == 0)
                take(g, message);
            pl_buf_consume(&g->in, len + 1);
        }
        if (g->in.len > LINE_MAX_BYTES)
            break;
    }
    pl_daemon_gpu_close(d); /* no driver, or it broke down */
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct pl_daemon_gpu *g = poll->data;

    pl_daemon_gpu_drain(g->daemon);
}

void pl_daemon_gpu_start(struct pl_daemon *d)
{
    if (d->gpu)
        uv_poll_start(&d->gpu->poll, UV_READABLE, on_readable);
}

void pl_daemon_gpu_prepare(struct pl_daemon *d)
{
    char path[4096], *argv[] = {(char *)(uintptr_t) "plrund", (char *)(uintptr_t) "--watch-gpus",
                                (char *)(uintptr_t) "1", NULL};
    uv_stdio_container_t io[3] = {
        {.flags = UV_IGNORE}, {.flags = UV_INHERIT_FD}, {.flags = UV_INHERIT_FD, .data.fd = 2}};
    uv_process_options_t options = {
        .exit_cb = on_exit_of_watch, .file = path, .args = argv, .stdio = io, .stdio_count = 3};
    ssize_t len = pl_gpu_watch_wanted() ? readlink("/proc/self/exe", path, sizeof(path) - 1) : -1;
    struct pl_daemon_gpu *g;
    int pipe_fds[2], r;

    if (len < 0 || d->gpu || pipe2(pipe_fds, O_CLOEXEC) < 0)
        return;
    path[len] = '\0';
    g = calloc(1, sizeof(*g));
    if (!g || fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK) < 0 ||
        uv_poll_init(d->loop, &g->poll, pipe_fds[0]) < 0) {
        close(pipe_fds[0]);
        close(pipe_fds[1]);
        free(g);
        return;
    }
    g->daemon = d;
    g->fd = pipe_fds[0];
    g->handles = 2;
    d->gpu = g;
    io[1].data.fd = pipe_fds[1];
    r = uv_spawn(d->loop, &g->process, &options);
    close(pipe_fds[1]);
    g->process.data = g->poll.data = g;
    if (r < 0) {
        pl_log_debug("gpu", "cannot watch GPUs: %s", uv_strerror(r));
        uv_close((uv_handle_t *)&g->process, on_closed);
        pl_daemon_gpu_close(d);
        return;
    }
    pl_trace("fork", "watch-gpus", NULL, g->process.pid);
    g->alive = true;
    uv_unref((uv_handle_t *)&g->process);
}
