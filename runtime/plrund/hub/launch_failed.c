/* SPDX-License-Identifier: MIT */
/* Launches that fail: a node or a rank does not come, or a node cannot serve the step. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/proto/sealed.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/ending_private.h"

void pl_hub_record_launch_failure(struct pl_hub *hub, int64_t unstarted)
{
    const char *kind = pl_cause_name(PL_CAUSE_LAUNCH);
    json_t *cause;

    if (hub->refusal)
        cause = json_pack("{s:s, s:s}", "kind", kind, "text", hub->refusal);
    else
        cause = json_pack("{s:s, s:I, s:s}", "kind", kind, "rank", (json_int_t)unstarted, "text",
                          "this rank never started");
    pl_run_state_set_confidence(cause, PL_CONFIDENCE_SEEN);
    pl_hub_record_cause(hub, cause, -1);
}

/* The launch has failed by this cause (consumed): all who have come are refused, and who comes. */
static void refuse_launch(struct pl_hub *hub, json_t *cause, char *refusal)
{
    enum pl_encrypt encrypt;

    pl_run_state_set_confidence(cause, PL_CONFIDENCE_SEEN);
    pl_hub_record_cause(hub, cause, -1);
    hub->refusal = refusal;
    hub->state = PL_HUB_ENDING;
    if (pl_encrypt_read(&encrypt, NULL) < 0) /* no session begins: no latecomer could be told */
        pl_limit_stop(&hub->launch_limit);
    if (!pl_limit_runs(&hub->launch_limit)) /* else latecomers get their answer */
        pl_hub_limit_end(hub, 0);
    pl_hub_broadcast(
        hub, &(struct pl_msg){.type = PL_MSG_HUB_REFUSED, .hub_refused.text = hub->refusal});
}

void pl_hub_refuse_by_node(struct pl_hub *hub, unsigned node_id, const char *text)
{
    const char *node = pl_hub_node_name(&hub->nodes[node_id]);
    char *refusal = pl_strf("node %s cannot serve the step: %s", node, text);

    pl_log_error("net", "%s", refusal ? refusal : text);
    refuse_launch(hub,
                  json_pack("{s:s, s:s, s:s}", "kind", pl_cause_name(PL_CAUSE_LAUNCH), "node", node,
                            "text", text),
                  refusal);
}

void pl_hub_launch_failed(struct pl_hub *hub)
{
    _cleanup_(pl_buf_finish) struct pl_buf missing = {0};
    _cleanup_free_ char *first = NULL;
    unsigned n = pl_hub_missing(hub, &missing, &first);
    char hint[256] = "";
    json_t *cause;

    /* They cannot tell why: they have not reached us. */
    snprintf(
        hint, sizeof(hint),
        "\nAre they up, and may they connect to port %u of %.64s (PLUME_HUB_PORTS)? A firewall "
        "may stop them.",
        (unsigned)hub->port, pl_hub_node_name(&hub->nodes[0]));
    cause = json_pack("{s:s, s:s++}", "kind", pl_cause_name(PL_CAUSE_LAUNCH), "text",
                      "no word from these nodes of the step: ", pl_buf_str(&missing), hint);
    if (cause && first)
        json_object_set_new(cause, "node", json_string(first));
    pl_log_error("net", "%u of %u nodes did not join: %s", n, hub->step->nnodes,
                 pl_buf_str(&missing));
    refuse_launch(hub, cause,
                  pl_strf("not all nodes of the step came up (missing: %s)", pl_buf_str(&missing)));
}
