/* SPDX-License-Identifier: MIT */
/* Hosts of several clusters may share a home, and so the index of runs. */
#ifndef PL_LAUNCHER_SLURM_SLURM_CLUSTER_H
#define PL_LAUNCHER_SLURM_SLURM_CLUSTER_H

#include "common/base/error.h"
#include "common/run/run_folder.h"
#include "common/run/run_index.h"

/* The name of this host's cluster; the caller frees it. NULL: not known. It comes from slurm.conf;
 * on a configless host without a copy of that, Slurm is asked once. */
char *pl_slurm_cluster(void);

/* As pl_run_index_find(); a job id is one of this host's cluster, if that has given it. */
int pl_slurm_find_run(const char *word, struct pl_run_ref *ret, struct pl_error *err);

/* 0 if Slurm on this host is that of the run's cluster, or if one of the two is not known. -EXDEV:
 * Slurm here does not know the run's jobs, and may have others with their numbers. */
int pl_slurm_check_cluster(const struct pl_run *run, struct pl_error *err);

#endif
