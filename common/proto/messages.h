/* SPDX-License-Identifier: MIT */
/* The messages of plume-protocol(7): each is one struct, and one writer and one reader serve them
 * all by a table. A new field is a struct member and a line of that table; a new message also takes
 * a number in the enum and raises PL_PROTO_MINOR (common/proto/rank/rank_line.h). A unit test
 * compares the table with the manual page. Ranks link libc only: their writers are in
 * proto/rank/rank_line.h.
 *
 * The type on the wire and the direction together name the message: "exited" from plrun says how
 * its child ended, "exited" from a node adds who ended it and why. Neither can be renamed, since an
 * older hub would skip the new name and wait for ever. */
#ifndef PL_COMMON_PROTO_MESSAGES_H
#define PL_COMMON_PROTO_MESSAGES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An optional integer that is not there. */
#define PL_MSG_ABSENT INT64_MIN

enum pl_wire {
    PL_WIRE_RANK_TO_DAEMON,  /* the rank socket; from the plugin, the control socket */
    PL_WIRE_DAEMON_TO_RANK,  /* the rank socket */
    PL_WIRE_DAEMON_TO_OWNER, /* the control socket, to plrun or the plugin */
    PL_WIRE_GREETING,        /* between a hub and whoever connects */
    PL_WIRE_PEER_TO_HUB,     /* from a client, and from a node before it has joined */
    PL_WIRE_HUB_TO_CLIENT,
    PL_WIRE_NODE_TO_HUB, /* also from the process that watches GPUs to its daemon */
    PL_WIRE_HUB_TO_NODE,
};

enum pl_msg_type {
    PL_MSG_RANK_HELLO,
    PL_MSG_RANK_METRICS,
    PL_MSG_RANK_FACT,
    PL_MSG_RANK_EXCHANGE,
    PL_MSG_RANK_SPAWNED,
    PL_MSG_RANK_SIGNALLED,
    PL_MSG_RANK_EXITED,

    PL_MSG_RANK_WORLD,
    PL_MSG_RANK_REFUSED,
    PL_MSG_RANK_EXCHANGED,
    PL_MSG_RANK_SIGNAL,
    PL_MSG_RANK_BEAT,
    PL_MSG_RANK_VERDICT,
    PL_MSG_RANK_ERROR,

    PL_MSG_OWNER_READY,
    PL_MSG_OWNER_FAILED,
    PL_MSG_OWNER_BEAT,
    PL_MSG_OWNER_BUSY,
    PL_MSG_OWNER_VERDICT,

    PL_MSG_BANNER, /* has no "type" */
    PL_MSG_HELLO,
    PL_MSG_WELCOME,

    PL_MSG_ASK_SNAPSHOT,
    PL_MSG_WATCH,
    PL_MSG_JOIN,

    PL_MSG_SNAPSHOT,
    PL_MSG_EVENT,
    PL_MSG_ERROR,

    PL_MSG_NODE_STARTED,
    PL_MSG_NODE_EXITED,
    PL_MSG_NODE_METRICS,
    PL_MSG_NODE_METRICS_ITEM, /* an item of the above; has no "type" */
    PL_MSG_NODE_FACT,
    PL_MSG_NODE_EXCHANGE,
    PL_MSG_NODE_SIGNALLED,
    PL_MSG_NODE_GPUS,
    PL_MSG_NODE_GPU,
    PL_MSG_NODE_PONG,
    PL_MSG_NODE_BEAT,
    PL_MSG_NODE_PROBED,
    PL_MSG_NODE_PROBED_ITEM, /* an item of the above; has no "type" */
    PL_MSG_NODE_STACK,
    PL_MSG_NODE_BYE,
    PL_MSG_NODE_HUB_SILENT,

    PL_MSG_HUB_WORLD,
    PL_MSG_HUB_REFUSED,
    PL_MSG_HUB_EXCHANGED,
    PL_MSG_HUB_END_RANKS,
    PL_MSG_HUB_DECIDED,
    PL_MSG_HUB_PING,
    PL_MSG_HUB_PROBE,
    PL_MSG_HUB_STACK,
    PL_MSG_HUB_BYE_OK,
    PL_MSG_N_TYPES,
};

/* Members have the names of the wire's keys. Texts end in NUL. Of a message that was read, texts
 * and JSON values are borrowed from the object; of one to be written, from the caller.
 * Optional fields (marked in the table) are NULL, PL_MSG_ABSENT or false where they are absent. */
struct pl_msg {
    enum pl_msg_type type;
    union {
        struct pl_msg_rank_hello {
            const char *proto;
            int64_t major, minor;
            const char *role; /* "starter" or "program" */
            int64_t rank, local_rank, pid;
            bool guarded; /* the sender stays and reports the rank's end */
        } rank_hello;
        struct pl_msg_rank_metrics {
            int64_t step;
            json_t *metrics;   /* name: number, "nan", "inf" or "-inf" */
            const char *phase; /* what delays the next step: "checkpoint", ...; "": nothing */
            int64_t own_us;    /* of a step, without waiting for other ranks */
        } rank_metrics;
        struct pl_msg_rank_fact {
            const char *key, *value;
        } rank_fact;
        struct pl_msg_rank_exchange {
            const char *name, *value;
        } rank_exchange;
        struct pl_msg_rank_spawned {
            int64_t rank, pid; /* rank: from the plugin only */
        } rank_spawned;
        struct pl_msg_rank_signalled {
            int64_t signal, sender; /* sender: its pid, ABSENT = not known */
        } rank_signalled;
        struct pl_msg_rank_exited {
            int64_t rank, status, at_ns; /* wait status; CLOCK_MONOTONIC */
            int64_t term_default; /* 1: SIGTERM had its default action, so that a code is no answer
                                     to it; 0: it had another one; ABSENT = not known */
        } rank_exited;

        struct pl_msg_rank_world {
            json_t *env, *defaults; /* "NAME=VALUE" */
        } rank_world;
        struct pl_msg_text {
            const char *text;
        } rank_refused, rank_error, error, hub_refused, hub_bye_ok;
        struct pl_msg_exchanged {
            const char *name;
            json_t *values; /* by rank */
        } rank_exchanged, hub_exchanged;
        struct pl_msg_rank_signal {
            int64_t signal;
        } rank_signal;
        struct pl_msg_rank_verdict {
            int64_t code;
        } rank_verdict, owner_verdict;

        struct pl_msg_owner_ready {
            int64_t pid;
            const char *socket;
        } owner_ready;
        struct pl_msg_owner_failed {
            const char *text;
            int64_t error; /* "errno" on the wire */
        } owner_failed;

        struct pl_msg_banner {
            const char *proto;
            int64_t major, minor;
            const char *role, *job, *step;
            int64_t attempt; /* job, step and attempt: of hubs before 1.1 */
            const char *nonce;
            const char *tag; /* names the run to those who have the secret */
        } banner;
        struct pl_msg_hello {
            const char *role, *proto; /* role: "daemon" or "client" */
            int64_t major, minor;
            const char *nonce;
            const char *stream; /* header of the client's encrypted stream */
        } hello;
        struct pl_msg_welcome {
            const char *stream; /* header of the hub's, if both encrypt */
        } welcome;

        struct pl_msg_join {
            int64_t node_id;
            const char *node;
            int64_t local_ntasks;
            const char *clock;  /* pl_clock_id() */
            const char *unable; /* why this node cannot serve the step; absent = it can */
            const char *driver, *nccl, *mpi; /* releases on the node; absent = not known */
        } join;
        struct pl_msg_snapshot {
            const char *epoch;
            int64_t seq;
            json_t *state; /* the document of run_state.h */
        } snapshot;
        struct pl_msg_event {
            json_t *event;
        } event;

        struct pl_msg_node_started {
            int64_t rank, pid;
        } node_started;
        struct pl_msg_node_exited {
            int64_t rank, status, at_ns; /* wait status; the node's CLOCK_MONOTONIC */
            bool killed, oom;            /* by the runtime; by the kernel, for want of memory */
            bool runtime;                /* not its own end: its starter is gone */
            int64_t term_default;        /* as its starter says */
            const char *text;            /* last lines of stderr */
        } node_exited;
        struct pl_msg_node_metrics {
            json_t *items;
        } node_metrics;
        struct pl_msg_node_metrics_item {
            int64_t rank;
            json_t *metrics;
            int64_t step;
            const char *phase;
            int64_t own_us;
            int64_t moves;  /* how often the step grew since the last item */
            int64_t gap_ms; /* the longest time between two of them */
        } node_metrics_item;
        struct pl_msg_node_fact {
            const char *key, *value;
            int64_t rank;
        } node_fact;
        struct pl_msg_node_exchange {
            const char *name, *value;
            int64_t rank;
        } node_exchange;
        struct pl_msg_node_signalled {
            int64_t signal;
        } node_signalled;
        struct pl_msg_node_gpus {
            json_t *gpus;
        } node_gpus;
        struct pl_msg_node_gpu {
            int64_t gpu;
            const char *event; /* "xid" or "ecc" */
            int64_t at_ns;
            const char *uuid;
            int64_t xid;
            const char *text;
            json_t *ranks; /* of the node, that used the GPU */
        } node_gpu;
        struct pl_msg_node_pong {
            int64_t t, mine; /* ping's t; the node's CLOCK_MONOTONIC, ns */
        } node_pong;
        struct pl_msg_node_probed {
            json_t *items;
        } node_probed;
        struct pl_msg_node_probed_item {
            int64_t rank;
            const char *state;   /* "wait", "sleep", "busy", "stopped" or "gone" */
            const char *doing;   /* for people: a system call, a hook, a collective */
            int64_t collectives; /* that it began */
            int64_t cpu_ms;      /* of all its processes, since they began */
            int64_t silent_s;    /* since its last output */
            const char *hook;    /* code of its module that it runs */
        } node_probed_item;
        struct pl_msg_node_stack {
            int64_t rank;
            const char *text;
        } node_stack;

        struct pl_msg_hub_world {
            const char *attempt_dir, *run_dir, *master_addr;
            int64_t master_port;
            const char *node_addr;
            int64_t coordinator_port; /* on the master's node, for JAX; ABSENT = none */
        } hub_world;
        struct pl_msg_hub_end_ranks {
            int64_t grace_ms;
            int64_t kill; /* the rank that must not end well; ABSENT = none */
        } hub_end_ranks;
        struct pl_msg_hub_decided {
            int64_t root;
            int64_t code; /* of the ranks that the runtime ends; ABSENT = 0 */
        } hub_decided;
        struct pl_msg_hub_ping {
            int64_t t;
        } hub_ping;
        struct pl_msg_hub_stack {
            int64_t rank;
        } hub_stack;
    };
};

/* The writer: a new object with the message's type and fields. NULL when out of memory, if a
 * required field is NULL, or if a text is not UTF-8. */
json_t *pl_msg_new(const struct pl_msg *m);

/* True for what the next message of its kind replaces: samples and beats. A connection that loses
 * another one, for want of memory, has to end: a loss in silence leads to a wrong verdict. */
bool pl_msg_is_spare(enum pl_msg_type type);

/* The reader: finds which message of this wire the object is. Unknown keys are ignored, and an
 * optional field of another type counts as absent.
 * Returns 0; -ENOENT (no type, or none of this wire's); -EINVAL (a required field is missing or of
 * another type). *ret is valid while o is. */
int pl_msg_read(const json_t *o, enum pl_wire wire, struct pl_msg *ret);

/* As pl_msg_read(), for an object of one known type: an item, or one without "type". */
int pl_msg_read_as(const json_t *o, enum pl_msg_type type, struct pl_msg *ret);

/* The table, for tests. NULL: the message has no "type"; there is no such field. */
const char *pl_msg_type_name(enum pl_msg_type type);
enum pl_wire pl_msg_wire(enum pl_msg_type type);
const char *pl_msg_field_name(enum pl_msg_type type, size_t field);

#endif
