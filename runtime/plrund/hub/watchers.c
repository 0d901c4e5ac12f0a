/* SPDX-License-Identifier: MIT */
/* A watcher gets a snapshot, and then every event. One that reads too slowly gets no events: it
 * gets another snapshot when it has caught up. */
#include "common/base/fs.h"
#include "runtime/plrund/hub/hub_private.h"

#define LAG_BYTES ((size_t)256 * 1024) /* unsent bytes at which a watcher gets snapshots only */
#define LAG_NS 10000000000ull          /* to catch up */

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

void pl_hub_send_snapshot(struct pl_hub_peer *peer)
{
    struct pl_hub *hub = peer->hub;
    struct pl_msg m = {.type = PL_MSG_SNAPSHOT, .snapshot = {hub->epoch, hub->seq, hub->doc}};
    json_t *snapshot = pl_msg_new(&m);

    if (snapshot && pl_hub_conn_send(peer->wire, snapshot) == -EMSGSIZE)
        pl_hub_conn_send_new(
            peer->wire,
            pl_msg_new(&(struct pl_msg){
                .type = PL_MSG_ERROR,
                .error.text = "the run's state is too large for a message: read status.json"}));
    json_decref(snapshot);
}

void pl_hub_to_watchers(struct pl_hub *hub, json_t *event)
{
    json_t *message = NULL;

    for (struct pl_hub_peer *p = hub->watchers; p; p = p->next_watcher) {
        if (p->lagging)
            continue;
        if (pl_hub_conn_unsent(p->wire) > LAG_BYTES) {
            p->lagging = true;
            p->lagging_ns = pl_now_ns();
            continue;
        }
        if (!message)
            message = pl_msg_new(&(struct pl_msg){.type = PL_MSG_EVENT, .event.event = event});
        pl_hub_conn_send(p->wire, message);
    }
    json_decref(message);
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
