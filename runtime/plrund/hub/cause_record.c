/* SPDX-License-Identifier: MIT */
/* The cause as it is recorded: its keys, the other failures, and the ranks' roles. */
#include "common/proto/json.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/ending_private.h"

/* The process of Plume's that was over the rank, or Slurm's in its place. */
static const char *runtime_process(const struct pl_hub *hub, const struct pl_failure *f)
{
    return f->lost ? "plrund" : hub->step->plugin ? "slurmstepd" : "plrun";
}

json_t *pl_hub_cause_of(struct pl_hub *hub, const struct pl_failure *f)
{
    json_t *o = json_pack("{s:s, s:i, s:s}", "kind", pl_cause_name(pl_failure_kind(f)), "rank",
                          (int)f->rank, "node", pl_hub_node_name(&hub->nodes[f->node_id]));
    json_t *pid = json_object_get(pl_run_state_rank(hub->doc, f->rank), "pid");

    if (o && pid)
        json_object_set(o, "pid", pid);
    if (o && !f->lost)
        pl_run_state_set_status(o, f->status);
    if (o && f->runtime)
        json_object_set_new(o, "process", json_string(runtime_process(hub, f)));
    if (o && f->text && *f->text)
        json_object_set_new(o, "text", json_string(f->text));
    if (o && f->gpu)
        json_object_set_new(o, "gpu", pl_hub_gpu_error(hub, f));
    return o;
}

void pl_hub_cause_add_early_end(struct pl_hub *hub, const struct pl_failure *f, json_t *cause)
{
    const struct pl_hub_done *done = &hub->first_done;

    if (!cause || done->rank < 0 || done->at_ns >= f->at_ns || !pl_failure_is_cascade(f))
        return;
    json_object_set_new(cause, "early",
                        json_pack("{s:I, s:s, s:i, s:f, s:b}", "rank", (json_int_t)done->rank,
                                  "node", pl_hub_node_name(&hub->nodes[done->node_id]), "exit", 0,
                                  "before_s", (double)(f->at_ns - done->at_ns) / 1e9, "inferred",
                                  1));
}

void pl_hub_set_role(struct pl_hub *hub, unsigned rank, const char *role)
{
    pl_hub_event(hub,
                 json_pack("{s:s, s:i, s:s}", "type", "rank", "rank", (int)rank, "role", role));
}

void pl_hub_record_cause(struct pl_hub *hub, json_t *cause, int64_t root)
{
    json_t *others = json_array();

    for (size_t i = 0; i < hub->n_failures; i++) {
        const struct pl_failure *f = &hub->failures[i];
        json_t *other;

        if ((int64_t)i == root) {
            pl_hub_set_role(hub, f->rank, "root");
            continue;
        }
        pl_hub_set_role(hub, f->rank, root < 0 ? "collateral" : "cascade");
        other = pl_hub_cause_of(hub, f);
        if (other && root >= 0 && pl_failure_tied(f, &hub->failures[root]))
            json_object_set_new(other, "tied", json_true());
        json_array_append_new(others, other);
    }
    hub->root = root < 0 ? -1 : (int64_t)hub->failures[root].rank;
    if (!cause)
        cause = json_incref(hub->spare_cause);
    hub->cause = json_incref(cause);
    pl_hub_event(hub,
                 json_pack("{s:s, s:o, s:o}", "type", "cause", "cause", cause, "others", others));
}
