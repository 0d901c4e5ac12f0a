/* SPDX-License-Identifier: MIT */
/* The steps and metrics that ranks report. Once a second the hub gets an item per rank. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/run/run_state.h"
#include "runtime/plrund/daemon/daemon.h"

#include <math.h>
#include <string.h>

#define KEYS_MAX 256 /* metrics of a rank in one second */
#define BEST_NAME_MAX 256
#define PHASE_MAX 64

/* Keeps the best value of the objective NAME.best, and its step. Here, because only the last value
 * of each second leaves the daemon. */
static void note_best(struct pl_rank *rank, const char *name, double value)
{
    const struct pl_daemon *d = rank->daemon;
    char best[BEST_NAME_MAX], at[BEST_NAME_MAX];

    if (!d->best_of || strcmp(name, d->best_of) != 0 || !isfinite(value) ||
        (!isnan(rank->best) && !(d->best_is_max ? value > rank->best : value < rank->best)))
        return;
    rank->best = value;
    snprintf(best, sizeof(best), "%s.best", name);
    snprintf(at, sizeof(at), "%s.best_step", name);
    json_object_set_new(rank->metrics, best, json_real(value));
    if (rank->step >= 0)
        json_object_set_new(rank->metrics, at, json_integer(rank->step));
}

/* Measures the steps here, exactly: the hub gets one item a second. */
static void note_step(struct pl_rank *rank, int64_t step)
{
    uint64_t now = pl_now_ns();

    if (step > rank->step) {
        if (rank->moved_ns && rank->step >= 0)
            rank->gap_ms = PL_MAX(rank->gap_ms, (int64_t)((now - rank->moved_ns) / 1000000));
        rank->moved_ns = rank->pauses ? 0 : now;
        rank->moves++;
    }
    rank->step = step;
}

static void note_phase(struct pl_rank *rank, const char *phase)
{
    if (strlen(phase) > PHASE_MAX)
        return;
    rank->pauses = *phase;
    rank->moved_ns = rank->pauses ? 0 : pl_now_ns();
    free(rank->phase);
    rank->phase = strdup(phase);
}

void pl_rank_metric(void *ctx, const char *name, double value)
{
    struct pl_rank *rank = ctx;
    json_t *v;

    if (strcmp(name, "step") == 0 && isfinite(value)) {
        if (value >= 0 && value < (double)INT64_MAX)
            note_step(rank, (int64_t)value);
        if (!rank->metrics)
            rank->metrics = json_object();
        return;
    }
    v = isfinite(value) ? json_real(value)
                        : json_string(isnan(value) ? "nan"
                                      : value > 0  ? "inf"
                                                   : "-inf");
    if (!rank->metrics)
        rank->metrics = json_object();
    json_object_set_new(rank->metrics, name, v);
    note_best(rank, name, value);
}

void pl_rank_metrics(struct pl_rank *rank, const struct pl_msg_rank_metrics *message)
{
    json_t *value;
    const char *key;
    double number;

    if (message->step >= 0) /* absent or no step: the last one stays */
        note_step(rank, message->step);
    if (!rank->metrics)
        rank->metrics = json_object();
    if (message->own_us >= 0) {
        rank->own_us += (double)message->own_us;
        rank->own_n++;
    }
    if (message->phase)
        note_phase(rank, message->phase);
    json_object_foreach (message->metrics, key, value)
        if (pl_name_valid(key, strlen(key)) && pl_run_state_number(value, &number) == 0)
            if (json_object_size(rank->metrics) < KEYS_MAX || json_object_get(rank->metrics, key)) {
                json_object_set(rank->metrics, key, value);
                note_best(rank, key, number);
            }
}

/* The mean of what it has reported since the last item. */
static int64_t own_us(const struct pl_rank *rank)
{
    return rank->own_n ? (int64_t)(rank->own_us / rank->own_n) : PL_MSG_ABSENT;
}

void pl_daemon_send_metrics(struct pl_daemon *d)
{
    _cleanup_(json_decrefp) json_t *items = json_array();

    for (unsigned i = 0; i < d->n_present; i++) {
        struct pl_rank *rank = &d->ranks[i];
        _cleanup_(json_decrefp) json_t *metrics = PL_TAKE(rank->metrics);
        _cleanup_free_ char *phase = PL_TAKE(rank->phase);

        if (metrics)
            json_array_append_new(
                items,
                pl_msg_new(&(struct pl_msg){
                    .type = PL_MSG_NODE_METRICS_ITEM,
                    .node_metrics_item = {rank->rank, metrics,
                                          rank->step < 0 ? PL_MSG_ABSENT : rank->step, phase,
                                          own_us(rank), rank->moves ? rank->moves : PL_MSG_ABSENT,
                                          rank->gap_ms ? rank->gap_ms : PL_MSG_ABSENT},
                }));
        rank->own_us = rank->own_n = 0;
        rank->moves = rank->gap_ms = 0;
    }
    if (json_array_size(items))
        pl_uplink_send(d->uplink,
                       &(struct pl_msg){.type = PL_MSG_NODE_METRICS, .node_metrics.items = items});
}
