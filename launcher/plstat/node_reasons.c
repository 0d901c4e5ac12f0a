/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/node_reasons.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_local.h"
#include "launcher/slurm/slurm_nodes.h"

#include <math.h>
#include <string.h>

/* Of a node that does not answer Slurm says so after SlurmdTimeout, 300 s where a site has not
 * chosen another. */
#define LATE_S 3600
#define RECENT_S 86400 /* later, what Slurm says of a node may be about anything */

static bool is_recent(const struct pl_trial_status *ts)
{
    return pl_trial_state_is_failure(ts->state) && ts->started_s > 0 && ts->ended_s > 0 &&
           pl_wall_s() - ts->ended_s < RECENT_S;
}

static bool is_wanted(const struct pl_trial_status *ts)
{
    return ts->array > 0 && (ts->state == PL_TRIAL_RUNNING || is_recent(ts));
}

/* True if the reason may have to do with a trial that has ended. */
static bool is_of_its_time(const struct pl_trial_status *ts, const json_t *reason)
{
    int64_t since;

    return ts->state == PL_TRIAL_RUNNING ||
           (pl_json_int(reason, "since", &since) == 0 && (double)since >= floor(ts->started_s) &&
            (double)since < ts->ended_s + LATE_S);
}

/* Adds what Slurm says of one node, once. */
static int add_node(struct pl_trial_status *ts, const json_t *reasons, const char *name)
{
    const json_t *reason = name ? json_object_get(reasons, name) : NULL, *known;
    json_t *entry;
    size_t i;

    if (!reason || !is_of_its_time(ts, reason))
        return 0;
    json_array_foreach (ts->node_reasons, i, known)
        if (strcmp(pl_json_string(known, "node"), name) == 0)
            return 0;
    if (!ts->node_reasons && !(ts->node_reasons = json_array()))
        return -ENOMEM;
    entry = json_pack("{s:s}", "node", name);
    if (!entry || json_object_update(entry, (json_t *)reason) < 0) {
        json_decref(entry);
        return -ENOMEM;
    }
    return json_array_append_new(ts->node_reasons, entry);
}

int pl_node_reasons_choose(struct pl_trial_status *ts, const json_t *reasons)
{
    const json_t *node;
    size_t i;
    int r = 0;

    if (!is_wanted(ts))
        return 0;
    json_array_foreach (json_object_get(ts->doc, "nodes"), i, node)
        if (r == 0)
            r = add_node(ts, reasons, pl_json_string(node, "node"));
    /* A node that never came is in no list. */
    return r < 0 ? -ENOMEM : add_node(ts, reasons, pl_json_string(ts->cause, "node"));
}

int pl_node_reasons_add(struct pl_run_status *s,
                        const struct pl_slurm_view *slurm,
                        struct pl_notes *notes)
{
    _cleanup_(json_decrefp) json_t *reasons = NULL;
    struct pl_error err = {0};
    bool wanted = false;
    int r = 0;

    for (size_t i = 0; i < s->n_trials; i++)
        wanted |= is_wanted(&s->trials[i]);
    if (!wanted || slurm->never || pl_run_is_local(s->run))
        return 0;
    if (slurm->asked && (!slurm->jobs || slurm->jobs->stale)) /* it has just not answered */
        return 0;
    r = pl_slurm_nodes_get(&reasons, &err);
    if (r == -ENOMEM)
        return r;
    if (r < 0) {
        if (r != -ENOENT) /* else no Slurm is here: the folder is looked at elsewhere */
            pl_notes_add(notes, false, "cannot ask Slurm whether nodes are drained: %s",
                         pl_error_text(&err));
        return 0;
    }
    for (size_t i = 0; r == 0 && i < s->n_trials; i++)
        r = pl_node_reasons_choose(&s->trials[i], reasons);
    return r;
}
