/* SPDX-License-Identifier: MIT */
/* From failures to one cause.
 *
 * The first failure starts a short wait, since an earlier one may still be under way from another
 * node; a longer one where all that is known are echoes (NCCL errors, lost connections). Where the
 * end looks ordered from outside, scontrol is asked once why. Then the rest is ended. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/run_state.h"
#include "runtime/node/scontrol.h"
#include "runtime/plrund/hub/hub_private.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define WAIT_MS 100
#define WAIT_ECHO_MS 2000
#define ASK_MS 5000
#define ASKS_MAX 4 /* Slurm's signals to a step end scontrol too */
#define ASK_AGAIN_MS 2000
#define KILL_GRACE_MS 5000
#define END_EXTRA_MS 10000 /* from SIGKILL to giving up on a node */

static void decide(struct pl_hub *hub);
static void end_all(struct pl_hub *hub);

/* ---- making the cause ---- */

static json_t *describe(struct pl_hub *hub, const struct pl_failure *f)
{
    const char *node = hub->nodes[f->node_id].name;
    json_t *o = json_pack("{s:s, s:i, s:s}", "kind",
                          f->lost                  ? "node"
                          : f->oom                 ? "oom"
                          : WIFSIGNALED(f->status) ? "signal"
                                                   : "exit",
                          "rank", (int)f->rank, "node", node ? node : "?");
    json_t *pid = json_object_get(pl_run_state_rank(hub->doc, f->rank), "pid");

    if (o && pid)
        json_object_set(o, "pid", pid);
    if (o && !f->lost)
        pl_run_state_set_status(o, f->status);
    if (o && f->text && *f->text)
        json_object_set_new(o, "text", json_string(f->text));
    if (o && f->gpu)
        json_object_set_new(o, "gpu", pl_hub_gpu_error(hub, f));
    return o;
}

/* Errors of GPUs may come after the failures that they led to. */
static void look_at_gpus(struct pl_hub *hub)
{
    for (size_t i = 0; hub->gpu_errors && i < hub->n_failures; i++) {
        _cleanup_(json_decrefp) json_t *error = pl_hub_gpu_error(hub, &hub->failures[i]);

        hub->failures[i].gpu = error != NULL;
    }
}

static void set_role(struct pl_hub *hub, unsigned rank, const char *role)
{
    pl_hub_event(hub,
                 json_pack("{s:s, s:i, s:s}", "type", "rank", "rank", (int)rank, "role", role));
}

/* Records the cause and who else failed. root: index of the failure, or -1 for a cause outside. */
static void settle_cause(struct pl_hub *hub, json_t *cause, int64_t root)
{
    json_t *others = json_array();

    for (size_t i = 0; i < hub->n_failures; i++) {
        const struct pl_failure *f = &hub->failures[i];
        json_t *other;

        if ((int64_t)i == root) {
            set_role(hub, f->rank, "root");
            continue;
        }
        set_role(hub, f->rank, root < 0 ? "collateral" : "cascade");
        other = describe(hub, f);
        if (other && root >= 0 && pl_failure_tied(f, &hub->failures[root]))
            json_object_set_new(other, "tied", json_true());
        json_array_append_new(others, other);
    }
    hub->root = root < 0 ? -1 : (int64_t)hub->failures[root].rank;
    json_decref(hub->cause);
    hub->cause = json_incref(cause);
    pl_hub_event(hub,
                 json_pack("{s:s, s:o, s:o}", "type", "cause", "cause", cause, "others", others));
}

/* ---- asking Slurm ---- */

static void ask_slurm(struct pl_hub *hub);

/* scancel JOB.STEP, of which Slurm keeps no record: SIGKILL to all ranks at once. */
static bool all_killed(const struct pl_hub *hub)
{
    if (hub->n_failures < 2 || hub->n_failures < hub->step->ntasks)
        return false;
    for (size_t i = 0; i < hub->n_failures; i++)
        if (hub->failures[i].oom || hub->failures[i].lost ||
            !WIFSIGNALED(hub->failures[i].status) || WTERMSIG(hub->failures[i].status) != SIGKILL)
            return false;
    return true;
}

static bool job_runs(const char *output)
{
    _cleanup_free_ char *state = pl_parse_scontrol_field(output, "JobState");

    return state && strcmp(state, "RUNNING") == 0;
}

/* True where Slurm itself ends the job: this is the cause, however the ranks end. Without a failure
 * a job that runs on has only got a signal, unless it is being preempted. */
static bool ends_job(const struct pl_hub *hub, const char *output, const char *kind, bool inferred)
{
    if (hub->n_failures)
        return !inferred || !job_runs(output);
    if (hub->asked_after_bye && inferred) /* the job may be over because its ranks are */
        return false;
    return !job_runs(output) || strcmp(kind, "preempted") == 0;
}

static void on_slurm_answer(void *ctx, const char *output)
{
    struct pl_hub *hub = ctx;
    const char *kind = NULL;
    bool inferred = true;
    json_t *cause;

    hub->ask = NULL;
    hub->asking = false;
    if (!output && hub->n_asks < ASKS_MAX &&
        pl_now_ns() - hub->asked_ns < ASK_AGAIN_MS * 1000000ull) {
        ask_slurm(hub);
        return;
    }
    if (output)
        kind = pl_cause_from_slurm(output, hub->step->id.attempt, hub->terminated != 0, &inferred);
    else if (hub->terminated)
        kind = "cancelled";
    if (!kind && all_killed(hub))
        kind = "cancelled";
    if (hub->n_failures && hub->state == PL_HUB_RUNNING)
        hub->state = PL_HUB_DECIDING;
    hub->slurm_ends = output && kind && ends_job(hub, output, kind, inferred);
    if (hub->state == PL_HUB_RUNNING && !hub->slurm_ends) {
        /* Perhaps only a signal: asked again when the ranks have ended, unless they have. */
        hub->asked_slurm = hub->all_left;
        hub->n_asks = 0;
    } else if (kind && !hub->cause) {
        cause = json_pack("{s:s}", "kind", kind);
        if (cause && inferred)
            json_object_set_new(cause, "inferred", json_true());
        settle_cause(hub, cause, -1);
    }
    if (hub->cause && hub->slurm_ends) {
        pl_hub_write_result(hub); /* Slurm's SIGKILL may come before the ranks' end */
        end_all(hub);
    } else if (hub->state == PL_HUB_DECIDING) {
        decide(hub);
    }
    pl_hub_maybe_finish(hub); /* the nodes may have said bye while Slurm was asked */
}

static void ask_slurm(struct pl_hub *hub)
{
    const char *args[] = {"-o", "show", "job", hub->step->id.job, NULL};

    if (!hub->n_asks++) {
        hub->asked_ns = pl_now_ns();
        hub->asked_after_bye = hub->all_left;
    }
    hub->asked_slurm = hub->asking = true;
    hub->ask = pl_scontrol_run(hub->loop, args, ASK_MS, on_slurm_answer, hub);
}

/* The step got SIGTERM or SIGINT from outside. Asks at once, since Slurm may end us with the ranks:
 * then the trial has its result already. */
void pl_hub_terminated(struct pl_hub *hub, int signal_number)
{
    hub->terminated = signal_number;
    if (hub->state == PL_HUB_RUNNING && !hub->asked_slurm)
        ask_slurm(hub);
}

/* ---- deciding ---- */

static void on_end_limit(uv_timer_t *timer)
{
    struct pl_hub *hub = timer->data;

    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if (hub->nodes[i].joined && !hub->nodes[i].bye)
            pl_hub_node_lost(hub, i);
}

/* From now on nodes have this long to say bye. */
static void limit_end(struct pl_hub *hub, unsigned grace_ms)
{
    if (!uv_is_active((uv_handle_t *)&hub->end_timer))
        uv_timer_start(&hub->end_timer, on_end_limit, grace_ms + END_EXTRA_MS, 0);
}

static void end_all(struct pl_hub *hub)
{
    unsigned grace_ms = pl_slurm_step_env_ms("PLUME_KILL_GRACE", KILL_GRACE_MS);

    if (hub->state >= PL_HUB_ENDING)
        return;
    hub->state = PL_HUB_ENDING;
    if (!hub->slurm_ends) { /* else ranks may use what time Slurm gives them to save */
        /* Said in the log before it is done, so that what follows counts as ours. */
        pl_hub_event(hub, json_pack("{s:s, s:i, s:i}", "type", "teardown", "signal", SIGTERM,
                                    "grace_ms", (int)grace_ms));
        limit_end(hub, grace_ms);
        pl_hub_broadcast(hub,
                         json_pack("{s:s, s:i}", "type", "end_ranks", "grace_ms", (int)grace_ms));
    }
    pl_hub_broadcast(hub,
                     json_pack("{s:s, s:I}", "type", "decided", "root", (json_int_t)hub->root));
}

static void decide(struct pl_hub *hub)
{
    size_t first;
    bool outside;

    look_at_gpus(hub);
    first = hub->n_failures ? pl_failure_first(hub->failures, hub->n_failures) : 0;
    outside =
        hub->terminated || (hub->n_failures && pl_failure_from_outside(&hub->failures[first]));

    uv_timer_stop(&hub->decide_timer);
    if (hub->state >= PL_HUB_ENDING)
        return;
    hub->state = PL_HUB_DECIDING;
    if (!hub->cause && outside && !hub->asked_slurm) {
        ask_slurm(hub); /* comes back here */
        return;
    }
    if (!hub->cause)
        settle_cause(hub, describe(hub, &hub->failures[first]), (int64_t)first);
    end_all(hub);
}

static void on_decide_due(uv_timer_t *timer)
{
    decide(timer->data);
}

void pl_hub_failed(struct pl_hub *hub, const struct pl_failure *failure)
{
    struct pl_failure *f;
    bool echo;

    if (hub->n_failures == hub->cap_failures) {
        size_t cap = PL_MAX(hub->cap_failures * 2, (size_t)16);
        struct pl_failure *grown = realloc(hub->failures, cap * sizeof(*grown));

        if (!grown)
            return;
        hub->failures = grown;
        hub->cap_failures = cap;
    }
    f = &hub->failures[hub->n_failures++];
    *f = *failure;
    f->text = failure->text ? strdup(failure->text) : NULL;
    look_at_gpus(hub);
    echo = pl_failure_is_cascade(f);
    if (hub->state >= PL_HUB_ENDING) {
        set_role(hub, f->rank, hub->root < 0 ? "collateral" : "cascade");
        return;
    }
    if (hub->asking)
        return; /* the answer decides */
    if (hub->state != PL_HUB_DECIDING) {
        hub->state = PL_HUB_DECIDING;
        uv_timer_start(&hub->decide_timer, on_decide_due, echo ? WAIT_ECHO_MS : WAIT_MS, 0);
    } else if (!echo && uv_timer_get_due_in(&hub->decide_timer) > WAIT_MS) {
        uv_timer_start(&hub->decide_timer, on_decide_due, WAIT_MS, 0);
    }
}

void pl_hub_decide_launch(struct pl_hub *hub)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    unsigned missing = 0;
    json_t *cause;

    if (hub->state == PL_HUB_ENDING)
        limit_end(hub, 0);
    if (hub->state != PL_HUB_GATHERING)
        return;
    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if ((!hub->nodes[i].joined || hub->nodes[i].lost) && missing++ < 8)
            pl_buf_addf(&text, "%s%u", missing > 1 ? ", " : "", i);
    cause = json_pack("{s:s, s:s+}", "kind", "launch", "text",
                      "no word from these nodes of the step (by index): ", pl_buf_str(&text));
    if (cause && hub->nodes[0].name)
        json_object_set_new(cause, "node", json_string(hub->nodes[0].name));
    pl_log_error("net", "%u of %u nodes did not join: %s", missing, hub->step->nnodes,
                 pl_buf_str(&text));
    settle_cause(hub, cause, -1);
    hub->refusal =
        pl_strf("not all nodes of the step came up (missing, by index: %s)", pl_buf_str(&text));
    hub->state = PL_HUB_ENDING;
    if (!uv_is_active((uv_handle_t *)&hub->launch_timer)) /* else latecomers get their answer */
        limit_end(hub, 0);
    for (unsigned i = 0; i < hub->step->nnodes; i++) {
        json_t *refused =
            json_pack("{s:s, s:s}", "type", "refused", "text", hub->refusal ? hub->refusal : "");

        if (hub->nodes[i].joined && !hub->nodes[i].lost && refused)
            pl_hub_send(hub, i, refused);
        json_decref(refused);
    }
}

/* ---- the end ---- */

static void on_finish(uv_timer_t *timer)
{
    struct pl_hub *hub = timer->data;

    hub->on_finished(hub->ctx);
}

static void finish_now(struct pl_hub *hub)
{
    const char *kind = pl_json_string(hub->cause, "kind");
    const char *state = pl_trial_state_name(pl_cause_state(kind));

    if (hub->state == PL_HUB_FINISHED)
        return;
    for (unsigned rank = 0; rank < hub->step->ntasks; rank++) {
        const char *s = pl_json_string(pl_run_state_rank(hub->doc, rank), "state");

        if (s && (strcmp(s, "starting") == 0 || strcmp(s, "running") == 0))
            pl_hub_event(hub, json_pack("{s:s, s:i, s:s}", "type", "rank", "rank", (int)rank,
                                        "state", "lost"));
    }
    pl_hub_event(
        hub, json_pack("{s:s, s:s, s:f}", "type", "state", "state", state, "ended", pl_wall_s()));
    hub->state = PL_HUB_FINISHED;
    pl_hub_write_result(hub);
    pl_hub_write_status(hub);
    uv_timer_start(&hub->finish_timer, on_finish, 0, 0); /* never from within */
}

/* All nodes are done: whatever is still open is decided now. */
static void decide_at_end(struct pl_hub *hub)
{
    bool started = hub->state >= PL_HUB_RUNNING;

    hub->all_left = true;
    if (hub->state == PL_HUB_FINISHED || (hub->asking && !hub->cause))
        return; /* the answer brings us back */
    if (!hub->cause && hub->n_failures) {
        decide(hub); /* asks Slurm first where needed; then we come back through the answer */
        if (!hub->cause)
            return;
    }
    if (!hub->cause && hub->terminated && !hub->asked_slurm) {
        ask_slurm(hub); /* all exited 0 after a SIGTERM: preempted and saved, or cancelled */
        return;
    }
    if (!hub->cause && hub->refusal) {
        settle_cause(hub, json_pack("{s:s, s:s}", "kind", "launch", "text", hub->refusal), -1);
    } else if (!hub->cause && started) {
        for (unsigned rank = 0; rank < hub->step->ntasks; rank++) {
            const char *s = pl_json_string(pl_run_state_rank(hub->doc, rank), "state");

            if (!s || strcmp(s, "done") == 0)
                continue;
            settle_cause(hub,
                         json_pack("{s:s, s:i, s:s}", "kind", "launch", "rank", (int)rank, "text",
                                   "this rank never started"),
                         -1);
            break;
        }
    }
    finish_now(hub);
}

/* A node that never joined is waited for until the launch limit: it needs to hear of the refusal.
 */
void pl_hub_maybe_finish(struct pl_hub *hub)
{
    bool waiting = uv_is_active((uv_handle_t *)&hub->launch_timer);

    if (hub->state == PL_HUB_FINISHED)
        return;
    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if (!hub->nodes[i].bye && !hub->nodes[i].lost && (hub->nodes[i].joined || waiting))
            return;
    decide_at_end(hub);
}

void pl_hub_node_lost(struct pl_hub *hub, unsigned node_id)
{
    struct pl_hub_node *node = &hub->nodes[node_id];

    node->wire = NULL;
    if (node->bye || node->lost)
        return;
    node->lost = true;
    pl_hub_event(hub, json_pack("{s:s, s:i, s:s}", "type", "node", "node_id", (int)node_id, "state",
                                "lost"));
    for (unsigned rank = 0; rank < hub->step->ntasks; rank++) {
        const char *state = pl_json_string(pl_run_state_rank(hub->doc, rank), "state");

        if (hub->node_of_rank[rank] != (int64_t)node_id || !state || strcmp(state, "running") != 0)
            continue;
        pl_hub_event(hub, json_pack("{s:s, s:i, s:s, s:s}", "type", "rank", "rank", (int)rank,
                                    "node", node->name, "state", "lost"));
        pl_hub_failed(hub, &(struct pl_failure){.rank = rank,
                                                .node_id = node_id,
                                                .status = SIGKILL,
                                                .at_ns = (int64_t)pl_now_ns(),
                                                .uncertainty_ns = 1,
                                                .lost = true});
    }
    if (hub->state == PL_HUB_GATHERING) /* it does not come again: no need to wait for the rest */
        pl_hub_decide_launch(hub);
    pl_hub_maybe_finish(hub);
}
