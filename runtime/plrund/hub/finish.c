/* SPDX-License-Identifier: MIT */
/* The last act: all nodes have left. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/hub_private.h"

static void confirm_bye(struct pl_hub *hub, unsigned node_id, const char *text)
{
    if (!hub->nodes[node_id].bye_due)
        return;
    pl_hub_send_log(hub); /* the ends of its ranks are in it */
    pl_hub_send(hub, node_id, &(struct pl_msg){.type = PL_MSG_HUB_BYE_OK, .hub_bye_ok.text = text});
    hub->nodes[node_id].bye_due = false;
}

void pl_hub_confirm_bye(struct pl_hub *hub, unsigned node_id)
{
    confirm_bye(hub, node_id, NULL);
}

static void on_finish(uv_timer_t *timer)
{
    struct pl_hub *hub = timer->data;

    hub->on_finished(hub->ctx);
}

/* The files are written, or are given up. */
static void tell_end(struct pl_hub *hub)
{
    /* Of an early bye of our own node slurmstepd reads us no longer: another node tells the user.
     */
    const char *text = hub->nodes[0].bye_due ? NULL : hub->unwritten;

    if (hub->end_told)
        return;
    hub->end_told = true;
    pl_limit_stop(&hub->written_limit);
    for (unsigned i = 0; i < hub->step->nnodes; i++) /* the last: srun may wait for it */
        if (hub->nodes[i].bye_due) {
            confirm_bye(hub, i, text);
            text = NULL;
        }
    uv_timer_start(&hub->finish_timer, on_finish, 0, 0); /* from the loop, not from in here */
}

void pl_hub_on_written_limit(void *ctx)
{
    struct pl_hub *hub = ctx;

    pl_hub_give_up_end(hub);
    tell_end(hub);
}

void pl_hub_finish(struct pl_hub *hub)
{
    const char *kind = pl_json_string(hub->cause, "kind");
    const char *state = pl_trial_state_name(pl_cause_state(pl_cause_parse(kind)));

    for (unsigned rank = 0; rank < hub->step->ntasks; rank++)
        /* Without a run folder the document has no ranks. */
        if (pl_rank_state_open(hub->rank_states[rank]) && pl_run_state_rank(hub->doc, rank)) {
            hub->rank_states[rank] = PL_RANK_LOST;
            pl_hub_event(hub, json_pack("{s:s, s:i, s:s}", "type", "rank", "rank", (int)rank,
                                        "state", pl_rank_state_name(PL_RANK_LOST)));
        }
    pl_hub_event(hub, json_pack("{s:s, s:s, s:f}", "type", "state", "state", state, "ended",
                                pl_hub_wall_s(hub)));
    hub->state = PL_HUB_FINISHED;
    pl_limit_start(&hub->written_limit, pl_env_ms(PL_ENV_PLUME_DISK_LIMIT));
    pl_hub_write_end(hub, tell_end);
}
