/* SPDX-License-Identifier: MIT */
/* The hub's connections: node daemons, and clients that ask. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "runtime/node/net.h"
#include "runtime/plrund/hub/hub.h"

#include <string.h>

#define GREETING_NS 2000000000ull      /* to finish the greeting */
#define CLIENTS_MAX 256                /* beyond the nodes */
#define LAG_BYTES ((size_t)256 * 1024) /* unread bytes at which a watcher gets snapshots only */
#define LAG_NS 10000000000ull          /* and after this long it is cut off */

static void forget(struct pl_hub_peer *peer)
{
    struct pl_hub_peer **p = &peer->hub->peers;

    while (*p && *p != peer)
        p = &(*p)->next;
    if (*p)
        *p = peer->next;
    free(peer);
}

static void on_closed(struct pl_hub_conn *wire, const struct pl_error *err)
{
    struct pl_hub_peer *peer = wire->ctx;
    struct pl_hub *hub = peer->hub;
    int64_t node_id = peer->node_id;

    if (err->code == -EACCES)
        pl_log_warn("net", "a peer was refused: %s", pl_error_text(err));
    forget(peer);
    if (node_id >= 0)
        pl_hub_node_lost(hub, (unsigned)node_id);
}

static void on_join(struct pl_hub_peer *peer, json_t *message)
{
    struct pl_hub *hub = peer->hub;
    const char *role = pl_json_string(peer->wire->session.hello, "role");
    int64_t node_id;

    if (!role || strcmp(role, "daemon") != 0 || pl_json_int(message, "node_id", &node_id) < 0 ||
        node_id < 0 || node_id >= hub->daemon->step.nnodes || hub->nodes[node_id].joined) {
        pl_log_warn("net", "a join that makes no sense was refused");
        pl_hub_conn_send_new(peer->wire, json_pack("{s:s, s:s}", "type", "refused", "text",
                                                   "this node has joined already"));
        return;
    }
    peer->node_id = node_id;
    pl_hub_joined(hub, (unsigned)node_id, message, peer->wire);
}

static void send_snapshot(struct pl_hub_peer *peer)
{
    json_t *snapshot = pl_hub_snapshot(peer->hub);

    if (snapshot && pl_hub_conn_send(peer->wire, snapshot) == -EMSGSIZE)
        pl_hub_conn_send_new(peer->wire,
                             json_pack("{s:s, s:s}", "type", "error", "text",
                                       "the run's state is too large for a message: read "
                                       "status.json"));
    json_decref(snapshot);
}

static void on_message(struct pl_hub_conn *wire, json_t *message)
{
    struct pl_hub_peer *peer = wire->ctx;
    const char *type = pl_json_string(message, "type");

    if (!type || strcmp(type, "hello") == 0)
        return;
    if (peer->node_id >= 0) {
        if (strcmp(type, "beat") != 0)
            pl_hub_message(peer->hub, (unsigned)peer->node_id, message);
    } else if (strcmp(type, "join") == 0) {
        on_join(peer, message);
    } else if (strcmp(type, "snapshot") == 0) {
        send_snapshot(peer);
    } else if (strcmp(type, "watch") == 0) {
        peer->watching = true;
        send_snapshot(peer);
    } else {
        pl_hub_conn_send_new(wire,
                             json_pack("{s:s, s:s}", "type", "error", "text", "unknown type"));
    }
}

static const struct pl_hub_conn_ops ops = {.message = on_message, .closed = on_closed};

static size_t count_clients(const struct pl_hub *hub)
{
    size_t n = 0;

    for (const struct pl_hub_peer *p = hub->peers; p; p = p->next)
        n += p->node_id < 0;
    return n;
}

static void on_accept(uv_poll_t *poll, int status, int events)
{
    struct pl_hub *hub = poll->data;
    struct pl_daemon *d = hub->daemon;
    int fd = accept4(hub->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct pl_hub_peer *peer;

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
            uv_poll_stop(poll);
        return;
    }
    peer = count_clients(hub) < CLIENTS_MAX + d->step.nnodes - hub->n_joined
               ? calloc(1, sizeof(*peer))
               : NULL;
    if (!peer) {
        close(fd);
        return;
    }
    *peer =
        (struct pl_hub_peer){.next = hub->peers, .hub = hub, .node_id = -1, .born_ns = pl_now_ns()};
    if (pl_hub_conn_create(d->loop, fd, &d->step.id, d->secret, NULL, &ops, peer, &peer->wire) <
        0) {
        free(peer);
        return;
    }
    hub->peers = peer;
}

void pl_hub_accept(struct pl_hub *hub)
{
    if (hub->listener.data && !uv_is_closing((uv_handle_t *)&hub->listener))
        uv_poll_start(&hub->listener, UV_READABLE, on_accept);
}

/* PLUME_HUB's port where that is given and free, else the first free one of the walk. */
int pl_hub_listen(struct pl_hub *hub, struct pl_error *err)
{
    struct pl_daemon *d = hub->daemon;
    const char *given = getenv("PLUME_HUB");
    uint16_t ports[PL_WALK_PORTS], port;
    char host[256];
    int r = -EADDRINUSE;

    if (given && *given && pl_net_split(given, host, sizeof(host), &port) == 0) {
        r = pl_net_listen(port, &hub->listen_fd, err);
        hub->port = port;
    }
    if (r < 0) {
        int walk = pl_hub_ports_derive(d->secret, &d->step.id, ports, err);

        if (walk < 0)
            return walk;
    }
    for (size_t i = 0; r < 0 && i < PL_WALK_PORTS; i++) {
        r = pl_net_listen_alone(ports[i], &hub->listen_fd, err);
        hub->port = ports[i];
    }
    if (r < 0)
        return pl_error_set(err, r,
                            "none of the hub's %d ports is free on this node: give another range "
                            "in PLUME_HUB_PORTS",
                            PL_WALK_PORTS);
    r = uv_poll_init(d->loop, &hub->listener, hub->listen_fd);
    if (r < 0)
        return pl_error_set(err, r, "cannot watch a socket: %s", uv_strerror(r));
    hub->listener.data = hub;
    pl_hub_accept(hub);
    return 0;
}

void pl_hub_to_watchers(struct pl_hub *hub, json_t *event)
{
    json_t *message = NULL;

    for (struct pl_hub_peer *p = hub->peers; p; p = p->next) {
        if (!p->watching || p->lagging)
            continue;
        if (p->wire->session.out.len > LAG_BYTES) {
            p->lagging = true; /* a snapshot once it has read what it got */
            p->lagging_ns = pl_now_ns();
            continue;
        }
        if (!message)
            message = json_pack("{s:s, s:O}", "type", "event", "event", event);
        pl_hub_conn_send(p->wire, message);
    }
    json_decref(message);
}

void pl_hub_reset_silence(struct pl_hub *hub)
{
    for (struct pl_hub_peer *p = hub->peers; p; p = p->next)
        p->wire->last_heard_ns = pl_now_ns();
}

void pl_hub_tick_net(struct pl_hub *hub)
{
    uint64_t silence_ns = pl_slurm_step_env_ms("PLUME_SILENCE", PL_SILENCE_MS) * 1000000ull;
    uint64_t now = pl_now_ns();
    struct pl_hub_peer *next;

    for (struct pl_hub_peer *p = hub->peers; p; p = next) {
        bool silent = p->node_id >= 0 && now - p->wire->last_heard_ns > silence_ns;

        next = p->next;
        if ((!p->wire->was_open && now - p->born_ns > GREETING_NS) || silent ||
            (p->lagging && now - p->lagging_ns > LAG_NS)) {
            shutdown(p->wire->fd, SHUT_RDWR); /* the loop then reports it as closed */
        } else if (p->lagging && pl_hub_conn_unsent(p->wire) == 0) {
            p->lagging = false;
            send_snapshot(p);
        }
    }
}

void pl_hub_close_net(struct pl_hub *hub)
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
