/* SPDX-License-Identifier: MIT */
#include "runtime/node/slurm_step.h"
#include "common/base/env.h"
#include "common/base/parse.h"

#include <string.h>

static const char *first_env(enum pl_env_id a, enum pl_env_id b, enum pl_env_id c)
{
    const char *v = pl_env_text(a);

    if (!v)
        v = pl_env_text(b);
    return v ? v : pl_env_text(c);
}

/* An unsigned number from the first of three variables; the default where none is set, or an error
 * if it has no default (< 0). */
static int number(enum pl_env_id a,
                  enum pl_env_id b,
                  enum pl_env_id c,
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
                            "srun, for example: srun -N2 plrun -- ./program; without Slurm: "
                            "plsubmit --local -n 2 ./program",
                            pl_env_var(b)->name);
    if (r < 0)
        return pl_error_wrap(err, r, "%s", pl_env_var(b)->name);
    *ret = (unsigned)n;
    return 0;
}

static int local_tasks(struct pl_slurm_step *s, struct pl_error *err)
{
    const char *list =
        first_env(PL_ENV_SLURM_STEP_TASKS_PER_NODE, PL_ENV_SLURM_TASKS_PER_NODE, PL_ENV_NONE);

    if (pl_env(PL_ENV_PLUME_LOCAL_NTASKS))
        return number(PL_ENV_PLUME_LOCAL_NTASKS, PL_ENV_PLUME_LOCAL_NTASKS, PL_ENV_NONE, -1,
                      &s->local_ntasks, err);
    if (!list)
        return pl_error_set(err, -ENOENT,
                            "SLURM_STEP_TASKS_PER_NODE is not set: start plrun with srun");
    return pl_parse_tasks_per_node(list, s->node_id, &s->local_ntasks, err);
}

static void array_name(struct pl_slurm_step *s)
{
    const char *base = pl_env(PL_ENV_SLURM_ARRAY_JOB_ID),
               *task = pl_env(PL_ENV_SLURM_ARRAY_TASK_ID);

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

    r = number(PL_ENV_PLUME_JOB_ID, PL_ENV_SLURM_JOB_ID, PL_ENV_SLURM_JOBID, -1, &job, err);
    if (r == 0)
        r = number(PL_ENV_PLUME_STEP_ID, PL_ENV_SLURM_STEP_ID, PL_ENV_SLURM_STEPID, -1, &step, err);
    if (r == 0)
        r = number(PL_ENV_PLUME_RESTART, PL_ENV_SLURM_RESTART_COUNT, PL_ENV_NONE, 0, &s.id.attempt,
                   err);
    if (r == 0)
        r = number(PL_ENV_PLUME_NODE_ID, PL_ENV_SLURM_NODEID, PL_ENV_NONE, -1, &s.node_id, err);
    if (r == 0)
        r = number(PL_ENV_PLUME_NNODES, PL_ENV_SLURM_STEP_NUM_NODES, PL_ENV_SLURM_NNODES, -1,
                   &s.nnodes, err);
    if (r == 0)
        r = number(PL_ENV_PLUME_NTASKS, PL_ENV_SLURM_STEP_NUM_TASKS, PL_ENV_SLURM_NTASKS, -1,
                   &s.ntasks, err);
    if (r == 0)
        r = local_tasks(&s, err);
    if (r == 0 && task)
        r = number(PL_ENV_SLURM_PROCID, PL_ENV_SLURM_PROCID, PL_ENV_NONE, -1, &s.rank, err);
    if (r == 0 && task)
        r = number(PL_ENV_SLURM_LOCALID, PL_ENV_SLURM_LOCALID, PL_ENV_NONE, -1, &s.local_rank, err);
    if (r < 0)
        return r;
    snprintf(s.id.job, sizeof(s.id.job), "%u", job);
    snprintf(s.id.step, sizeof(s.id.step), "%u", step);
    array_name(&s);
    if (s.node_id >= s.nnodes || s.local_ntasks == 0 || s.local_ntasks > s.ntasks ||
        (task && (s.rank >= s.ntasks || s.local_rank >= s.local_ntasks)))
        return pl_error_set(
            err, -EINVAL,
            "Slurm's variables contradict each other (node %u of %u, %u of %u tasks): start plrun "
            "with srun, and set no SLURM_ variable",
            s.node_id, s.nnodes, s.local_ntasks, s.ntasks);
    s.nodelist =
        first_env(PL_ENV_PLUME_NODELIST, PL_ENV_SLURM_STEP_NODELIST, PL_ENV_SLURM_JOB_NODELIST);
    s.node = first_env(PL_ENV_SLURMD_NODENAME, PL_ENV_NONE, PL_ENV_NONE);
    s.launch_addr = first_env(PL_ENV_SLURM_LAUNCH_NODE_IPADDR, PL_ENV_NONE, PL_ENV_NONE);
    s.job_name = first_env(PL_ENV_SLURM_JOB_NAME, PL_ENV_NONE, PL_ENV_NONE);
    s.plugin = pl_env(PL_ENV_PLUME_PLUGIN) != NULL;
    s.run_dir = first_env(PL_ENV_PLUME_RUN_DIR, PL_ENV_NONE, PL_ENV_NONE);
    if (s.run_dir) {
        r = number(PL_ENV_PLUME_TRIAL, PL_ENV_PLUME_TRIAL, PL_ENV_NONE, 0, &s.trial, err);
        if (r == 0)
            r = number(PL_ENV_PLUME_ATTEMPT, PL_ENV_PLUME_ATTEMPT, PL_ENV_NONE, 0, &s.attempt, err);
        if (r < 0)
            return r;
    }
    if (!s.nodelist)
        return pl_error_set(err, -ENOENT, "SLURM_STEP_NODELIST is not set: start plrun with srun");
    *ret = s;
    return 0;
}
