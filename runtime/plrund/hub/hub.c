/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
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

static void choose_master(struct pl_hub *hub)
{
    const char *range = pl_env(PL_ENV_PLUME_MASTER_PORT_RANGE);
    unsigned nnodes = hub->step->nnodes;
    struct pl_error err = {0};
    uint16_t low, high;

    /* Another node reached us at this address, so it works between nodes. */
    snprintf(hub->master_addr, sizeof(hub->master_addr), "127.0.0.1");
    for (unsigned i = 1; i < nnodes; i++) {
        char name[sizeof(hub->master_addr)];

        if (!hub->nodes[i].wire ||
            pl_hub_conn_address(hub->nodes[i].wire, false, name, sizeof(name)) < 0)
            continue;
        snprintf(hub->master_addr, sizeof(hub->master_addr), "%s", name);
        if (strncmp(name, "127.", 4) != 0 && strcmp(name, "::1") != 0)
            break;
    }
    if (range && *range && pl_parse_port_range(range, &low, &high, &err) == 0 &&
        pl_net_find_free(low, high, &hub->master_port, &err) == 0)
        return;
    if (err.text[0])
        pl_log_warn("net", "MASTER_PORT: %s; taking another", pl_error_text(&err));
    if (pl_port_reserve(0, &hub->master_fd, &hub->master_port, &err) < 0)
        pl_log_error("net", "%s", pl_error_text(&err));
}

static void publish_world(struct pl_hub *hub)
{
    hub->state = PL_HUB_RUNNING;
    uv_timer_stop(&hub->launch_timer);
    choose_master(hub);
    free(hub->nodes[0].addr);
    hub->nodes[0].addr = strdup(hub->master_addr);
    pl_hub_event(hub, json_pack("{s:s, s:s}", "type", "state", "state", "running"));
    pl_hub_write_status(hub);
    for (unsigned i = 0; i < hub->step->nnodes; i++) {
        json_t *world = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s}", "type", "world", "attempt_dir",
                                  hub->attempt_dir, "run_dir", pl_run_dir(hub->run), "master_addr",
                                  hub->master_addr, "master_port", (int)hub->master_port,
                                  "node_addr", hub->nodes[i].addr ? hub->nodes[i].addr : "");

        if (world)
            pl_hub_send(hub, i, world);
        json_decref(world);
    }
}

static void on_joined(struct pl_hub *hub, unsigned node_id, json_t *join, struct pl_hub_conn *wire)
{
    struct pl_hub_node *node = &hub->nodes[node_id];
    const char *name = pl_json_string(join, "node");
    const char *clock = pl_json_string(join, "clock");
    char addr[64], own_clock[PL_CLOCK_ID_MAX];
    json_t *refused;

    if (pl_hub_conn_address(wire, true, addr, sizeof(addr)) < 0)
        addr[0] = '\0';
    node->joined = true;
    node->wire = wire;
    node->same_clock = clock && *clock && strcmp(clock, pl_clock_id(own_clock)) == 0;
    node->name = strdup(name ? name : "?");
    node->addr = strdup(addr);
    hub->n_joined++;
    pl_hub_event(hub, json_pack("{s:s, s:i, s:s, s:s, s:s}", "type", "node", "node_id",
                                (int)node_id, "node", node->name, "addr", addr, "state", "joined"));
    pl_hub_conn_send_new(wire,
                         json_pack("{s:s, s:I}", "type", "ping", "t", (json_int_t)pl_now_ns()));
    if (hub->state == PL_HUB_GATHERING && hub->n_joined == hub->step->nnodes) {
        publish_world(hub);
    } else if (hub->state >= PL_HUB_ENDING) {
        refused = json_pack("{s:s, s:s}", "type", "refused", "text",
                            hub->refusal ? hub->refusal : "the run has ended");
        pl_hub_send(hub, node_id, refused);
        json_decref(refused);
    }
}

/* ---- messages of nodes ---- */

static int64_t rank_of(struct pl_hub *hub, json_t *message)
{
    int64_t rank;

    if (pl_json_int(message, "rank", &rank) < 0 || rank < 0 || rank >= hub->step->ntasks)
        return -1;
    return rank;
}

static void on_started(struct pl_hub *hub, unsigned node_id, json_t *message)
{
    int64_t rank = rank_of(hub, message);

    if (rank < 0)
        return;
    hub->node_of_rank[rank] = node_id;
    pl_hub_event(hub, json_pack("{s:s, s:I, s:s, s:O, s:s}", "type", "rank", "rank",
                                (json_int_t)rank, "node", hub->nodes[node_id].name, "pid",
                                json_object_get(message, "pid"), "state", "running"));
}

static void on_exited(struct pl_hub *hub, unsigned node_id, json_t *message)
{
    int64_t rank = rank_of(hub, message), status = 0, at_ns = 0;
    bool killed = json_is_true(json_object_get(message, "killed"));
    struct pl_hub_node *node = &hub->nodes[node_id];
    json_t *event;

    if (rank < 0 || pl_json_int(message, "status", &status) < 0 ||
        pl_json_int(message, "at_ns", &at_ns) < 0)
        return;
    hub->node_of_rank[rank] = node_id;
    event = json_pack("{s:s, s:I, s:s, s:s}", "type", "rank", "rank", (json_int_t)rank, "node",
                      node->name, "state",
                      status == 0 ? "done"
                      : killed    ? "killed"
                                  : "failed");
    pl_run_state_set_status(event, (int)status);
    if (killed && status != 0)
        json_object_set_new(event, "role", json_string("collateral"));
    pl_hub_event(hub, event);
    if (status == 0 || killed)
        return;
    pl_hub_failed(hub, &(struct pl_failure){
                           .rank = (unsigned)rank,
                           .node_id = node_id,
                           .status = (int)status,
                           .at_ns = at_ns - node->offset_ns,
                           .uncertainty_ns = node->uncertainty_ns,
                           .oom = json_is_true(json_object_get(message, "oom")),
                           .text = pl_json_string(message, "text"),
                       });
}

/* True if a rank's object ("metrics", "facts") may get this key: programs cannot fill the hub. */
static bool has_room(struct pl_hub *hub, int64_t rank, const char *what, const char *key)
{
    json_t *have = json_object_get(pl_run_state_rank(hub->doc, (size_t)rank), what);

    return strlen(key) <= KEY_MAX &&
           (json_object_size(have) < KEYS_MAX || json_object_get(have, key));
}

static void on_fact(struct pl_hub *hub, json_t *message)
{
    const char *key = pl_json_string(message, "key"), *value = pl_json_string(message, "value");
    int64_t rank = rank_of(hub, message);

    if (rank >= 0 && key && value && strlen(value) <= VALUE_MAX &&
        has_room(hub, rank, "facts", key))
        pl_hub_event(hub, json_pack("{s:s, s:I, s:s, s:s}", "type", "fact", "rank",
                                    (json_int_t)rank, "key", key, "value", value));
}

static void on_metrics(struct pl_hub *hub, json_t *message)
{
    json_t *item;
    size_t i;

    json_array_foreach (json_object_get(message, "items"), i, item) {
        json_t *metrics = json_object_get(item, "metrics"), *value;
        int64_t rank = rank_of(hub, item);
        const char *key;
        void *next;

        if (rank < 0)
            continue;
        json_object_foreach_safe(metrics, next, key, value)
        {
            double number;

            if (pl_run_state_number(value, &number) < 0 || !has_room(hub, rank, "metrics", key))
                json_object_del(metrics, key);
        }
        pl_hub_event(hub, json_pack("{s:s, s:I, s:O*, s:O*}", "type", "metrics", "rank",
                                    (json_int_t)rank, "step", json_object_get(item, "step"),
                                    "metrics", metrics));
    }
}

static void on_pong(struct pl_hub *hub, unsigned node_id, json_t *message)
{
    struct pl_hub_node *node = &hub->nodes[node_id];
    int64_t sent, theirs, now = (int64_t)pl_now_ns();

    if (pl_json_int(message, "t", &sent) < 0 || pl_json_int(message, "mine", &theirs) < 0 ||
        sent > now || node->same_clock)
        return;
    /* The shortest round trip so far gives the best estimate. */
    if (node->uncertainty_ns == 0 || (now - sent) / 2 < node->uncertainty_ns) {
        node->uncertainty_ns = (now - sent) / 2 + 1;
        node->offset_ns = theirs - (sent + (now - sent) / 2);
    }
}

static void on_bye(struct pl_hub *hub, unsigned node_id)
{
    json_t *ok = json_pack("{s:s}", "type", "bye_ok");

    if (ok)
        pl_hub_send(hub, node_id, ok);
    json_decref(ok);
    pl_hub_left(hub, node_id);
}

static void on_node_message(struct pl_hub *hub, unsigned node_id, json_t *message)
{
    const char *type = pl_json_string(message, "type");
    int64_t signal_number;

    if (!type || hub->state == PL_HUB_FINISHED)
        return;
    if (strcmp(type, "started") == 0) {
        on_started(hub, node_id, message);
    } else if (strcmp(type, "exited") == 0) {
        on_exited(hub, node_id, message);
    } else if (strcmp(type, "metrics") == 0) {
        on_metrics(hub, message);
    } else if (strcmp(type, "fact") == 0) {
        on_fact(hub, message);
    } else if (strcmp(type, "exchange") == 0) {
        pl_hub_exchange(hub, message);
    } else if (strcmp(type, "signalled") == 0) {
        if (pl_json_int(message, "signal", &signal_number) == 0 && !hub->terminated &&
            (signal_number == SIGTERM || signal_number == SIGINT))
            pl_hub_terminated(hub, (int)signal_number);
    } else if (strcmp(type, "gpus") == 0 || strcmp(type, "gpu") == 0) {
        pl_hub_gpu_message(hub, node_id, message);
    } else if (strcmp(type, "pong") == 0) {
        on_pong(hub, node_id, message);
    } else if (strcmp(type, "bye") == 0) {
        on_bye(hub, node_id);
    }
}

/* ---- life ---- */

static void on_launch_limit(uv_timer_t *timer)
{
    pl_hub_launch_limit(timer->data);
}

static void on_tick(uv_timer_t *timer)
{
    struct pl_hub *hub = timer->data;
    uint64_t now = pl_now_ns();

    if (now - hub->tick_ns > LATE_TICK_NS)
        pl_hub_reset_silence(hub);
    hub->tick_ns = now;
    pl_hub_accept(hub);
    pl_hub_tick_peers(hub);
    if (hub->state != PL_HUB_FINISHED && pl_hub_log_is_open(hub))
        pl_hub_write_status(hub);
    for (unsigned i = 0; i < hub->step->nnodes; i++)
        if (hub->nodes[i].wire)
            pl_hub_conn_send_new(hub->nodes[i].wire,
                                 json_pack("{s:s, s:I}", "type", "ping", "t", (json_int_t)now));
}

static struct pl_hub *new_hub(const struct pl_slurm_step *step)
{
    struct pl_hub *hub = calloc(1, sizeof(*hub));

    if (!hub)
        return NULL;
    hub->step = step;
    hub->listen_fd = hub->master_fd = hub->events_fd = hub->metrics_fd = -EBADF;
    hub->root = -1;
    hub->started = pl_wall_s();
    hub->tick_ns = pl_now_ns();
    hub->nodes = calloc(step->nnodes, sizeof(*hub->nodes));
    hub->node_of_rank = calloc(step->ntasks, sizeof(*hub->node_of_rank));
    if (!hub->nodes || !hub->node_of_rank) {
        pl_hub_destroy(hub);
        return NULL;
    }
    memset(hub->node_of_rank, 0xff, step->ntasks * sizeof(*hub->node_of_rank)); /* -1 */
    return hub;
}

static void init_timers(struct pl_hub *hub)
{
    uv_timer_t *timers[] = {&hub->tick, &hub->decide_timer, &hub->launch_timer, &hub->end_timer,
                            &hub->finish_timer};

    for (size_t i = 0; i < PL_COUNT(timers); i++) {
        uv_timer_init(hub->loop, timers[i]);
        timers[i]->data = hub;
    }
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
    uv_timer_start(&hub->launch_timer, on_launch_limit, pl_env_ms(PL_ENV_PLUME_LAUNCH_TIMEOUT), 0);
    if (pl_hub_open_log(hub, err) < 0) { /* stay, to refuse the nodes: they would search for us */
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
    uv_close((uv_handle_t *)&hub->tick, NULL);
    uv_close((uv_handle_t *)&hub->decide_timer, NULL);
    uv_close((uv_handle_t *)&hub->launch_timer, NULL);
    uv_close((uv_handle_t *)&hub->end_timer, NULL);
    uv_close((uv_handle_t *)&hub->finish_timer, NULL);
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
    if (hub->listen_fd >= 0)
        close(hub->listen_fd);
    json_decref(hub->cause);
    json_decref(hub->gpu_errors);
    free(hub->refusal);
    free(hub->failures);
    free(hub->node_of_rank);
    free(hub->nodes);
    free(hub);
}
