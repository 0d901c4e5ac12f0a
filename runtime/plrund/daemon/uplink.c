/* SPDX-License-Identifier: MIT */
/* Each round probes all candidates at once: addresses (srun's host, the first node's name, Slurm's
 * NodeAddr) times ports (PLUME_HUB's, and the derived ones). The hub speaks first. Both sides prove
 * that they hold the run's secret for this job, step and attempt, so a busy port, a foreign service
 * or another run's hub is skipped. */
#include "runtime/plrund/daemon/uplink.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/versions.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "runtime/node/limit.h"
#include "runtime/node/net.h"
#include "runtime/node/resolve.h"
#include "runtime/node/scontrol.h"
#include "runtime/plrund/daemon/reach.h"

#include <arpa/inet.h>
#include <string.h>

#define ADDRESSES_MAX 12
#define PORTS_MAX (PL_WALK_PORTS + 1 + PL_SPARE_PORTS)
#define PROBES_MAX (ADDRESSES_MAX * PORTS_MAX)
#define BANNER_MS 250      /* to connect and to get the banner; twice as long in each round ... */
#define BANNER_MAX_MS 2000 /* ... up to this, for a slow network */
#define AUTH_MS 2000       /* for the rest of the greeting, after the banner */
/* Most steps have joined by then and need no name: each question starts a program on each node. A
 * given address is rarely wrong. */
#define NAMES_AFTER_MS 250
#define NAMES_AFTER_GIVEN_MS 1000
#define QUEUE_MAX 65536

struct probe {
    struct pl_hub_conn *conn;
    size_t address, port; /* their indices */
};

struct pl_uplink {
    uv_loop_t *loop;
    const struct pl_slurm_step *step;
    const unsigned char *secret;
    const struct pl_uplink_ops *ops;
    void *ctx;
    struct pl_hub_conn *wire; /* to the hub; NULL before it is found */
    struct probe probes[PROBES_MAX];
    size_t n_probes;
    struct pl_reach reach; /* what this round, or the last one, has met */
    struct sockaddr_storage addresses[ADDRESSES_MAX];
    size_t n_addresses;
    uint16_t ports[PORTS_MAX];
    size_t n_ports;
    const char *unable; /* NULL = this node can serve the step */
    struct pl_versions versions;
    json_t *queue; /* messages from before the hub was found */
    char *first_node;
    struct pl_limit search; /* for the hub */
    unsigned pause_ms, banner_ms, silence_ms;
    bool asked_names, refused, lost, closing, given; /* given: the first address is $PLUME_HUB's */
    bool nameless;                                   /* nobody could tell the first node's name */
    bool no_memory; /* a message from before the hub was found is missing */
    uv_timer_t round, names;
    struct pl_scontrol *ask;
    struct pl_resolve *resolver;
    char last_error[256];
};

static void start_round(uv_timer_t *timer);
static void on_round_over(uv_timer_t *timer);

static void add_address(struct pl_uplink *u, const struct sockaddr *a)
{
    size_t len =
        a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    struct sockaddr_storage copy = {0};

    if ((a->sa_family != AF_INET && a->sa_family != AF_INET6) || u->n_addresses == ADDRESSES_MAX)
        return;
    memcpy(&copy, a, len);
    ((struct sockaddr_in *)&copy)->sin_port = 0; /* at the same place in both */
    for (size_t i = 0; i < u->n_addresses; i++)
        if (memcmp(&u->addresses[i], &copy, sizeof(copy)) == 0)
            return;
    u->addresses[u->n_addresses++] = copy;
}

/* Skips a name: the resolver comes later. */
static void add_numeric(struct pl_uplink *u, const char *host)
{
    struct sockaddr_in a4 = {.sin_family = AF_INET};
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};

    if (!host)
        return;
    if (inet_pton(AF_INET, host, &a4.sin_addr) == 1)
        add_address(u, (struct sockaddr *)&a4);
    else if (inet_pton(AF_INET6, host, &a6.sin6_addr) == 1)
        add_address(u, (struct sockaddr *)&a6);
}

/* ---- names: one question, and only if the addresses lead nowhere ---- */

static void on_node_addr(void *ctx, const char *output)
{
    struct pl_uplink *u = ctx;
    _cleanup_free_ char *addr = output ? pl_parse_scontrol_field(output, "NodeAddr") : NULL;

    u->ask = NULL;
    if (addr && !u->closing)
        add_numeric(u, addr);
}

static void ask_address(struct pl_uplink *u)
{
    const char *args[] = {"-o", "show", "node", u->first_node, NULL};

    u->ask = pl_scontrol_run(u->loop, args, 10000, on_node_addr, u);
}

static void on_resolved(void *ctx, struct addrinfo *list)
{
    struct pl_uplink *u = ctx;

    u->resolver = NULL;
    for (struct addrinfo *a = list; a; a = a->ai_next)
        add_address(u, a->ai_addr);
    if (list)
        freeaddrinfo(list);
    else if (!u->wire)
        ask_address(u);
}

static void resolve(struct pl_uplink *u)
{
    if (pl_resolve_start(u->loop, u->first_node, on_resolved, u, &u->resolver) < 0)
        ask_address(u);
}

static void on_hostnames(void *ctx, const char *output)
{
    struct pl_uplink *u = ctx;

    u->ask = NULL;
    u->nameless = !output;
    if (!output || u->closing || u->wire)
        return;
    u->first_node = strndup(output, strcspn(output, "\n"));
    if (u->first_node && *u->first_node)
        resolve(u);
}

static void on_names_due(uv_timer_t *timer)
{
    struct pl_uplink *u = timer->data;
    const char *args[] = {"show", "hostnames", u->step->nodelist, NULL};

    if (u->wire || u->asked_names)
        return;
    /* A hub that had no port of its own is found there. Few steps search for so long. */
    pl_hub_ports_spare(u->secret, &u->step->id, u->ports + u->n_ports);
    u->n_ports += PL_SPARE_PORTS;
    u->asked_names = true;
    u->ask = pl_scontrol_run(u->loop, args, 10000, on_hostnames, u);
}

/* ---- probing ---- */

static void note_answer(struct pl_uplink *u, const struct probe *probe, int code)
{
    pl_reach_note(&u->reach, &u->addresses[probe->address], u->ports[probe->port], code,
                  probe->address == 0 && !u->given); /* srun's host comes first */
}

/* code: why its connection has ended; 0 = it is the hub's */
static void forget_probe(struct pl_uplink *u, struct pl_hub_conn *wire, int code)
{
    for (size_t i = 0; i < u->n_probes; i++)
        if (u->probes[i].conn == wire) {
            note_answer(u, &u->probes[i], code);
            u->probes[i] = u->probes[--u->n_probes];
        }
}

static void close_probes(struct pl_uplink *u)
{
    while (u->n_probes)
        pl_hub_conn_close(u->probes[--u->n_probes].conn);
}

/* NULL: absent in a message. */
static const char *known(const char *text)
{
    return *text ? text : NULL;
}

static void on_open(struct pl_hub_conn *wire)
{
    struct pl_uplink *u = wire->ctx;
    const struct pl_slurm_step *s = u->step;
    char clock[PL_CLOCK_ID_MAX];
    json_t *message;
    size_t i;

    if (u->wire || u->lost) /* another address of the same hub was quicker */
        return;
    u->wire = wire;
    forget_probe(u, wire, 0);
    close_probes(u);
    uv_timer_stop(&u->round);
    uv_timer_stop(&u->names);
    pl_limit_stop(&u->search);
    pl_uplink_send(u, &(struct pl_msg){
                          .type = PL_MSG_JOIN,
                          .join = {s->node_id, s->node ? s->node : "?", s->local_ntasks,
                                   pl_clock_id(clock), u->unable, known(u->versions.driver),
                                   known(u->versions.nccl), known(u->versions.mpi)},
                      });
    json_array_foreach (u->queue, i, message)
        if (pl_hub_conn_send(wire, message) < 0)
            pl_hub_conn_cut(wire);
    json_array_clear(u->queue);
}

static void on_message(struct pl_hub_conn *wire, json_t *message)
{
    struct pl_uplink *u = wire->ctx;

    if (wire == u->wire)
        u->ops->message(u->ctx, message);
}

/* A probe failed. One side must encrypt and the other does not: this is our hub, as both have
 * proved the run, and it will refuse us each time. */
static void
on_probe_closed(struct pl_uplink *u, struct pl_hub_conn *wire, const struct pl_error *err)
{
    bool refused = err->code == -EACCES || err->code == -ESTALE || err->code == -ENOTSUP;

    u->refused = u->refused || refused;
    if (refused || !u->refused)
        snprintf(u->last_error, sizeof(u->last_error), "%.250s", pl_error_text(err));
    forget_probe(u, wire, err->code);
    if (u->wire || u->closing || u->lost)
        return;
    if (err->code == -ENOTSUP) {
        u->lost = true;
        uv_timer_stop(&u->round);
        u->ops->lost(u->ctx, u->last_error);
    } else if (!u->n_probes) { /* all refused: no need to wait longer */
        uv_timer_start(&u->round, on_round_over, 0, 0);
    }
}

static void on_wire_closed(struct pl_hub_conn *wire, const struct pl_error *err)
{
    struct pl_uplink *u = wire->ctx;

    if (wire != u->wire) {
        on_probe_closed(u, wire, err);
        return;
    }
    u->wire = NULL;
    u->lost = true;
    u->ops->lost(u->ctx, "lost the hub (the daemon of the step's first node)");
}

static const struct pl_hub_conn_ops wire_ops = {
    .message = on_message,
    .open = on_open,
    .closed = on_wire_closed,
};

static void start_probe(struct pl_uplink *u, size_t address, size_t port)
{
    struct probe probe = {.address = address, .port = port};
    struct sockaddr_storage a = u->addresses[address];
    json_t *hello;
    int fd, r;

    ((struct sockaddr_in *)&a)->sin_port = htons(u->ports[port]);
    if (u->n_probes == PROBES_MAX)
        return;
    r = pl_net_connect(
        (struct sockaddr *)&a,
        a.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in), &fd);
    if (r < 0) {
        note_answer(u, &probe, pl_reach_of_connect(r));
        return;
    }
    hello = json_pack("{s:s}", "role", "daemon");
    if (pl_hub_conn_create(u->loop, fd, &u->step->id, u->secret, hello, &wire_ops, u,
                           &probe.conn) == 0)
        u->probes[u->n_probes++] = probe;
    json_decref(hello);
}

/* Ends probes without a banner; a greeting under way gets more time. */
static void on_round_over(uv_timer_t *timer)
{
    struct pl_uplink *u = timer->data;
    uint64_t now = pl_now_ns();
    struct sockaddr_storage peer;
    char text[640], met[160];

    if (u->no_memory) {
        close_probes(u);
        u->lost = true;
        u->ops->lost(u->ctx, "out of memory");
        return;
    }
    if (u->n_probes) /* somebody was too slow */
        u->banner_ms = PL_MIN(u->banner_ms * 2, BANNER_MAX_MS);
    for (size_t i = 0; i < u->n_probes;) {
        struct pl_hub_conn *w = u->probes[i].conn;

        if (w->session.state == PL_SESSION_WAIT_WELCOME &&
            now - w->last_heard_ns < AUTH_MS * 1000000ull) {
            i++;
            continue;
        }
        if (getpeername(w->fd, (struct sockaddr *)&peer, &(socklen_t){sizeof(peer)}) < 0)
            note_answer(u, &u->probes[i], -ETIMEDOUT);
        u->probes[i] = u->probes[--u->n_probes];
        pl_hub_conn_close(w);
    }
    if (!pl_limit_runs(&u->search)) {
        pl_reach_text(&u->reach, met, sizeof(met));
        snprintf(
            text, sizeof(text),
            "node %s found no hub on the step's first node%s%s within %u s: %s%s%s",
            u->step->node ? u->step->node : "?", u->first_node ? " " : "",
            u->first_node ? u->first_node : "", pl_env_ms(PL_ENV_PLUME_LAUNCH_TIMEOUT) / 1000, met,
            *met ? "; " : "",
            /* A hub that refuses is the wrong one: the search went on. */
            u->refused ? u->last_error
            : u->nameless
                ? "scontrol did not tell that node's name (PLUME_SCONTROL, or of the plugin "
                  "scontrol= in plugstack.conf)"
                : "is that node up, do firewalls let the hub's port through (PLUME_HUB_PORTS), "
                  "and has it the same key (PLUME_KEY_FILE)?");
        u->ops->lost(u->ctx, text);
        return;
    }
    u->pause_ms = PL_MIN(u->pause_ms * 2, 1000u);
    uv_timer_start(&u->round, start_round, u->pause_ms / 2 + (unsigned)(now / 1000) % u->pause_ms,
                   0);
}

static void start_round(uv_timer_t *timer)
{
    struct pl_uplink *u = timer->data;

    if (u->wire || u->closing)
        return;
    u->reach.code = 0;
    for (size_t a = 0; a < u->n_addresses; a++)
        for (size_t p = 0; p < u->n_ports; p++)
            start_probe(u, a, p);
    uv_timer_start(&u->round, on_round_over, u->banner_ms, 0);
}

/* ---- life ---- */

int pl_uplink_create(uv_loop_t *loop,
                     const struct pl_slurm_step *step,
                     const unsigned char secret[PL_KEY_SIZE],
                     const struct pl_uplink_ops *ops,
                     void *ctx,
                     struct pl_uplink **ret)
{
    struct pl_uplink *u = calloc(1, sizeof(*u));
    json_t *queue = json_array();

    if (!u || !queue) {
        free(u);
        json_decref(queue);
        return -ENOMEM;
    }
    u->loop = loop;
    u->step = step;
    u->secret = secret;
    u->ops = ops;
    u->ctx = ctx;
    u->queue = queue;
    u->pause_ms = 5;
    u->banner_ms = BANNER_MS;
    u->silence_ms = pl_env_ms(PL_ENV_PLUME_SILENCE);
    pl_versions_ask(&u->versions);
    uv_timer_init(loop, &u->round);
    uv_timer_init(loop, &u->names);
    u->round.data = u->names.data = u;
    pl_limit_init(&u->search, loop, NULL, NULL);
    *ret = u;
    return 0;
}

void pl_uplink_unable(struct pl_uplink *u, const char *text)
{
    u->unable = text;
}

void pl_uplink_use(struct pl_uplink *u, struct pl_hub_conn *own_hub)
{
    u->probes[u->n_probes++] = (struct probe){.conn = own_hub};
    pl_hub_conn_set_owner(own_hub, &wire_ops, u);
}

int pl_uplink_search(struct pl_uplink *u, struct pl_error *err)
{
    const char *hub = pl_env(PL_ENV_PLUME_HUB);
    unsigned names_after_ms, limit_ms = pl_env_ms(PL_ENV_PLUME_LAUNCH_TIMEOUT);
    char host[256];
    int r = pl_hub_ports_derive(u->secret, &u->step->id, u->ports, err);

    if (r < 0)
        return r;
    u->n_ports = PL_WALK_PORTS;
    if (hub && *hub && pl_net_split(hub, host, sizeof(host), &u->ports[PL_WALK_PORTS]) == 0) {
        u->n_ports++;
        add_numeric(u, host);
        u->given = u->n_addresses;
    }
    add_numeric(u, u->step->launch_addr);
    uv_timer_start(&u->round, start_round, 0, 0);
    names_after_ms = u->n_ports > PL_WALK_PORTS ? NAMES_AFTER_GIVEN_MS : NAMES_AFTER_MS;
    pl_limit_start(&u->search, limit_ms);
    uv_timer_start(&u->names, on_names_due, PL_MIN(names_after_ms, limit_ms / 4), 0);
    return 0;
}

/* From the loop: the owner must not be called from within its own calls. */
static void lose_later(struct pl_uplink *u)
{
    if (u->wire) {
        pl_hub_conn_cut(u->wire);
    } else {
        u->no_memory = true;
        uv_timer_start(&u->round, on_round_over, 0, 0);
    }
}

void pl_uplink_send(struct pl_uplink *u, const struct pl_msg *m)
{
    _cleanup_(json_decrefp) json_t *message = NULL;
    int r;

    if (!u || u->closing || u->lost)
        return;
    if (u->wire && pl_hub_conn_is_silent(u->wire, u->silence_ms)) {
        /* It may hear us all the same: our host is up, and so are we. */
        pl_hub_conn_send_new(u->wire, pl_msg_new(&(struct pl_msg){.type = PL_MSG_NODE_HUB_SILENT}));
        pl_hub_conn_cut(u->wire); /* the loop reports the loss */
        return;
    }
    message = pl_msg_new(m);
    if (!message)
        r = -ENOMEM;
    else if (u->wire)
        r = pl_hub_conn_send(u->wire, message);
    else
        r = json_array_size(u->queue) < QUEUE_MAX ? json_array_append(u->queue, message) : 0;
    if (r < 0 && r != -ENOTCONN && !pl_msg_is_spare(m->type))
        lose_later(u);
}

void pl_uplink_beat(struct pl_uplink *u)
{
    if (u && u->wire)
        pl_uplink_send(u, &(struct pl_msg){.type = PL_MSG_NODE_BEAT});
}

void pl_uplink_reset_silence(struct pl_uplink *u)
{
    if (u && u->wire)
        pl_hub_conn_reset_silence(u->wire);
}

void pl_uplink_close(struct pl_uplink *u)
{
    if (!u || u->closing)
        return;
    u->closing = true;
    close_probes(u);
    pl_hub_conn_close(PL_TAKE(u->wire));
    pl_scontrol_cancel(PL_TAKE(u->ask));
    pl_resolve_cancel(PL_TAKE(u->resolver));
    uv_close((uv_handle_t *)&u->round, NULL);
    uv_close((uv_handle_t *)&u->names, NULL);
    uv_close((uv_handle_t *)&u->search.timer, NULL);
}

void pl_uplink_destroy(struct pl_uplink *u)
{
    if (!u)
        return;
    json_decref(u->queue);
    free(u->first_node);
    free(u);
}
