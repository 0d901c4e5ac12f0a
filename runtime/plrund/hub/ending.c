/* SPDX-License-Identifier: MIT */
/* Carries out the decisions (decide.h): asks Slurm, records the cause, ends the ranks, and
 * finishes. An event changes the evidence and calls consider(). */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/proto/sealed.h"
#include "common/run/run_local.h"
#include "common/run/run_state.h"
#include "runtime/node/scontrol.h"
#include "runtime/plrund/hub/ending_private.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define ASK_MS 5000
#define ASKS_MAX 4 /* Slurm's signals to a step end scontrol, too */
#define ASK_AGAIN_MS 2000
#define SAME_SIGNAL_MS 1000 /* after Slurm's answer, for all ranks to report the same signal */
#define HELD_MS                                                                                    \
    1500 /* of SETTLE_MS in ctx_remote.c, for which slurmstepd holds the last end back */
#define EXECUTOR_MS 90000 /* KILL_S of local_run.c, and half a minute */
#define COME_MS 3000      /* for nodes to join that may have got a signal, too */
#define COME_LATE_MS                                                                               \
    15000 /* the same, if only the ranks may have got it, or the job runs on; above READY_MS of    \
             ctx_remote.c */
#define LOOK_AGAIN_MS 1000u /* after the start limit, while a decision or Slurm is waited for */

static void consider(struct pl_hub *hub);

/* ---- the evidence ---- */

/* A node that has not joined is waited for until the launch limit: it must get the refusal. */
static bool all_left(const struct pl_hub *hub)
{
    bool waiting = pl_limit_runs(&hub->launch_limit);

    for (unsigned i = 0; i < hub->step->nnodes; i++) {
        const struct pl_hub_node *n = &hub->nodes[i];

        if (!n->bye && !n->lost && (n->joined || waiting))
            return false;
    }
    return true;
}

/* The lowest rank in this state, -1 = none. */
static int64_t rank_in_state(struct pl_hub *hub, enum pl_rank_state state)
{
    for (unsigned rank = 0; rank < hub->step->ntasks; rank++)
        if (hub->rank_states[rank] == state)
            return rank;
    return -1;
}

static bool all_ranks_in_state(struct pl_hub *hub, enum pl_rank_state state)
{
    for (unsigned rank = 0; rank < hub->step->ntasks; rank++)
        if (hub->rank_states[rank] != state)
            return false;
    return true;
}

/* A GPU's error may arrive after the failure that it led to. */
static void look_at_gpus(struct pl_hub *hub)
{
    for (size_t i = 0; hub->gpu_errors && i < hub->n_failures; i++) {
        _cleanup_(json_decrefp) json_t *error = pl_hub_gpu_error(hub, &hub->failures[i]);

        hub->failures[i].gpu = error != NULL;
    }
}

static struct pl_evidence collect_evidence(struct pl_hub *hub)
{
    bool left = all_left(hub);

    look_at_gpus(hub);
    return (struct pl_evidence){
        .failures = hub->failures,
        .n_failures = hub->n_failures,
        .ntasks = hub->step->ntasks,
        .plugin = hub->step->plugin,
        .terminated = hub->terminated != 0,
        .signalled_late = hub->signalled_late,
        .obeyed = hub->may_have_obeyed,
        .all_left = left,
        .launch_failed = hub->refusal != NULL,
        .has_cause = hub->cause != NULL,
        .unstarted = left ? rank_in_state(hub, PL_RANK_STARTING) : -1,
        .unfinished = left && !all_ranks_in_state(hub, PL_RANK_DONE),
        .question = hub->question,
        .answer = hub->answer,
    };
}

/* ---- ending the ranks ---- */

void pl_hub_on_end_limit(void *ctx)
{
    struct pl_hub *hub = ctx;

    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if (hub->nodes[i].joined && !hub->nodes[i].bye)
            pl_hub_node_lost(hub, i, pl_hub_conn_host_answers(hub->nodes[i].wire));
}

/* ---- carrying out decisions ---- */

/* The step is being ended: nodes that have not joined come soon, for their refusal, or never. One
 * that comes after that finds no hub, and waits for its own launch limit. */
static void expect_soon(struct pl_hub *hub, unsigned ms)
{
    if (pl_limit_runs(&hub->launch_limit) && pl_limit_left_ms(&hub->launch_limit) > ms)
        pl_limit_start(&hub->launch_limit, ms);
}

static void record_decision(struct pl_hub *hub, const struct pl_decision *d)
{
    json_t *cause;

    if (d->root >= 0) {
        cause = pl_hub_cause_of(hub, &hub->failures[d->root]);
        pl_run_state_set_confidence(cause, pl_failure_confidence(&hub->failures[d->root]));
        pl_hub_cause_add_early_end(hub, &hub->failures[d->root], cause);
    } else {
        cause = json_pack("{s:s}", "kind", pl_cause_name(d->kind));
        pl_run_state_set_confidence(cause, d->confidence);
    }
    pl_hub_record_cause(hub, cause, d->root);
    if (d->slurm_ends)
        pl_hub_write_result(hub); /* Slurm's SIGKILL may come before the ranks' end */
    pl_hub_end_ranks(hub, d->slurm_ends);
    if (d->root < 0) /* of a job that runs on, as in a GraceTime, Slurm goes on with the launch */
        expect_soon(hub, hub->answer.job_runs ? COME_LATE_MS : COME_MS);
    else if (hub->step->plugin && pl_failure_from_outside(&hub->failures[d->root]))
        expect_soon(hub, COME_LATE_MS);
}

static void on_slurm_answer(void *ctx, const char *output);

static void ask_slurm(struct pl_hub *hub)
{
    const char *args[] = {"-o", "show", "job", hub->step->id.job, NULL};
    struct pl_scontrol *ask;

    if (!hub->n_asks++) {
        hub->asked_ns = pl_now_ns();
        hub->answer.asked_late = all_left(hub);
    }
    hub->question = PL_SLURM_ASKED;
    hub->ask_again = false; /* Slurm knew of the signal before it sent that */
    ask = pl_scontrol_run(hub->loop, args, ASK_MS, on_slurm_answer, hub);
    if (ask) /* else the answer has come, and perhaps a second question */
        hub->ask = ask;
}

/* True if srun cannot know yet that all ranks have ended: the plrun of this node waits for the hub,
 * and so does the last slurmstepd, for a while, whether its daemon has said bye or not. One whose
 * daemon is lost does not. */
static bool end_is_held(struct pl_hub *hub)
{
    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if (hub->nodes[i].lost)
            return false;
    if (!hub->step->plugin || pl_now_ns() - hub->ended_ns < HELD_MS * 1000000ull)
        return true;
    return !all_left(hub) &&
           (rank_in_state(hub, PL_RANK_RUNNING) >= 0 || rank_in_state(hub, PL_RANK_STARTING) >= 0);
}

/* Of a local run there is nobody to ask. Its executor ends a trial by SIGTERM, and kills what is
 * left after a minute: ranks that then leave, saved and with 0, are not done. */
static bool is_ended_by_executor(const struct pl_hub *hub)
{
    return hub->run && pl_run_is_local(hub->run) && hub->terminated == SIGTERM &&
           pl_now_ns() - hub->terminated_ns < EXECUTOR_MS * 1000000ull;
}

static void on_slurm_answer(void *ctx, const char *output)
{
    struct pl_hub *hub = ctx;
    bool asked_late = hub->answer.asked_late;

    hub->ask = NULL;
    if (!output && hub->n_asks < ASKS_MAX &&
        pl_now_ns() - hub->asked_ns < ASK_AGAIN_MS * 1000000ull) {
        ask_slurm(hub);
        return;
    }
    hub->n_asks = 0;
    hub->answered_ns = pl_now_ns();
    hub->question = PL_SLURM_ANSWERED;
    hub->answer = pl_slurm_answer_read(output, hub->step->id.attempt, hub->terminated != 0);
    hub->answer.asked_late = asked_late;
    hub->answer.held = end_is_held(hub);
    hub->answer.final = hub->n_failures || all_left(hub);
    if (hub->answer.silent && all_left(hub) && is_ended_by_executor(hub))
        hub->answer.silent = false;
    consider(hub);
}

static void on_decide_due(uv_timer_t *timer)
{
    consider(timer->data);
}

/* Until Slurm is to be asked about a signal that came after the last question; -1 = it is not. */
static int64_t ask_again_ms(const struct pl_hub *hub)
{
    uint64_t due = hub->answered_ns + SAME_SIGNAL_MS * 1000000ull, now = pl_now_ns();

    if (!hub->ask_again || hub->question != PL_SLURM_ANSWERED || hub->cause || hub->n_failures)
        return -1;
    return now < due ? (int64_t)((due - now) / 1000000) + 1 : 0;
}

/* Decides, and carries that out, until there is something to wait for. */
static void consider(struct pl_hub *hub)
{
    while (hub->state != PL_HUB_GATHERING && hub->state != PL_HUB_FINISHED) {
        int64_t again_ms = ask_again_ms(hub);
        struct pl_evidence e;
        struct pl_decision d;

        if (again_ms == 0)
            hub->question = PL_SLURM_NOT_ASKED;
        e = collect_evidence(hub);
        d = pl_decide(&e, pl_now_ns());
        uv_timer_stop(&hub->decide_timer);
        switch (d.action) {
        case PL_DECIDE_WAIT:
            if (d.wait_ms < 0) /* there is no failure */
                d.wait_ms = again_ms;
            if (d.wait_ms >= 0)
                uv_timer_start(&hub->decide_timer, on_decide_due, (uint64_t)d.wait_ms, 0);
            return;
        case PL_DECIDE_ASK_SLURM:
            ask_slurm(hub);
            break;
        case PL_DECIDE_CAUSE:
            record_decision(hub, &d);
            break;
        case PL_DECIDE_LAUNCH:
            pl_hub_record_launch_failure(hub, e.unstarted);
            break;
        case PL_DECIDE_END:
            pl_hub_finish(hub);
            break;
        }
    }
}

/* ---- events ---- */

void pl_hub_terminated(struct pl_hub *hub, int signal_number)
{
    /* A rank has failed by itself before: the signal is not the cause, unless Slurm ends the job.
     */
    for (size_t i = 0; i < hub->n_failures; i++)
        if (!pl_failure_from_outside(&hub->failures[i])) {
            hub->signalled_late = true;
            consider(hub);
            return;
        }
    hub->terminated = signal_number;
    hub->terminated_ns = pl_now_ns();
    expect_soon(hub, COME_MS);
    consider(hub); /* at once: Slurm may end us with the ranks, and the trial needs its result */
}

void pl_hub_terminated_again(struct pl_hub *hub)
{
    hub->ask_again = true;
    hub->terminated_ns = pl_now_ns();
    consider(hub);
}

static void add_failure(struct pl_hub *hub, const struct pl_failure *failure)
{
    struct pl_failure *f;

    if (hub->n_failures == hub->step->ntasks) /* a rank fails once */
        return;
    f = &hub->failures[hub->n_failures++];
    *f = *failure;
    f->text = failure->text ? strdup(failure->text) : NULL;
    f->arrived_ns = pl_now_ns();
    if (hub->state == PL_HUB_GATHERING) /* the plugin's tasks exist before the world */
        hub->state = PL_HUB_RUNNING;
    if (hub->state >= PL_HUB_ENDING)
        pl_hub_set_role(hub, f->rank, hub->root < 0 ? "collateral" : "cascade");
}

void pl_hub_failed(struct pl_hub *hub, const struct pl_failure *failure)
{
    add_failure(hub, failure);
    consider(hub);
}

void pl_hub_left(struct pl_hub *hub, unsigned node_id)
{
    struct pl_hub_node *node = &hub->nodes[node_id];

    node->bye = node->bye_due = true;
    consider(hub);
    if (hub->state != PL_HUB_FINISHED && !all_left(hub)) /* the others may run for hours */
        pl_hub_confirm_bye(hub, node_id);
}

void pl_hub_node_unable(struct pl_hub *hub, unsigned node_id, const char *text)
{
    pl_hub_refuse_by_node(hub, node_id, text);
    consider(hub);
}

void pl_hub_hung(struct pl_hub *hub, json_t *cause, int64_t rank)
{
    if (hub->state != PL_HUB_RUNNING || hub->cause) {
        json_decref(cause);
        return;
    }
    pl_hub_record_cause(hub, cause, -1);
    hub->root = rank;
    if (rank >= 0)
        pl_hub_set_role(hub, (unsigned)rank, "root");
    pl_hub_end_ranks(hub, false);
}

void pl_hub_on_launch_limit(void *ctx)
{
    struct pl_hub *hub = ctx;

    if (hub->state == PL_HUB_GATHERING)
        pl_hub_launch_failed(hub);
    else if (hub->state == PL_HUB_ENDING)
        pl_hub_limit_end(hub, 0);
    consider(hub);
}

/* A failure or a signal has come, and the cause is not known yet: it is no launch error. */
static bool is_deciding(const struct pl_hub *hub)
{
    return !hub->cause && (hub->n_failures || hub->question == PL_SLURM_ASKED);
}

/* The nodes are up, others have come, and a rank has not: its plrun was killed before it said
 * hello, or never called. Nobody else tells. */
void pl_hub_on_start_limit(void *ctx)
{
    struct pl_hub *hub = ctx;
    int64_t rank = rank_in_state(hub, PL_RANK_STARTING);
    json_t *cause;

    if (rank < 0 || hub->state == PL_HUB_FINISHED)
        return;
    if (is_deciding(hub)) {
        pl_limit_start(&hub->start_limit, LOOK_AGAIN_MS);
        return;
    }
    if (hub->state == PL_HUB_RUNNING && !hub->cause) {
        cause = json_pack("{s:s, s:I, s:s}", "kind", pl_cause_name(PL_CAUSE_LAUNCH), "rank",
                          (json_int_t)rank, "text",
                          "the nodes are up, and this rank has not come within "
                          "PLUME_LAUNCH_TIMEOUT: what was to start it there has ended, or is slow");
        pl_run_state_set_confidence(cause, PL_CONFIDENCE_SEEN);
        pl_hub_record_cause(hub, cause, -1);
        pl_hub_end_ranks(hub, false);
    } else if (rank_in_state(hub, PL_RANK_RUNNING) >= 0) { /* it may save: Slurm gives it time */
        pl_limit_start(&hub->start_limit, LOOK_AGAIN_MS);
    } else {
        pl_hub_limit_end(hub, pl_hub_end_grace_ms(hub)); /* Slurm was to end them */
    }
    consider(hub);
}

/* A node is lost of whose ranks the hub has not heard: they may have begun, or not. */
static void node_lost_unheard(struct pl_hub *hub, unsigned node_id, bool host_answers)
{
    const struct pl_hub_node *node = &hub->nodes[node_id];
    enum pl_cause_kind kind = host_answers ? PL_CAUSE_RUNTIME : PL_CAUSE_NODE;
    json_t *cause;

    for (unsigned rank = 0; rank < hub->step->ntasks; rank++)
        if (hub->node_of_rank[rank] == (int64_t)node_id)
            return;
    cause = json_pack("{s:s, s:s}", "kind", pl_cause_name(kind), "node", pl_hub_node_name(node));
    if (cause && host_answers)
        json_object_set_new(cause, "process", json_string("plrund"));
    pl_run_state_set_confidence(cause, PL_CONFIDENCE_INFERRED);
    pl_hub_record_cause(hub, cause, -1);
    pl_hub_end_ranks(hub, false);
}

void pl_hub_node_lost(struct pl_hub *hub, unsigned node_id, bool host_answers)
{
    struct pl_hub_node *node = &hub->nodes[node_id];

    node->wire = NULL;
    if (node->bye || node->lost)
        return;
    node->lost = true;
    pl_hub_event(hub, json_pack("{s:s, s:i, s:s}", "type", "node", "node_id", (int)node_id, "state",
                                "lost"));
    for (unsigned rank = 0; rank < hub->step->ntasks; rank++) {
        if (hub->node_of_rank[rank] != (int64_t)node_id ||
            hub->rank_states[rank] != PL_RANK_RUNNING)
            continue;
        hub->rank_states[rank] = PL_RANK_LOST;
        pl_hub_event(hub,
                     json_pack("{s:s, s:i, s:s, s:s}", "type", "rank", "rank", (int)rank, "node",
                               pl_hub_node_name(node), "state", pl_rank_state_name(PL_RANK_LOST)));
        add_failure(hub, &(struct pl_failure){.rank = rank,
                                              .node_id = node_id,
                                              .status = SIGKILL,
                                              .at_ns = (int64_t)pl_now_ns(),
                                              .uncertainty_ns = 1,
                                              .lost = true,
                                              .runtime = host_answers});
    }
    if (hub->state == PL_HUB_GATHERING) /* it does not come again: no need to wait for the rest */
        pl_hub_launch_failed(hub);
    else if (hub->state == PL_HUB_RUNNING && !hub->cause)
        node_lost_unheard(hub, node_id, host_answers);
    consider(hub);
}
