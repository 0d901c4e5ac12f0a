/* SPDX-License-Identifier: MIT */
#include "common/proto/messages.h"
#include "common/base/macros.h"
#include "common/proto/json.h"

#include <errno.h>
#include <string.h>

#define FIELDS_MAX 10 /* of a message, and one without a name that ends them */

enum kind {
    KIND_TEXT,
    KIND_INT,
    KIND_BOOL,
    KIND_LIST,
    KIND_OBJECT,
};

struct field {
    const char *name;
    enum kind kind;
    bool optional;
    size_t offset; /* in struct pl_msg */
};

struct message {
    enum pl_wire wire;
    const char *type;
    struct field fields[FIELDS_MAX];
};

/* A member's kind follows from its type; a json_t pointer does not tell list from object. */
#define KIND(member, json_kind)                                                                    \
    _Generic(((struct pl_msg *)0)->member, const char * : KIND_TEXT, int64_t : KIND_INT,           \
             bool : KIND_BOOL, json_t * : json_kind)
#define FIELD(message, member, json_kind, is_optional)                                             \
    {                                                                                              \
        .name = #member, .kind = KIND(message.member, json_kind), .optional = is_optional,         \
        .offset = offsetof(struct pl_msg, message.member)                                          \
    }
#define MUST(message, member) FIELD(message, member, KIND_OBJECT, false)
#define MAY(message, member) FIELD(message, member, KIND_OBJECT, true)
#define MUST_LIST(message, member) FIELD(message, member, KIND_LIST, false)
#define MAY_LIST(message, member) FIELD(message, member, KIND_LIST, true)

static const struct message table[PL_MSG_N_TYPES] = {
    [PL_MSG_RANK_HELLO] = {PL_WIRE_RANK_TO_DAEMON,
                           "hello",
                           {MUST(rank_hello, proto), MUST(rank_hello, major),
                            MAY(rank_hello, minor), MUST(rank_hello, role), MUST(rank_hello, rank),
                            MAY(rank_hello, local_rank), MAY(rank_hello, pid),
                            MAY(rank_hello, guarded)}},
    [PL_MSG_RANK_METRICS] = {PL_WIRE_RANK_TO_DAEMON,
                             "metrics",
                             {MAY(rank_metrics, step), MAY(rank_metrics, metrics),
                              MAY(rank_metrics, phase), MAY(rank_metrics, own_us)}},
    [PL_MSG_RANK_FACT] = {PL_WIRE_RANK_TO_DAEMON,
                          "fact",
                          {MUST(rank_fact, key), MUST(rank_fact, value)}},
    [PL_MSG_RANK_EXCHANGE] = {PL_WIRE_RANK_TO_DAEMON,
                              "exchange",
                              {MUST(rank_exchange, name), MUST(rank_exchange, value)}},
    [PL_MSG_RANK_SPAWNED] = {PL_WIRE_RANK_TO_DAEMON,
                             "spawned",
                             {MAY(rank_spawned, rank), MUST(rank_spawned, pid)}},
    [PL_MSG_RANK_SIGNALLED] = {PL_WIRE_RANK_TO_DAEMON,
                               "signalled",
                               {MUST(rank_signalled, signal), MAY(rank_signalled, sender)}},
    [PL_MSG_RANK_EXITED] = {PL_WIRE_RANK_TO_DAEMON,
                            "exited",
                            {MAY(rank_exited, rank), MUST(rank_exited, status),
                             MAY(rank_exited, at_ns), MAY(rank_exited, term_default)}},

    [PL_MSG_RANK_WORLD] = {PL_WIRE_DAEMON_TO_RANK,
                           "world",
                           {MUST_LIST(rank_world, env), MUST_LIST(rank_world, defaults)}},
    [PL_MSG_RANK_REFUSED] = {PL_WIRE_DAEMON_TO_RANK, "refused", {MUST(rank_refused, text)}},
    [PL_MSG_RANK_EXCHANGED] = {PL_WIRE_DAEMON_TO_RANK,
                               "exchanged",
                               {MUST(rank_exchanged, name), MUST_LIST(rank_exchanged, values)}},
    [PL_MSG_RANK_SIGNAL] = {PL_WIRE_DAEMON_TO_RANK, "signal", {MUST(rank_signal, signal)}},
    [PL_MSG_RANK_BEAT] = {PL_WIRE_DAEMON_TO_RANK, "beat", {{0}}},
    [PL_MSG_RANK_VERDICT] = {PL_WIRE_DAEMON_TO_RANK, "verdict", {MUST(rank_verdict, code)}},
    [PL_MSG_RANK_ERROR] = {PL_WIRE_DAEMON_TO_RANK, "error", {MUST(rank_error, text)}},

    [PL_MSG_OWNER_READY] = {PL_WIRE_DAEMON_TO_OWNER,
                            "ready",
                            {MUST(owner_ready, pid), MUST(owner_ready, socket)}},
    [PL_MSG_OWNER_FAILED] = {PL_WIRE_DAEMON_TO_OWNER,
                             "failed",
                             {MAY(owner_failed, text),
                              {"errno", KIND_INT, true,
                               offsetof(struct pl_msg, owner_failed.error)}}},
    [PL_MSG_OWNER_BEAT] = {PL_WIRE_DAEMON_TO_OWNER, "beat", {{0}}},
    [PL_MSG_OWNER_BUSY] = {PL_WIRE_DAEMON_TO_OWNER, "busy", {{0}}},
    [PL_MSG_OWNER_VERDICT] = {PL_WIRE_DAEMON_TO_OWNER, "verdict", {MUST(owner_verdict, code)}},

    [PL_MSG_BANNER] = {PL_WIRE_GREETING,
                       NULL,
                       {MUST(banner, proto), MUST(banner, major), MAY(banner, minor),
                        MAY(banner, role), MAY(banner, job), MAY(banner, step),
                        MAY(banner, attempt), MAY(banner, nonce), MAY(banner, tag)}},
    [PL_MSG_HELLO] = {PL_WIRE_GREETING,
                      "hello",
                      {MAY(hello, role), MUST(hello, proto), MUST(hello, major), MAY(hello, minor),
                       MAY(hello, nonce), MAY(hello, stream)}},
    [PL_MSG_WELCOME] = {PL_WIRE_GREETING, "welcome", {MAY(welcome, stream)}},

    [PL_MSG_ASK_SNAPSHOT] = {PL_WIRE_PEER_TO_HUB, "snapshot", {{0}}},
    [PL_MSG_WATCH] = {PL_WIRE_PEER_TO_HUB, "watch", {{0}}},
    [PL_MSG_JOIN] = {PL_WIRE_PEER_TO_HUB,
                     "join",
                     {MUST(join, node_id), MAY(join, node), MAY(join, local_ntasks),
                      MAY(join, clock), MAY(join, unable), MAY(join, driver), MAY(join, nccl),
                      MAY(join, mpi)}},

    [PL_MSG_SNAPSHOT] = {PL_WIRE_HUB_TO_CLIENT,
                         "snapshot",
                         {MAY(snapshot, epoch), MAY(snapshot, seq), MUST(snapshot, state)}},
    [PL_MSG_EVENT] = {PL_WIRE_HUB_TO_CLIENT, "event", {MUST(event, event)}},
    [PL_MSG_ERROR] = {PL_WIRE_HUB_TO_CLIENT, "error", {MUST(error, text)}},

    [PL_MSG_NODE_STARTED] = {PL_WIRE_NODE_TO_HUB,
                             "started",
                             {MUST(node_started, rank), MUST(node_started, pid)}},
    [PL_MSG_NODE_EXITED] = {PL_WIRE_NODE_TO_HUB,
                            "exited",
                            {MUST(node_exited, rank), MUST(node_exited, status),
                             MUST(node_exited, at_ns), MAY(node_exited, killed),
                             MAY(node_exited, oom), MAY(node_exited, runtime),
                             MAY(node_exited, term_default), MAY(node_exited, text)}},
    [PL_MSG_NODE_METRICS] = {PL_WIRE_NODE_TO_HUB, "metrics", {MUST_LIST(node_metrics, items)}},
    [PL_MSG_NODE_METRICS_ITEM] = {PL_WIRE_NODE_TO_HUB,
                                  NULL,
                                  {MUST(node_metrics_item, rank), MAY(node_metrics_item, metrics),
                                   MAY(node_metrics_item, step), MAY(node_metrics_item, phase),
                                   MAY(node_metrics_item, own_us), MAY(node_metrics_item, moves),
                                   MAY(node_metrics_item, gap_ms)}},
    [PL_MSG_NODE_FACT] = {PL_WIRE_NODE_TO_HUB,
                          "fact",
                          {MUST(node_fact, key), MUST(node_fact, value), MUST(node_fact, rank)}},
    [PL_MSG_NODE_EXCHANGE] = {PL_WIRE_NODE_TO_HUB,
                              "exchange",
                              {MUST(node_exchange, name), MUST(node_exchange, value),
                               MUST(node_exchange, rank)}},
    [PL_MSG_NODE_SIGNALLED] = {PL_WIRE_NODE_TO_HUB, "signalled", {MUST(node_signalled, signal)}},
    [PL_MSG_NODE_GPUS] = {PL_WIRE_NODE_TO_HUB, "gpus", {MUST_LIST(node_gpus, gpus)}},
    [PL_MSG_NODE_GPU] = {PL_WIRE_NODE_TO_HUB,
                         "gpu",
                         {MUST(node_gpu, gpu), MUST(node_gpu, event), MUST(node_gpu, at_ns),
                          MAY(node_gpu, uuid), MAY(node_gpu, xid), MAY(node_gpu, text),
                          MAY_LIST(node_gpu, ranks)}},
    [PL_MSG_NODE_PONG] = {PL_WIRE_NODE_TO_HUB, "pong", {MUST(node_pong, t), MUST(node_pong, mine)}},
    [PL_MSG_NODE_BEAT] = {PL_WIRE_NODE_TO_HUB, "beat", {{0}}},
    [PL_MSG_NODE_PROBED] = {PL_WIRE_NODE_TO_HUB, "probed", {MUST_LIST(node_probed, items)}},
    [PL_MSG_NODE_PROBED_ITEM] = {PL_WIRE_NODE_TO_HUB,
                                 NULL,
                                 {MUST(node_probed_item, rank), MUST(node_probed_item, state),
                                  MAY(node_probed_item, doing), MAY(node_probed_item, collectives),
                                  MAY(node_probed_item, cpu_ms), MAY(node_probed_item, silent_s),
                                  MAY(node_probed_item, hook)}},
    [PL_MSG_NODE_STACK] = {PL_WIRE_NODE_TO_HUB,
                           "stack",
                           {MUST(node_stack, rank), MUST(node_stack, text)}},
    [PL_MSG_NODE_BYE] = {PL_WIRE_NODE_TO_HUB, "bye", {{0}}},
    [PL_MSG_NODE_HUB_SILENT] = {PL_WIRE_NODE_TO_HUB, "hub_silent", {{0}}},

    [PL_MSG_HUB_WORLD] = {PL_WIRE_HUB_TO_NODE,
                          "world",
                          {MUST(hub_world, attempt_dir), MUST(hub_world, run_dir),
                           MUST(hub_world, master_addr), MUST(hub_world, master_port),
                           MUST(hub_world, node_addr), MAY(hub_world, coordinator_port)}},
    [PL_MSG_HUB_REFUSED] = {PL_WIRE_HUB_TO_NODE, "refused", {MAY(hub_refused, text)}},
    [PL_MSG_HUB_EXCHANGED] = {PL_WIRE_HUB_TO_NODE,
                              "exchanged",
                              {MUST(hub_exchanged, name), MUST_LIST(hub_exchanged, values)}},
    [PL_MSG_HUB_END_RANKS] = {PL_WIRE_HUB_TO_NODE,
                              "end_ranks",
                              {MUST(hub_end_ranks, grace_ms), MAY(hub_end_ranks, kill)}},
    [PL_MSG_HUB_DECIDED] = {PL_WIRE_HUB_TO_NODE,
                            "decided",
                            {MAY(hub_decided, root), MAY(hub_decided, code)}},
    [PL_MSG_HUB_PING] = {PL_WIRE_HUB_TO_NODE, "ping", {MUST(hub_ping, t)}},
    [PL_MSG_HUB_PROBE] = {PL_WIRE_HUB_TO_NODE, "probe", {{0}}},
    [PL_MSG_HUB_STACK] = {PL_WIRE_HUB_TO_NODE, "stack", {MUST(hub_stack, rank)}},
    [PL_MSG_HUB_BYE_OK] = {PL_WIRE_HUB_TO_NODE, "bye_ok", {MAY(hub_bye_ok, text)}},
};

/* ---- writing ---- */

/* The field's value as a new reference. false: the field is absent. */
static bool get_field(const struct field *f, const struct pl_msg *m, json_t **ret)
{
    const void *at = (const char *)m + f->offset;

    switch (f->kind) {
    case KIND_TEXT:
        *ret = json_string(*(const char *const *)at);
        return *(const char *const *)at;
    case KIND_INT:
        *ret = json_integer(*(const int64_t *)at);
        return *(const int64_t *)at != PL_MSG_ABSENT;
    case KIND_BOOL:
        *ret = json_boolean(*(const bool *)at);
        return true;
    case KIND_LIST:
    case KIND_OBJECT:
        *ret = json_incref(*(json_t *const *)at);
        return *ret;
    }
    return false;
}

json_t *pl_msg_new(const struct pl_msg *m)
{
    _cleanup_(json_decrefp) json_t *o = json_object();
    const struct message *row = &table[m->type];

    if (!o || (row->type && json_object_set_new(o, "type", json_string(row->type)) < 0))
        return NULL;
    for (const struct field *f = row->fields; f->name; f++) {
        json_t *value = NULL;

        if (!get_field(f, m, &value)) {
            json_decref(value);
            if (f->optional)
                continue;
            return NULL;
        }
        if (json_object_set_new(o, f->name, value) < 0) /* also of a text that is not UTF-8 */
            return NULL;
    }
    return PL_TAKE(o);
}

bool pl_msg_is_spare(enum pl_msg_type type)
{
    return type == PL_MSG_NODE_METRICS || type == PL_MSG_NODE_GPUS || type == PL_MSG_NODE_PONG ||
           type == PL_MSG_NODE_PROBED || type == PL_MSG_NODE_STACK || type == PL_MSG_HUB_PROBE ||
           type == PL_MSG_HUB_STACK || type == PL_MSG_NODE_BEAT || type == PL_MSG_HUB_PING ||
           type == PL_MSG_RANK_BEAT;
}

/* ---- reading ---- */

/* -EINVAL: the value is absent or of another type; the member is then set to absent. */
static int set_field(const struct field *f, const json_t *o, struct pl_msg *m)
{
    json_t *value = json_object_get(o, f->name);
    void *at = (char *)m + f->offset;
    bool right = false;

    switch (f->kind) {
    case KIND_TEXT:
        right = json_is_string(value);
        *(const char **)at = json_string_value(value);
        break;
    case KIND_INT:
        right = json_is_integer(value) && json_integer_value(value) != PL_MSG_ABSENT;
        *(int64_t *)at = right ? json_integer_value(value) : PL_MSG_ABSENT;
        break;
    case KIND_BOOL:
        right = json_is_boolean(value);
        *(bool *)at = json_is_true(value);
        break;
    case KIND_LIST:
    case KIND_OBJECT:
        right = f->kind == KIND_LIST ? json_is_array(value) : json_is_object(value);
        *(json_t **)at = right ? value : NULL;
        break;
    }
    return right ? 0 : -EINVAL;
}

int pl_msg_read_as(const json_t *o, enum pl_msg_type type, struct pl_msg *ret)
{
    struct pl_msg m = {.type = type};

    if (!json_is_object(o))
        return -EINVAL;
    for (const struct field *f = table[type].fields; f->name; f++)
        if (set_field(f, o, &m) < 0 && !f->optional)
            return -EINVAL;
    *ret = m;
    return 0;
}

int pl_msg_read(const json_t *o, enum pl_wire wire, struct pl_msg *ret)
{
    const char *type = pl_json_string(o, "type");

    for (unsigned i = 0; type && i < PL_MSG_N_TYPES; i++)
        if (table[i].wire == wire && table[i].type && strcmp(table[i].type, type) == 0)
            return pl_msg_read_as(o, i, ret);
    return -ENOENT;
}

/* ---- the table ---- */

const char *pl_msg_type_name(enum pl_msg_type type)
{
    return table[type].type;
}

enum pl_wire pl_msg_wire(enum pl_msg_type type)
{
    return table[type].wire;
}

const char *pl_msg_field_name(enum pl_msg_type type, size_t field)
{
    return field < FIELDS_MAX ? table[type].fields[field].name : NULL;
}
