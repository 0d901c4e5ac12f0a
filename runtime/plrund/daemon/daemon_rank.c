/* SPDX-License-Identifier: MIT */
/* The daemon's side of the rank socket: starters, programs, and what is known of each rank. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/plrund/daemon/daemon.h"

#include <linux/sockios.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct pl_rank *pl_daemon_find_rank(struct pl_daemon *d, unsigned rank)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].rank == rank)
            return &d->ranks[i];
    return NULL;
}

/* ---- the world, refusals and verdicts ---- */

static void rank_started(struct pl_rank *rank, int64_t pid);

/* This rank cannot run here: it has failed. */
static void refuse_rank(struct pl_rank *rank, const char *text)
{
    pl_log_error("child", "rank %u: %s", rank->rank, text);
    rank->refused = text;
    pl_rank_conn_send_new(rank->starter, pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_REFUSED,
                                                                     .rank_refused.text = text}));
    pl_rank_ended(rank, PL_EXIT_FAILED << 8, pl_now_ns());
}

static void send_world(struct pl_rank *rank)
{
    json_t *world;

    if (rank->world_sent || !rank->starter || rank->ended)
        return;
    world = pl_rank_world_new(rank);
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
            pl_rank_output_open(&d->ranks[i], pl_daemon_world(d).attempt_dir);
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

void pl_daemon_tell_owner(const struct pl_daemon *d, const struct pl_msg *m)
{
    _cleanup_(json_decrefp) json_t *message = pl_msg_new(m);
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if (pl_json_dump_line(message, &line) == 0)
        pl_send_fds(d->control_fd, line.data, line.len, NULL, 0);
}

void pl_daemon_beat(struct pl_daemon *d)
{
    _cleanup_(json_decrefp) json_t *beat = pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_BEAT});
    int unread = 0;

    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].guarded && d->ranks[i].world_sent)
            pl_rank_conn_send(d->ranks[i].starter, beat);
    /* The owner reads once its own rank has ended: one beat waits for it, and leaves room for what
     * follows. */
    if (!d->step.plugin && ioctl(d->control_fd, SIOCOUTQ, &unread) == 0 && unread == 0)
        pl_daemon_tell_owner(d, &(struct pl_msg){.type = PL_MSG_OWNER_BEAT});
}

/* ---- messages of ranks ---- */

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

/* Under the plugin slurmstepd reports a task's end when it has time for it. */
static bool has_ended_unreported(const struct pl_rank *rank)
{
    return rank->pidfd >= 0 &&
           poll(&(struct pollfd){.fd = rank->pidfd, .events = POLLIN}, 1, 0) == 1;
}

void pl_rank_signal(struct pl_rank *rank, int signal)
{
    if (!rank->running || rank->ended || has_ended_unreported(rank))
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
    pl_uplink_send(d->uplink, &(struct pl_msg){
                                  .type = PL_MSG_NODE_EXITED,
                                  .node_exited = {.rank = rank->rank,
                                                  .status = status,
                                                  .at_ns = (int64_t)at_ns,
                                                  .killed = rank->killed,
                                                  .oom = d->oom_kills >= 0 && oom > d->oom_kills,
                                                  .runtime = rank->starter_gone && !rank->killed,
                                                  .term_default = rank->term_default,
                                                  .text = text            ? text
                                                          : rank->refused ? rank->refused
                                                                          : ""},
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
    if (rank->guarded && !rank->daemon->grace_over) /* we kill no plrun before that */
        rank->killed = false;
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
        pl_rank_metrics(rank, &m->rank_metrics);
        break;
    case PL_MSG_RANK_SPAWNED:
        rank_started(rank, m->rank_spawned.pid);
        break;
    case PL_MSG_RANK_EXITED:
        rank->term_default = m->rank_exited.term_default;
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
        /* Slurm starts the tasks of a node in one process group: `kill 0` of a rank's script
         * reaches all. Nobody has ordered that. */
        if (pl_rank_may_have_signalled(rank, m->rank_signalled.sender))
            break;
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
    if (m.type == PL_MSG_RANK_EXCHANGE && (strlen(m.rank_exchange.name) > PL_RANK_EXCHANGE_MAX ||
                                           strlen(m.rank_exchange.value) > PL_RANK_EXCHANGE_MAX))
        return -EMSGSIZE;
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
                             .term_default = PL_MSG_ABSENT,
                             .step = -1,
                             .best = NAN};
    if (rank->guarded) { /* its connection is open: it lives */
        pl_process_open(&rank->guard, c->pid);
        pl_daemon_helper_guard(d, c->pid);
    }
    return rank;
}

int pl_rank_hello(struct pl_rank_conn *c, json_t *message)
{
    static const struct pl_capture_ops ops = {.metric = pl_rank_metric, .done = on_done};
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
        pl_rank_output_open(c->rank, pl_daemon_world(d).attempt_dir);
    }
    return 0;
}
