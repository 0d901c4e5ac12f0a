/* SPDX-License-Identifier: MIT */
/* The variables that tell a rank its place; its starter sets them. */
#include "common/base/env.h"
#include "common/base/parse.h"
#include "common/base/site.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "runtime/plrund/daemon/daemon.h"

#include <string.h>

#define PIPE_COLUMNS 400

/* Variables of a rank, "NAME=VALUE" each. */
struct env_list {
    json_t *list;
    bool incomplete; /* there was no memory for one */
};

static void add_env(struct env_list *env, const char *fmt, ...) PL_PRINTF(2, 3);

static void add_env(struct env_list *env, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    /* A path that is not UTF-8 cannot be told. */
    if (!text || (json_array_append_new(env->list, json_string(text)) < 0 &&
                  pl_utf8_valid(text, strlen(text))))
        env->incomplete = true;
    free(text);
}

/* CPUs of a rank, as Slurm allocated them. */
static unsigned rank_cpus(const struct pl_slurm_step *step)
{
    const char *per_task = pl_env(PL_ENV_SLURM_CPUS_PER_TASK),
               *on_node = pl_env(PL_ENV_SLURM_CPUS_ON_NODE);
    int64_t n;

    if (per_task && pl_parse_int(per_task, 1, 65536, &n, NULL) == 0)
        return (unsigned)n;
    if (on_node && pl_parse_int(on_node, 1, 65536, &n, NULL) == 0)
        return PL_MAX((unsigned)n / step->local_ntasks, 1u);
    return 1;
}

struct pl_msg_hub_world pl_daemon_world(const struct pl_daemon *d)
{
    struct pl_msg m = {0};

    pl_msg_read_as(d->world, PL_MSG_HUB_WORLD, &m);
    return m.hub_world;
}

json_t *pl_rank_world_new(const struct pl_rank *rank)
{
    const struct pl_daemon *d = rank->daemon;
    struct pl_msg_hub_world world = pl_daemon_world(d);
    const struct pl_slurm_step *s = &d->step;
    const char *given = pl_env_text(PL_ENV_PLUME_NCCL_DEBUG), *level = NULL;
    const char *interface = pl_env(PL_ENV_PLUME_NCCL_IFNAME);
    char name[64];
    _cleanup_(json_decrefp) json_t *own = json_array(), *more = json_array();
    struct env_list env = {.list = own}, defaults = {.list = more};

    if (given)
        pl_parse_nccl_level(given, &level, NULL); /* pl_daemon_init() has checked it */
    add_env(&env, "RANK=%u", rank->rank);
    add_env(&env, "WORLD_SIZE=%u", s->ntasks);
    add_env(&env, "LOCAL_RANK=%u", rank->local_rank);
    add_env(&env, "LOCAL_WORLD_SIZE=%u", s->local_ntasks);
    add_env(&env, "NODE_RANK=%u", s->node_id);
    add_env(&env, "GROUP_RANK=%u", s->node_id);
    add_env(&env, "MASTER_ADDR=%s", world.master_addr);
    add_env(&env, "MASTER_PORT=%lld", (long long)world.master_port);
    add_env(&env, "PLUME_SOCKET=%s", d->socket_path);
    add_env(&env, "PLUME_NODE_ADDR=%s", world.node_addr);
    add_env(&env, "PLUME_RUN_DIR=%s", world.run_dir);
    add_env(&env, "PLUME_TRIAL=%u", s->trial);
    add_env(&env, "PLUME_ATTEMPT=%u", s->attempt);
    add_env(&env, "PLUME_RUNTIME=%s", s->plugin ? "plugin" : "plrun");
    if (level && *level)
        add_env(&env, "NCCL_DEBUG=%s", level);
    if (interface && *interface)
        add_env(&env, "NCCL_SOCKET_IFNAME=%s", interface);
    if (pl_site_nccl_ras_off())
        add_env(&env, "NCCL_RAS_ENABLE=0");
    add_env(&defaults, "OMP_NUM_THREADS=%u", rank_cpus(s));
    add_env(&defaults,
            "PYTHONFAULTHANDLER=1"); /* the stack of a crash, for the cause's last lines */
    if (rank->out ||
        rank->err) /* a pipe has no width: progress bars and tables must not be broken */
        add_env(&defaults, "COLUMNS=%d", PIPE_COLUMNS);
    if (d->ras_port) /* the default port is shared by all jobs of a node */
        add_env(&defaults, "NCCL_RAS_ADDR=localhost:%u", d->ras_port);
    if (pl_daemon_net_interface(d, world.node_addr, name, sizeof(name))) {
        add_env(&defaults, "GLOO_SOCKET_IFNAME=%s", name);
        add_env(&defaults, "TP_SOCKET_IFNAME=%s", name);
    }
    if (world.coordinator_port > 0)
        add_env(&defaults,
                strchr(world.master_addr, ':') ? "JAX_COORDINATOR_ADDRESS=[%s]:%lld"
                                               : "JAX_COORDINATOR_ADDRESS=%s:%lld",
                world.master_addr, (long long)world.coordinator_port);
    if (env.incomplete || defaults.incomplete) /* a rank without its number would do wrong work */
        return NULL;
    return pl_msg_new(&(struct pl_msg){.type = PL_MSG_RANK_WORLD, .rank_world = {own, more}});
}
