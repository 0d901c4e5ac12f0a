/* SPDX-License-Identifier: MIT */
/* A watcher gets a snapshot, and then every event. One that reads too slowly gets no events: it
 * gets another snapshot when it has caught up. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "runtime/plrund/hub/hub_private.h"

#define LAG_BYTES ((size_t)256 * 1024)  /* unsent bytes at which a watcher gets snapshots only */
#define LAG_NS 10000000000ull           /* to catch up */
#define SHARE_NS 250000000ull           /* for which a text is sent again */
#define SHARE_BYTES ((size_t)64 * 1024) /* smaller ones are made anew */

void pl_hub_add_watcher(struct pl_hub_peer *peer)
{
    if (peer->watching)
        return;
    peer->watching = true;
    peer->next_watcher = peer->hub->watchers;
    peer->hub->watchers = peer;
}

void pl_hub_forget_watcher(struct pl_hub_peer *peer)
{
    struct pl_hub_peer **p = &peer->hub->watchers;

    while (*p && *p != peer)
        p = &(*p)->next_watcher;
    if (*p)
        *p = peer->next_watcher;
    peer->watching = false;
}

/* Several clients may get the same text of a large run. A watcher gets one to which the next event
 * can be applied; the values that another client gets may be SHARE_NS old. */
static bool has_snapshot(const struct pl_hub_peer *peer)
{
    const struct pl_hub *hub = peer->hub;

    if (hub->snapshot.at_ns == 0 || hub->snapshot.line.len < SHARE_BYTES)
        return false;
    return hub->snapshot.seq == hub->seq ||
           (!peer->watching && pl_now_ns() - hub->snapshot.at_ns < SHARE_NS);
}

static int make_snapshot(struct pl_hub *hub)
{
    struct pl_msg m = {.type = PL_MSG_SNAPSHOT, .snapshot = {hub->epoch, hub->seq, hub->doc}};
    _cleanup_(json_decrefp) json_t *snapshot = pl_msg_new(&m);

    hub->snapshot.line.len = 0;
    hub->snapshot.seq = hub->seq;
    hub->snapshot.at_ns = 0;
    if (!snapshot || pl_json_dump_line(snapshot, &hub->snapshot.line) < 0)
        return -ENOMEM;
    hub->snapshot.at_ns = pl_now_ns();
    return 0;
}

void pl_hub_forget_snapshot(struct pl_hub *hub)
{
    hub->snapshot.at_ns = 0;
}

void pl_hub_send_snapshot(struct pl_hub_peer *peer)
{
    struct pl_hub *hub = peer->hub;

    if (!has_snapshot(peer) && make_snapshot(hub) < 0)
        return;
    if (pl_hub_conn_send_line(peer->wire, "snapshot", &hub->snapshot.line) == -EMSGSIZE)
        pl_hub_conn_send_new(
            peer->wire,
            pl_msg_new(&(struct pl_msg){
                .type = PL_MSG_ERROR,
                .error.text = "the run's state is too large for a message: read status.json"}));
}

void pl_hub_to_watchers(struct pl_hub *hub, json_t *event)
{
    struct pl_msg m = {.type = PL_MSG_EVENT, .event.event = event};
    _cleanup_(json_decrefp) json_t *message = hub->watchers ? pl_msg_new(&m) : NULL;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    if (message && pl_json_dump_line(message, &line) < 0)
        line.len = 0;
    for (struct pl_hub_peer *p = hub->watchers; p; p = p->next_watcher) {
        if (p->lagging)
            continue;
        if (!line.len || pl_hub_conn_unsent(p->wire) > LAG_BYTES) {
            p->lagging = true;
            p->lagging_ns = pl_now_ns();
            continue;
        }
        pl_hub_conn_send_line(p->wire, "event", &line);
    }
}

bool pl_hub_tick_watcher(struct pl_hub_peer *peer)
{
    if (!peer->lagging)
        return true;
    if (pl_now_ns() - peer->lagging_ns > LAG_NS)
        return false;
    if (pl_hub_conn_unsent(peer->wire) == 0) {
        peer->lagging = false;
        pl_hub_send_snapshot(peer);
    }
    return true;
}
