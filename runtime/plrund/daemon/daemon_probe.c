/* SPDX-License-Identifier: MIT */
/* Answers the hub's questions about ranks that make no progress: what they do, and their stacks. A
 * process of its own looks (prober.h). */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/prober.h"

#include <string.h>

#define LOOK_MS 500            /* between the two looks of a probe */
#define ANSWER_MS 1500         /* for the second looks */
#define BUSY_PERCENT 10        /* of a processor */
#define BUSY_BYTES (32 * 1024) /* read or written between two looks */

/* The looks at a rank, by index of daemon->ranks. */
struct looks {
    bool first, second; /* have come */
    struct pl_probe before, now;
    struct pl_place place;
    bool has_place;
    struct pl_buf stack; /* so far */
};

/*   IDLE --the hub asks--> FIRST --LOOK_MS--> SECOND --all answers, or ANSWER_MS--> IDLE */
struct pl_daemon_probe {
    struct pl_daemon *daemon;
    uv_process_t process;
    uv_poll_t poll;
    uv_timer_t timer;
    int fd;
    enum { IDLE, FIRST, SECOND } state;
    struct looks *looks;
    uint64_t looked_ns;
    unsigned handles;
};

/* ---- probes ---- */

static bool can_look(const struct pl_rank *rank)
{
    return rank->running && !rank->ended && rank->pid > 1;
}

static enum pl_probe_state
state_of(const struct pl_probe *before, const struct pl_probe *now, uint64_t ms)
{
    bool busy = (uint64_t)(now->cpu_ms - before->cpu_ms) * 100 >= BUSY_PERCENT * ms ||
                (before->io_bytes >= 0 && now->io_bytes - before->io_bytes >= BUSY_BYTES);

    if (now->state == PL_PROBE_STOPPED || now->state == PL_PROBE_GONE)
        return now->state;
    if (before->state == PL_PROBE_STOPPED) /* it goes on just now */
        return PL_PROBE_STOPPED;
    /* On a full node it may have got no processor in between. */
    return busy || before->state == PL_PROBE_BUSY ? PL_PROBE_BUSY : now->state;
}

/* A program that is between two sleeps is one that sleeps. */
static enum pl_probe_state with_before(enum pl_probe_state state, const struct pl_probe *before)
{
    return state == PL_PROBE_WAIT && before->state == PL_PROBE_SLEEP ? PL_PROBE_SLEEP : state;
}

/* The hook that runs; NULL = none, or it waits in a collective. */
static const char *hook_of(const struct looks *l)
{
    const struct pl_place *p = &l->place;
    bool runs = l->has_place && !p->inside && *p->hook && pl_utf8_valid(p->hook, strlen(p->hook));

    return runs ? p->hook : NULL;
}

/* For people: "in allreduce 12", "in hook on_fit_end, after allreduce 12", or the kernel's word;
 * and the file that it reads or writes. */
static void name_place(const struct looks *l, char *ret, size_t size)
{
    const struct pl_place *p = &l->place;
    const char *hook = hook_of(l);
    size_t len = hook ? (size_t)snprintf(ret, size, "in hook %.40s", hook) : 0;

    if (l->has_place && p->collectives > 0)
        snprintf(ret + len, size - len, "%s%s %s %lld", hook ? ", " : "",
                 p->inside ? "in" : "after", p->what, (long long)p->collectives);
    else if (!hook)
        snprintf(ret, size, "%s", l->now.doing);
    len = strlen(ret);
    if (*ret && strncmp(l->now.doing, PL_PROBE_AT, strlen(PL_PROBE_AT)) == 0 &&
        strcmp(ret, l->now.doing) != 0)
        snprintf(ret + len, size - len, ", %s", l->now.doing);
}

static json_t *describe(const struct pl_rank *rank, const struct looks *l, uint64_t ms)
{
    uint64_t heard_ns = PL_MAX(pl_capture_heard_ns(rank->out), pl_capture_heard_ns(rank->err));
    const struct pl_place *place = &l->place;
    char doing[192] = "";

    name_place(l, doing, sizeof(doing));
    return pl_msg_new(&(struct pl_msg){
        .type = PL_MSG_NODE_PROBED_ITEM,
        .node_probed_item = {.rank = rank->rank,
                             .state = pl_probe_state_name(
                                 with_before(state_of(&l->before, &l->now, ms), &l->before)),
                             .doing = *doing && pl_utf8_valid(doing, strlen(doing)) ? doing : NULL,
                             .collectives = l->has_place ? place->collectives : PL_MSG_ABSENT,
                             .hook = hook_of(l),
                             .cpu_ms = l->now.cpu_ms,
                             .silent_s = heard_ns ? (int64_t)((pl_now_ns() - heard_ns) / 1000000000)
                                                  : PL_MSG_ABSENT},
    });
}

static void answer_hub(struct pl_daemon_probe *p)
{
    struct pl_daemon *d = p->daemon;
    _cleanup_(json_decrefp) json_t *items = json_array();
    uint64_t ms = PL_MAX((pl_now_ns() - p->looked_ns) / 1000000, 1u);

    p->state = IDLE;
    uv_timer_stop(&p->timer);
    for (unsigned i = 0; i < d->n_present; i++)
        if (can_look(&d->ranks[i]) && p->looks[i].second)
            json_array_append_new(items, describe(&d->ranks[i], &p->looks[i], ms));
    pl_daemon_send_metrics(d); /* first: a rank that has just gone on hangs no more */
    pl_uplink_send(d->uplink,
                   &(struct pl_msg){.type = PL_MSG_NODE_PROBED, .node_probed.items = items});
}

static bool request(struct pl_daemon_probe *p, enum pl_prober_what what, const struct pl_rank *rank)
{
    struct pl_prober_request r = {what, rank->rank, rank->pid};

    return send(p->fd, &r, sizeof(r), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(r);
}

static void ask_all(struct pl_daemon_probe *p)
{
    for (unsigned i = 0; i < p->daemon->n_present; i++)
        if (can_look(&p->daemon->ranks[i]))
            request(p, PL_PROBER_LOOK, &p->daemon->ranks[i]);
}

static void on_timer(uv_timer_t *timer)
{
    struct pl_daemon_probe *p = timer->data;

    if (p->state == SECOND) { /* a rank whose look blocks has no answer */
        answer_hub(p);
        return;
    }
    p->state = SECOND;
    uv_timer_start(&p->timer, on_timer, ANSWER_MS, 0);
    ask_all(p);
}

static bool all_looked(const struct pl_daemon_probe *p)
{
    for (unsigned i = 0; i < p->daemon->n_present; i++)
        if (can_look(&p->daemon->ranks[i]) && !p->looks[i].second)
            return false;
    return true;
}

static void
take_look(struct pl_daemon_probe *p, struct looks *l, const struct pl_prober_answer *answer)
{
    if (p->state == FIRST) {
        l->first = true;
        l->before = answer->look.probe;
        return;
    }
    if (p->state != SECOND || !l->first) /* late */
        return;
    l->second = true;
    l->now = answer->look.probe;
    l->place = answer->look.place;
    l->place.what[sizeof(l->place.what) - 1] = '\0';
    l->place.hook[sizeof(l->place.hook) - 1] = '\0';
    l->now.doing[sizeof(l->now.doing) - 1] = '\0';
    l->has_place = answer->look.has_place;
    if (all_looked(p))
        answer_hub(p);
}

static void take_part(struct pl_daemon *d,
                      unsigned rank,
                      struct looks *l,
                      const struct pl_prober_answer *answer)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    if (answer->part.len && answer->part.len <= PL_PROBER_PART) {
        pl_buf_add(&l->stack, answer->part.text, answer->part.len);
        return;
    }
    if (pl_buf_add_text(&text, pl_buf_str(&l->stack), l->stack.len) == 0)
        pl_uplink_send(d->uplink, &(struct pl_msg){.type = PL_MSG_NODE_STACK,
                                                   .node_stack = {rank, pl_buf_str(&text)}});
    pl_buf_finish(&l->stack);
    l->stack = (struct pl_buf){0};
}

static void on_answer(uv_poll_t *poll, int status, int events)
{
    struct pl_daemon_probe *p = poll->data;
    struct pl_daemon *d = p->daemon;
    struct pl_prober_answer answer;
    struct pl_rank *rank;
    ssize_t n;

    while ((n = recv(p->fd, &answer, sizeof(answer), MSG_DONTWAIT)) == sizeof(answer)) {
        rank = pl_daemon_find_rank(d, answer.rank);
        if (!rank)
            continue;
        if (answer.what == PL_PROBER_LOOK)
            take_look(p, &p->looks[rank - d->ranks], &answer);
        else if (answer.what == PL_PROBER_ENV)
            d->env_came(rank, answer.part.text, PL_MIN(answer.part.len, (uint32_t)PL_PROBER_PART));
        else
            take_part(d, rank->rank, &p->looks[rank - d->ranks], &answer);
    }
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) /* it was killed */
        uv_poll_stop(&p->poll);
}

void pl_daemon_probe(struct pl_daemon *d)
{
    struct pl_daemon_probe *p = d->probe;

    if (!p || p->state != IDLE || d->finished)
        return;
    for (unsigned i = 0; i < d->n_present; i++)
        p->looks[i].first = p->looks[i].second = false;
    p->state = FIRST;
    p->looked_ns = pl_now_ns();
    uv_timer_start(&p->timer, on_timer, LOOK_MS, 0);
    ask_all(p);
}

void pl_daemon_take_stack(struct pl_daemon *d, int64_t number)
{
    struct pl_rank *rank =
        number >= 0 && number < UINT_MAX ? pl_daemon_find_rank(d, (unsigned)number) : NULL;

    if (d->probe && !d->finished && rank && can_look(rank))
        request(d->probe, PL_PROBER_STACK, rank);
}

bool pl_daemon_probe_env(struct pl_daemon *d, const struct pl_rank *rank)
{
    return d->probe && !d->finished && request(d->probe, PL_PROBER_ENV, rank);
}

/* ---- life ---- */

static void on_closed(uv_handle_t *handle)
{
    struct pl_daemon_probe *p = handle->data;

    if (--p->handles)
        return;
    for (unsigned i = 0; i < p->daemon->step.local_ntasks; i++)
        pl_buf_finish(&p->looks[i].stack);
    if (p->fd >= 0)
        close(p->fd);
    free(p->looks);
    free(p);
}

static void close_all(struct pl_daemon_probe *p)
{
    uv_close((uv_handle_t *)&p->process, on_closed);
    uv_close((uv_handle_t *)&p->timer, on_closed);
    uv_close((uv_handle_t *)&p->poll, on_closed);
}

static void on_exit_of_prober(uv_process_t *process, int64_t status, int term_signal)
{
    pl_log_warn("child", "the prober ended, hangs have no stacks: exit %d, signal %d", (int)status,
                term_signal);
}

void pl_daemon_probe_prepare(struct pl_daemon *d)
{
    struct pl_daemon_probe *p = calloc(1, sizeof(*p));
    struct looks *looks = calloc(PL_MAX(d->step.local_ntasks, 1u), sizeof(*looks));
    int pair[2], r;

    if (!p || !looks || pl_env_ms(PL_ENV_PLUME_HANG_LIMIT) == 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        free(p);
        free(looks);
        return;
    }
    *p = (struct pl_daemon_probe){.daemon = d, .fd = pair[0], .looks = looks, .handles = 3};
    uv_timer_init(d->loop, &p->timer);
    uv_poll_init(d->loop, &p->poll, p->fd);
    p->process.data = p->timer.data = p->poll.data = p;
    /* No stream of the step: a prober whose daemon is stopped holds none of them open. */
    r = pl_daemon_spawn(d, &p->process, "--prober", false, pair[1], on_exit_of_prober);
    if (r < 0) {
        pl_log_warn("child", "cannot start the prober: %s", uv_strerror(r));
        close_all(p);
        return;
    }
    uv_poll_start(&p->poll, UV_READABLE, on_answer);
    uv_unref((uv_handle_t *)&p->poll);
    d->probe = p;
}

/* The end of the socket is its end. */
void pl_daemon_probe_close(struct pl_daemon *d)
{
    struct pl_daemon_probe *p = PL_TAKE(d->probe);

    if (p)
        close_all(p);
}
