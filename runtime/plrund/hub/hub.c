/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/run/rank_state.h"
#include "common/run/run_state.h"
#include "runtime/node/net.h"
#include "runtime/plrund/hub/hub_private.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define TICK_MS 2000
#define LATE_TICK_NS 3000000000ull /* between two ticks: the job was suspended */
#define KEYS_MAX 256               /* metrics of a rank, facts of a rank */
#define KEY_MAX 256                /* bytes of their names */
#define VALUE_MAX 8192             /* bytes of a fact */

/* ---- the world ---- */

/* MASTER_PORT, and a port for JAX's coordinator: its own default, by the job's number, is the same
 * for two steps of a job. A range may be too small for the second. */
static void choose_ports(struct pl_hub *hub)
{
    const char *range = pl_env_text(PL_ENV_PLUME_MASTER_PORT_RANGE);
    struct pl_error err = {0};
    uint16_t low, high;

    if (range && pl_parse_port_range(range, &low, &high, &err) == 0 &&
        pl_net_find_free(low, high, &hub->master_port, &err) == 0) {
        if (hub->master_port == high ||
            pl_net_find_free(hub->master_port + 1, high, &hub->coordinator_port, NULL) < 0)
            hub->coordinator_port = 0;
        return;
    }
    if (err.text[0])
        pl_log_warn("net", "MASTER_PORT: %s; taking another", pl_error_text(&err));
    if (pl_port_reserve(0, &hub->master_fd, &hub->master_port, &err) < 0 ||
        pl_port_reserve(0, &hub->coordinator_fd, &hub->coordinator_port, &err) < 0)
        pl_log_error("net", "%s", pl_error_text(&err));
}

static void choose_master(struct pl_hub *hub)
{
    unsigned nnodes = hub->step->nnodes;

    /* Another node reached us at this address, so it works between nodes. */
    snprintf(hub->master_addr, sizeof(hub->master_addr), "127.0.0.1");
    for (unsigned i = 1; i < nnodes; i++) {
        char name[sizeof(hub->master_addr)];

        if (!hub->nodes[i].wire ||
            pl_hub_conn_address(hub->nodes[i].wire, false, name, sizeof(name)) < 0)
            continue;
        snprintf(hub->master_addr, sizeof(hub->master_addr), "%s", name);
        if (!pl_net_is_loopback(name))
            break;
    }
    if (!pl_net_is_loopback(hub->master_addr))
        memcpy(hub->own_addr, hub->master_addr, sizeof(hub->own_addr));
    choose_ports(hub);
}

static void publish_world(struct pl_hub *hub)
{
    bool changed;

    hub->state = PL_HUB_RUNNING;
    pl_limit_stop(&hub->launch_limit);
    if (hub->came)
        pl_limit_start(&hub->start_limit, pl_env_ms(PL_ENV_PLUME_LAUNCH_TIMEOUT));
    choose_master(hub);
    changed = hub->nodes[0].addr && strcmp(hub->nodes[0].addr, hub->own_addr) != 0;
    free(hub->nodes[0].addr);
    hub->nodes[0].addr = strdup(hub->master_addr);
    if (changed)
        pl_hub_event(
            hub, json_pack("{s:s, s:i, s:s}", "type", "node", "node_id", 0, "addr", hub->own_addr));
    pl_hub_event(hub, json_pack("{s:s, s:s}", "type", "state", "state", "running"));
    pl_hub_tidy_start(hub);
    pl_hub_write_status(hub);
    for (unsigned i = 0; i < hub->step->nnodes; i++) {
        const char *addr = hub->nodes[i].addr;

        pl_hub_send(
            hub, i,
            &(struct pl_msg){
                .type = PL_MSG_HUB_WORLD,
                .hub_world = {hub->attempt_dir, pl_run_dir(hub->run), hub->master_addr,
                              hub->master_port, addr ? addr : "",
                              hub->coordinator_port ? hub->coordinator_port : PL_MSG_ABSENT},
            });
    }
}

static void ping(struct pl_hub *hub, unsigned node_id)
{
    pl_hub_send(hub, node_id,
                &(struct pl_msg){.type = PL_MSG_HUB_PING, .hub_ping.t = (int64_t)pl_now_ns()});
}

static json_t *
joined_event(const struct pl_hub_node *node, unsigned node_id, const struct pl_msg_join *join)
{
    json_t *event =
        json_pack("{s:s, s:i, s:s, s:s, s:s}", "type", "node", "node_id", (int)node_id, "node",
                  pl_hub_node_name(node), "addr", node->addr ? node->addr : "", "state", "joined");
    const struct {
        const char *key, *value;
    } releases[] = {{"driver", join->driver}, {"nccl", join->nccl}, {"mpi", join->mpi}};

    for (size_t i = 0; i < PL_COUNT(releases); i++)
        if (releases[i].value)
            json_object_set_new(event, releases[i].key, json_string(releases[i].value));
    return event;
}

static void on_joined(struct pl_hub *hub,
                      unsigned node_id,
                      const struct pl_msg_join *join,
                      struct pl_hub_conn *wire)
{
    struct pl_hub_node *node = &hub->nodes[node_id];
    const char *unable = join->unable ? join->unable : node_id == 0 ? hub->unable : NULL;
    char addr[64], own_clock[PL_CLOCK_ID_MAX];

    if (node_id == 0) /* it is in this process */
        memcpy(addr, hub->own_addr, sizeof(addr));
    else if (pl_hub_conn_address(wire, true, addr, sizeof(addr)) < 0)
        addr[0] = '\0';
    node->joined = true;
    node->wire = wire;
    node->same_clock =
        join->clock && *join->clock && strcmp(join->clock, pl_clock_id(own_clock)) == 0;
    node->name = strdup(join->node ? join->node : "?");
    node->addr = strdup(addr);
    hub->n_joined++;
    pl_hub_event(hub, joined_event(node, node_id, join));
    if (unable && hub->state == PL_HUB_GATHERING) {
        pl_hub_node_unable(hub, node_id, unable);
        return;
    }
    ping(hub, node_id);
    if (hub->state == PL_HUB_GATHERING && hub->n_joined == hub->step->nnodes)
        publish_world(hub);
    else if (hub->state >= PL_HUB_ENDING)
        pl_hub_send(hub, node_id,
                    &(struct pl_msg){
                        .type = PL_MSG_HUB_REFUSED,
                        .hub_refused.text = hub->refusal ? hub->refusal : "the run has ended",
                    });
}

/* ---- messages of nodes ---- */

static bool is_rank(const struct pl_hub *hub, int64_t rank)
{
    return rank >= 0 && rank < hub->step->ntasks;
}

/* Under the plugin no task begins before the other plugins are ready on its node: one that imports
 * an image takes minutes. */
static void note_came(struct pl_hub *hub)
{
    if (!hub->came && hub->state == PL_HUB_RUNNING)
        pl_limit_start(&hub->start_limit, pl_env_ms(PL_ENV_PLUME_LAUNCH_TIMEOUT));
    hub->came = true;
}

static void on_started(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_started *m)
{
    if (!is_rank(hub, m->rank))
        return;
    note_came(hub);
    hub->node_of_rank[m->rank] = node_id;
    hub->rank_states[m->rank] = PL_RANK_RUNNING;
    pl_hub_event(hub,
                 json_pack("{s:s, s:I, s:s, s:I, s:s}", "type", "rank", "rank", (json_int_t)m->rank,
                           "node", pl_hub_node_name(&hub->nodes[node_id]), "pid",
                           (json_int_t)m->pid, "state", pl_rank_state_name(PL_RANK_RUNNING)));
    pl_hub_hang_started(hub, (unsigned)m->rank);
}

static void note_done(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_exited *m)
{
    int64_t at_ns = m->at_ns - hub->nodes[node_id].offset_ns;

    if (hub->first_done.rank < 0 || at_ns < hub->first_done.at_ns)
        hub->first_done = (struct pl_hub_done){m->rank, node_id, at_ns};
}

static void on_exited(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_exited *m)
{
    struct pl_hub_node *node = &hub->nodes[node_id];
    enum pl_rank_state state = m->status == 0 ? PL_RANK_DONE
                               : m->killed    ? PL_RANK_KILLED
                                              : PL_RANK_FAILED;
    json_t *event;

    if (!is_rank(hub, m->rank))
        return;
    hub->node_of_rank[m->rank] = node_id;
    hub->rank_states[m->rank] = state;
    hub->ended_ns = pl_now_ns();
    event = json_pack("{s:s, s:I, s:s, s:s}", "type", "rank", "rank", (json_int_t)m->rank, "node",
                      pl_hub_node_name(node), "state", pl_rank_state_name(state));
    pl_run_state_set_status(event, (int)m->status);
    if (state == PL_RANK_KILLED) /* by us, but it may be the one that hung */
        json_object_set_new(event, "role",
                            json_string(m->rank == hub->root && json_object_get(hub->cause, "rank")
                                            ? "root"
                                            : "collateral"));
    pl_hub_event(hub, event);
    pl_hub_hang_ended(hub, (unsigned)m->rank);
    if (state == PL_RANK_DONE && !m->killed) {
        note_done(hub, node_id, m);
        hub->may_have_obeyed |= m->term_default == 0;
    }
    if (state != PL_RANK_FAILED)
        return;
    pl_hub_failed(hub, &(struct pl_failure){
                           .rank = (unsigned)m->rank,
                           .node_id = node_id,
                           .status = (int)m->status,
                           .at_ns = m->at_ns - node->offset_ns,
                           .uncertainty_ns = node->uncertainty_ns,
                           .oom = m->oom,
                           .runtime = m->runtime,
                           .term_default = m->term_default == 1,
                           .text = m->text,
                       });
}

/* True if a rank's object ("metrics", "facts") may get this key, beside n_new others of the same
 * message, which are counted: programs cannot fill the hub. */
static bool
has_room(struct pl_hub *hub, int64_t rank, const char *what, const char *key, size_t *n_new)
{
    json_t *have = json_object_get(pl_run_state_rank(hub->doc, (size_t)rank), what);

    if (strlen(key) > KEY_MAX)
        return false;
    return json_object_get(have, key) || json_object_size(have) + (*n_new)++ < KEYS_MAX;
}

static void on_fact(struct pl_hub *hub, const struct pl_msg_node_fact *m)
{
    if (is_rank(hub, m->rank) && strlen(m->value) <= VALUE_MAX &&
        has_room(hub, m->rank, "facts", m->key, &(size_t){0}))
        pl_hub_event(hub, json_pack("{s:s, s:I, s:s, s:s}", "type", "fact", "rank",
                                    (json_int_t)m->rank, "key", m->key, "value", m->value));
}

static void on_rank_metrics(struct pl_hub *hub, const struct pl_msg_node_metrics_item *m)
{
    json_t *value, *event;
    const char *key, *phase;
    size_t n_new = 0;
    void *next;

    if (!is_rank(hub, m->rank))
        return;
    json_object_foreach_safe(m->metrics, next, key, value)
    {
        double number;

        if (pl_run_state_number(value, &number) < 0 ||
            !has_room(hub, m->rank, "metrics", key, &n_new))
            json_object_del(m->metrics, key);
    }
    event = json_pack("{s:s, s:I}", "type", "metrics", "rank", (json_int_t)m->rank);
    if (event && m->step != PL_MSG_ABSENT)
        json_object_set_new(event, "step", json_integer(m->step));
    if (event && m->metrics)
        json_object_set(event, "metrics", m->metrics);
    phase =
        m->phase ? m->phase : pl_json_string(pl_run_state_rank(hub->doc, (size_t)m->rank), "phase");
    if (event && phase) /* in each record: the file of metrics loses some */
        json_object_set_new(event, "phase", json_string(phase));
    pl_hub_event(hub, event);
    pl_hub_hang_report(hub, m);
}

static void on_metrics(struct pl_hub *hub, const struct pl_msg_node_metrics *m)
{
    struct pl_msg one;
    json_t *item;
    size_t i;

    json_array_foreach (m->items, i, item)
        if (pl_msg_read_as(item, PL_MSG_NODE_METRICS_ITEM, &one) == 0)
            on_rank_metrics(hub, &one.node_metrics_item);
}

static void on_pong(struct pl_hub *hub, unsigned node_id, const struct pl_msg_node_pong *m)
{
    struct pl_hub_node *node = &hub->nodes[node_id];
    int64_t now = (int64_t)pl_now_ns(), half = (now - m->t) / 2;

    if (m->t > now || node->same_clock)
        return;
    /* The shortest round trip so far gives the best estimate. */
    if (node->uncertainty_ns == 0 || half < node->uncertainty_ns) {
        node->uncertainty_ns = half + 1;
        node->offset_ns = m->mine - (m->t + half);
    }
}

static void on_signalled(struct pl_hub *hub, const struct pl_msg_node_signalled *m)
{
    if (m->signal != SIGTERM && m->signal != SIGINT)
        return;
    hub->got_sigterm |= m->signal == SIGTERM;
    if (hub->terminated)
        pl_hub_terminated_again(hub);
    else
        pl_hub_terminated(hub, (int)m->signal);
}

static void on_node_message(struct pl_hub *hub, unsigned node_id, const struct pl_msg *m)
{
    if (hub->state == PL_HUB_FINISHED)
        return;
    switch (m->type) {
    case PL_MSG_NODE_STARTED:
        on_started(hub, node_id, &m->node_started);
        break;
    case PL_MSG_NODE_EXITED:
        on_exited(hub, node_id, &m->node_exited);
        break;
    case PL_MSG_NODE_METRICS:
        on_metrics(hub, &m->node_metrics);
        break;
    case PL_MSG_NODE_FACT:
        on_fact(hub, &m->node_fact);
        break;
    case PL_MSG_NODE_EXCHANGE:
        pl_hub_exchange(hub, &m->node_exchange);
        break;
    case PL_MSG_NODE_SIGNALLED:
        on_signalled(hub, &m->node_signalled);
        break;
    case PL_MSG_NODE_GPUS:
        pl_hub_gpus(hub, node_id, m->node_gpus.gpus);
        break;
    case PL_MSG_NODE_GPU:
        pl_hub_gpu(hub, node_id, &m->node_gpu);
        break;
    case PL_MSG_NODE_PONG:
        on_pong(hub, node_id, &m->node_pong);
        break;
    case PL_MSG_NODE_PROBED:
        pl_hub_hang_probed(hub, node_id, &m->node_probed);
        break;
    case PL_MSG_NODE_STACK:
        pl_hub_hang_stack(hub, node_id, &m->node_stack);
        break;
    case PL_MSG_NODE_BYE:
        pl_hub_left(hub, node_id);
        break;
    default: /* a beat */
        break;
    }
}

/* ---- life ---- */

static void on_tick(uv_timer_t *timer)
{
    struct pl_hub *hub = timer->data;
    uint64_t now = pl_now_ns();

    if (now - hub->tick_ns > LATE_TICK_NS)
        pl_hub_reset_silence(hub);
    hub->tick_ns = now;
    pl_hub_accept(hub);
    pl_hub_tick_peers(hub);
    if (pl_hub_log_is_open(hub))
        pl_hub_tick_log(hub);
    if (hub->state != PL_HUB_FINISHED && pl_hub_log_is_open(hub))
        pl_hub_write_status(hub);
    for (unsigned i = 0; i < hub->step->nnodes; i++)
        ping(hub, i);
}

static void on_before_wait(uv_prepare_t *before_wait)
{
    pl_hub_send_log(before_wait->data);
}

static struct pl_hub *new_hub(const struct pl_slurm_step *step)
{
    struct pl_hub *hub = calloc(1, sizeof(*hub));

    if (!hub)
        return NULL;
    hub->step = step;
    hub->listen_fd = hub->master_fd = hub->coordinator_fd = -EBADF;
    hub->events = hub->metrics = (struct pl_log_queue)PL_LOG_QUEUE_INIT;
    hub->root = hub->first_done.rank = -1;
    hub->started = pl_wall_s();
    hub->started_ns = pl_now_ns();
    hub->tick_ns = pl_now_ns();
    pl_strangers_init(&hub->strangers);
    pl_net_reachable_address(step->launch_addr, hub->own_addr, sizeof(hub->own_addr));
    hub->nodes = calloc(step->nnodes, sizeof(*hub->nodes));
    hub->node_of_rank = calloc(step->ntasks, sizeof(*hub->node_of_rank));
    hub->rank_states = calloc(step->ntasks, sizeof(*hub->rank_states)); /* starting */
    hub->failures = calloc(step->ntasks, sizeof(*hub->failures));
    hub->spare_cause = json_pack("{s:s}", "kind", pl_cause_name(PL_CAUSE_UNKNOWN));
    if (!hub->nodes || !hub->node_of_rank || !hub->rank_states || !hub->failures ||
        !hub->spare_cause) {
        pl_hub_destroy(hub);
        return NULL;
    }
    memset(hub->node_of_rank, 0xff, step->ntasks * sizeof(*hub->node_of_rank)); /* -1 */
    return hub;
}

static void init_timers(struct pl_hub *hub)
{
    uv_timer_t *timers[] = {&hub->tick, &hub->decide_timer, &hub->finish_timer,
                            &hub->greeting_timer};

    for (size_t i = 0; i < PL_COUNT(timers); i++) {
        uv_timer_init(hub->loop, timers[i]);
        timers[i]->data = hub;
    }
    pl_limit_init(&hub->launch_limit, hub->loop, pl_hub_on_launch_limit, hub);
    pl_limit_init(&hub->start_limit, hub->loop, pl_hub_on_start_limit, hub);
    pl_limit_init(&hub->end_limit, hub->loop, pl_hub_on_end_limit, hub);
    pl_limit_init(&hub->written_limit, hub->loop, pl_hub_on_written_limit, hub);
    uv_prepare_init(hub->loop, &hub->before_wait);
    hub->before_wait.data = hub;
    uv_prepare_start(&hub->before_wait, on_before_wait);
    uv_unref((uv_handle_t *)&hub->before_wait);
}

int pl_hub_start(uv_loop_t *loop,
                 const struct pl_slurm_step *step,
                 const unsigned char secret[PL_KEY_SIZE],
                 void (*on_finished)(void *ctx),
                 void *ctx,
                 struct pl_hub **ret,
                 struct pl_error *err)
{
    static const struct pl_hub_node_ops ops = {
        .joined = on_joined, .message = on_node_message, .lost = pl_hub_node_lost};
    struct pl_hub *hub = new_hub(step);
    int r;

    if (!hub)
        return pl_error_set(err, -ENOMEM, "out of memory");
    hub->loop = loop;
    hub->secret = secret;
    hub->on_finished = on_finished;
    hub->ctx = ctx;
    hub->node_ops = &ops;
    r = pl_hub_listen(hub, err);
    if (r < 0) {
        pl_hub_destroy(hub); /* it has no handle yet */
        return r;
    }
    init_timers(hub);
    uv_timer_start(&hub->tick, on_tick, TICK_MS, TICK_MS);
    pl_limit_start(&hub->launch_limit, pl_env_ms(PL_ENV_PLUME_LAUNCH_TIMEOUT));
    if (pl_hub_open_log(hub, err) < 0 ||
        pl_hub_hang_open(hub, err) < 0) { /* stay, to refuse the nodes: they would search for us */
        hub->state = PL_HUB_ENDING;
        hub->refusal = pl_buf_dup_text(pl_error_text(err));
    }
    *ret = hub;
    return 0;
}

void pl_hub_close(struct pl_hub *hub)
{
    if (!hub || uv_is_closing((uv_handle_t *)&hub->tick))
        return;
    pl_scontrol_cancel(PL_TAKE(hub->ask));
    pl_disk_close(PL_TAKE(hub->disk));
    pl_hub_tidy_stop(hub);
    pl_hub_hang_close(hub);
    uv_close((uv_handle_t *)&hub->tick, NULL);
    uv_close((uv_handle_t *)&hub->decide_timer, NULL);
    uv_close((uv_handle_t *)&hub->launch_limit.timer, NULL);
    uv_close((uv_handle_t *)&hub->start_limit.timer, NULL);
    uv_close((uv_handle_t *)&hub->end_limit.timer, NULL);
    uv_close((uv_handle_t *)&hub->written_limit.timer, NULL);
    uv_close((uv_handle_t *)&hub->before_wait, NULL);
    uv_close((uv_handle_t *)&hub->finish_timer, NULL);
    uv_close((uv_handle_t *)&hub->greeting_timer, NULL);
    pl_hub_close_peers(hub);
}

void pl_hub_destroy(struct pl_hub *hub)
{
    if (!hub)
        return;
    pl_hub_close_log(hub);
    pl_hub_free_exchanges(hub);
    for (unsigned i = 0; hub->nodes && i < hub->step->nnodes; i++) {
        free(hub->nodes[i].name);
        free(hub->nodes[i].addr);
    }
    for (size_t i = 0; i < hub->n_failures; i++)
        free((char *)(uintptr_t)hub->failures[i].text);
    if (hub->master_fd >= 0)
        close(hub->master_fd);
    if (hub->coordinator_fd >= 0)
        close(hub->coordinator_fd);
    if (hub->listen_fd >= 0)
        close(hub->listen_fd);
    json_decref(hub->cause);
    json_decref(hub->spare_cause);
    json_decref(hub->gpu_errors);
    free(hub->refusal);
    free(hub->unwritten);
    free(hub->unable);
    free(hub->failures);
    free(hub->node_of_rank);
    free(hub->rank_states);
    free(hub->nodes);
    free(hub);
}
