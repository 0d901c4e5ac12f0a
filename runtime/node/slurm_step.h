/* SPDX-License-Identifier: MIT */
/* The Slurm step, node and trial that this process belongs to, read once from the environment: from
 * PLUME_* as the plugin sets them for plrund, else from what Slurm sets for a task. */
#ifndef PL_RUNTIME_NODE_SLURM_STEP_H
#define PL_RUNTIME_NODE_SLURM_STEP_H

#include "common/base/error.h"
#include "common/proto/protocol.h"

#include <stdbool.h>

struct pl_slurm_step {
    struct pl_session_id id;  /* job, step, restart count */
    char array[48];           /* "123_4", or the job id without an array */
    unsigned node_id, nnodes; /* this node's index in the step, and how many there are */
    unsigned ntasks, local_ntasks;
    unsigned rank, local_rank; /* only for a task (plrun) */
    const char *node;          /* Slurm's name of this node; borrowed from the environment */
    const char *nodelist;      /* the step's hostlist expression */
    const char *launch_addr;   /* where srun runs; NULL where not known */
    const char *job_name;
    const char *run_dir; /* absolute; NULL outside a sweep */
    unsigned trial, attempt;
    bool plugin; /* plrund was started by the SPANK plugin */
};

/* Fills *ret; strings are borrowed from the environment. task: the caller is a task, so rank and
 * local rank must be there. -ENOENT outside a Slurm step, -EINVAL for values that make no sense. */
int pl_slurm_step_from_env(struct pl_slurm_step *ret, bool task, struct pl_error *err);

#endif
