/* SPDX-License-Identifier: MIT */
#include "runtime/node/slurm_step.h"
#include "common/base/parse.h"

#include <string.h>

static const char *first_env(const char *a, const char *b, const char *c)
{
    const char *names[] = {a, b, c};

    for (size_t i = 0; i < PL_COUNT(names); i++) {
        const char *v = names[i] ? getenv(names[i]) : NULL;

        if (v && *v)
            return v;
    }
    return NULL;
}

/* An unsigned number from the first of three variables; the default where none is set, or an error
 * where there is no default (< 0). */
static int number(const char *a,
                  const char *b,
                  const char *c,
                  int64_t fallback,
                  unsigned *ret,
                  struct pl_error *err)
{
    const char *v = first_env(a, b, c);
    int64_t n = fallback;
    int r = 0;

    if (v)
        r = pl_parse_int(v, 0, INT32_MAX, &n, err);
    else if (fallback < 0)
        return pl_error_set(err, -ENOENT,
                            "not inside a Slurm step (%s is not set): start it with "
                            "srun, for example: srun -N2 plrun -- ./program",
                            b);
    if (r < 0)
        return pl_error_wrap(err, r, "%s", b);
    *ret = (unsigned)n;
    return 0;
}

static int local_tasks(struct pl_slurm_step *s, struct pl_error *err)
{
    const char *list = first_env("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", NULL);

    if (getenv("PLUME_LOCAL_NTASKS"))
        return number("PLUME_LOCAL_NTASKS", "PLUME_LOCAL_NTASKS", NULL, -1, &s->local_ntasks, err);
    if (!list)
        return pl_error_set(err, -ENOENT, "SLURM_STEP_TASKS_PER_NODE is not set");
    return pl_parse_tasks_per_node(list, s->node_id, &s->local_ntasks, err);
}

static void array_name(struct pl_slurm_step *s)
{
    const char *base = getenv("SLURM_ARRAY_JOB_ID"), *task = getenv("SLURM_ARRAY_TASK_ID");

    if (base && task && *base && *task)
        snprintf(s->array, sizeof(s->array), "%s_%s", base, task);
    else
        snprintf(s->array, sizeof(s->array), "%s", s->id.job);
}

int pl_slurm_step_from_env(struct pl_slurm_step *ret, bool task, struct pl_error *err)
{
    struct pl_slurm_step s = {0};
    unsigned job, step;
    int r;

    r = number("PLUME_JOB_ID", "SLURM_JOB_ID", "SLURM_JOBID", -1, &job, err);
    if (r == 0)
        r = number("PLUME_STEP_ID", "SLURM_STEP_ID", "SLURM_STEPID", -1, &step, err);
    if (r == 0)
        r = number("PLUME_RESTART", "SLURM_RESTART_COUNT", NULL, 0, &s.id.attempt, err);
    if (r == 0)
        r = number("PLUME_NODE_ID", "SLURM_NODEID", NULL, -1, &s.node_id, err);
    if (r == 0)
        r = number("PLUME_NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES", -1, &s.nnodes, err);
    if (r == 0)
        r = number("PLUME_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", -1, &s.ntasks, err);
    if (r == 0)
        r = local_tasks(&s, err);
    if (r == 0 && task)
        r = number("SLURM_PROCID", "SLURM_PROCID", NULL, -1, &s.rank, err);
    if (r == 0 && task)
        r = number("SLURM_LOCALID", "SLURM_LOCALID", NULL, -1, &s.local_rank, err);
    if (r < 0)
        return r;
    snprintf(s.id.job, sizeof(s.id.job), "%u", job);
    snprintf(s.id.step, sizeof(s.id.step), "%u", step);
    array_name(&s);
    if (s.node_id >= s.nnodes || s.local_ntasks == 0 || s.local_ntasks > s.ntasks ||
        (task && (s.rank >= s.ntasks || s.local_rank >= s.local_ntasks)))
        return pl_error_set(err, -EINVAL,
                            "Slurm's environment makes no sense: node %u of %u, %u of %u tasks",
                            s.node_id, s.nnodes, s.local_ntasks, s.ntasks);
    s.nodelist = first_env("PLUME_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
    s.node = first_env("SLURMD_NODENAME", NULL, NULL);
    s.launch_addr = first_env("SLURM_LAUNCH_NODE_IPADDR", NULL, NULL);
    s.job_name = first_env("SLURM_JOB_NAME", NULL, NULL);
    s.plugin = getenv("PLUME_PLUGIN") != NULL;
    s.run_dir = first_env("PLUME_RUN_DIR", NULL, NULL);
    if (s.run_dir) {
        r = number("PLUME_TRIAL", "PLUME_TRIAL", NULL, 0, &s.trial, err);
        if (r == 0)
            r = number("PLUME_ATTEMPT", "PLUME_ATTEMPT", NULL, 0, &s.attempt, err);
        if (r < 0)
            return r;
    }
    if (!s.nodelist)
        return pl_error_set(err, -ENOENT, "SLURM_STEP_NODELIST is not set");
    *ret = s;
    return 0;
}

unsigned pl_slurm_step_env_ms(const char *name, unsigned default_ms)
{
    const char *v = getenv(name);
    double seconds;

    if (!v || pl_parse_double(v, &seconds, NULL) < 0 || seconds < 0 || seconds > 86400)
        return default_ms;
    return (unsigned)(seconds * 1000);
}
