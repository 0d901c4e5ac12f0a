/* SPDX-License-Identifier: MIT */
/* Answers the hub's questions about ranks that make no progress: what they do (probe.h), and their
 * stacks, which a process of its own takes (stack.h). */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/trace.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/place.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/probe.h"
#include "runtime/plrund/daemon/stack.h"

#include <signal.h>
#include <string.h>

#define LOOK_MS 500            /* between the two looks of a probe */
#define BUSY_PERCENT 10        /* of a processor */
#define BUSY_BYTES (32 * 1024) /* read or written between two looks */
#define STACKS_MAX 8           /* processes at a time that take stacks */
#define STACK_BYTES                                                                                \
    ((size_t)192 * 1024) /* as JSON six times as much at most: less than a frame                   \
                          */
#define STACK_EXTRA_MS 2000

/* A process that takes the stacks of a rank. */
struct taker {
    struct taker *next;
    struct pl_daemon *daemon; /* NULL: nobody wants the answer any more */
    unsigned rank;
    uv_process_t process;
    uv_pipe_t out;
    uv_timer_t timer;
    struct pl_buf text;
    char chunk[4096];
    bool exited, eof;
    unsigned handles;
};

struct pl_daemon_probe {
    struct pl_daemon *daemon;
    uv_timer_t timer;       /* from the first look to the second */
    struct pl_probe *looks; /* by index of daemon->ranks */
    uint64_t looked_ns;
    struct taker *takers;
    unsigned n_takers;
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

static json_t *describe(const struct pl_rank *rank, const struct pl_probe *before, uint64_t ms)
{
    uint64_t heard_ns = PL_MAX(pl_capture_heard_ns(rank->out), pl_capture_heard_ns(rank->err));
    struct pl_place place = {.collectives = PL_MSG_ABSENT};
    struct pl_probe now;
    char doing[128];

    pl_probe_look(rank->pid, &now);
    if (pl_place_read(now.pid, &place) == 0 && place.inside)
        snprintf(doing, sizeof(doing), "in %s %lld", place.what, (long long)place.collectives);
    else if (place.collectives > 0)
        snprintf(doing, sizeof(doing), "after %s %lld", place.what, (long long)place.collectives);
    else
        snprintf(doing, sizeof(doing), "%s", now.doing);
    return pl_msg_new(&(struct pl_msg){
        .type = PL_MSG_NODE_PROBED_ITEM,
        .node_probed_item = {.rank = rank->rank,
                             .state = pl_probe_state_name(
                                 with_before(state_of(before, &now, ms), before)),
                             .doing = *doing && pl_utf8_valid(doing, strlen(doing)) ? doing : NULL,
                             .collectives = place.collectives,
                             .cpu_ms = now.cpu_ms,
                             .silent_s = heard_ns ? (int64_t)((pl_now_ns() - heard_ns) / 1000000000)
                                                  : PL_MSG_ABSENT},
    });
}

static void on_second_look(uv_timer_t *timer)
{
    struct pl_daemon_probe *p = timer->data;
    struct pl_daemon *d = p->daemon;
    _cleanup_(json_decrefp) json_t *items = json_array();
    _cleanup_free_ struct pl_probe *before = PL_TAKE(p->looks);
    uint64_t ms = (pl_now_ns() - p->looked_ns) / 1000000;

    if (d->finished)
        return;
    for (unsigned i = 0; before && i < d->n_present; i++)
        if (can_look(&d->ranks[i]) && before[i].pid)
            json_array_append_new(items, describe(&d->ranks[i], &before[i], PL_MAX(ms, 1u)));
    pl_daemon_send_metrics(d); /* first: a rank that has just gone on hangs no more */
    pl_uplink_send(d->uplink,
                   &(struct pl_msg){.type = PL_MSG_NODE_PROBED, .node_probed.items = items});
}

static struct pl_daemon_probe *get(struct pl_daemon *d)
{
    struct pl_daemon_probe *p = d->probe;

    if (p || d->finished)
        return d->finished ? NULL : p;
    p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->daemon = d;
    uv_timer_init(d->loop, &p->timer);
    p->timer.data = p;
    return d->probe = p;
}

void pl_daemon_probe(struct pl_daemon *d)
{
    struct pl_daemon_probe *p = get(d);

    if (!p || p->looks)
        return;
    p->looks = calloc(PL_MAX(d->step.local_ntasks, 1u), sizeof(*p->looks));
    if (!p->looks)
        return;
    for (unsigned i = 0; i < d->n_present; i++)
        if (can_look(&d->ranks[i]))
            pl_probe_look(d->ranks[i].pid, &p->looks[i]);
    p->looked_ns = pl_now_ns();
    uv_timer_start(&p->timer, on_second_look, LOOK_MS, 0);
}

/* ---- stacks ---- */

static void on_closed(uv_handle_t *handle)
{
    struct taker *t = handle->data;

    if (--t->handles)
        return;
    pl_buf_finish(&t->text);
    free(t);
}

static void close_all(struct taker *t)
{
    uv_close((uv_handle_t *)&t->timer, on_closed);
    uv_close((uv_handle_t *)&t->out, on_closed);
    uv_close((uv_handle_t *)&t->process, on_closed);
}

static void unlink_taker(struct pl_daemon_probe *p, struct taker *t)
{
    struct taker **at = &p->takers;

    while (*at && *at != t)
        at = &(*at)->next;
    if (*at) {
        *at = t->next;
        p->n_takers--;
    }
}

static void maybe_done(struct taker *t)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    if (!t->exited || !t->eof || uv_is_closing((uv_handle_t *)&t->timer))
        return;
    close_all(t);
    unlink_taker(t->daemon->probe, t);
    if (pl_buf_add_text(&text, pl_buf_str(&t->text), t->text.len) == 0)
        pl_uplink_send(t->daemon->uplink,
                       &(struct pl_msg){.type = PL_MSG_NODE_STACK,
                                        .node_stack = {t->rank, pl_buf_str(&text)}});
}

static void on_exit_of_taker(uv_process_t *process, int64_t status, int term_signal)
{
    struct taker *t = process->data;

    t->exited = true;
    maybe_done(t);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
    struct taker *t = handle->data;

    *buf = uv_buf_init(t->chunk, sizeof(t->chunk));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct taker *t = stream->data;

    if (n > 0 && t->text.len < STACK_BYTES)
        pl_buf_add(&t->text, buf->base, PL_MIN((size_t)n, STACK_BYTES - t->text.len));
    if (n < 0) {
        t->eof = true;
        maybe_done(t);
    }
}

/* It blocks on the rank, or a tool does: what it has written so far counts. */
static void on_timeout(uv_timer_t *timer)
{
    struct taker *t = timer->data;

    uv_process_kill(&t->process, SIGKILL);
    t->eof = t->exited = true;
    maybe_done(t);
}

static struct taker *start_taker(struct pl_daemon_probe *p, const struct pl_rank *rank)
{
    char path[4096], pid[16],
        *argv[] = {(char *)(uintptr_t) "plrund", (char *)(uintptr_t) "--stack", pid, NULL};
    uv_stdio_container_t io[3] = {
        {.flags = UV_IGNORE}, {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE}, {.flags = UV_IGNORE}};
    uv_process_options_t options = {
        .exit_cb = on_exit_of_taker, .file = path, .args = argv, .stdio = io, .stdio_count = 3};
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
    struct taker *t = len < 0 ? NULL : calloc(1, sizeof(*t));
    int r;

    if (!t)
        return NULL;
    path[len] = '\0';
    snprintf(pid, sizeof(pid), "%d", (int)rank->pid);
    t->daemon = p->daemon;
    t->rank = rank->rank;
    t->handles = 3;
    t->process.data = t->out.data = t->timer.data = t;
    uv_pipe_init(p->daemon->loop, &t->out, 0);
    uv_timer_init(p->daemon->loop, &t->timer);
    io[1].data.stream = (uv_stream_t *)&t->out;
    r = uv_spawn(p->daemon->loop, &t->process, &options);
    t->process.data = t;
    if (r < 0) {
        pl_log_warn("child", "cannot take the stack of rank %u: %s", rank->rank, uv_strerror(r));
        close_all(t);
        return NULL;
    }
    pl_trace("fork", "stack", NULL, t->process.pid);
    uv_read_start((uv_stream_t *)&t->out, on_alloc, on_read);
    uv_timer_start(&t->timer, on_timeout, PL_STACK_LIMIT_MS + STACK_EXTRA_MS, 0);
    return t;
}

void pl_daemon_take_stack(struct pl_daemon *d, int64_t number)
{
    struct pl_rank *rank =
        number >= 0 && number <= UINT_MAX ? pl_daemon_find_rank(d, (unsigned)number) : NULL;
    struct pl_daemon_probe *p = get(d);
    struct taker *t;

    if (!p || !rank || !can_look(rank) || p->n_takers == STACKS_MAX)
        return;
    t = start_taker(p, rank);
    if (!t)
        return;
    t->next = p->takers;
    p->takers = t;
    p->n_takers++;
}

static void free_probe(uv_handle_t *handle)
{
    struct pl_daemon_probe *p = handle->data;

    free(p->looks);
    free(p);
}

void pl_daemon_probe_close(struct pl_daemon *d)
{
    struct pl_daemon_probe *p = PL_TAKE(d->probe);
    struct taker *next;

    if (!p)
        return;
    for (struct taker *t = p->takers; t; t = next) {
        next = t->next;
        uv_process_kill(&t->process, SIGKILL);
        close_all(t);
    }
    uv_close((uv_handle_t *)&p->timer, free_probe);
}
