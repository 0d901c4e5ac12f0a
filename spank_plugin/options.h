/* SPDX-License-Identifier: MIT */
/* The options --plume*, for srun, sbatch and salloc, and their way to the nodes. */
#ifndef PL_SPANK_PLUGIN_OPTIONS_H
#define PL_SPANK_PLUGIN_OPTIONS_H

#include "common/base/error.h"
#include "spank_plugin/hooks.h"

#include <stdbool.h>

/* The options of this process. Slurm's callbacks have no context argument: there is one a process,
 * which is one command (srun, sbatch, salloc) or one step on one node (slurmstepd). */
struct pl_spank_options {
    bool enabled;            /* --plume */
    char *nccl_debug;        /* NULL where not given */
    char *master_port;       /* the same */
    char *on_hang;           /* the same */
    char *metric;            /* lines of NAME=REGEX, in slurmstepd unchecked; the same */
    struct pl_error failure; /* in slurmstepd: a value that the command must have refused */
};

/* Registers them; only from slurm_spank_init, in every context. 0, or -EIO where Slurm refuses. */
int pl_spank_options_register(spank_t spank, struct pl_error *err);

/* Borrowed. */
const struct pl_spank_options *pl_options(void);

/* srun, sbatch, salloc, after the command line was read: puts the values into this process's
 * environment, which the job inherits. Slurm itself carries one value an option only. */
void pl_spank_options_export(void);

/* True where an option other than --plume stands on this command line, but not --plume. */
bool pl_spank_options_without_plume(void);

#endif
