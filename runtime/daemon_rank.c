/* SPDX-License-Identifier: MIT */
/* The daemon's side of the rank socket: starters, programs, and what is known of each rank. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/rank_link.h"
#include "common/json.h"
#include "common/run_state.h"
#include "runtime/daemon.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#define KEYS_MAX 256                      /* metrics of a rank at once */
#define OUT_MAX ((size_t)4 * 1024 * 1024) /* unread bytes at which a program is cut off */

static void conn_event(uv_poll_t *poll, int status, int events);

struct pl_rank *pl_daemon_find_rank(struct pl_daemon *d, unsigned rank)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].rank == rank)
            return &d->ranks[i];
    return NULL;
}

/* ---- connections ---- */

static void conn_free(uv_handle_t *handle)
{
    struct pl_rank_conn *c = handle->data;

    close(c->fd);
    for (size_t i = 0; i < c->n_fds; i++)
        close(c->fds[i]);
    pl_buf_finish(&c->in);
    pl_buf_finish(&c->out);
    free(c);
}

static void conn_close(struct pl_rank_conn *c)
{
    struct pl_rank_conn **p = &c->daemon->conns;

    if (c->closing)
        return;
    c->closing = true;
    while (*p && *p != c)
        p = &(*p)->next;
    if (*p)
        *p = c->next;
    if (c->rank && c->rank->starter == c)
        c->rank->starter = NULL;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, conn_free);
}

static void conn_flush(struct pl_rank_conn *c)
{
    while (c->out.len) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break; /* full: on writable; broken: the next read says so */
        pl_buf_consume(&c->out, (size_t)n);
    }
    if (!c->closing)
        uv_poll_start(&c->poll, UV_READABLE | (c->out.len ? UV_WRITABLE : 0), conn_event);
}

static void conn_send(struct pl_rank_conn *c, json_t *message)
{
    if (!c || c->closing || !message)
        return;
    if (c->out.len > OUT_MAX) {
        pl_log_warn("net", "a program of rank %u does not read: cut off",
                    c->rank ? c->rank->rank : 0);
        shutdown(c->fd, SHUT_RDWR);
        return;
    }
    pl_json_dump_line(message, &c->out);
    conn_flush(c);
}

static void conn_send_new(struct pl_rank_conn *c, json_t *message)
{
    conn_send(c, message);
    json_decref(message);
}

/* ---- the world, refusals and verdicts ---- */

static void rank_started(struct pl_rank *rank, json_t *message);

static void add_env(json_t *list, const char *fmt, ...) PL_PRINTF(2, 3);

static void add_env(json_t *list, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    if (text)
        json_array_append_new(list, json_string(text));
    free(text);
}

/* CPUs that a rank may use, as Slurm gave them. */
static unsigned rank_cpus(const struct pl_step *step)
{
    const char *per_task = getenv("SLURM_CPUS_PER_TASK"), *on_node = getenv("SLURM_CPUS_ON_NODE");
    int64_t n;

    if (per_task && pl_parse_int(per_task, 1, 65536, &n, NULL) == 0)
        return (unsigned)n;
    if (on_node && pl_parse_int(on_node, 1, 65536, &n, NULL) == 0)
        return PL_MAX((unsigned)n / step->local_ntasks, 1u);
    return 1;
}

static json_t *make_world(struct pl_rank *rank)
{
    struct pl_daemon *d = rank->daemon;
    const struct pl_step *s = &d->step;
    const char *level = getenv("PLUME_NCCL_DEBUG"), *interface = getenv("PLUME_NCCL_IFNAME");
    json_t *env = json_array(), *defaults = json_array();
    int64_t port = 0;

    pl_json_int(d->world, "master_port", &port);
    add_env(env, "RANK=%u", rank->rank);
    add_env(env, "WORLD_SIZE=%u", s->ntasks);
    add_env(env, "LOCAL_RANK=%u", rank->local_rank);
    add_env(env, "LOCAL_WORLD_SIZE=%u", s->local_ntasks);
    add_env(env, "NODE_RANK=%u", s->node_id);
    add_env(env, "GROUP_RANK=%u", s->node_id);
    add_env(env, "MASTER_ADDR=%s", pl_json_string(d->world, "master_addr"));
    add_env(env, "MASTER_PORT=%lld", (long long)port);
    add_env(env, "PLUME_SOCKET=%s", d->socket_path);
    add_env(env, "PLUME_NODE_ADDR=%s", pl_json_string(d->world, "node_addr"));
    add_env(env, "PLUME_RUN_DIR=%s", pl_json_string(d->world, "run_dir"));
    add_env(env, "PLUME_TRIAL=%u", s->trial);
    add_env(env, "PLUME_ATTEMPT=%u", s->attempt);
    add_env(env, "PLUME_RUNTIME=%s", s->plugin ? "plugin" : "plrun");
    if (level && *level)
        add_env(env, "NCCL_DEBUG=%s", level);
    if (interface && *interface)
        add_env(env, "NCCL_SOCKET_IFNAME=%s", interface);
    add_env(defaults, "OMP_NUM_THREADS=%u", rank_cpus(s));
    if (d->ras_port) /* the default port is shared by all jobs of a node */
        add_env(defaults, "NCCL_RAS_ADDR=localhost:%u", d->ras_port);
    return json_pack("{s:s, s:o, s:o}", "type", "world", "env", env, "defaults", defaults);
}

static void open_files(struct pl_rank *rank)
{
    const char *dir = pl_json_string(rank->daemon->world, "attempt_dir");
    struct pl_capture *streams[] = {rank->out, rank->err};
    static const char *const ends[] = {"out", "err"};
    struct pl_error err = {0};

    for (int i = 0; dir && i < 2; i++) {
        _cleanup_free_ char *path = pl_strf("%s/rank-%u.%s", dir, rank->rank, ends[i]);

        if (streams[i] && path && pl_capture_open_file(streams[i], path, &err) < 0)
            pl_log_warn("child", "%s", pl_error_text(&err));
    }
}

static void send_world(struct pl_rank *rank)
{
    if (rank->world_sent || !rank->starter)
        return;
    rank->world_sent = true;
    conn_send_new(rank->starter, make_world(rank));
    if (!rank->guarded) /* the starter becomes the program and speaks no more */
        rank_started(rank, rank->hello);
}

/* The files come last: the ranks start meanwhile, and what they print waits in their pipes. */
void pl_daemon_send_world(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++)
        send_world(&d->ranks[i]);
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].world_sent)
            open_files(&d->ranks[i]);
}

static void refuse(struct pl_daemon *d, struct pl_rank_conn *c)
{
    conn_send_new(c, json_pack("{s:s, s:s}", "type", "refused", "text",
                               d->refusal ? d->refusal : "the run has ended"));
}

void pl_daemon_refuse_all(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];

        if (!rank->world_sent && rank->starter)
            refuse(d, rank->starter);
    }
}

/* What plrun is to exit with: 0 where the runtime ended the rank or another one failed first. */
static int verdict(const struct pl_rank *rank)
{
    const struct pl_daemon *d = rank->daemon;
    int code = WIFSIGNALED(rank->status) ? 128 + WTERMSIG(rank->status) : WEXITSTATUS(rank->status);

    if (rank->killed)
        return 0;
    return d->root < 0 || d->root == (int64_t)rank->rank ? code : 0;
}

void pl_daemon_send_verdicts(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];

        if (!rank->ended || !rank->verdict_due ||
            (rank->status != 0 && !rank->killed && !d->decided))
            continue;
        rank->verdict_due = false;
        conn_send_new(rank->starter,
                      json_pack("{s:s, s:i}", "type", "verdict", "code", verdict(rank)));
    }
}

void pl_daemon_beat(struct pl_daemon *d)
{
    static const char beat[] = "{\"type\":\"beat\"}\n";

    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].guarded && d->ranks[i].world_sent)
            conn_send_new(d->ranks[i].starter, json_pack("{s:s}", "type", "beat"));
    if (!d->step.plugin && !d->owner_gone) /* it reads once its own rank has ended */
        send(d->control_fd, beat, sizeof(beat) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- what ranks say ---- */

static void on_metric(void *ctx, const char *name, double value)
{
    struct pl_rank *rank = ctx;
    json_t *v;

    if (strcmp(name, "step") == 0 && isfinite(value)) {
        rank->step = (int64_t)value;
        if (!rank->metrics)
            rank->metrics = json_object();
        return;
    }
    v = isfinite(value) ? json_real(value)
                        : json_string(isnan(value) ? "nan"
                                      : value > 0  ? "inf"
                                                   : "-inf");
    if (!rank->metrics)
        rank->metrics = json_object();
    json_object_set_new(rank->metrics, name, v);
}

static void take_metrics(struct pl_rank *rank, json_t *message)
{
    json_t *value;
    const char *key;
    int64_t step;
    double number;

    if (pl_json_int(message, "step", &step) == 0)
        rank->step = step;
    if (!rank->metrics)
        rank->metrics = json_object();
    json_object_foreach(json_object_get(message, "metrics"), key,
                        value) if (pl_name_valid(key, strlen(key)) &&
                                   pl_state_number(value, &number) ==
                                       0) if (json_object_size(rank->metrics) < KEYS_MAX ||
                                              json_object_get(rank->metrics, key))
        json_object_set(rank->metrics, key, value);
}

void pl_daemon_send_metrics(struct pl_daemon *d)
{
    json_t *items = NULL;

    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];
        json_t *item;

        if (!rank->metrics)
            continue;
        item = json_pack("{s:i, s:o}", "rank", (int)rank->rank, "metrics", rank->metrics);
        rank->metrics = NULL;
        if (rank->step >= 0)
            json_object_set_new(item, "step", json_integer(rank->step));
        if (!items)
            items = json_array();
        json_array_append_new(items, item);
    }
    if (items)
        pl_daemon_to_hub(d, json_pack("{s:s, s:o}", "type", "metrics", "items", items));
}

static void rank_started(struct pl_rank *rank, json_t *message)
{
    struct pl_daemon *d = rank->daemon;
    int64_t pid;

    if (pl_json_int(message, "pid", &pid) < 0 || pid <= 1 || rank->running || rank->ended)
        return;
    rank->pid = (pid_t)pid;
    rank->running = true;
    if (!rank->guarded) /* nobody else ends it; by descriptor, so never another's process */
        rank->pidfd = (int)syscall(SYS_pidfd_open, rank->pid, 0);
    pl_daemon_to_hub(d, json_pack("{s:s, s:i, s:I}", "type", "started", "rank", (int)rank->rank,
                                  "pid", (json_int_t)pid));
    if (d->teardown) /* a straggler has missed the signal, and maybe the grace too */
        pl_rank_signal(rank, uv_is_active((uv_handle_t *)&d->kill_timer) ? SIGTERM : SIGKILL);
}

void pl_rank_signal(struct pl_rank *rank, int signal)
{
    if (!rank->running || rank->ended)
        return;
    rank->killed = true;
    if (rank->guarded)
        conn_send_new(rank->starter, json_pack("{s:s, s:i}", "type", "signal", "signal", signal));
    else if (rank->pidfd >= 0)
        syscall(SYS_pidfd_send_signal, rank->pidfd, signal, NULL, 0);
}

void pl_rank_ended(struct pl_rank *rank, int status, uint64_t at_ns)
{
    struct pl_daemon *d = rank->daemon;
    _cleanup_free_ char *text = NULL;
    int64_t oom = d->oom_kills;

    if (rank->ended)
        return;
    rank->ended = true;
    rank->status = status;
    rank->verdict_due = true;
    pl_capture_drain(rank->out);
    pl_capture_drain(rank->err);
    if (status != 0 && rank->err)
        text = pl_capture_tail(rank->err);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        oom = pl_daemon_oom_kills();
    pl_daemon_send_metrics(d);
    pl_daemon_to_hub(d,
                     json_pack("{s:s, s:i, s:i, s:I, s:b, s:b, s:s}", "type", "exited", "rank",
                               (int)rank->rank, "status", status, "at_ns", (json_int_t)at_ns,
                               "killed", rank->killed, "oom",
                               d->oom_kills >= 0 && oom > d->oom_kills, "text", text ? text : ""));
    if (oom > d->oom_kills)
        d->oom_kills = oom;
    d->n_ended++; /* not before: draining may settle the daemon, and bye must come last */
    pl_daemon_send_verdicts(d);
    pl_daemon_settle(d);
}

void pl_daemon_forward_exchange(struct pl_daemon *d, json_t *message)
{
    for (struct pl_rank_conn *c = d->conns; c; c = c->next)
        if (c->rank && !c->starter)
            conn_send(c, message);
}

/* Messages about a rank, from its connection or (plugin) from the control socket. False for a type
 * that is not known. */
static bool rank_message(struct pl_rank *rank, json_t *message)
{
    const char *type = pl_json_string(message, "type");
    struct pl_daemon *d = rank->daemon;
    int64_t status, at_ns;

    if (!type)
        return false;
    if (strcmp(type, "metrics") == 0) {
        take_metrics(rank, message);
    } else if (strcmp(type, "spawned") == 0) {
        rank_started(rank, message);
    } else if (strcmp(type, "exited") == 0) {
        if (pl_json_int(message, "at_ns", &at_ns) < 0)
            at_ns = (int64_t)pl_now_ns();
        if (pl_json_int(message, "status", &status) == 0)
            pl_rank_ended(rank, (int)status, (uint64_t)at_ns);
    } else if (strcmp(type, "fact") == 0 || strcmp(type, "exchange") == 0) {
        json_t *copy = json_copy(message);

        json_object_set_new(copy, "rank", json_integer(rank->rank));
        pl_daemon_to_hub(d, copy);
    } else if (strcmp(type, "signalled") == 0) {
        pl_daemon_to_hub(d, json_pack("{s:s, s:O}", "type", "signalled", "signal",
                                      json_object_get(message, "signal")));
    } else {
        return false;
    }
    return true;
}

void pl_daemon_control_message(struct pl_daemon *d, json_t *message)
{
    int64_t rank;
    struct pl_rank *known;

    if (pl_json_int(message, "rank", &rank) < 0 || rank < 0 || rank >= (int64_t)d->step.ntasks)
        return;
    known = pl_daemon_find_rank(d, (unsigned)rank);
    if (known) {
        rank_message(known, message);
    } else {
        /* slurmstepd may speak of a task before the task does: its hello finds this. */
        if (!d->early)
            d->early = json_array();
        if (json_array_size(d->early) < (size_t)2 * d->step.local_ntasks)
            json_array_append(d->early, message);
    }
}

/* What the control socket said of a rank before its hello. */
static void take_early(struct pl_rank *rank)
{
    json_t *message;
    int64_t number;
    size_t i;

    json_array_foreach(rank->daemon->early, i,
                       message) if (pl_json_int(message, "rank", &number) == 0 &&
                                    number == (int64_t)rank->rank) rank_message(rank, message);
}

/* ---- hello ---- */

static void on_done(void *ctx)
{
    struct pl_rank *rank = ctx;

    pl_daemon_settle(rank->daemon);
}

static void take_streams(struct pl_rank *rank, struct pl_rank_conn *c)
{
    static const struct pl_capture_ops ops = {.metric = on_metric, .done = on_done};
    struct pl_daemon *d = rank->daemon;

    if (c->n_fds != 4)
        return;
    c->n_fds = 0;
    if (pl_capture_create(d->loop, c->fds[0], c->fds[1], d->rules, d->n_rules, &ops, rank,
                          &rank->out) < 0 ||
        pl_capture_create(d->loop, c->fds[2], c->fds[3], d->rules, d->n_rules, &ops, rank,
                          &rank->err) < 0)
        pl_log_warn("child", "cannot watch the output of rank %u", rank->rank);
}

/* A starter's hello makes its rank present. */
static struct pl_rank *
new_rank(struct pl_rank_conn *c, json_t *hello, unsigned number, unsigned local_rank)
{
    struct pl_daemon *d = c->daemon;
    struct pl_rank *rank;

    if (d->n_present == d->step.local_ntasks)
        return NULL;
    rank = &d->ranks[d->n_present++];
    *rank = (struct pl_rank){.daemon = d,
                             .rank = number,
                             .local_rank = local_rank,
                             .starter = c,
                             .present = true,
                             .hello = json_incref(hello),
                             .guarded = json_is_true(json_object_get(hello, "guarded")),
                             .pidfd = -EBADF,
                             .step = -1};
    take_streams(rank, c);
    return rank;
}

static int on_hello(struct pl_rank_conn *c, json_t *hello)
{
    const char *proto = pl_json_string(hello, "proto"), *role = pl_json_string(hello, "role");
    struct pl_daemon *d = c->daemon;
    int64_t major, number, local;
    struct pl_rank *known;

    if (!proto || strcmp(proto, "plume") != 0 || !role || pl_json_int(hello, "major", &major) < 0 ||
        major != PL_PROTO_MAJOR || pl_json_int(hello, "rank", &number) < 0 || number < 0 ||
        number >= (int64_t)d->step.ntasks)
        return -EPROTO;
    c->starter = strcmp(role, "starter") == 0;
    known = pl_daemon_find_rank(d, (unsigned)number);
    if (!c->starter) {
        c->rank = known;
        return known ? 0 : -ENOENT;
    }
    if (known) /* a rank id started twice */
        return -EEXIST;
    if (pl_json_int(hello, "local_rank", &local) < 0 || local < 0 ||
        local >= (int64_t)d->step.local_ntasks)
        return -EPROTO;
    c->rank = new_rank(c, hello, (unsigned)number, (unsigned)local);
    if (!c->rank)
        return -ERANGE;
    take_early(c->rank);
    if (d->state == PL_DAEMON_FAILED || d->teardown) {
        refuse(d, c);
    } else if (d->world) {
        send_world(c->rank);
        open_files(c->rank);
    }
    return 0;
}

static void conn_line(struct pl_rank_conn *c, const char *line, size_t len)
{
    _cleanup_(json_decrefp) json_t *message = NULL;
    struct pl_error err = {0};
    int r = pl_json_parse(line, len, PL_RANK_LINE_MAX, &message, &err);

    if (r == 0 && !c->rank) {
        const char *type = pl_json_string(message, "type");

        r = type && strcmp(type, "hello") == 0 ? on_hello(c, message) : -EPROTO;
        if (r < 0)
            pl_error_set(&err, r, "bad hello");
    } else if (r == 0 && !rank_message(c->rank, message)) {
        conn_send_new(c, json_pack("{s:s, s:s}", "type", "error", "text", "unknown type"));
    }
    if (r < 0) {
        pl_log_debug("net", "bad line from a rank: %s", pl_error_text(&err));
        conn_send_new(c, json_pack("{s:s, s:s}", "type", "error", "text", pl_error_text(&err)));
        conn_close(c);
    }
}

/* The connection ended. A guard that goes without a word was killed, and its rank with it. */
static void conn_gone(struct pl_rank_conn *c)
{
    struct pl_rank *rank = c->rank;
    bool guard = c->starter && rank && rank->starter == c && rank->guarded;

    conn_close(c);
    if (guard && !rank->running && !rank->ended && rank->daemon->refusal) {
        rank->ended = true; /* refused, and gone as it should */
        rank->daemon->n_ended++;
        pl_daemon_settle(rank->daemon);
    } else if (guard && !rank->ended)
        pl_rank_ended(rank, SIGKILL, pl_now_ns());
    else if (rank)
        pl_daemon_settle(rank->daemon);
}

static void conn_event(uv_poll_t *poll, int status, int events)
{
    struct pl_rank_conn *c = poll->data;
    char data[16384];
    int fds[4];
    size_t n_fds = 0;
    ssize_t n;
    char *newline;

    if (events & UV_WRITABLE)
        conn_flush(c);
    if (!(events & (UV_READABLE | UV_DISCONNECT)) && status == 0)
        return;
    n = pl_recv_fds(c->fd, data, sizeof(data), fds, PL_COUNT(fds), &n_fds);
    if (n_fds && !c->n_fds) {
        memcpy(c->fds, fds, sizeof(fds));
        c->n_fds = n_fds;
    } else {
        for (size_t i = 0; i < n_fds; i++)
            close(fds[i]);
    }
    if (n == -EAGAIN)
        return;
    if (n <= 0 || pl_buf_add(&c->in, data, (size_t)n) < 0) {
        conn_gone(c);
        return;
    }
    while (!c->closing && (newline = memchr(c->in.data, '\n', c->in.len))) {
        size_t len = (size_t)(newline - c->in.data);

        conn_line(c, c->in.data, len);
        pl_buf_consume(&c->in, len + 1);
    }
    if (!c->closing && c->in.len > PL_RANK_LINE_MAX) {
        pl_log_debug("net", "overlong line from a rank");
        conn_close(c);
    }
}

/* ---- the socket ---- */

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct pl_daemon *d = poll->data;
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int fd = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct pl_rank_conn *c;

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            uv_poll_stop(poll); /* until the next tick: it would only be called at once again */
        return;
    }
    c = calloc(1, sizeof(*c));
    if (!c || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.uid != geteuid() ||
        uv_poll_init(d->loop, &c->poll, fd) < 0) {
        close(fd);
        free(c);
        return;
    }
    c->daemon = d;
    c->fd = fd;
    c->poll.data = c;
    c->born_ns = pl_now_ns();
    c->next = d->conns;
    d->conns = c;
    uv_poll_start(&c->poll, UV_READABLE, conn_event);
}

void pl_daemon_accept(struct pl_daemon *d)
{
    if (d->listener.data && !uv_is_closing((uv_handle_t *)&d->listener))
        uv_poll_start(&d->listener, UV_READABLE, on_accept);
}

/* Removes a socket that nobody serves any more; one that is served is not ours to take. */
static int remove_stale(const struct sockaddr_un *addr)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat st;

    if (fd < 0 || connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
        return -EADDRINUSE;
    if (errno != ECONNREFUSED || lstat(addr->sun_path, &st) < 0 || st.st_uid != geteuid())
        return -EADDRINUSE;
    return unlink(addr->sun_path) < 0 ? -errno : 0;
}

int pl_daemon_listen(struct pl_daemon *d, struct pl_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int r = pl_rank_socket_path(d->step.id.job, d->step.id.step, d->step.id.attempt,
                                d->step.node_id, &d->socket_path, err);

    if (r < 0)
        return r;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", d->socket_path);
    d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (d->listen_fd < 0)
        return pl_error_errno(err, errno, "cannot make a socket");
    r = bind(d->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
    if (r == -EADDRINUSE && remove_stale(&addr) == 0)
        r = bind(d->listen_fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
    if (r == 0 && (chmod(addr.sun_path, 0600) < 0 || listen(d->listen_fd, 256) < 0))
        r = -errno;
    if (r < 0) {
        free(PL_TAKE(d->socket_path)); /* not ours: it must not be removed at the end */
        return pl_error_errno(err, r, "cannot listen at '%s'", addr.sun_path);
    }
    d->ranks = calloc(d->step.local_ntasks, sizeof(*d->ranks));
    if (!d->ranks)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = uv_poll_init(d->loop, &d->listener, d->listen_fd);
    if (r < 0)
        return pl_error_set(err, r, "cannot watch a socket: %s", uv_strerror(r));
    d->listener.data = d;
    pl_daemon_accept(d);
    return 0;
}

void pl_daemon_close_ranks(struct pl_daemon *d)
{
    if (d->socket_path)
        unlink(d->socket_path);
    if (d->listener.data && !uv_is_closing((uv_handle_t *)&d->listener))
        uv_close((uv_handle_t *)&d->listener, NULL);
    while (d->conns)
        conn_close(d->conns);
    for (unsigned i = 0; i < d->n_present; i++) {
        pl_capture_close(PL_TAKE(d->ranks[i].out));
        pl_capture_close(PL_TAKE(d->ranks[i].err));
    }
}
