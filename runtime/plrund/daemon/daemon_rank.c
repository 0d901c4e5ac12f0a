/* SPDX-License-Identifier: MIT */
/* The daemon's side of the rank socket: starters, programs, and what is known of each rank. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/site.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_link.h"
#include "common/run/run_state.h"
#include "runtime/plrund/daemon/daemon.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define KEYS_MAX 256 /* metrics of a rank in one second */
#define BEST_NAME_MAX 256
#define PIPE_COLUMNS 400
#define PHASE_MAX 64

struct pl_rank *pl_daemon_find_rank(struct pl_daemon *d, unsigned rank)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].rank == rank)
            return &d->ranks[i];
    return NULL;
}

/* ---- the world, refusals and verdicts ---- */

static void rank_started(struct pl_rank *rank, int64_t pid);

/* Variables of a rank, "NAME=VALUE" each. */
struct env_list {
    json_t *list;
    bool incomplete; /* there was no memory for one */
};

static void add_env(struct env_list *env, const char *fmt, ...) PL_PRINTF(2, 3);

static void add_env(struct env_list *env, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    /* A path that is not UTF-8 cannot be told. */
    if (!text || (json_array_append_new(env->list, json_string(text)) < 0 &&
                  pl_utf8_valid(text, strlen(text))))
        env->incomplete = true;
    free(text);
}

/* CPUs of a rank, as Slurm allocated them. */
static unsigned rank_cpus(const struct pl_slurm_step *step)
{
    const char *per_task = pl_env(PL_ENV_SLURM_CPUS_PER_TASK),
               *on_node = pl_env(PL_ENV_SLURM_CPUS_ON_NODE);
    int64_t n;

    if (per_task && pl_parse_int(per_task, 1, 65536, &n, NULL) == 0)
        return (unsigned)n;
    if (on_node && pl_parse_int(on_node, 1, 65536, &n, NULL) == 0)
        return PL_MAX((unsigned)n / step->local_ntasks, 1u);
    return 1;
}

/* The hub's world; only once it has come. */
static struct pl_msg_hub_world read_world(const struct pl_daemon *d)
{
    struct pl_msg m = {0};

    pl_msg_read_as(d->world, PL_MSG_HUB_WORLD, &m);
    return m.hub_world;
}

/* NULL: out of memory. */
static json_t *make_world(struct pl_rank *rank)
{
    struct pl_daemon *d = rank->daemon;
    struct pl_msg_hub_world world = read_world(d);
    const struct pl_slurm_step *s = &d->step;
    const char *given = pl_env_text(PL_ENV_PLUME_NCCL_DEBUG), *level = NULL;
    const char *interface = pl_env(PL_ENV_PLUME_NCCL_IFNAME);
    char name[64];
    _cleanup_(json_decrefp) json_t *own = json_array(), *more = json_array();
    struct env_list env = {.list = own}, defaults = {.list = more};

    if (given)
        pl_parse_nccl_level(given, &level, NULL); /* pl_daemon_init() has checked it */
    add_env(&env, "RANK=%u", rank->rank);
    add_env(&env, "WORLD_SIZE=%u", s->ntasks);
    add_env(&env, "LOCAL_RANK=%u", rank->local_rank);
    add_env(&env, "LOCAL_WORLD_SIZE=%u", s->local_ntasks);
    add_env(&env, "NODE_RANK=%u", s->node_id);
    add_env(&env, "GROUP_RANK=%u", s->node_id);
    add_env(&env, "MASTER_ADDR=%s", world.master_addr);
    add_env(&env, "MASTER_PORT=%lld", (long long)world.master_port);
    add_env(&env, "PLUME_SOCKET=%s", d->socket_path);
    add_env(&env, "PLUME_NODE_ADDR=%s", world.node_addr);
    add_env(&env, "PLUME_RUN_DIR=%s", world.run_dir);
    add_env(&env, "PLUME_TRIAL=%u", s->trial);
    add_env(&env, "PLUME_ATTEMPT=%u", s->attempt);
    add_env(&env, "PLUME_RUNTIME=%s", s->plugin ? "plugin" : "plrun");
    if (level && *level)
        add_env(&env, "NCCL_DEBUG=%s", level);
    if (interface && *interface)
        add_env(&env, "NCCL_SOCKET_IFNAME=%s", interface);
    if (pl_site_nccl_ras_off())
        add_env(&env, "NCCL_RAS_ENABLE=0");
    add_env(&defaults, "OMP_NUM_THREADS=%u", rank_cpus(s));
    add_env(&defaults,
            "PYTHONFAULTHANDLER=1"); /* the stack of a crash, for the cause's last lines */
    if (rank->out ||
        rank->err) /* a pipe has no width: progress bars and tables must not be broken */
        add_env(&defaults, "COLUMNS=%d", PIPE_COLUMNS);
    if (d->ras_port) /* the default port is shared by all jobs of a node */
        add_env(&defaults, "NCCL_RAS_ADDR=localhost:%u", d->ras_port);
    if (pl_daemon_net_interface(d, world.node_addr, name, sizeof(name))) {
        add_env(&defaults, "GLOO_SOCKET_IFNAME=%s", name);
        add_env(&defaults, "TP_SOCKET_IFNAME=%s", name);
    }
    if (world.coordinator_port > 0)
        add_env(&defaults,
                strchr(world.master_addr, ':') ? "JAX_COORDINATOR_ADDRESS=[%s]:%lld"
                                               : "JAX_COORDINATOR_ADDRESS=%s:%lld",
                world.master_addr, (long long)world.coordinator_port);
    if (env.incomplete || defaults.incomplete) /* a rank without its number would do wrong work */
        return NULL;
    return pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_WORLD, .rank_world = {own, more}});
}

/* This rank cannot run here: it has failed. */
static void refuse_rank(struct pl_rank *rank, const char *text)
{
    pl_log_error("child", "rank %u: %s", rank->rank, text);
    pl_rank_conn_send_new(rank->starter, pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_REFUSED,
                                                                     .rank_refused.text = text}));
    pl_rank_ended(rank, PL_EXIT_FAILED << 8, pl_now_ns());
}

static void send_world(struct pl_rank *rank)
{
    json_t *world;

    if (rank->world_sent || !rank->starter || rank->ended)
        return;
    world = make_world(rank);
    if (!world) {
        refuse_rank(rank, "cannot tell this rank its place: out of memory");
        return;
    }
    rank->world_sent = true;
    /* Its starter becomes the program and speaks no more; the lifeline has it before it runs. */
    if (!rank->guarded)
        rank_started(rank, rank->starter_pid);
    pl_rank_conn_send_new(rank->starter, world);
}

/* Opens the files last: meanwhile the ranks start, and their output waits in the pipes. */
void pl_daemon_send_world(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++)
        send_world(&d->ranks[i]);
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].world_sent)
            pl_rank_output_open(&d->ranks[i], read_world(d).attempt_dir);
}

static void refuse(struct pl_daemon *d, struct pl_rank_conn *c)
{
    pl_rank_conn_send_new(c, pl_msg_new(&(struct pl_msg){
                                 .type = PL_MSG_RANK_REFUSED,
                                 .rank_refused.text = d->refusal ? d->refusal : "the run has ended",
                             }));
}

void pl_daemon_refuse_all(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];

        if (!rank->world_sent && rank->starter)
            refuse(d, rank->starter);
    }
}

/* The code that plrun exits with: 0 if the hub had the rank ended, or another one failed first,
 * unless no rank is left to give the cause's code. */
static int verdict(const struct pl_rank *rank)
{
    const struct pl_daemon *d = rank->daemon;
    int code = WIFSIGNALED(rank->status) ? 128 + WTERMSIG(rank->status) : WEXITSTATUS(rank->status);

    /* The hub in this process is lost: nobody else gives the step a code that is not 0. */
    if (rank->killed && d->state == PL_DAEMON_FAILED && d->step.node_id == 0)
        return code ? code : PL_EXIT_FAILED;
    if (rank->killed)
        return d->code_of_ended;
    return d->root < 0 || d->root == (int64_t)rank->rank ? code : 0;
}

void pl_daemon_send_verdicts(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];

        pl_rank_output_settle(rank);
        if (!rank->ended || !rank->verdict_due ||
            (rank->status != 0 && !rank->killed && !d->decided))
            continue;
        rank->verdict_due = false;
        pl_rank_conn_send_new(rank->starter,
                              pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_VERDICT,
                                                          .rank_verdict.code = verdict(rank)}));
    }
}

void pl_daemon_beat(struct pl_daemon *d)
{
    _cleanup_(json_decrefp) json_t *beat = pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_BEAT});
    _cleanup_(json_decrefp) json_t *to_owner =
        pl_msg_new(&(struct pl_msg){.type = PL_MSG_OWNER_BEAT});
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].guarded && d->ranks[i].world_sent)
            pl_rank_conn_send(d->ranks[i].starter, beat);
    /* The owner reads once its own rank has ended. */
    if (!d->step.plugin && !d->owner_gone && pl_json_dump_line(to_owner, &line) == 0)
        send(d->control_fd, line.data, line.len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- messages of ranks ---- */

/* Keeps the best value of the objective NAME.best, and its step. Here, because only the last value
 * of each second leaves the daemon. */
static void note_best(struct pl_rank *rank, const char *name, double value)
{
    const struct pl_daemon *d = rank->daemon;
    char best[BEST_NAME_MAX], at[BEST_NAME_MAX];

    if (!d->best_of || strcmp(name, d->best_of) != 0 || !isfinite(value) ||
        (!isnan(rank->best) && !(d->best_is_max ? value > rank->best : value < rank->best)))
        return;
    rank->best = value;
    snprintf(best, sizeof(best), "%s.best", name);
    snprintf(at, sizeof(at), "%s.best_step", name);
    json_object_set_new(rank->metrics, best, json_real(value));
    if (rank->step >= 0)
        json_object_set_new(rank->metrics, at, json_integer(rank->step));
}

/* Measures the steps here, exactly: the hub gets one item a second. */
static void note_step(struct pl_rank *rank, int64_t step)
{
    uint64_t now = pl_now_ns();

    if (step > rank->step) {
        if (rank->moved_ns && rank->step >= 0)
            rank->gap_ms = PL_MAX(rank->gap_ms, (int64_t)((now - rank->moved_ns) / 1000000));
        rank->moved_ns = rank->pauses ? 0 : now;
        rank->moves++;
    }
    rank->step = step;
}

static void note_phase(struct pl_rank *rank, const char *phase)
{
    if (strlen(phase) > PHASE_MAX)
        return;
    rank->pauses = *phase;
    rank->moved_ns = rank->pauses ? 0 : pl_now_ns();
    free(rank->phase);
    rank->phase = strdup(phase);
}

static void on_metric(void *ctx, const char *name, double value)
{
    struct pl_rank *rank = ctx;
    json_t *v;

    if (strcmp(name, "step") == 0 && isfinite(value)) {
        if (value >= 0 && value < (double)INT64_MAX)
            note_step(rank, (int64_t)value);
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
    note_best(rank, name, value);
}

static void take_metrics(struct pl_rank *rank, const struct pl_msg_rank_metrics *message)
{
    json_t *value;
    const char *key;
    double number;

    if (message->step >= 0) /* absent or no step: the last one stays */
        note_step(rank, message->step);
    if (!rank->metrics)
        rank->metrics = json_object();
    if (message->own_us >= 0) {
        rank->own_us += (double)message->own_us;
        rank->own_n++;
    }
    if (message->phase)
        note_phase(rank, message->phase);
    json_object_foreach (message->metrics, key, value)
        if (pl_name_valid(key, strlen(key)) && pl_run_state_number(value, &number) == 0)
            if (json_object_size(rank->metrics) < KEYS_MAX || json_object_get(rank->metrics, key)) {
                json_object_set(rank->metrics, key, value);
                note_best(rank, key, number);
            }
}

/* The mean of what it has reported since the last item. */
static int64_t own_us(const struct pl_rank *rank)
{
    return rank->own_n ? (int64_t)(rank->own_us / rank->own_n) : PL_MSG_ABSENT;
}

void pl_daemon_send_metrics(struct pl_daemon *d)
{
    _cleanup_(json_decrefp) json_t *items = json_array();

    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];
        _cleanup_(json_decrefp) json_t *metrics = PL_TAKE(rank->metrics);
        _cleanup_free_ char *phase = PL_TAKE(rank->phase);

        if (metrics)
            json_array_append_new(
                items,
                pl_msg_new(&(struct pl_msg){
                    .type = PL_MSG_NODE_METRICS_ITEM,
                    .node_metrics_item = {rank->rank, metrics,
                                          rank->step < 0 ? PL_MSG_ABSENT : rank->step, phase,
                                          own_us(rank), rank->moves ? rank->moves : PL_MSG_ABSENT,
                                          rank->gap_ms ? rank->gap_ms : PL_MSG_ABSENT},
                }));
        rank->own_us = rank->own_n = 0;
        rank->moves = rank->gap_ms = 0;
    }
    if (json_array_size(items))
        pl_uplink_send(d->uplink,
                       &(struct pl_msg){.type = PL_MSG_NODE_METRICS, .node_metrics.items = items});
}

static void rank_started(struct pl_rank *rank, int64_t pid)
{
    struct pl_daemon *d = rank->daemon;

    if (pid <= 1 || rank->running || rank->ended)
        return;
    rank->pid = (pid_t)pid;
    rank->running = true;
    if (!rank->guarded) /* the daemon ends it, by descriptor: pids are reused */
        rank->pidfd = (int)syscall(SYS_pidfd_open, rank->pid, 0);
    pl_daemon_lifeline_hold(d, rank);
    pl_uplink_send(d->uplink, &(struct pl_msg){.type = PL_MSG_NODE_STARTED,
                                               .node_started = {rank->rank, pid}});
    if (d->teardown) /* it has missed the signal, and maybe the grace too */
        pl_rank_signal(rank, d->grace_over ? SIGKILL : SIGTERM);
}

void pl_rank_signal(struct pl_rank *rank, int signal)
{
    if (!rank->running || rank->ended)
        return;
    rank->killed = true;
    /* Under the plugin a task without its world is no program yet: it has been refused, or will be
     * at its hello, and then says why and ends. SIGTERM would come before its words. */
    if (!rank->guarded && !rank->world_sent && signal == SIGTERM)
        return;
    if (rank->guarded)
        pl_rank_conn_send_new(
            rank->starter,
            pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_SIGNAL, .rank_signal.signal = signal}));
    else if (rank->pidfd >= 0)
        pl_process_order(rank->pidfd, rank->pid, signal);
}

void pl_rank_ended(struct pl_rank *rank, int status, uint64_t at_ns)
{
    struct pl_daemon *d = rank->daemon;
    _cleanup_free_ char *text = NULL;
    int64_t oom = d->oom_kills;

    if (rank->ended)
        return;
    pl_daemon_lifeline_obey(d); /* it may be the lifeline that has ended the rank */
    rank->ended = true;
    rank->status = status;
    rank->verdict_due = true;
    d->drain_programs(rank); /* what it has reported comes before its end */
    pl_capture_drain(rank->out);
    pl_capture_drain(rank->err);
    if (status != 0 && rank->err)
        text = pl_capture_tail(rank->err, rank->rank);
    /* A shell around the program exits with 137. */
    if ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL))
        oom = pl_daemon_oom_kills();
    pl_daemon_send_metrics(d);
    pl_daemon_gpu_drain(d);
    pl_uplink_send(d->uplink,
                   &(struct pl_msg){
                       .type = PL_MSG_NODE_EXITED,
                       .node_exited = {.rank = rank->rank,
                                       .status = status,
                                       .at_ns = (int64_t)at_ns,
                                       .killed = rank->killed,
                                       .oom = d->oom_kills >= 0 && oom > d->oom_kills,
                                       .runtime = rank->starter_gone && !rank->killed,
                                       .term_default = rank->term_default ? 1 : PL_MSG_ABSENT,
                                       .text = text ? text : ""},
                   });
    if (oom > d->oom_kills)
        d->oom_kills = oom;
    d->n_ended++;
    pl_daemon_send_verdicts(d);
    pl_daemon_changed(d);
}

void pl_rank_starter_gone(struct pl_rank *rank)
{
    if (rank->ended)
        return;
    rank->starter_gone = true;
    /* plrun was the subreaper of what the rank had started. */
    pl_daemon_kill_orphans(rank->daemon, rank->rank, rank->guard_pid);
    pl_rank_ended(rank, SIGKILL, pl_now_ns());
}

/* A message about a rank, from its connection or, under the plugin, from the control socket. */
static void on_message(struct pl_rank *rank, const struct pl_msg *m)
{
    struct pl_daemon *d = rank->daemon;

    switch (m->type) {
    case PL_MSG_RANK_METRICS:
        take_metrics(rank, &m->rank_metrics);
        break;
    case PL_MSG_RANK_SPAWNED:
        rank_started(rank, m->rank_spawned.pid);
        break;
    case PL_MSG_RANK_EXITED:
        rank->term_default = m->rank_exited.term_default == 1;
        pl_rank_ended(rank, (int)m->rank_exited.status,
                      m->rank_exited.at_ns == PL_MSG_ABSENT ? pl_now_ns()
                                                            : (uint64_t)m->rank_exited.at_ns);
        break;
    case PL_MSG_RANK_FACT:
        pl_uplink_send(d->uplink,
                       &(struct pl_msg){
                           .type = PL_MSG_NODE_FACT,
                           .node_fact = {m->rank_fact.key, m->rank_fact.value, rank->rank},
                       });
        break;
    case PL_MSG_RANK_EXCHANGE:
        pl_uplink_send(d->uplink, &(struct pl_msg){
                                      .type = PL_MSG_NODE_EXCHANGE,
                                      .node_exchange = {m->rank_exchange.name,
                                                        m->rank_exchange.value, rank->rank},
                                  });
        break;
    case PL_MSG_RANK_SIGNALLED:
        pl_uplink_send(d->uplink, &(struct pl_msg){
                                      .type = PL_MSG_NODE_SIGNALLED,
                                      .node_signalled.signal = m->rank_signalled.signal,
                                  });
        break;
    default:
        break;
    }
}

/* Logs once per connection what a process without the right to it has sent. */
static void log_refused(struct pl_rank_conn *c, const char *what, int64_t rank)
{
    if (!c->warned)
        pl_log_warn("net", "refused: process %d is not the starter of rank %lld, and sent '%s'",
                    (int)c->pid, (long long)rank, what);
    c->warned = true;
}

/* Starts, ends and signals from outside: of the guard only. Under the plugin slurmstepd reports
 * them, on the control socket. */
static bool is_starters(enum pl_msg_type type)
{
    return type == PL_MSG_RANK_SPAWNED || type == PL_MSG_RANK_EXITED ||
           type == PL_MSG_RANK_SIGNALLED;
}

int pl_rank_message(struct pl_rank_conn *c, json_t *message)
{
    struct pl_rank *rank = c->rank;
    struct pl_msg m;
    int r = pl_msg_read(message, PL_WIRE_RANK_TO_DAEMON, &m);

    if (r == -ENOENT || (r == 0 && m.type == PL_MSG_RANK_HELLO))
        return -ENOENT;
    if (r < 0) /* a known type with a bad field is skipped */
        return 0;
    if (is_starters(m.type) && !(c->starter && rank->starter == c && rank->guarded)) {
        log_refused(c, pl_msg_type_name(m.type), rank->rank);
        return -EPERM;
    }
    on_message(rank, &m);
    return 0;
}

/* The rank that the plugin's message names; -1 for other messages. */
static int64_t named_rank(const struct pl_daemon *d, const struct pl_msg *m)
{
    int64_t rank = m->type == PL_MSG_RANK_SPAWNED  ? m->rank_spawned.rank
                   : m->type == PL_MSG_RANK_EXITED ? m->rank_exited.rank
                                                   : -1;

    return rank < 0 || rank >= (int64_t)d->step.ntasks ? -1 : rank;
}

void pl_daemon_control_message(struct pl_daemon *d, json_t *message)
{
    struct pl_rank *known;
    struct pl_msg m;

    if (pl_msg_read(message, PL_WIRE_RANK_TO_DAEMON, &m) < 0 || named_rank(d, &m) < 0)
        return;
    known = pl_daemon_find_rank(d, (unsigned)named_rank(d, &m));
    if (known) {
        on_message(known, &m);
    } else {
        /* slurmstepd may report a task before the task says hello, which replays this. */
        if (!d->early)
            d->early = json_array();
        if (json_array_size(d->early) < (size_t)2 * d->step.local_ntasks)
            json_array_append(d->early, message);
    }
}

/* Handles the control socket's messages about this rank that came before its hello. */
static void replay_control(struct pl_rank *rank)
{
    json_t *message;
    struct pl_msg m;
    size_t i;

    json_array_foreach (rank->daemon->early, i, message)
        if (pl_msg_read(message, PL_WIRE_RANK_TO_DAEMON, &m) == 0 &&
            named_rank(rank->daemon, &m) == (int64_t)rank->rank)
            on_message(rank, &m);
}

/* ---- hello ---- */

static void on_done(void *ctx)
{
    struct pl_rank *rank = ctx;

    pl_daemon_changed(rank->daemon);
}

/* A starter's hello makes its rank present. */
static struct pl_rank *new_rank(struct pl_rank_conn *c, const struct pl_msg_rank_hello *hello)
{
    struct pl_daemon *d = c->daemon;
    struct pl_rank *rank;

    if (d->n_present == d->step.local_ntasks)
        return NULL;
    rank = &d->ranks[d->n_present++];
    *rank = (struct pl_rank){.daemon = d,
                             .rank = (unsigned)hello->rank,
                             .local_rank = (unsigned)hello->local_rank,
                             .starter = c,
                             .present = true,
                             .starter_pid = hello->pid == PL_MSG_ABSENT ? 0 : (pid_t)hello->pid,
                             .guarded = hello->guarded,
                             .guard_pid = hello->guarded ? c->pid : 0,
                             .guard = PL_PROCESS_INIT,
                             .pidfd = -EBADF,
                             .step = -1,
                             .best = NAN};
    if (rank->guarded) /* its connection is open: it lives */
        pl_process_open(&rank->guard, c->pid);
    return rank;
}

int pl_rank_hello(struct pl_rank_conn *c, json_t *message)
{
    static const struct pl_capture_ops ops = {.metric = on_metric, .done = on_done};
    struct pl_daemon *d = c->daemon;
    const struct pl_msg_rank_hello *hello;
    struct pl_rank *known;
    struct pl_msg m;

    if (pl_msg_read(message, PL_WIRE_RANK_TO_DAEMON, &m) < 0 || m.type != PL_MSG_RANK_HELLO)
        return -EPROTO;
    hello = &m.rank_hello;
    if (strcmp(hello->proto, "plume") != 0 || hello->major != PL_PROTO_MAJOR || hello->rank < 0 ||
        hello->rank >= (int64_t)d->step.ntasks)
        return -EPROTO;
    c->starter = strcmp(hello->role, "starter") == 0;
    known = pl_daemon_find_rank(d, (unsigned)hello->rank);
    if (!c->starter) {
        c->rank = known;
        return known ? 0 : -ENOENT;
    }
    if (known) /* a rank id started twice */
        return -EEXIST;
    if (hello->local_rank < 0 || hello->local_rank >= (int64_t)d->step.local_ntasks)
        return -EPROTO;
    if (!pl_rank_may_start(c, (unsigned)hello->rank)) {
        log_refused(c, "hello", hello->rank);
        return -EPERM;
    }
    c->rank = new_rank(c, hello);
    if (!c->rank)
        return -ERANGE;
    if (!pl_rank_output_take(c->rank, c, &ops)) {
        refuse_rank(c->rank, "cannot watch the output of this rank: out of memory");
        return 0;
    }
    replay_control(c->rank);
    if (d->state == PL_DAEMON_FAILED || d->teardown) {
        refuse(d, c);
    } else if (d->world) {
        send_world(c->rank);
        pl_rank_output_open(c->rank, read_world(d).attempt_dir);
    }
    return 0;
}
