/* SPDX-License-Identifier: MIT */
/* The environment of plrund: only what it needs, from Slurm's own numbers and an allow-list of the
 * job's variables. Pure text, no Slurm. */
#ifndef PL_SPANK_PLUGIN_DAEMON_ENV_H
#define PL_SPANK_PLUGIN_DAEMON_ENV_H

#include "common/base/error.h"

#include <stdint.h>
#include <sys/types.h>

/* Facts of Slurm about the step and this node. Strings are borrowed and may be NULL. */
struct pl_daemon_facts {
    uint32_t job_id, step_id, restart;
    uint32_t node_id, nnodes;
    uint32_t ntasks, local_ntasks;
    uint32_t cpus;           /* of this node that the step may use; 0 where Slurm does not tell */
    const char *node;        /* Slurm's name of this node */
    const char *conf;        /* slurm.conf as slurmstepd knows it; the job's SLURM_CONF is not used,
                                as it may name plugins for scontrol to load */
    const char *scontrol;    /* its absolute path; "" or NULL: the daemon runs none */
    const char *runtime_dir; /* used where the job has no PLUME_RUNTIME_DIR */
    const char *nccl_debug, *master_port, *metric,
        *on_hang; /* options; used where the job's variable is not
           set, as with srun --export=NONE */
};

/* Value of `name` in the environment `env` (NULL-terminated), or NULL. */
const char *pl_env_get(char *const *env, const char *name);

/* Builds the environment from the job's `env`. *ret is NULL-terminated and freed with
 * pl_daemon_env_free(). -ENOMEM. */
int pl_daemon_env(const struct pl_daemon_facts *facts,
                  char *const *env,
                  char ***ret,
                  struct pl_error *err);
void pl_daemon_env_free(char **env);

/* The job's umask from SLURM_UMASK, else 022. */
mode_t pl_daemon_umask(char *const *env);

#endif
