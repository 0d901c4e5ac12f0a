/* SPDX-License-Identifier: MIT */
#include "spank_plugin/daemon_env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* Copied where the job has them. Every PLUME_* goes too, so that a new knob of the daemon needs no
 * new plugin; see wanted(). */
static const char *const allowed[] = {
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_CLUSTER_NAME",
    "SLURM_CPUS_PER_TASK",
    "SLURM_HET_JOB_ID",
    "SLURM_HET_JOB_OFFSET",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_RESTART_COUNT",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_SUBMIT_DIR",
    "SLURM_TASKS_PER_NODE",
    "TMPDIR",
    "USER",
    "XDG_RUNTIME_DIR",
};

/* Set here, or of no use to the daemon: the parameters of a trial may be many. */
static const char *const refused[] = {
    "PLUME_JOB_ID",   "PLUME_LOCAL_NTASKS", "PLUME_NNODES",  "PLUME_NODELIST", "PLUME_NODE_ID",
    "PLUME_NTASKS",   "PLUME_PARAMS",       "PLUME_PLUGIN",  "PLUME_RANK",     "PLUME_RESTART",
    "PLUME_SCONTROL", "PLUME_SOCKET",       "PLUME_RUNTIME", "PLUME_STEP_ID",
};

/* Not those of a rank that starts a step of its own. */
static const char *const of_trial[] = {
    "PLUME_ATTEMPT", "PLUME_HUB",     "PLUME_OUTPUT_RANKS",
    "PLUME_PROGRAM", "PLUME_RUN_DIR", "PLUME_TRIAL",
};

struct env {
    char **list; /* NULL-terminated */
    size_t n, cap;
};

static bool is_named(const char *entry, const char *name)
{
    size_t len = strlen(name);

    return strncmp(entry, name, len) == 0 && entry[len] == '=';
}

static bool in(const char *const *names, size_t n, const char *entry)
{
    for (size_t i = 0; i < n; i++)
        if (is_named(entry, names[i]))
            return true;
    return false;
}

static bool wanted(const char *entry, bool from_rank)
{
    if (from_rank && in(of_trial, PL_COUNT(of_trial), entry))
        return false;
    if (strncmp(entry, "PLUME_", 6) == 0)
        return strncmp(entry, "PLUME_PARAM_", 12) != 0 && !in(refused, PL_COUNT(refused), entry);
    return strncmp(entry, "SLURM_RLIMIT_", 13) == 0 || in(allowed, PL_COUNT(allowed), entry);
}

const char *pl_env_get(char *const *env, const char *name)
{
    for (; *env; env++)
        if (is_named(*env, name))
            return *env + strlen(name) + 1;
    return NULL;
}

/* Takes entry over; NULL (out of memory where it was made) is handed on. */
static int add(struct env *env, char *entry)
{
    if (!entry)
        return -ENOMEM;
    if (env->n + 1 >= env->cap) {
        size_t cap = env->cap ? env->cap * 2 : 64;
        char **list = realloc(env->list, cap * sizeof(*list));

        if (!list) {
            free(entry);
            return -ENOMEM;
        }
        env->list = list;
        env->cap = cap;
    }
    env->list[env->n++] = entry;
    env->list[env->n] = NULL;
    return 0;
}

static int set_number(struct env *env, const char *name, uint32_t value)
{
    return add(env, pl_strf("%s=%" PRIu32, name, value));
}

/* Sets `name` to value unless it is there or value is NULL. */
static int set_default(struct env *env, const char *name, const char *value)
{
    if (!value || pl_env_get(env->list, name))
        return 0;
    return add(env, pl_strf("%s=%s", name, value));
}

/* SPANK's count is right in batch steps only; others have it in the environment, if at all. */
static uint32_t restart_count(const struct pl_daemon_facts *facts, char *const *job)
{
    const char *s = pl_env_get(job, "SLURM_RESTART_COUNT");
    int64_t n;

    return s && pl_parse_int(s, 0, UINT32_MAX, &n, NULL) == 0 ? (uint32_t)n : facts->restart;
}

static int add_numbers(struct env *env, const struct pl_daemon_facts *facts, char *const *job)
{
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        {"PLUME_JOB_ID", facts->job_id},
        {"PLUME_STEP_ID", facts->step_id},
        {"PLUME_NODE_ID", facts->node_id},
        {"PLUME_NNODES", facts->nnodes},
        {"PLUME_NTASKS", facts->ntasks},
        {"PLUME_LOCAL_NTASKS", facts->local_ntasks},
        {"PLUME_RESTART", restart_count(facts, job)},
        {"PLUME_PLUGIN", 1},
    };

    for (size_t i = 0; i < PL_COUNT(numbers); i++)
        if (set_number(env, numbers[i].name, numbers[i].value) < 0)
            return -ENOMEM;
    /* The batch node's, in a job's environment; Slurm corrects it for tasks, not for us. */
    return facts->cpus ? set_number(env, "SLURM_CPUS_ON_NODE", facts->cpus) : 0;
}

static int add_defaults(struct env *env, const struct pl_daemon_facts *facts, char *const *job)
{
    const char *nodelist = pl_env_get(job, "SLURM_STEP_NODELIST");
    const struct {
        const char *name, *value;
    } defaults[] = {
        {"PLUME_NODELIST", nodelist ? nodelist : pl_env_get(job, "SLURM_NODELIST")},
        {"PLUME_RUNTIME_DIR", facts->runtime_dir},
        {"PLUME_NCCL_DEBUG", facts->nccl_debug},
        {"PLUME_MASTER_PORT_RANGE", facts->master_port},
        {"PLUME_METRIC", facts->metric},
        {"PLUME_ON_HANG", facts->on_hang},
        {"SLURM_CONF", facts->conf},
        {"PLUME_SCONTROL", facts->scontrol ? facts->scontrol : ""},
        {"SLURMD_NODENAME", facts->node},
        /* Slurm sets the former for tasks only; srun already sent the same address. */
        {"SLURM_LAUNCH_NODE_IPADDR", pl_env_get(job, "SLURM_SRUN_COMM_HOST")},
        {"PATH", "/usr/local/bin:/usr/bin:/bin"},
    };

    for (size_t i = 0; i < PL_COUNT(defaults); i++)
        if (set_default(env, defaults[i].name, defaults[i].value) < 0)
            return -ENOMEM;
    return 0;
}

int pl_daemon_env(const struct pl_daemon_facts *facts,
                  char *const *env,
                  char ***ret,
                  struct pl_error *err)
{
    bool from_rank = pl_env_get(env, "PLUME_SOCKET") != NULL;
    struct env out = {0};
    int r = add_numbers(&out, facts, env);

    for (char *const *p = env; *p && r == 0; p++)
        if (wanted(*p, from_rank))
            r = add(&out, strdup(*p));
    if (r == 0)
        r = add_defaults(&out, facts, env);
    if (r < 0) {
        pl_daemon_env_free(out.list);
        return pl_error_set(err, r, "out of memory");
    }
    *ret = out.list;
    return 0;
}

void pl_daemon_env_free(char **env)
{
    for (char **p = env; p && *p; p++)
        free(*p);
    free(env);
}

mode_t pl_daemon_umask(char *const *env)
{
    const char *s = pl_env_get(env, "SLURM_UMASK");
    mode_t mask = 0;

    if (!s || !*s)
        return 022;
    for (; *s; s++) {
        if (*s < '0' || *s > '7' || mask > 0777)
            return 022;
        mask = mask * 8 + (mode_t)(*s - '0');
    }
    return mask & 0777;
}
