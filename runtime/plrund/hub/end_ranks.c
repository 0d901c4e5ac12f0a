/* SPDX-License-Identifier: MIT */
/* Ending the ranks: how long they may take, and with which code they and their plrun end. */
#include "common/base/env.h"
#include "common/proto/json.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/ending_private.h"

#include <signal.h>

#define END_EXTRA_MS 10000 /* from SIGKILL to giving up on a node */

void pl_hub_limit_end(struct pl_hub *hub, unsigned grace_ms)
{
    if (!pl_limit_runs(&hub->end_limit))
        pl_limit_start(&hub->end_limit, grace_ms + END_EXTRA_MS);
}

/* The code that ranks give which the runtime ends. A hang has no rank that gives its code; the rank
 * of the other causes has lost its plrun or its node. Slurm may see no fault at all. */
static int code_of_ended(const struct pl_hub *hub)
{
    enum pl_cause_kind kind = pl_cause_parse(pl_json_string(hub->cause, "kind"));
    const struct pl_hub_node *node =
        hub->root >= 0 ? &hub->nodes[hub->node_of_rank[hub->root]] : NULL;

    /* plrun's daemon stays for our verdict, also after its bye. */
    if (kind == PL_CAUSE_HANG || kind == PL_CAUSE_NODE || kind == PL_CAUSE_RUNTIME ||
        kind == PL_CAUSE_LAUNCH || (node && (node->lost || (!node->wire && !hub->step->plugin))))
        return pl_run_state_exit_code(hub->cause);
    return 0;
}

/* Under the plugin srun knows only how the ranks end, and those that the runtime ends may save and
 * exit with 0. Where no rank's own end fails the step, this one must not end well: the rank that
 * hangs, or one of a node that is there; ABSENT = none. Nodes that are lost do the same. */
static int64_t rank_to_fail(struct pl_hub *hub)
{
    if (!hub->step->plugin || code_of_ended(hub) == 0)
        return PL_MSG_ABSENT;
    if (hub->root >= 0 && hub->rank_states[hub->root] == PL_RANK_RUNNING)
        return hub->root;
    for (int64_t rank = hub->step->ntasks; rank-- > 0;)
        if (hub->rank_states[rank] == PL_RANK_RUNNING)
            return rank;
    return PL_MSG_ABSENT;
}

unsigned pl_hub_end_grace_ms(const struct pl_hub *hub)
{
    unsigned grace_ms = pl_env_ms(PL_ENV_PLUME_KILL_GRACE);

    if (hub->terminated && pl_env_text(PL_ENV_PLUME_SAVE_COMMAND))
        grace_ms = PL_MAX(grace_ms, pl_env_ms(PL_ENV_PLUME_SAVE_GRACE));
    return grace_ms;
}

void pl_hub_end_ranks(struct pl_hub *hub, bool slurm_ends)
{
    unsigned grace_ms = pl_hub_end_grace_ms(hub);

    hub->state = PL_HUB_ENDING;
    if (!slurm_ends) {
        /* First in the log, then done: what follows counts as ours. */
        pl_hub_event(hub, json_pack("{s:s, s:i, s:i}", "type", "teardown", "signal", SIGTERM,
                                    "grace_ms", (int)grace_ms));
        pl_hub_send_log(hub);
        pl_hub_limit_end(hub, grace_ms);
        pl_hub_broadcast(hub, &(struct pl_msg){.type = PL_MSG_HUB_END_RANKS,
                                               .hub_end_ranks = {grace_ms, rank_to_fail(hub)}});
    }
    pl_hub_broadcast(hub, &(struct pl_msg){.type = PL_MSG_HUB_DECIDED,
                                           .hub_decided = {hub->root, code_of_ended(hub)}});
}
