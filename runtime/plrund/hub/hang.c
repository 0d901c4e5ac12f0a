/* SPDX-License-Identifier: MIT */
/* Hangs: watches the steps (stall.h), asks the nodes, tells who is behind, keeps the stacks, and
 * does what --on-hang says. Also slow ranks (slow.h). Hints about programs that report no step are
 * in hang_hint.c.
 *
 *   WATCHING --late--> ASKED --verdict--> SUSPECTED --stacks came--> policy: warn, or kill
 *   ASKED --too early, or no answer--> WATCHING ("busy", if a rank computes and the others wait)
 *   SUSPECTED --a rank in question moves--> WATCHING ("over": the alarm was wrong) */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/json.h"
#include "common/run/on_hang.h"
#include "common/run/rank_state.h"
#include "common/run/run_state.h"
#include "runtime/plrund/hub/hang_private.h"

#include <string.h>

#define TICK_MS 500
#define LATE_TICK_NS 3000000000ull /* between two ticks: the job was suspended */
#define ANSWER_NS 3000000000ull    /* for the nodes' probes */
#define ASK_AGAIN 4                /* after a verdict that it is too early: least limit / this */
#define STACKS_MAX 4               /* ranks whose stacks are taken */
#define STACKS_NS 20000000000ull   /* for them to come */
#define LISTED_MAX 64              /* ranks that an event lists */
#define EXCERPT_LINES 12

/* ---- events ---- */

static const char *node_of(const struct pl_hub *hub, unsigned rank)
{
    int64_t node = hub->node_of_rank[rank];

    return node >= 0 ? pl_hub_node_name(&hub->nodes[node]) : "?";
}

static bool in_question(const struct pl_hub_hang *h, unsigned rank)
{
    return h->stall.ranks[rank].runs && (h->all || h->behind[rank]);
}

/* The lowest rank in question; UINT_MAX = none is left. */
static unsigned first_in_question(const struct pl_hub_hang *h)
{
    for (unsigned i = 0; i < h->stall.n; i++)
        if (in_question(h, i))
            return i;
    return UINT_MAX;
}

static json_t *list_ranks(const struct pl_hub_hang *h)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < h->stall.n && json_array_size(list) < LISTED_MAX; i++)
        if (in_question(h, i))
            json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *stall_event(struct pl_hub_hang *h, const char *state)
{
    unsigned rank = first_in_question(h);
    json_t *event = json_pack("{s:s, s:s, s:o, s:b}", "type", "stall", "state", state, "ranks",
                              list_ranks(h), "all", h->all);

    if (event && rank != UINT_MAX) {
        json_object_set_new(event, "node", json_string(node_of(h->hub, rank)));
        if (h->doing[rank][0])
            json_object_set_new(event, "doing", json_string(h->doing[rank]));
    }
    return event;
}

static void say_suspected(struct pl_hub_hang *h, const struct pl_stall_verdict *v)
{
    unsigned rank = first_in_question(h), n = 0;

    for (unsigned i = 0; i < h->stall.n; i++)
        n += in_question(h, i);
    if (h->all)
        pl_log_warn("run",
                    "no rank has made progress for %.0f s, and none differs from the others "
                    "(plstat show)",
                    h->for_s);
    else
        pl_log_warn("run",
                    "rank %u on %s has been behind for %.0f s%s%s%s; %u of %u ranks are "
                    "behind, the others wait (plstat show)",
                    rank, node_of(h->hub, rank), h->for_s, v->seen ? "" : " (inferred)",
                    h->doing[rank][0] ? ", " : "", h->doing[rank], n, h->stall.n);
}

/* ---- the policy ---- */

static void end_job(struct pl_hub_hang *h)
{
    unsigned rank = first_in_question(h);
    struct pl_hub *hub = h->hub;
    char text[PL_HANG_EXCERPT_MAX + 256];
    json_t *cause, *pid;

    if (rank == UINT_MAX)
        return;
    cause = json_pack("{s:s, s:f}", "kind", pl_cause_name(PL_CAUSE_HANG), "for_s", h->for_s);
    pid = json_object_get(pl_run_state_rank(hub->doc, rank), "pid");
    if (cause && !h->all) {
        json_object_set_new(cause, "rank", json_integer(rank));
        json_object_set_new(cause, "node", json_string(node_of(hub, rank)));
        if (pid)
            json_object_set(cause, "pid", pid);
        json_object_set_new(cause, "ranks", list_ranks(h));
    }
    if (cause && !h->all && h->stall.ranks[rank].step >= 0)
        json_object_set_new(cause, "step", json_integer(h->stall.ranks[rank].step));
    snprintf(text, sizeof(text), "no step for %.0f s%s%s%s%s", h->for_s,
             h->doing[rank][0] ? ": " : "", h->doing[rank], *h->excerpt ? "\n" : "", h->excerpt);
    if (cause)
        json_object_set_new(cause, "text", json_string(text));
    pl_run_state_set_confidence(cause, h->seen ? PL_CONFIDENCE_SEEN : PL_CONFIDENCE_INFERRED);
    pl_hub_hung(hub, cause, h->all ? -1 : (int64_t)rank);
}

static void act(struct pl_hub_hang *h)
{
    h->stacks_due_ns = 0;
    if (h->acted || h->policy == PL_ON_HANG_WARN)
        return;
    h->acted = true;
    end_job(h);
}

static void take_stacks(struct pl_hub_hang *h, uint64_t now)
{
    h->n_stacks = 0;
    h->excerpt[0] = '\0';
    for (unsigned i = 0; i < h->stall.n && h->n_stacks < STACKS_MAX; i++)
        if (in_question(h, i) && h->hub->node_of_rank[i] >= 0) {
            pl_hub_send(h->hub, (unsigned)h->hub->node_of_rank[i],
                        &(struct pl_msg){.type = PL_MSG_HUB_STACK, .hub_stack.rank = i});
            h->n_stacks++;
        }
    h->stacks_due_ns = now + STACKS_NS;
}

/* ---- suspicion ---- */

static json_t *
verdict_event(struct pl_hub_hang *h, const char *state, const struct pl_stall_verdict *v)
{
    enum pl_confidence confidence = v->seen ? PL_CONFIDENCE_SEEN : PL_CONFIDENCE_INFERRED;
    json_t *event = stall_event(h, state);

    if (!event)
        return NULL;
    json_object_set_new(event, "for_s", json_real((double)v->for_ns / 1e9));
    json_object_set_new(event, "limit_s", json_real((double)v->limit_ns / 1e9));
    json_object_set_new(event, "confidence", json_string(pl_confidence_name(confidence)));
    if (v->step >= 0)
        json_object_set_new(event, "step", json_integer(v->step));
    return event;
}

/* Ranks compute, and the others wait for them: who looks for a reason finds it. */
static void tell_at_work(struct pl_hub_hang *h, const struct pl_stall_verdict *v)
{
    if (h->at_work)
        return;
    h->at_work = true;
    h->all = false;
    pl_hub_event(h->hub, verdict_event(h, "busy", v));
}

static void suspect(struct pl_hub_hang *h, const struct pl_stall_verdict *v, uint64_t now)
{
    h->suspected = true;
    h->all = v->kind == PL_STALL_ALL;
    h->seen = v->seen;
    h->for_s = (double)v->for_ns / 1e9;
    h->stopped_ns = now - v->for_ns;
    h->held = h->at_work = false;
    pl_hub_event(h->hub, verdict_event(h, "suspected", v));
    say_suspected(h, v);
    pl_hub_write_status(h->hub);
    take_stacks(h, now);
}

static void over(struct pl_hub_hang *h, uint64_t now)
{
    double for_s = (double)(now - h->stopped_ns) / 1e9;
    json_t *event = stall_event(h, "over");

    if (event)
        json_object_set_new(event, "for_s", json_real(for_s));
    pl_hub_event(h->hub, event);
    pl_log_warn("run", "ranks go on after %.0f s without progress", for_s);
    pl_stall_was_wrong(&h->stall, now - h->stopped_ns);
    h->suspected = h->acted = false;
    h->stacks_due_ns = 0;
}

/* Records once which ranks are stopped, so that nobody looks for a hang. */
static void hold(struct pl_hub_hang *h, uint64_t now)
{
    json_t *event;

    pl_stall_hold(&h->stall, now);
    pl_slow_hold(&h->slow);
    if (h->held)
        return;
    h->held = true;
    h->all = false;
    for (unsigned i = 0; i < h->stall.n; i++)
        h->behind[i] = h->stall.ranks[i].runs && h->stall.ranks[i].probe.class == PL_STALL_STOPPED;
    event = stall_event(h, "stopped");
    pl_hub_event(h->hub, event);
}

static void judge(struct pl_hub_hang *h)
{
    uint64_t now = pl_now_ns();
    struct pl_stall_verdict v;

    for (unsigned i = 0; i < h->stall.n; i++)
        if (h->stall.ranks[i].runs && !h->stall.ranks[i].probed)
            return; /* more answers follow */
    h->asked_ns = 0;
    h->next_ns = now + h->stall.least_ns / ASK_AGAIN;
    if (h->suspected)
        return;
    v = pl_stall_judge(&h->stall, now, h->behind);
    if (v.kind == PL_STALL_HELD)
        hold(h, now);
    else if (v.kind == PL_STALL_AT_WORK)
        tell_at_work(h, &v);
    else if (v.kind != PL_STALL_NONE)
        suspect(h, &v, now);
}

/* ---- what nodes send ---- */

static enum pl_stall_class class_of(const char *state)
{
    static const char *const names[] = {
        [PL_STALL_WAIT] = "wait",       [PL_STALL_SLEEP] = "sleep", [PL_STALL_BUSY] = "busy",
        [PL_STALL_STOPPED] = "stopped", [PL_STALL_GONE] = "gone",
    };

    for (unsigned i = 0; i < PL_COUNT(names); i++)
        if (strcmp(state, names[i]) == 0)
            return i;
    return PL_STALL_GONE;
}

static void tell_hint(struct pl_hub_hang *h)
{
    json_t *event;

    if (!pl_hang_hint(h))
        return;
    event = stall_event(h, h->hinted ? "hint" : "over");
    if (event && h->hinted)
        json_object_set_new(event, "text", json_string("no output and no CPU time"));
    pl_hub_event(h->hub, event);
}

void pl_hub_hang_probed(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_probed *m)
{
    struct pl_hub_hang *h = hub->hang;
    struct pl_msg one;
    json_t *item;
    size_t i;

    if (!h || !h->asked_ns)
        return;
    json_array_foreach (m->items, i, item) {
        const struct pl_msg_node_probed_item *p = &one.node_probed_item;

        if (pl_msg_read_as(item, PL_MSG_NODE_PROBED_ITEM, &one) < 0 || p->rank < 0 ||
            p->rank >= hub->step->ntasks || hub->node_of_rank[p->rank] != (int64_t)node_id)
            continue;
        snprintf(h->doing[p->rank], sizeof(h->doing[p->rank]), "%.120s", p->doing ? p->doing : "");
        pl_stall_probed(&h->stall, (unsigned)p->rank,
                        (struct pl_stall_probe){
                            .class = class_of(p->state),
                            .collectives = p->collectives == PL_MSG_ABSENT ? -1 : p->collectives,
                            .hook = p->hook != NULL});
        if (!pl_hang_reports_steps(h))
            pl_hang_note_cpu(h, p, PL_HANG_HINT_ASK_FACTOR * h->stall.least_ns / 1000000);
    }
    if (pl_hang_reports_steps(h))
        judge(h);
    else
        tell_hint(h);
}

/* The lines of the main thread: Python's if there are any, else the native ones. What RAS says
 * comes last and counts for nothing: anybody on the node may have answered. */
static void keep_excerpt(struct pl_hub_hang *h, const char *text)
{
    static const char *const starts[] = {"== Python", "== py-spy", "\nThread 1 ", "== gdb",
                                         "== eu-stack"};
    const char *from = NULL, *end, *ras = strstr(text, "== NCCL RAS at ");

    for (size_t i = 0; !from && i < PL_COUNT(starts); i++) {
        from = strstr(text, starts[i]);
        if (from && ras && from > ras)
            from = NULL;
    }
    if (!from)
        return;
    from += *from == '\n';
    end = from;
    for (int line = 0; line < EXCERPT_LINES && *end; line++) {
        size_t len = strcspn(end, "\n");

        if (end + len - from >= PL_HANG_EXCERPT_MAX - 1 || (line && strncmp(end, "== ", 3) == 0))
            break;
        end += len + (end[len] == '\n');
    }
    snprintf(h->excerpt, sizeof(h->excerpt), "%.*s", (int)(end - from), from);
}

/* A rank's stacks on their way to their file. */
struct stack_job {
    struct pl_disk_job job; /* first */
    struct pl_hub *hub;
    unsigned rank;
    char path[96];
    char *text;
    struct pl_error err;
    int result;
};

static void stack_work(struct pl_disk_job *job)
{
    struct stack_job *s = (struct stack_job *)job;

    s->result =
        pl_run_write_file(s->hub->run, s->path, s->text, strlen(s->text), 0666, false, &s->err);
}

static void stack_done(struct pl_disk_job *job)
{
    struct stack_job *s = (struct stack_job *)job;

    if (s->result < 0)
        pl_log_warn("run", "%s; the run goes on", pl_error_text(&s->err));
    else if (s->hub->state != PL_HUB_FINISHED)
        pl_hub_event(s->hub, json_pack("{s:s, s:i, s:s}", "type", "rank", "rank", (int)s->rank,
                                       "stack", strrchr(s->path, '/') + 1));
    free(s->text);
    free(s);
}

/* The name of the file is the rank's: nothing of it comes from the node. */
static void write_stack(struct pl_hub *hub, unsigned rank, const char *text)
{
    struct stack_job *s = calloc(1, sizeof(*s));

    if (s)
        s->text = strdup(text);
    if (!s || !s->text) {
        pl_log_warn("run", "out of memory: the stacks of rank %u are not kept", rank);
        free(s);
        return;
    }
    s->hub = hub;
    s->rank = rank;
    snprintf(s->path, sizeof(s->path), "trial-%04u/attempt-%u/hang-rank-%u.txt", hub->step->trial,
             hub->step->attempt, rank);
    s->job.work = stack_work;
    s->job.done = stack_done;
    pl_disk_add(hub->disk, &s->job);
}

void pl_hub_hang_stack(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_stack *m)
{
    struct pl_hub_hang *h = hub->hang;
    unsigned rank;

    if (!h || m->rank < 0 || m->rank >= hub->step->ntasks ||
        hub->node_of_rank[m->rank] != (int64_t)node_id || !h->n_stacks)
        return;
    rank = (unsigned)m->rank;
    h->n_stacks--;
    write_stack(hub, rank, m->text);
    if (h->suspected && rank == first_in_question(h))
        keep_excerpt(h, m->text);
    if (h->suspected && h->n_stacks == 0)
        act(h);
}

void pl_hub_hang_started(struct pl_hub *hub, unsigned rank)
{
    if (hub->hang)
        pl_stall_started(&hub->hang->stall, rank, pl_now_ns());
}

void pl_hub_hang_ended(struct pl_hub *hub, unsigned rank)
{
    if (!hub->hang)
        return;
    pl_stall_ended(&hub->hang->stall, rank);
    pl_slow_ended(&hub->hang->slow, rank);
}

void pl_hub_hang_report(struct pl_hub *hub, const struct pl_msg_node_metrics_item *m)
{
    struct pl_hub_hang *h = hub->hang;
    uint64_t now = pl_now_ns();
    unsigned rank = (unsigned)m->rank;
    int64_t step = m->step == PL_MSG_ABSENT ? -1 : m->step;
    struct pl_stall_report report = {
        .step = step,
        .moves = m->moves == PL_MSG_ABSENT ? 0 : (uint64_t)PL_MAX(m->moves, (int64_t)0),
        .gap_ns =
            m->gap_ms == PL_MSG_ABSENT ? 0 : (uint64_t)PL_MAX(m->gap_ms, (int64_t)0) * 1000000,
        .paused = m->phase ? *m->phase != '\0' : -1,
    };
    bool was_paused, question;

    if (!h)
        return;
    question = in_question(h, rank);
    was_paused = h->stall.ranks[rank].paused;
    if (pl_stall_report(&h->stall, rank, &report, now)) {
        if (h->suspected && question)
            over(h, now);
        if (h->held || h->hinted || h->at_work)
            pl_hub_event(hub, stall_event(h, "over"));
        h->held = h->hinted = h->at_work = false;
    }
    pl_slow_report(&h->slow, rank, step, m->own_us == PL_MSG_ABSENT ? -1 : m->own_us, now);
    if (was_paused || h->stall.ranks[rank].paused)
        pl_slow_pause(&h->slow);
}

/* ---- the timer ---- */

static void note_slow(struct pl_hub_hang *h)
{
    for (unsigned i = 0; i < h->slow.n; i++) {
        double factor = h->slow.ranks[i].factor;
        double before =
            json_number_value(json_object_get(pl_run_state_rank(h->hub->doc, i), "slow"));

        factor = (double)(int64_t)(factor * 100 + 0.5) / 100;
        if (factor != before)
            pl_hub_event(h->hub, json_pack("{s:s, s:i, s:f}", "type", "rank", "rank", (int)i,
                                           "slow", factor));
    }
}

static void ask(struct pl_hub_hang *h, uint64_t now)
{
    h->asked_ns = now;
    pl_stall_ask(&h->stall);
    pl_hub_broadcast(h->hub, &(struct pl_msg){.type = PL_MSG_HUB_PROBE});
}

static void on_tick(uv_timer_t *timer)
{
    struct pl_hub_hang *h = timer->data;
    uint64_t now = pl_now_ns();

    if (now - h->tick_ns > LATE_TICK_NS && !h->suspected) {
        pl_stall_hold(&h->stall, now);
        pl_slow_hold(&h->slow);
    }
    h->tick_ns = now;
    if (h->hub->state != PL_HUB_RUNNING || h->hub->cause)
        return;
    if (h->stacks_due_ns && now > h->stacks_due_ns)
        act(h);
    if (h->suspected)
        return;
    if (now - h->slow_ns > h->stall.least_ns && pl_slow_judge(&h->slow)) {
        h->slow_ns = now;
        note_slow(h);
    }
    if (h->asked_ns && now - h->asked_ns > ANSWER_NS)
        h->asked_ns = 0;
    if (h->asked_ns || now < h->next_ns)
        return;
    if (pl_stall_due(&h->stall, now)) {
        ask(h, now);
    } else if (!pl_hang_reports_steps(h) &&
               now - h->hint_ns > PL_HANG_HINT_ASK_FACTOR * h->stall.least_ns) {
        h->hint_ns = now;
        ask(h, now);
    }
}

/* ---- life ---- */

static void free_hang(struct pl_hub_hang *h)
{
    pl_stall_finish(&h->stall);
    pl_slow_finish(&h->slow);
    free(h->behind);
    free(h->doing);
    free(h->cpu_ms);
    free(h->idle_ms);
    free(h->silent_s);
    free(h);
}

int pl_hub_hang_open(struct pl_hub *hub, struct pl_error *err)
{
    unsigned n = hub->step->ntasks, least_ms = pl_env_ms(PL_ENV_PLUME_HANG_LIMIT);
    enum pl_on_hang policy;
    struct pl_hub_hang *h;
    int r = pl_on_hang_of_run(hub->run, &policy, err);

    if (r < 0 || least_ms == 0)
        return r;
    h = calloc(1, sizeof(*h));
    if (!h)
        return pl_error_nomem(err);
    h->hub = hub;
    h->policy = policy;
    h->tick_ns = h->hint_ns = h->slow_ns = pl_now_ns();
    h->behind = calloc(PL_MAX(n, 1u), sizeof(*h->behind));
    h->doing = calloc(PL_MAX(n, 1u), sizeof(*h->doing));
    h->cpu_ms = calloc(PL_MAX(n, 1u), sizeof(*h->cpu_ms));
    h->idle_ms = calloc(PL_MAX(n, 1u), sizeof(*h->idle_ms));
    h->silent_s = calloc(PL_MAX(n, 1u), sizeof(*h->silent_s));
    r = pl_stall_init(&h->stall, n, least_ms);
    if (r == 0)
        r = pl_slow_init(&h->slow, n);
    if (r < 0 || !h->behind || !h->doing || !h->cpu_ms || !h->idle_ms || !h->silent_s) {
        free_hang(h);
        return pl_error_nomem(err);
    }
    for (unsigned i = 0; i < n; i++)
        h->cpu_ms[i] = h->silent_s[i] = -1;
    uv_timer_init(hub->loop, &h->timer);
    h->timer.data = h;
    uv_timer_start(&h->timer, on_tick, TICK_MS, TICK_MS);
    hub->hang = h;
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    free_hang(handle->data);
}

void pl_hub_hang_close(struct pl_hub *hub)
{
    struct pl_hub_hang *h = PL_TAKE(hub->hang);

    if (h)
        uv_close((uv_handle_t *)&h->timer, on_closed);
}
