/* SPDX-License-Identifier: MIT */
/* The node daemon: one per node and step. It serves the node's ranks on a UNIX socket, copies their
 * output, ends them on request, and speaks with the hub (plume-protocol(7), part "hub"). The hub is
 * in the process of node 0's daemon, which speaks with it as any other daemon does. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_DAEMON_H
#define PL_RUNTIME_PLRUND_DAEMON_DAEMON_H

#include "runtime/node/limit.h"
#include "runtime/node/resolve.h"
#include "runtime/node/slurm_step.h"
#include "runtime/plrund/daemon/capture.h"
#include "runtime/plrund/daemon/uplink.h"

#include "common/base/buf.h"
#include "common/base/process.h"

struct pl_daemon;
struct pl_daemon_gpu;
struct pl_daemon_helper;
struct pl_daemon_lifeline;
struct pl_daemon_probe;

/*   STARTING --world--> RUNNING --all ranks ended--> LEAVING --bye_ok, output written--> finished
 *   STARTING --refused, or no hub in time--> FAILED --all ranks refused--> finished
 *   RUNNING --hub lost--> FAILED --all ranks ended--> finished
 */
enum pl_daemon_state {
    PL_DAEMON_STARTING,
    PL_DAEMON_RUNNING,
    PL_DAEMON_LEAVING,
    PL_DAEMON_FAILED,
};

/* A connection of a starter (plrun, or the plugin's task_init) or of a rank's program. */
struct pl_rank_conn {
    struct pl_rank_conn *next;
    struct pl_daemon *daemon;
    struct pl_rank *rank; /* set by its hello */
    uv_poll_t poll;
    uv_poll_cb on_event;
    int fd;
    struct pl_buf in, out;
    int fds[4];
    size_t n_fds;
    uint64_t born_ns;
    pid_t pid; /* of the process that connected; 0 = of another pid namespace */
    bool starter, closing, warned;
};

/* A rank of this node. */
struct pl_rank {
    struct pl_daemon *daemon;
    unsigned rank, local_rank;
    struct pl_rank_conn *starter;      /* NULL after it has closed */
    bool present, guarded, world_sent; /* guarded: plrun reports its end and ends it for us */
    bool running, ended, killed, verdict_due; /* killed: we sent a signal first */
    bool unkillable;                          /* SIGKILL does not end it, and that was told */
    const char *refused;                      /* why it cannot run here; NULL = it can */
    int64_t term_default;                     /* as its starter says; PL_MSG_ABSENT */
    bool starter_gone;       /* who should have reported its end: that is why it has ended */
    int status;              /* wait status, valid if ended */
    pid_t pid;               /* once it runs */
    pid_t starter_pid;       /* the rank's own if nobody guards it */
    bool killed_for_guard;   /* its guard was stopped: the daemon itself has sent SIGKILL */
    pid_t guard_pid;         /* of the process that guards it, 0 = none known */
    unsigned guard_idle_s;   /* stopped for so long, though the rank has ended */
    struct pl_process guard; /* the same, to end it where it is stopped */
    int pidfd;               /* only if nobody guards it */
    struct pl_capture *out, *err;
    bool output_settled;
    bool env_seen;   /* its program has begun, and its environment was looked at */
    json_t *metrics; /* not yet sent */
    char *phase;     /* the same; NULL = as it was */
    double own_us;   /* the same: the sum of own_n reports */
    unsigned own_n;
    uint64_t
        moved_ns; /* when the step last grew; 0 = not yet, or the program named a pause since */
    int64_t moves, gap_ms; /* since the last item: how often it grew, the longest time between; 0 */
    bool pauses;           /* it named a pause */
    int64_t step;          /* -1 = none */
    double best;           /* of the metric d->best_of; NaN: none yet */
};

struct pl_daemon {
    uv_loop_t *loop;
    struct pl_slurm_step step;
    unsigned char secret[PL_KEY_SIZE];
    enum pl_daemon_state state;
    char *refusal; /* the reason of FAILED */
    bool held;     /* this process has a hub to run: stay until pl_daemon_release() */
    void (*on_finished)(void *ctx);
    void *ctx; /* on_finished's */

    int control_fd; /* to our owner: plrun of local rank 0, or slurmstepd */
    uv_poll_t control;
    struct pl_buf control_in;
    bool owner_gone;
    json_t *early; /* the plugin's messages about ranks that have not said hello yet */

    char *socket_path;
    int listen_fd;
    uv_poll_t listener;
    struct pl_rank_conn *conns;
    /* Handles what programs of a rank that has ended have sent so far: their connections are not
     * the one on which its end comes. Of daemon_conn.c, which daemon_rank.c must not need. */
    void (*drain_programs)(struct pl_rank *rank);
    bool draining;         /* it runs */
    struct pl_rank *ranks; /* room for local_ntasks, by order of arrival */
    unsigned n_present, n_ended;

    struct pl_uplink *uplink;
    json_t *world; /* as the hub sent it */
    bool decided, teardown, grace_over, bye_sent, bye_ok, finished;
    uint64_t bye_ns;        /* when it said bye */
    struct pl_disk *disk;   /* writes the ranks' files; NULL = the loop does */
    uint64_t save_limit_ns; /* the end of the time that ranks have to save; 0: the hub decides */
    bool waited;            /* the time for ranks that have not come is over */
    int64_t root;           /* the rank that failed first, -1 none; valid once decided */
    int code_of_ended;      /* what plrun exits with for a rank that the runtime ended */
    int64_t oom_kills;

    struct pl_metric_rule *rules;
    size_t n_rules;
    const char *output_ranks; /* whose output goes on, see output_ranks.h; static or of env */
    char *best_of;            /* metric of which NAME.best is kept; NULL: none */
    bool best_is_max;
    int ras_fd; /* holds NCCL_RAS_ADDR's port */
    uint16_t ras_port;
    struct pl_daemon_gpu *gpu;           /* NULL: no GPU is watched */
    struct pl_daemon_lifeline *lifeline; /* NULL: none */
    struct pl_daemon_probe *probe;       /* NULL: nobody looks at ranks */
    unsigned n_lifelines;
    struct pl_daemon_helper *helper; /* NULL: the daemon is not confined, and does all itself */
    struct pl_resolve *own_name;     /* while this host's name is resolved */
    struct addrinfo *own_addresses;  /* that it leads to; NULL = none, or not known yet */
    uv_timer_t tick;                 /* once a second: metrics */
    uint64_t tick_ns;                /* time of the last tick */
    unsigned n_ticks;                /* up to now */
    bool cut_told;                   /* that a rank's file lacks output */
    bool real_cut_told;              /* that one of Slurm's does */
    struct pl_limit grace;           /* from SIGTERM to SIGKILL */
    struct pl_limit leave_limit;
    uv_timer_t busy_timer; /* until the owner hears that the hub stays */
    unsigned busy_waits;   /* how often that was put off */
    uv_timer_t env_timer;  /* until the environments of all ranks were looked at */
    unsigned env_wait_ms;
    uint64_t env_limit_ns;
    bool env_told; /* that one is not what it should be */
    /* The rank's variables have come from the prober, "NAME=VALUE" each with a NUL; none: its
     * program has not begun. Of daemon_changed_env.c, which daemon_probe.c must not need. */
    void (*env_came)(struct pl_rank *rank, const char *block, size_t len);
    uv_async_t changed; /* pl_daemon_changed() */
};

/* daemon.c: life of the daemon, in this loop. init reads the step and the secret; after a failure
 * finish frees what it got. start joins the hub: own_hub is our end of a pair to a hub in this
 * process (taken), NULL searches for the hub. The daemon ends by itself: it closes its handles and
 * calls on_finished, if that is set. finish frees, after the loop has ended. */
int pl_daemon_init(struct pl_daemon *d, uv_loop_t *loop, int control_fd, struct pl_error *err);
int pl_daemon_start(struct pl_daemon *d, struct pl_hub_conn *own_hub, struct pl_error *err);
void pl_daemon_finish(struct pl_daemon *d);

/* The process has no other work any more: d->held ends. */
void pl_daemon_release(struct pl_daemon *d);

/* No hub can be had, or it is lost: refuses the ranks that wait, with this text, and ends others.
 */
void pl_daemon_on_hub_lost(struct pl_daemon *d, const char *text);

/* A rank, a connection or a stream has ended: from the loop, the daemon finds out if it may leave.
 */
static inline void pl_daemon_changed(struct pl_daemon *d)
{
    uv_async_send(&d->changed);
}

/* daemon_end.c: ends the running ranks: SIGTERM now, SIGKILL after grace_ms. The caller looks
 * whether the daemon may leave. fail_rank: this one does not end well by it, since under the plugin
 * only the ranks' ends fail the step; -1 = none, PL_DAEMON_FAIL_ANY = the node's last.
 * on_grace_over: of d->grace. */
#define PL_DAEMON_FAIL_ANY (-2)
void pl_daemon_end_ranks(struct pl_daemon *d, unsigned grace_ms, int64_t fail_rank);
/* The same where no hub has decided it: a rank whose save command runs has the time for that. */
void pl_daemon_end_ranks_alone(struct pl_daemon *d, int64_t fail_rank);
/* Once a second: a plrun that somebody has stopped goes on some seconds after its rank's end. */
void pl_daemon_wake_guards(struct pl_daemon *d);
void pl_daemon_on_grace_over(void *ctx);

/* daemon_conn.c: the rank socket, and lines in. */
int pl_daemon_listen(struct pl_daemon *d, struct pl_error *err);
/* Takes connections (again), after descriptors had run out. */
void pl_daemon_accept(struct pl_daemon *d);
/* Closes the socket, all connections and all captures. */
void pl_daemon_close_ranks(struct pl_daemon *d);
void pl_daemon_forward_exchange(struct pl_daemon *d, json_t *message);

/* rank_conn.c: sending on a connection. It never blocks, and skips NULL and closing connections;
 * send_new consumes a new reference. */
void pl_rank_conn_send(struct pl_rank_conn *c, json_t *message);
void pl_rank_conn_send_new(struct pl_rank_conn *c, json_t *message);
/* Writes what is queued, and waits for events again. */
void pl_rank_conn_flush(struct pl_rank_conn *c);
/* Closes the connection and frees it later. */
void pl_rank_conn_close(struct pl_rank_conn *c);

/* daemon_rank.c: the ranks, and the messages of ranks and starters. */
/* Handles a connection's first line. -EPROTO (no hello of this protocol), -EEXIST (the rank has
 * said hello), -ENOENT and -ERANGE (not a rank of this node), -EPERM (this process is no starter of
 * this rank): the connection is to be closed. */
int pl_rank_hello(struct pl_rank_conn *c, json_t *message);
/* Handles a later line. -ENOENT: its type is not known. -EPERM: only the rank's starter may send
 * it, on the connection of its hello. -EMSGSIZE: an exchange of more than PL_RANK_EXCHANGE_MAX. */
int pl_rank_message(struct pl_rank_conn *c, json_t *message);
/* Handles a message on the control socket that names a rank (the plugin's spawned and exited). */
void pl_daemon_control_message(struct pl_daemon *d, json_t *message);
struct pl_rank *pl_daemon_find_rank(struct pl_daemon *d, unsigned rank);
void pl_daemon_send_world(struct pl_daemon *d);
void pl_daemon_refuse_all(struct pl_daemon *d);
void pl_daemon_send_verdicts(struct pl_daemon *d);
/* To the control socket; one that is closed, or full, is no error. */
void pl_daemon_tell_owner(const struct pl_daemon *d, const struct pl_msg *m);
/* Shows the guards of ranks, and our owner, that the daemon lives. */
void pl_daemon_beat(struct pl_daemon *d);
void pl_rank_signal(struct pl_rank *rank, int signal);
/* at_ns: CLOCK_MONOTONIC of the end. */
void pl_rank_ended(struct pl_rank *rank, int status, uint64_t at_ns);
/* Whoever started it is gone and has reported no end: it counts as killed. */
void pl_rank_starter_gone(struct pl_rank *rank);

/* daemon_world.c: the hub's world, once it has come; and what this rank is told of it, NULL when
 * out of memory. */
struct pl_msg_hub_world pl_daemon_world(const struct pl_daemon *d);
json_t *pl_rank_world_new(const struct pl_rank *rank);

/* daemon_changed_env.c: call when ranks have got the world. Under the plugin this node reports
 * the first rank that runs with other variables than Plume gave it. */
void pl_daemon_watch_env(struct pl_daemon *d);

/* daemon_metrics.c: what a rank reports of its steps and metrics, one by one from its output (ctx
 * is the rank) or in a message. send gives the hub the last values of all ranks. */
void pl_rank_metric(void *ctx, const char *name, double value);
void pl_rank_metrics(struct pl_rank *rank, const struct pl_msg_rank_metrics *message);
void pl_daemon_send_metrics(struct pl_daemon *d);

/* daemon_output.c: the rank's streams. take gets them from its starter's hello (ops get the rank);
 * false without memory: a rank whose output nobody reads would end by SIGPIPE. open opens its files
 * in the attempt's folder (NULL: none), before its output is read. settle lets Slurm's streams go,
 * once the rank has ended and it is known who failed first; until then it does nothing. */
bool pl_rank_output_take(struct pl_rank *rank,
                         struct pl_rank_conn *c,
                         const struct pl_capture_ops *ops);
void pl_rank_output_open(struct pl_rank *rank, const char *dir);
void pl_rank_output_settle(struct pl_rank *rank);
/* True while a file of a rank has not got all output; end: see pl_capture_end(); tick: call each
 * second; say: of what is lost at the end. */
bool pl_daemon_files_wait(const struct pl_daemon *d);
void pl_daemon_end_output(struct pl_daemon *d);
void pl_daemon_tick_output(struct pl_daemon *d);
void pl_daemon_tell_cut(struct pl_daemon *d);
void pl_daemon_say_unwritten(const struct pl_daemon *d);

/* stale_sockets.c: removes the sockets beside this one whose daemons were killed: the user's own,
 * of Plume's names, older than a minute, without a listener, and on a file system of this node. */
void pl_daemon_sweep(const char *socket_path);

/* starter_proof.c: false if the process of this connection cannot be the starter of this rank: it
 * is a descendant of another rank's starter, or, under the plugin, slurmstepd has named another
 * process. */
bool pl_rank_may_start(const struct pl_rank_conn *c, unsigned rank);
/* starter_proof.c: true if this process, which has signalled this rank's starter, is one of a rank
 * of this node, or is gone. */
bool pl_rank_may_have_signalled(const struct pl_rank *rank, int64_t pid);

/* daemon_clean.c: ends the processes that this rank (UINT_MAX: any rank of this node) has left,
 * where no plrun can: under the plugin, and where plrun was killed. The process `spare` is left
 * alone: a plrun that only gives up has yet to say why. So are `daemon` and its children. Blocks
 * for two looks through /proc; for limit_ms while a process that has no environment yet might be
 * one, or while they fork faster than they end. Then *ret_all (NULL: not wanted) is false. Returns
 * the number of processes that got SIGKILL. */
unsigned pl_kill_orphans(const struct pl_slurm_step *step,
                         unsigned rank,
                         pid_t spare,
                         pid_t daemon,
                         unsigned limit_ms,
                         bool *ret_all);
/* Processes of this job's cgroup that the kernel killed for lack of memory; -1 = unknown. */
int64_t pl_daemon_oom_kills(void);

/* daemon_net.c: the interface that programs must use. start resolves this host's name in the
 * background, in steps of several nodes. interface is true if that name does not lead to the node's
 * address and an interface has this address. */
void pl_daemon_net_start(struct pl_daemon *d);
bool pl_daemon_net_interface(const struct pl_daemon *d,
                             const char *address,
                             char *ret,
                             size_t size);
void pl_daemon_net_close(struct pl_daemon *d);

/* daemon_confine.c: confines the daemon (confine.h) before it has other threads, unless
 * PLUME_CONFINE is off, and says so where the kernel cannot. Fails only where PLUME_CONFINE is
 * require. */
int pl_daemon_confine(struct pl_daemon *d, struct pl_error *err);

/* daemon_spawn.c: starts this very program with `option` and "3", in a session of its own, with
 * fd as its 3 and no other stream but stderr, if with_stderr. process->data is the caller's, who
 * closes process also after a failure; it keeps no loop alive. Takes fd. -errno. */
int pl_daemon_spawn(struct pl_daemon *d,
                    uv_process_t *process,
                    const char *option,
                    bool with_stderr,
                    int fd,
                    uv_exit_cb on_exit);

/* helper.c: the child that does what a confined daemon may not (helper.h). ask waits for the
 * answer; close lets it end. */
struct pl_helper_request;
int pl_daemon_helper_start(struct pl_daemon *d, struct pl_error *err);
int pl_daemon_helper_ask(struct pl_daemon *d, struct pl_helper_request *request);
void pl_daemon_helper_guard(struct pl_daemon *d, pid_t pid); /* names a rank's plrun */
void pl_daemon_helper_close(struct pl_daemon *d);
int pl_daemon_helper_socket(const struct pl_daemon *d); /* -EBADF: there is none */
/* pl_kill_orphans() by the helper, if there is one. */
void pl_daemon_kill_orphans(struct pl_daemon *d, unsigned rank, pid_t spare);

/* daemon_lifeline.c: the process that ends the ranks if this one is killed, under the plugin. start
 * cannot fail: a step runs without. hold hands a rank's process over; beat shows that we live;
 * close lets it end. */
void pl_daemon_lifeline_start(struct pl_daemon *d);
void pl_daemon_lifeline_hold(struct pl_daemon *d, const struct pl_rank *rank);
void pl_daemon_lifeline_beat(struct pl_daemon *d);
void pl_daemon_lifeline_close(struct pl_daemon *d);
/* Ends this process, as the lifeline is about to, if the lifeline has given it up: it was stopped,
 * goes on, and would report that ranks ended by themselves. */
void pl_daemon_lifeline_obey(const struct pl_daemon *d);

/* daemon_probe.c: tells the hub what the running ranks do, after half a second, and sends the
 * stacks of a rank. prepare starts the process that looks, before the daemon is confined; it cannot
 * fail: a step runs without. */
void pl_daemon_probe_prepare(struct pl_daemon *d);
void pl_daemon_probe(struct pl_daemon *d);
void pl_daemon_take_stack(struct pl_daemon *d, int64_t rank);
/* Has the prober look at the environment with which this rank's program has begun; false if nobody
 * can. The answer goes to d->env_came(). */
bool pl_daemon_probe_env(struct pl_daemon *d, const struct pl_rank *rank);
void pl_daemon_probe_close(struct pl_daemon *d);

/* daemon_gpu.c: reports the step's GPUs, which a process of their own watches (gpu_watch.h).
 * prepare starts it, before the daemon is confined; it does nothing on nodes without GPUs, and
 * cannot fail: a step runs without reports. start reads its reports, once there is a world to send
 * them to. */
void pl_daemon_gpu_prepare(struct pl_daemon *d);
void pl_daemon_gpu_start(struct pl_daemon *d);
/* Reports what the process has written so far: before a rank's end, which it may explain. */
void pl_daemon_gpu_drain(struct pl_daemon *d);
/* Ends the process; the rest is freed in the loop. */
void pl_daemon_gpu_close(struct pl_daemon *d);

#endif
