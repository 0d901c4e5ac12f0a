/* SPDX-License-Identifier: MIT */
/* The hub: inside the daemon of the step's first node. It is the only one that writes the attempt's
 * log, and it decides.
 *
 *   GATHERING --all nodes joined--> RUNNING --a rank failed--> DECIDING --short wait--> ENDING
 *   GATHERING --limit--> ENDING (cause `launch`)
 *   any --every node said bye, or is lost--> FINISHED (result.json and status.json are written)
 */
#ifndef PL_RUNTIME_PLRUND_HUB_HUB_H
#define PL_RUNTIME_PLRUND_HUB_HUB_H

#include "common/run/cause.h"
#include "runtime/node/scontrol.h"
#include "runtime/plrund/daemon/daemon.h"

enum pl_hub_state {
    PL_HUB_GATHERING,
    PL_HUB_RUNNING,
    PL_HUB_DECIDING,
    PL_HUB_ENDING,
    PL_HUB_FINISHED,
};

struct pl_hub_node {
    char *name, *addr;
    struct pl_hub_conn *wire; /* NULL for our own node, and once it is gone */
    bool joined, bye, lost;
    bool same_clock; /* as ours: nothing to estimate, offset and uncertainty stay 0 */
    int64_t offset_ns, uncertainty_ns; /* its clock minus ours */
};

/* A connection: a node's daemon after its join, or a client (plstat). */
struct pl_hub_peer {
    struct pl_hub_peer *next;
    struct pl_hub *hub;
    struct pl_hub_conn *wire;
    int64_t node_id; /* -1 = not joined */
    bool watching, lagging;
    uint64_t born_ns, lagging_ns;
};

struct pl_exchange; /* exchange.c */

struct pl_hub {
    struct pl_daemon *daemon;
    enum pl_hub_state state;
    int listen_fd;
    uv_poll_t listener;
    uint16_t port;
    struct pl_hub_node *nodes;
    struct pl_hub_peer *peers;
    unsigned n_joined;
    int64_t *node_of_rank; /* -1 = not yet known */

    struct pl_failure *failures;
    size_t n_failures, cap_failures;
    int terminated;           /* a signal that the step got from outside, 0 none */
    bool slurm_ends;          /* Slurm ends the job, and the ranks with it, in its own time */
    bool asked_slurm, asking; /* asking: its answer is to come */
    bool all_left;            /* every node said bye, or is lost: at most one more question */
    bool asked_after_bye;     /* the last question is from then */
    unsigned n_asks;
    uint64_t asked_ns; /* when first */
    struct pl_scontrol *ask;
    json_t *cause;
    char *refusal; /* why no node may join */
    int64_t root;

    struct pl_exchange *exchanges;
    int master_fd; /* holds MASTER_PORT */
    uint16_t master_port;
    char master_addr[64];

    json_t *gpu_errors; /* gpu_errors.c: the newest ones, by arrival; NULL = none */
    size_t n_gpu_errors;

    /* journal.c */
    struct pl_run *run;
    char *attempt_dir, *status_path;
    json_t *doc; /* run_state.h */
    char epoch[17];
    int64_t seq;
    int events_fd, metrics_fd;
    size_t metrics_bytes;
    bool status_dirty, log_failed;
    double started;

    uv_timer_t decide_timer, launch_timer, end_timer, status_timer;
};

/* hub.c */
int pl_hub_start(struct pl_daemon *d, struct pl_hub **ret, struct pl_error *err);
void pl_hub_close(struct pl_hub *hub);   /* ends its handles in the loop; NULL is fine */
void pl_hub_destroy(struct pl_hub *hub); /* once the loop has ended */
bool pl_hub_is_finished(const struct pl_hub *hub);
/* A message of a node's daemon; borrowed. */
void pl_hub_message(struct pl_hub *hub, unsigned node_id, json_t *message);
/* To every joined node, our own too; a new reference, consumed. */
void pl_hub_broadcast(struct pl_hub *hub, json_t *message);
void pl_hub_send(struct pl_hub *hub, unsigned node_id, json_t *message);

/* Finishes where every node said bye or is lost. */
void pl_hub_maybe_finish(struct pl_hub *hub);

/* peers.c: listening, nodes and clients. */
int pl_hub_listen(struct pl_hub *hub, struct pl_error *err);
void pl_hub_accept(struct pl_hub *hub); /* as pl_daemon_accept() */
void pl_hub_close_net(struct pl_hub *hub);
void pl_hub_to_watchers(struct pl_hub *hub, json_t *event);
void pl_hub_tick_net(struct pl_hub *hub);
/* We could not listen for a while: that is no silence of the nodes'. */
void pl_hub_reset_silence(struct pl_hub *hub);
void pl_hub_joined(struct pl_hub *hub, unsigned node_id, json_t *join, struct pl_hub_conn *wire);
void pl_hub_node_lost(struct pl_hub *hub, unsigned node_id);

/* exchange.c */
void pl_hub_exchange(struct pl_hub *hub, json_t *message);
void pl_hub_free_exchanges(struct pl_hub *hub);

/* gpu_errors.c: a message of type "gpus" or "gpu". */
void pl_hub_gpu_message(struct pl_hub *hub, unsigned node_id, json_t *message);
/* The first GPU error near this failure, on the GPU of its rank: {"gpu","event","xid","text",
 * "before_s"}; a new reference, NULL where there is none. */
json_t *pl_hub_gpu_error(struct pl_hub *hub, const struct pl_failure *f);

/* ending.c: from failures to the cause. */
void pl_hub_terminated(struct pl_hub *hub, int signal_number);
void pl_hub_failed(struct pl_hub *hub, const struct pl_failure *failure);
void pl_hub_decide_launch(struct pl_hub *hub);
void pl_hub_decide_at_end(struct pl_hub *hub);
void pl_hub_end_all(struct pl_hub *hub);

/* journal.c */
int pl_hub_open_log(struct pl_hub *hub, struct pl_error *err);
void pl_hub_close_log(struct pl_hub *hub);
/* Applies an event, appends it to the log and sends it to watchers; consumed. */
void pl_hub_event(struct pl_hub *hub, json_t *event);
json_t *pl_hub_snapshot(struct pl_hub *hub);
void pl_hub_write_status(struct pl_hub *hub);
void pl_hub_write_result(struct pl_hub *hub);

#endif
