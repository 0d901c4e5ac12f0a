/* SPDX-License-Identifier: MIT */
/* The hub's connections: node daemons, and clients (plstat). */
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "runtime/node/net.h"
#include "runtime/plrund/hub/hub_private.h"

#include <string.h>

#define GREETING_NS 2000000000ull        /* to finish the greeting */
#define GREETING_PRESSED_NS 250000000ull /* the same, for one of a crowd */
#define CLIENTS_MAX 256                  /* that have greeted; in addition to the nodes */

/* message (consumed) NULL = no memory for it. A node that is not told would be waited for. */
static void send_or_cut(struct pl_hub_conn *wire, json_t *message, bool spare)
{
    int r = message ? pl_hub_conn_send(wire, message) : -ENOMEM;

    json_decref(message);
    if (wire && r < 0 && r != -ENOTCONN && !spare)
        pl_hub_conn_cut(wire);
}

void pl_hub_send(struct pl_hub *hub, unsigned node_id, const struct pl_msg *m)
{
    send_or_cut(hub->nodes[node_id].wire, pl_msg_new(m), pl_msg_is_spare(m->type));
}

void pl_hub_broadcast(struct pl_hub *hub, const struct pl_msg *m)
{
    json_t *message = pl_msg_new(m);

    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if (hub->nodes[i].joined && !hub->nodes[i].lost)
            send_or_cut(hub->nodes[i].wire, json_incref(message), pl_msg_is_spare(m->type));
    json_decref(message);
}

/* ---- a peer ---- */

/* It has greeted, or it is gone. */
static void leave_strangers(struct pl_hub_peer *peer)
{
    if (peer->crowd >= 0)
        pl_strangers_leave(&peer->hub->strangers, (unsigned)peer->crowd);
    peer->crowd = -1;
}

static void forget(struct pl_hub_peer *peer)
{
    struct pl_hub_peer **p = &peer->hub->peers;

    leave_strangers(peer);
    pl_hub_forget_watcher(peer);
    while (*p && *p != peer)
        p = &(*p)->next;
    if (*p)
        *p = peer->next;
    free(peer);
}

/* Anybody can cause this warning as often as he likes. */
static void warn_refused(struct pl_hub *hub, const char *what, const char *why)
{
    unsigned left_out;

    if (!pl_log_limit_pass(&hub->refusals, pl_now_ns(), &left_out))
        return;
    if (left_out)
        pl_log_warn("net", "refused %u more peers since the last warning", left_out);
    pl_log_warn("net", "refused a %s: %s", what, why);
}

static void on_closed(struct pl_hub_conn *wire, const struct pl_error *err)
{
    struct pl_hub_peer *peer = wire->ctx;
    struct pl_hub *hub = peer->hub;
    int64_t node_id = peer->node_id;
    bool host_answers = !peer->host_silent && (err->code == -EPIPE || err->code == -ECONNRESET);

    if (err->code == -EACCES || err->code == -ENOTSUP)
        warn_refused(hub, "peer", pl_error_text(err));
    forget(peer);
    if (node_id >= 0)
        hub->node_ops->lost(hub, (unsigned)node_id, host_answers);
}

static void refuse_join(struct pl_hub_peer *peer)
{
    static const struct pl_msg refused = {.type = PL_MSG_HUB_REFUSED,
                                          .hub_refused.text = "this node has joined already"};

    warn_refused(peer->hub, "join", "no daemon, or a node that has joined");
    pl_hub_conn_send_new(peer->wire, pl_msg_new(&refused));
}

static void on_join(struct pl_hub_peer *peer, const struct pl_msg_join *join)
{
    struct pl_hub *hub = peer->hub;
    const char *role = pl_hub_conn_role(peer->wire);

    if (!role || strcmp(role, "daemon") != 0 || join->node_id < 0 ||
        join->node_id >= hub->step->nnodes || hub->nodes[join->node_id].joined) {
        refuse_join(peer);
        return;
    }
    peer->node_id = join->node_id;
    hub->node_ops->joined(hub, (unsigned)peer->node_id, join, peer->wire);
}

/* A message of a client, or of a node that has not joined. */
static void on_client_message(struct pl_hub_peer *peer, json_t *message)
{
    static const struct pl_msg error = {.type = PL_MSG_ERROR, .error.text = "unknown type"};
    struct pl_msg m;
    int r;

    if (pl_msg_read(message, PL_WIRE_GREETING, &m) == 0) /* the session has handled it */
        return;
    r = pl_msg_read(message, PL_WIRE_PEER_TO_HUB, &m);
    if (r == -ENOENT) {
        pl_hub_conn_send_new(peer->wire, pl_msg_new(&error));
    } else if (r < 0) { /* only a join has fields */
        refuse_join(peer);
    } else if (m.type == PL_MSG_JOIN) {
        on_join(peer, &m.join);
    } else { /* a snapshot, and for a watcher the events after it */
        if (m.type == PL_MSG_WATCH)
            pl_hub_add_watcher(peer);
        pl_hub_send_snapshot(peer);
    }
}

static void on_node_message(struct pl_hub_peer *peer, const struct pl_msg *m)
{
    if (m->type == PL_MSG_NODE_HUB_SILENT) /* and then it closes: the network is at fault */
        peer->host_silent = true;
    else
        peer->hub->node_ops->message(peer->hub, (unsigned)peer->node_id, m);
}

static void on_message(struct pl_hub_conn *wire, json_t *message)
{
    struct pl_hub_peer *peer = wire->ctx;
    struct pl_msg m;

    if (peer->node_id < 0)
        on_client_message(peer, message);
    else if (pl_msg_read(message, PL_WIRE_NODE_TO_HUB, &m) == 0)
        on_node_message(peer, &m);
}

static size_t count_clients(const struct pl_hub *hub)
{
    size_t n = 0;

    for (const struct pl_hub_peer *p = hub->peers; p; p = p->next)
        n += p->node_id < 0 && p->crowd < 0;
    return n;
}

/* The peer has the key. Nodes are never too many: each joins once. */
static void on_open(struct pl_hub_conn *wire)
{
    struct pl_hub_peer *peer = wire->ctx;
    const char *role = pl_hub_conn_role(wire);

    leave_strangers(peer);
    if (count_clients(peer->hub) > CLIENTS_MAX && !(role && strcmp(role, "daemon") == 0))
        pl_hub_conn_cut(wire);
}

static const struct pl_hub_conn_ops ops = {
    .message = on_message,
    .open = on_open,
    .closed = on_closed,
};

/* Returns NULL if out of memory. */
static struct pl_hub_peer *add_peer(struct pl_hub *hub)
{
    struct pl_hub_peer *peer = calloc(1, sizeof(*peer));

    if (!peer)
        return NULL;
    *peer = (struct pl_hub_peer){
        .next = hub->peers, .hub = hub, .node_id = -1, .crowd = -1, .born_ns = pl_now_ns()};
    hub->peers = peer;
    return peer;
}

int pl_hub_add_pair(struct pl_hub *hub, struct pl_hub_conn *wire)
{
    struct pl_hub_peer *peer = add_peer(hub);

    if (!peer)
        return -ENOMEM;
    peer->wire = wire;
    pl_hub_conn_set_owner(wire, &ops, peer);
    return 0;
}

/* ---- the port ---- */

static unsigned missing_nodes(const struct pl_hub *hub)
{
    return hub->step->nnodes - hub->n_joined;
}

static void cut_off(struct pl_hub_peer *peer)
{
    struct pl_hub_conn *wire = peer->wire;

    forget(peer);
    pl_hub_conn_close(wire);
}

/* Cuts off the oldest stranger of a crowd. */
static void cut_oldest(struct pl_hub *hub, int crowd)
{
    struct pl_hub_peer *oldest = NULL;

    if (crowd < 0) /* there is no stranger */
        return;
    for (struct pl_hub_peer *p = hub->peers; p; p = p->next) /* the newest comes first */
        if (p->crowd == crowd)
            oldest = p;
    if (oldest)
        cut_off(oldest);
}

static void cut_late(struct pl_hub *hub)
{
    bool pressed = pl_strangers_press(&hub->strangers, missing_nodes(hub));
    uint64_t now = pl_now_ns(), limit_ns;

    for (struct pl_hub_peer *p = hub->peers, *next; p; p = next) {
        next = p->next;
        if (p->crowd < 0)
            continue;
        limit_ns = pressed && pl_strangers_crowded(&hub->strangers, (unsigned)p->crowd)
                       ? GREETING_PRESSED_NS
                       : GREETING_NS;
        if (now - p->born_ns > limit_ns)
            cut_off(p);
    }
}

static void on_greeting_limit(uv_timer_t *timer)
{
    struct pl_hub *hub = timer->data;

    cut_late(hub);
    pl_hub_accept(hub); /* there may be a descriptor again */
    if (!hub->strangers.n)
        uv_timer_stop(timer);
}

static void watch_greetings(struct pl_hub *hub)
{
    const uint64_t period_ms = GREETING_PRESSED_NS / 1000000;

    if (!uv_is_active((uv_handle_t *)&hub->greeting_timer))
        uv_timer_start(&hub->greeting_timer, on_greeting_limit, period_ms, period_ms);
}

static void admit(struct pl_hub *hub, int fd, const struct sockaddr_storage *address)
{
    unsigned crowd = pl_strangers_crowd(&hub->strangers, address);
    struct pl_hub_peer *peer;
    int full;

    if (pl_strangers_press(&hub->strangers, missing_nodes(hub)))
        cut_late(hub);
    full = pl_strangers_make_room(&hub->strangers, crowd, missing_nodes(hub));
    if (full >= 0)
        cut_oldest(hub, full);
    peer = add_peer(hub);
    if (!peer) {
        close(fd);
    } else if (pl_hub_conn_create(hub->loop, fd, &hub->step->id, hub->secret, NULL, &ops, peer,
                                  &peer->wire) < 0) {
        forget(peer);
    } else {
        peer->crowd = (int)crowd;
        pl_strangers_enter(&hub->strangers, crowd);
        watch_greetings(hub);
    }
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct pl_hub *hub = poll->data;
    struct sockaddr_storage address = {0};
    socklen_t len = sizeof(address);
    int fd = PL_FAULT("accept", EMFILE) ? -1
                                        : accept4(hub->listen_fd, (struct sockaddr *)&address, &len,
                                                  SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0) {
        admit(hub, fd, &address);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        cut_oldest(hub, pl_strangers_largest(&hub->strangers));
        uv_poll_stop(poll); /* until the next tick */
        watch_greetings(hub);
    }
}

void pl_hub_accept(struct pl_hub *hub)
{
    if (hub->listener.data && !uv_is_closing((uv_handle_t *)&hub->listener))
        uv_poll_start(&hub->listener, UV_READABLE, on_accept);
}

/* Takes PLUME_HUB's port if it is free, else the first free one of the derived ports. at: an
 * address; NULL = all. */
static int listen_at(struct pl_hub *hub, const char *at, const uint16_t derived[PL_WALK_PORTS])
{
    const char *given = pl_env(PL_ENV_PLUME_HUB);
    char host[256];
    uint16_t port;
    int r = -EADDRINUSE;

    if (given && *given && pl_net_split(given, host, sizeof(host), &port) == 0) {
        r = pl_net_listen(at, port, &hub->listen_fd, NULL);
        hub->port = port;
    }
    for (size_t i = 0; r < 0 && i < PL_WALK_PORTS; i++) {
        r = pl_net_listen_alone(at, derived[i], &hub->listen_fd, NULL);
        hub->port = derived[i];
    }
    return r;
}

static int listen_spare(struct pl_hub *hub)
{
    uint16_t ports[PL_SPARE_PORTS];
    int r = -EADDRINUSE;

    pl_hub_ports_spare(hub->secret, &hub->step->id, ports);
    for (size_t i = 0; r < 0 && i < PL_SPARE_PORTS; i++) {
        r = pl_net_listen_alone(NULL, ports[i], &hub->listen_fd, NULL);
        hub->port = ports[i];
    }
    return r;
}

/* PLUME_HUB_BIND. Loopback is another node's own, unless srun came from there: then all nodes of
 * the step are this host. */
static int bind_address(const struct pl_hub *hub, char *ret, size_t size, struct pl_error *err)
{
    const char *launch = hub->step->launch_addr;
    int r = pl_hub_bind_address(ret, size, err);

    if (r < 0 || hub->step->nnodes == 1 || !pl_net_is_loopback(ret) || !launch || !*launch ||
        pl_net_is_loopback(launch))
        return r;
    r = pl_error_set(err, -EADDRNOTAVAIL,
                     "PLUME_HUB_BIND: other nodes cannot reach '%s'; give the name of an interface "
                     "that they can reach, or its address",
                     ret);
    *ret = '\0';
    return r;
}

/* At PLUME_HUB_BIND. Where that is not possible, at all addresses, and where no port of the range
 * is free, at a spare one: the other nodes would search for a hub until their limit, and so they
 * hear from this one why the step ends. */
int pl_hub_listen(struct pl_hub *hub, struct pl_error *err)
{
    struct pl_error unable = {0};
    uint16_t ports[PL_WALK_PORTS];
    char own[sizeof(hub->own_addr)];
    int r = pl_hub_ports_derive(hub->secret, &hub->step->id, ports, err);

    if (r < 0)
        return r;
    r = bind_address(hub, own, sizeof(own), &unable);
    if (r == 0)
        r = listen_at(hub, own[0] ? own : NULL, ports);
    if (r == 0 && own[0])
        memcpy(hub->own_addr, own, sizeof(own));
    if (r < 0 && r != -EADDRINUSE && own[0])
        pl_error_errno(&unable, r,
                       "PLUME_HUB_BIND: cannot listen at '%s'; give the name of an interface, or "
                       "its address",
                       own);
    if (unable.code)
        r = listen_at(hub, NULL, ports);
    if (r < 0) {
        if (!unable.code)
            pl_error_set(&unable, r,
                         "none of the hub's %d ports is free on this node: give another range in "
                         "PLUME_HUB_PORTS",
                         PL_WALK_PORTS);
        r = listen_spare(hub);
    }
    if (r < 0)
        return pl_error_set(err, r, "%s", pl_error_text(&unable));
    if (unable.code && !(hub->unable = pl_buf_dup_text(pl_error_text(&unable))))
        return pl_error_nomem(err);
    r = uv_poll_init(hub->loop, &hub->listener, hub->listen_fd);
    if (r < 0)
        return pl_error_set(err, r, "cannot watch a socket: %s", uv_strerror(r));
    hub->listener.data = hub;
    pl_hub_accept(hub);
    return 0;
}

void pl_hub_reset_silence(struct pl_hub *hub)
{
    for (struct pl_hub_peer *p = hub->peers; p; p = p->next) {
        pl_hub_conn_reset_silence(p->wire);
        p->born_ns = pl_now_ns();
    }
}

void pl_hub_tick_peers(struct pl_hub *hub)
{
    unsigned silence_ms = pl_env_ms(PL_ENV_PLUME_SILENCE);

    for (struct pl_hub_peer *p = hub->peers; p; p = p->next) {
        bool silent = p->node_id >= 0 && pl_hub_conn_is_silent(p->wire, silence_ms);

        if (silent)
            p->host_silent = !pl_hub_conn_host_answers(p->wire);
        if (silent || !pl_hub_tick_watcher(p))
            pl_hub_conn_cut(p->wire);
    }
}

void pl_hub_close_peers(struct pl_hub *hub)
{
    if (hub->listener.data && !uv_is_closing((uv_handle_t *)&hub->listener))
        uv_close((uv_handle_t *)&hub->listener, NULL);
    while (hub->peers) {
        struct pl_hub_conn *wire = hub->peers->wire;

        if (hub->peers->node_id >= 0)
            hub->nodes[hub->peers->node_id].wire = NULL;
        forget(hub->peers);
        pl_hub_conn_close(wire);
    }
}
