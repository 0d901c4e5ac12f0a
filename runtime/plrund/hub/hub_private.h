/* SPDX-License-Identifier: MIT */
/* The hub's own state, shared by the files of this folder. Each file uses those below it only:
 *
 *   hub.c         life, and the messages of nodes
 *   hang.c        ranks that make no progress, or little
 *   stall.c, slow.c  which ranks these are; pure
 *   ending.c      carries out decisions: asks Slurm, ends the ranks, finishes
 *   launch_failed.c  launches that fail, and their refusal
 *   end_ranks.c   ends ranks
 *   cause_record.c  the cause, as it is recorded
 *   finish.c      the last act: all nodes have left
 *   decide.c      from the evidence to a decision; pure
 *   exchange.c    values that ranks exchange
 *   gpu_errors.c  GPU errors that may explain a failure
 *   result.c      result.json
 *   journal.c     the other files of the attempt and of the trial
 *   metrics_log.c metrics.jsonl, which is thinned
 *   thin.c        which of its lines stay; pure
 *   log_queue.c   lines on their way to their file, on a disk that may not answer
 *   log_file.c    a file of lines, on a disk that may be full
 *   peers.c       connections: nodes and clients
 *   strangers.c   places of connections that have not greeted
 *   watchers.c    clients that want every event
 */
#ifndef PL_RUNTIME_PLRUND_HUB_HUB_PRIVATE_H
#define PL_RUNTIME_PLRUND_HUB_HUB_PRIVATE_H

#include "common/base/log.h"
#include "common/proto/messages.h"
#include "common/run/rank_state.h"
#include "runtime/node/limit.h"
#include "runtime/node/scontrol.h"
#include "runtime/plrund/hub/decide.h"
#include "runtime/plrund/hub/hub.h"
#include "runtime/plrund/hub/log_queue.h"
#include "runtime/plrund/hub/strangers.h"

/*   GATHERING --all nodes joined--> RUNNING --the cause is known--> ENDING --all left--> FINISHED
 *   GATHERING --limit, or a node is lost--> ENDING (cause `launch`)
 *   GATHERING --a rank failed (the plugin's exist before the world)--> RUNNING
 *   RUNNING --all left--> FINISHED (result.json and status.json are written)
 *
 * A node has left when it said bye, or is lost. decide.h leads from RUNNING to the cause. */
enum pl_hub_state {
    PL_HUB_GATHERING,
    PL_HUB_RUNNING,
    PL_HUB_ENDING,
    PL_HUB_FINISHED,
};

struct pl_hub_node {
    char *name, *addr;
    struct pl_hub_conn *wire; /* NULL before its join and after its end */
    bool joined, bye, lost;
    bool bye_due;    /* its bye is not confirmed yet */
    bool same_clock; /* as ours: nothing to estimate, offset and uncertainty stay 0 */
    int64_t offset_ns, uncertainty_ns; /* its clock minus ours */
};

/* A connection: a node's daemon after its join, or a client (plstat). */
struct pl_hub_peer {
    struct pl_hub_peer *next, *next_watcher;
    struct pl_hub *hub;
    struct pl_hub_conn *wire;
    int64_t node_id; /* -1 = not joined */
    int crowd;       /* strangers.h; -1 = it has greeted */
    bool watching, lagging;
    bool host_silent; /* cut off for its silence, and nothing of its host answers */
    uint64_t born_ns, lagging_ns;
};

static inline const char *pl_hub_node_name(const struct pl_hub_node *node)
{
    return node->name ? node->name : "?"; /* none had come yet, or there was no memory for it */
}

/* Events of the nodes' connections, for hub.c. */
struct pl_hub_node_ops {
    /* The node's daemon says who it is; both are borrowed. */
    void (*joined)(struct pl_hub *hub,
                   unsigned node_id,
                   const struct pl_msg_join *join,
                   struct pl_hub_conn *wire);
    /* A later message; borrowed. */
    void (*message)(struct pl_hub *hub, unsigned node_id, const struct pl_msg *m);
    /* Its connection ended. host_answers: its host is up, so its daemon is what is gone. */
    void (*lost)(struct pl_hub *hub, unsigned node_id, bool host_answers);
};

struct pl_exchange; /* exchange.c */
struct pl_hub_tidy; /* tidy.c */
struct pl_hub_hang; /* hang.c */

/* The facts of a rank's program in events.jsonl. */
struct pl_hub_facts {
    size_t bytes;      /* of its lines */
    size_t n_left_out; /* facts without a line */
    json_t *keys;      /* those whose last value has no line: {key: true}; NULL = none */
};

/* The end of a rank with exit code 0. */
struct pl_hub_done {
    int64_t rank; /* -1 = none has ended so */
    unsigned node_id;
    int64_t at_ns; /* on the hub's clock */
};

struct pl_hub {
    uv_loop_t *loop;
    const struct pl_slurm_step *step;
    const unsigned char *secret;
    void (*on_finished)(void *ctx);
    void *ctx; /* on_finished's */
    enum pl_hub_state state;
    const struct pl_hub_node_ops *node_ops;
    int listen_fd;
    uv_poll_t listener;
    uint16_t port;
    struct pl_hub_node *nodes;
    struct pl_hub_peer *peers;
    struct pl_hub_peer *watchers; /* of the peers; each event goes through this list */
    struct {
        struct pl_buf line;
        int64_t seq;
        uint64_t at_ns; /* 0: of no use any more */
    } snapshot;         /* the last that was sent */
    struct pl_strangers strangers;
    struct pl_log_limit refusals; /* warnings */
    unsigned n_joined;
    int64_t *node_of_rank; /* -1 = not known yet */
    /* As in the document, which may lack one that found no memory: no decision wants memory. */
    enum pl_rank_state *rank_states;

    struct pl_failure *failures; /* room for one of each rank, so that no failure wants memory */
    size_t n_failures;
    struct pl_hub_done first_done; /* the earliest; it may explain failures that are echoes */
    int terminated;                /* a signal that the step got from outside, 0 = none */
    uint64_t terminated_ns;        /* the last one came */
    bool got_sigterm;              /* one of them was SIGTERM */
    bool signalled_late;           /* one came after a failure of a rank's own */
    bool may_have_obeyed;          /* a rank that handles such signals has ended with 0 */
    enum pl_slurm_question question;
    struct pl_slurm_answer answer;
    struct pl_scontrol *ask; /* NULL = none runs */
    unsigned n_asks;         /* tries of this question */
    uint64_t asked_ns;       /* the first of them */
    uint64_t answered_ns;    /* the last answer came */
    bool ask_again;          /* a signal came after the last question */
    uint64_t ended_ns;       /* the last end of a rank came */
    json_t *cause;
    bool event_lost;     /* that has been said */
    json_t *spare_cause; /* for a cause that there was no memory to describe */
    int64_t root;        /* the rank that failed first, -1 none */
    char *refusal;       /* the reason why no node may join; NULL = nodes may */
    char *unable;        /* why this node cannot serve the step, as `unable` of a join; or NULL */

    struct pl_exchange *exchanges;
    int master_fd; /* holds MASTER_PORT */
    uint16_t master_port;
    int coordinator_fd;        /* holds the port of JAX_COORDINATOR_ADDRESS */
    uint16_t coordinator_port; /* 0 = none */
    char master_addr[64];
    char own_addr[64]; /* at which other hosts may reach the hub */

    struct pl_hub_hang *hang; /* NULL: nobody looks for hangs */

    json_t *gpu_errors; /* the newest ones, by arrival; NULL = none */
    size_t n_gpu_errors;

    /* journal.c */
    struct pl_run *run;
    char *attempt_dir;
    json_t *doc; /* run_state.h */
    char epoch[17];
    int64_t seq;
    struct pl_disk *disk; /* does what may block on the run folder; NULL = the loop does */
    bool disk_is_slow;    /* the loop does not wait for it for now */
    bool disk_told;       /* the user knows that the run folder does not answer */
    struct pl_log_queue events, metrics;
    struct pl_hub_facts *facts;   /* by rank */
    size_t facts_bytes;           /* of all ranks */
    size_t metrics_max;           /* bytes of the file */
    size_t metrics_next;          /* bytes at which it is thinned; 0 = not known yet */
    size_t metrics_left_out;      /* lines that found no room */
    size_t metrics_thinned;       /* lines taken out again; of the work on files only */
    double metrics_grid_s;        /* thin.h */
    bool thinning;                /* it is under way */
    size_t metrics_share;         /* bytes for metrics of each attempt before */
    struct pl_hub_tidy *tidy;     /* NULL = done */
    struct pl_hub_status *status; /* the work of status.json; NULL = none was written yet */
    double started;               /* by the wall clock; pl_hub_wall_s() */
    uint64_t started_ns;          /* the same moment by the monotonic clock */

    uint64_t tick_ns;         /* time of the last tick */
    uv_prepare_t before_wait; /* the loop is about to wait: it hands over the log */
    uv_timer_t tick, decide_timer, finish_timer;
    struct pl_limit written_limit; /* until the result is written */
    struct pl_hub_end *end;        /* the last work on files; NULL = not begun, or done */
    char *unwritten;               /* why there is no result, and what it would be; or NULL */
    bool end_told;                 /* the nodes know that the attempt is over */
    struct pl_limit launch_limit;  /* until all nodes have joined */
    struct pl_limit start_limit;   /* from then, and a first rank, until all ranks have come */
    bool came;                     /* a rank has */
    struct pl_limit end_limit;     /* until all nodes have left */
    uv_timer_t greeting_timer;     /* while there are strangers */
};

/* ending.c: events that may lead to the cause, or to the end. */
void pl_hub_terminated(struct pl_hub *hub, int signal_number);
/* The step got another signal, perhaps for another reason: scancel after one that the ranks have
 * outlived. Slurm's SIGKILL may end us with them, and the trial needs its result before. */
void pl_hub_terminated_again(struct pl_hub *hub);
void pl_hub_failed(struct pl_hub *hub, const struct pl_failure *failure); /* copied */
/* It said bye. That is confirmed at once; to the last ones once the files are written. */
void pl_hub_left(struct pl_hub *hub, unsigned node_id);
void pl_hub_node_lost(struct pl_hub *hub, unsigned node_id, bool host_answers);
/* The node's daemon has come, and it cannot serve the step, as `text` says. */
void pl_hub_node_unable(struct pl_hub *hub, unsigned node_id, const char *text);
/* Appends the names of the nodes that have not come, or are lost: some of them, and how many more.
 * *ret_first: the first one's, NULL = not known; caller frees. Returns their number. */
unsigned pl_hub_missing(const struct pl_hub *hub, struct pl_buf *ret, char **ret_first);
/* Ranks hang, and are to be ended: the cause (consumed), and the rank that it names, -1 = none. */
void pl_hub_hung(struct pl_hub *hub, json_t *cause, int64_t rank);
void pl_hub_on_launch_limit(void *hub);
void pl_hub_on_start_limit(void *hub);
void pl_hub_on_end_limit(void *hub);

/* finish.c */
void pl_hub_finish(struct pl_hub *hub);
void pl_hub_on_written_limit(void *hub);
/* Answers a node's bye, if that is due. */
void pl_hub_confirm_bye(struct pl_hub *hub, unsigned node_id);

/* hang.c: -EINVAL for a bad PLUME_ON_HANG, -ENOMEM. The others do nothing before open. */
int pl_hub_hang_open(struct pl_hub *hub, struct pl_error *err);
void pl_hub_hang_close(struct pl_hub *hub);
void pl_hub_hang_started(struct pl_hub *hub, unsigned rank);
void pl_hub_hang_ended(struct pl_hub *hub, unsigned rank);
void pl_hub_hang_report(struct pl_hub *hub, const struct pl_msg_node_metrics_item *m);
void pl_hub_hang_probed(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_probed *m);
void pl_hub_hang_stack(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_stack *m);

/* exchange.c */
void pl_hub_exchange(struct pl_hub *hub, const struct pl_msg_node_exchange *given);
void pl_hub_free_exchanges(struct pl_hub *hub);

/* gpu_errors.c: samples, and errors. */
void pl_hub_gpus(struct pl_hub *hub, unsigned node_id, json_t *gpus);
void pl_hub_gpu(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_gpu *gpu);
/* The first GPU error near this failure, on the GPU of its rank: {"gpu","event","xid","text",
 * "before_s"}; a new reference, NULL = none. */
json_t *pl_hub_gpu_error(struct pl_hub *hub, const struct pl_failure *f);

/* journal.c */
int pl_hub_open_log(struct pl_hub *hub, struct pl_error *err);
bool pl_hub_log_is_open(const struct pl_hub *hub);
void pl_hub_close_log(struct pl_hub *hub);
/* Applies an event, sends it to watchers and appends it to the log; consumed. */
void pl_hub_event(struct pl_hub *hub, json_t *event);

/* The time for an attempt's files: the wall clock's at the hub's start, and what has passed since
 * by the monotonic clock. The order of events and durations stay right when somebody sets the
 * clock. */
double pl_hub_wall_s(const struct pl_hub *hub);
/* Replaces status.json, unless the one before is still being written. */
void pl_hub_write_status(struct pl_hub *hub);
/* The text of status.json; false: no memory. */
bool pl_hub_status_text(const struct pl_hub *hub, struct pl_buf *ret);
/* Has the lines of the log written, and waits for that as long as a healthy disk takes. */
void pl_hub_send_log(struct pl_hub *hub);
/* Waits so for the work on files. */
void pl_hub_await_disk(struct pl_hub *hub);
/* Tries again to write those that found no room on the disk so far, and tells the user once if the
 * run folder does not answer. */
void pl_hub_tick_log(struct pl_hub *hub);
/* The last values of facts that the limits have kept out of the log, as far as there is room.
 * Returns how many facts have no line. */
size_t pl_hub_write_left_out(struct pl_hub *hub);

/* result.c */
/* Has result.json written, with all lines of the log before it. If it cannot be written, the step's
 * stderr tells the end. */
void pl_hub_write_result(struct pl_hub *hub);
/* The result and the last status.json, and then the log's way to the disk: on a slow one that may
 * take longer than Slurm, or the trial's end, waits for a result. If lines are lost, the result is
 * written again, and says so. Calls `written` after all that, from the loop or from in here. */
void pl_hub_write_end(struct pl_hub *hub, void (*written)(struct pl_hub *hub));
/* It is not waited for any longer: says what is not written. */
void pl_hub_give_up_end(struct pl_hub *hub);

/* metrics_log.c */
/* Bytes that metrics.jsonl may have, by PLUME_METRICS_MAX; -EINVAL. */
int pl_hub_metrics_limit(const struct pl_slurm_step *step, size_t *ret, struct pl_error *err);
void pl_hub_append_metrics(struct pl_hub *hub, const struct pl_buf *line);

/* tidy.c: files of the attempts before */
/* The limit of the metrics of all attempts of the trial, by PLUME_METRICS_TRIAL_MAX: lowers that of
 * this one. Call after pl_hub_metrics_limit(). -EINVAL. */
int pl_hub_tidy_limit(struct pl_hub *hub, struct pl_error *err);
/* Starts a thread that thins their metrics and removes temporary files. Failures are ignored. */
void pl_hub_tidy_start(struct pl_hub *hub);
/* Waits for it. */
void pl_hub_tidy_stop(struct pl_hub *hub);

/* peers.c */
int pl_hub_listen(struct pl_hub *hub, struct pl_error *err);
/* Accepts connections, again after this process had no descriptor left. */
void pl_hub_accept(struct pl_hub *hub);
void pl_hub_close_peers(struct pl_hub *hub);
/* Cuts off peers that are silent or too slow. */
void pl_hub_tick_peers(struct pl_hub *hub);
/* Counts silence from now on: this process could not listen (the job was suspended). */
void pl_hub_reset_silence(struct pl_hub *hub);
/* To a node; to every node that has joined. */
void pl_hub_send(struct pl_hub *hub, unsigned node_id, const struct pl_msg *m);
void pl_hub_broadcast(struct pl_hub *hub, const struct pl_msg *m);

/* watchers.c */
/* The client wants every event from now on; it is forgotten before it is freed. */
void pl_hub_add_watcher(struct pl_hub_peer *peer);
void pl_hub_forget_watcher(struct pl_hub_peer *peer);
void pl_hub_send_snapshot(struct pl_hub_peer *peer);
/* More than a value of a metric has changed: the next snapshot is made anew. */
void pl_hub_forget_snapshot(struct pl_hub *hub);
void pl_hub_to_watchers(struct pl_hub *hub, json_t *event);
/* Goes on with a watcher that has read what it got; false if it is too slow. */
bool pl_hub_tick_watcher(struct pl_hub_peer *peer);

#endif
