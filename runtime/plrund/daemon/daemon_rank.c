/* SPDX-License-Identifier: MIT */
/* The daemon's side of the rank socket: starters, programs, and what is known of each rank. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/proto/rank/rank_link.h"
#include "common/run/run_state.h"
#include "runtime/plrund/daemon/daemon.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define KEYS_MAX 256 /* metrics of a rank at once */

struct pl_rank *pl_daemon_find_rank(struct pl_daemon *d, unsigned rank)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].rank == rank)
            return &d->ranks[i];
    return NULL;
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
static unsigned rank_cpus(const struct pl_slurm_step *step)
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
    const struct pl_slurm_step *s = &d->step;
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
    pl_rank_conn_send_new(rank->starter, make_world(rank));
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
    pl_rank_conn_send_new(c, json_pack("{s:s, s:s}", "type", "refused", "text",
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
        pl_rank_conn_send_new(rank->starter,
                              json_pack("{s:s, s:i}", "type", "verdict", "code", verdict(rank)));
    }
}

void pl_daemon_beat(struct pl_daemon *d)
{
    static const char beat[] = "{\"type\":\"beat\"}\n";

    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].guarded && d->ranks[i].world_sent)
            pl_rank_conn_send_new(d->ranks[i].starter, json_pack("{s:s}", "type", "beat"));
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
    json_object_foreach (json_object_get(message, "metrics"), key, value)
        if (pl_name_valid(key, strlen(key)) && pl_run_state_number(value, &number) == 0)
            if (json_object_size(rank->metrics) < KEYS_MAX || json_object_get(rank->metrics, key))
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
        pl_rank_conn_send_new(rank->starter,
                              json_pack("{s:s, s:i}", "type", "signal", "signal", signal));
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
    pl_daemon_gpu_drain(d);
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

/* Messages about a rank, from its connection or (plugin) from the control socket. False for a type
 * that is not known. */
bool pl_rank_message(struct pl_rank *rank, json_t *message)
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
        pl_rank_message(known, message);
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

    json_array_foreach (rank->daemon->early, i, message)
        if (pl_json_int(message, "rank", &number) == 0 && number == (int64_t)rank->rank)
            pl_rank_message(rank, message);
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

int pl_rank_hello(struct pl_rank_conn *c, json_t *hello)
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
