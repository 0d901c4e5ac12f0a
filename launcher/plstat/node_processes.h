/* SPDX-License-Identifier: MIT */
/* The processes of this node, from /proc, as far as the caller may look: whose they are, which job
 * they say or their control group says they belong to, and what they run. */
#ifndef PL_LAUNCHER_PLSTAT_NODE_PROCESSES_H
#define PL_LAUNCHER_PLSTAT_NODE_PROCESSES_H

#include "common/base/error.h"
#include "launcher/plstat/process_memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pl_node_process {
    pid_t pid;
    uid_t uid;      /* real user */
    uint64_t start; /* clock ticks since boot: tells it from a later process of this number */
    double age_s;
    int64_t job;        /* Slurm's number; -1: none, or not to be seen */
    int64_t cgroup_job; /* the same by its control group alone, which a program cannot choose */
    char sluid[PL_SLUID_SIZE]; /* the run of a job that its control group names, as those of Slurm
                                * 26.05 do instead of the job; "": none */
    bool in_step;              /* descends from a slurmstepd: its job has not ended on this node */
    bool seen;                 /* its environment could be read */
    int silent;    /* 0, or why its memory is not read: -ETIMEDOUT (it does not answer), -errno (no
                    * process could be had that reads it); what is below, and its job, are not known */
    char *command; /* arguments, joined; "[name]" where it has none */
    char *run_dir; /* PLUME_RUN_DIR; NULL: none */
    char *slurm_conf; /* SLURM_CONF; NULL: none */
};
void pl_node_process_finish(struct pl_node_process *p);

/* Looks at one process. -ESRCH: it has ended, -ENOMEM, -errno: a file of /proc cannot be read. */
int pl_node_process_get(pid_t pid, struct pl_node_process *ret);

/* Calls f for each process of the node but this one; stops at the first error of f. f may keep what
 * the process owns and set its pointers to NULL. */
int pl_node_processes_each(int (*f)(void *ctx, struct pl_node_process *p),
                           void *ctx,
                           struct pl_error *err);

#endif
