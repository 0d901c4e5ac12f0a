/* SPDX-License-Identifier: MIT */
/* One table of functions for each context in which Slurm loads the plugin; dispatch.c chooses.
 * A hook that is NULL does nothing. Hooks of pl_spank_remote return nothing: what they would return
 * drains nodes (doc/slurm-notes.md); a failure is remembered and said in task_init. */
#ifndef PL_SPANK_PLUGIN_HOOKS_H
#define PL_SPANK_PLUGIN_HOOKS_H

#include <stdint.h>

#include <slurm/spank.h>

/* srun, sbatch, salloc: run as the user. */
struct pl_spank_client {
    int (*init)(spank_t spank);
    void (*init_post_opt)(void);
};

/* slurmstepd: run as root but for user_init and task_init (the user), the latter in the task. */
struct pl_spank_step {
    void (*init)(spank_t spank, int argc, char **argv);
    void (*user_init)(spank_t spank);
    void (*task_post_fork)(spank_t spank);
    void (*task_init)(spank_t spank);
    void (*task_exit)(spank_t spank);
    void (*exit)(void);
};

extern const struct pl_spank_client pl_spank_local;     /* srun */
extern const struct pl_spank_client pl_spank_allocator; /* sbatch, salloc */
extern const struct pl_spank_step pl_spank_remote;      /* slurmstepd */

#endif
