/* SPDX-License-Identifier: MIT */
/* Under the plugin Slurm runs a TaskProlog after it, and what that exports replaces the variables
 * of the rank: several worlds, or one that never meets. Nothing of ours runs after that but here,
 * so this looks at the environment with which each rank's program has begun, by the prober. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/proto/messages.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/prober.h"

#include <string.h>

#define FIRST_MS 5 /* between the world and a look; each further one waits for twice as long */
#define LAST_MS 1000
#define LIMIT_NS 60000000000ull /* then a rank is not looked at: its TaskProlog takes so long */
#define VALUE_MAX 64            /* bytes of a value that are shown */

/* The value in a block of "NAME=VALUE" with a NUL each; NULL: none. */
static const char *value_in(const char *block, size_t size, const char *name)
{
    size_t len = strlen(name);

    for (const char *p = block; p < block + size; p += strlen(p) + 1)
        if (strncmp(p, name, len) == 0 && p[len] == '=')
            return p + len + 1;
    return NULL;
}

/* The same in a JSON list of such texts. */
static const char *value_given(const json_t *list, const char *name)
{
    const json_t *item;
    size_t i, len = strlen(name);

    json_array_foreach (list, i, item) {
        const char *text = json_string_value(item);

        if (text && strncmp(text, name, len) == 0 && text[len] == '=')
            return text + len + 1;
    }
    return NULL;
}

static int add_difference(struct pl_buf *out, const char *name, const char *has, const char *given)
{
    char shown[VALUE_MAX + 1];
    size_t n = 0;

    for (; has && has[n] && n < VALUE_MAX; n++) /* it goes to a terminal */
        shown[n] = has[n] < ' ' || has[n] > '~' ? '?' : has[n];
    shown[n] = '\0';
    return pl_buf_addf(out, "%s%s%s%s instead of %s", out->len ? ", " : "", name,
                       has ? "=" : " unset", shown, given);
}

/* The differences between what the rank was given and what it has. -ENOMEM. */
static int compare(const struct pl_rank *rank, const char *block, size_t size, struct pl_buf *ret)
{
    _cleanup_(json_decrefp) json_t *world = pl_rank_world_new(rank);
    const json_t *list = json_object_get(world, "env");
    int r = world ? 0 : -ENOMEM;

    for (const char *const *name = pl_prober_variables; r == 0 && *name; name++) {
        const char *has = value_in(block, size, *name), *given = value_given(list, *name);

        if (given && (!has || strcmp(has, given) != 0))
            r = add_difference(ret, *name, has, given);
    }
    return r;
}

static void tell(struct pl_rank *rank, const struct pl_buf *differences)
{
    struct pl_daemon *d = rank->daemon;
    _cleanup_free_ char *text = NULL;
    const char *node = pl_env(PL_ENV_SLURMD_NODENAME);

    text = pl_strf("rank %u has %s: a TaskProlog, or a program in between, has changed what Plume "
                   "set",
                   rank->rank, pl_buf_str(differences));
    if (!text)
        return;
    d->env_told = true;
    pl_uplink_send(d->uplink, &(struct pl_msg){.type = PL_MSG_NODE_FACT,
                                               .node_fact = {"changed_env", text, rank->rank}});
    /* At once, not at the step's end, as such ranks may wait for each other for ever. */
    if (!pl_capture_say(rank->err, "plume: node %s: warning: %s", node ? node : "?", text))
        pl_log_warn("child", "%s", text);
}

static void env_came(struct pl_rank *rank, const char *block, size_t len)
{
    _cleanup_(pl_buf_finish) struct pl_buf differences = {0};

    if (rank->env_seen || !len || block[len - 1] != '\0')
        return;
    rank->env_seen = true;
    if (!rank->ended && !rank->daemon->env_told && compare(rank, block, len, &differences) == 0 &&
        differences.len)
        tell(rank, &differences);
}

static void on_due(uv_timer_t *timer)
{
    struct pl_daemon *d = timer->data;
    bool waits = false;

    if (d->finished || pl_now_ns() > d->env_limit_ns)
        return;
    for (unsigned i = 0; i < d->n_present && !d->env_told; i++) {
        struct pl_rank *rank = &d->ranks[i];

        if (rank->env_seen || !rank->running || rank->ended)
            continue;
        waits = true;
        pl_daemon_probe_env(d, rank);
    }
    if (!waits || d->env_told)
        return;
    d->env_wait_ms = PL_MIN(2 * d->env_wait_ms, (unsigned)LAST_MS);
    uv_timer_start(timer, on_due, d->env_wait_ms, 0);
}

void pl_daemon_watch_env(struct pl_daemon *d)
{
    if (!d->step.plugin)
        return;
    d->env_came = env_came;
    d->env_wait_ms = FIRST_MS;
    d->env_limit_ns = pl_now_ns() + LIMIT_NS;
    uv_timer_start(&d->env_timer, on_due, FIRST_MS, 0);
}
