/* SPDX-License-Identifier: MIT */
/* GPU reports of nodes: samples go to the state and to metrics.jsonl, errors to the event log and
 * to the failure that they explain. */
#include "common/proto/json.h"
#include "runtime/plrund/hub/hub_private.h"

#include <string.h>

#define GPUS_MAX 64
#define KEPT_MAX 64           /* errors that may explain a failure, of all nodes */
#define LOGGED_MAX 1000       /* errors in the log */
#define BEFORE_NS 60000000000 /* a program notices late: at its next use of the GPU */
#define AFTER_NS 2000000000   /* the driver reports late: the program fails before the Xid */

void pl_hub_gpus(struct pl_hub *hub, unsigned node_id, json_t *gpus)
{
    if (json_array_size(gpus) <= GPUS_MAX)
        pl_hub_event(hub, json_pack("{s:s, s:i, s:O}", "type", "gpus", "node_id", (int)node_id,
                                    "gpus", gpus));
}

void pl_hub_gpu(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_gpu *gpu)
{
    struct pl_hub_node *node = &hub->nodes[node_id];
    json_t *event;

    if (hub->n_gpu_errors++ >= LOGGED_MAX)
        return;
    event = json_pack("{s:s, s:i, s:s, s:I, s:s, s:O*}", "type", "gpu", "node_id", (int)node_id,
                      "node", node->name ? node->name : "?", "gpu", (json_int_t)gpu->gpu, "event",
                      gpu->event, "ranks", gpu->ranks);
    if (!event)
        return;
    if (gpu->uuid)
        json_object_set_new(event, "uuid", json_string(gpu->uuid));
    if (gpu->text)
        json_object_set_new(event, "text", json_string(gpu->text));
    if (gpu->xid != PL_MSG_ABSENT)
        json_object_set_new(event, "xid", json_integer(gpu->xid));
    if (!hub->gpu_errors)
        hub->gpu_errors = json_array();
    if (json_array_size(hub->gpu_errors) == KEPT_MAX)
        json_array_remove(hub->gpu_errors, 0);
    json_array_append_new(hub->gpu_errors,
                          json_pack("{s:I, s:O}", "at_ns",
                                    (json_int_t)(gpu->at_ns - node->offset_ns), "event", event));
    pl_hub_event(hub, event);
}

static bool concerns(json_t *event, const struct pl_failure *f)
{
    json_t *ranks = json_object_get(event, "ranks"), *rank;
    int64_t node_id;
    size_t i;

    if (pl_json_int(event, "node_id", &node_id) < 0 || node_id != (int64_t)f->node_id)
        return false;
    json_array_foreach (ranks, i, rank)
        if (json_integer_value(rank) == (json_int_t)f->rank)
            return true;
    return json_array_size(ranks) == 0; /* its users are not known */
}

json_t *pl_hub_gpu_error(struct pl_hub *hub, const struct pl_failure *f)
{
    static const char *const keys[] = {"gpu", "event", "xid", "text"};
    json_t *kept, *ret = NULL;
    size_t i;

    json_array_foreach (hub->gpu_errors, i, kept) {
        json_t *event = json_object_get(kept, "event");
        int64_t at_ns = 0;

        pl_json_int(kept, "at_ns", &at_ns);
        if (ret || !concerns(event, f) || at_ns < f->at_ns - BEFORE_NS ||
            at_ns > f->at_ns + AFTER_NS)
            continue;
        ret = json_pack("{s:f}", "before_s", (double)(f->at_ns - at_ns) / 1e9);
        for (size_t k = 0; ret && k < PL_COUNT(keys); k++)
            if (json_object_get(event, keys[k]))
                json_object_set(ret, keys[k], json_object_get(event, keys[k]));
    }
    return ret;
}
